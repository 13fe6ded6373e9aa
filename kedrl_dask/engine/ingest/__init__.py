"""Tables of recorded time points, in memory or in files, as stores. Nothing else knows Arrow.

Two passes over a table of any size and order: the first surveys columns and episodes, the second sorts rows
on disk and writes the store. Imports ``data``, ``storage`` and ``utils``.
"""
