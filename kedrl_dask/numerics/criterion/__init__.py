"""The Bellman criterion of both constructions at some conditioning points.

Gives values, gradients and products over a chunk, the preconditioner, and the test of separation that tells
which construction the data ask for. Imports ``kernels`` and ``utils``.
"""
