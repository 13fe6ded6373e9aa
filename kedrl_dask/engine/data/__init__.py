"""The store of transitions: written in pieces, validated once when rows are given, read by row ranges.

Provides :class:`~kedrl_dask.engine.data.transition_store.TransitionStore`. Imports ``storage`` and ``utils``;
``ingest`` only when a table is given.
"""
