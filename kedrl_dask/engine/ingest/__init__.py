"""Ingestion of tables of recorded time points, in memory or in files. No other folder here imports Arrow.

Two passes are made over a table of any size and order: the first surveys columns and episodes, the second
sorts rows on disk and writes the store. Imports ``data``, ``storage`` and ``utils``.
"""
