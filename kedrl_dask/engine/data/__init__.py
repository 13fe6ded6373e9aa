"""The store of transitions: written in pieces, validated at the door, read by row ranges.

Gives :class:`~kedrl_dask.engine.data.transition_store.TransitionStore`. Imports ``storage`` and ``utils``;
``ingest`` only when a table is given.
"""
