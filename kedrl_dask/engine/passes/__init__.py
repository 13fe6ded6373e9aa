"""Passes over the data and over conditioning points: chunk functions, and their sums over all chunks.

Gives the streaming pass, conditioning points, and the criteria of both constructions as a solver sees them.
Imports ``data``, ``execute``, ``plan``, ``storage`` and ``numerics``.
"""
