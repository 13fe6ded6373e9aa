"""Declared arrays on disk, and what makes them trustworthy. No other folder imports Zarr.

Provides :class:`~kedrl_dask.engine.storage.array_store.ArrayStore`, whose arrays are declared in ``schema``;
atomic writes; manifests with checksums; locks; the cache of finished results; checkpoints of solvers; and
checks of untrusted files. Imports ``numerics`` (for the states of solvers) and ``utils``.

Integrity is checked in layers, each of which catches damage that the others on its path miss
(``tests/engine/data/test_integrity.py``): Zarr's CRC-32C, flipped bits and truncation at every read;
``ArrayStore.read``, missing chunks; a manifest's CRC-32, chunks and metadata of a cache that were exchanged
or rewritten; a transition store's sha256, the same for data; and the test for finite numbers, data that
another program rewrote with a valid checksum.
"""
