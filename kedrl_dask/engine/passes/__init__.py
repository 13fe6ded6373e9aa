"""Passes over the data and over conditioning points: chunk functions, and their sums over all chunks.

Provides the streaming pass, the conditioning points, and the criteria of both constructions for a solver.
Imports ``data``, ``execute``, ``plan``, ``storage`` and ``numerics``.
"""
