"""Groups of declared arrays on disk. Nothing else knows Zarr."""

from __future__ import annotations

from kedrl_dask.store.arrays import FORMAT_VERSION, ArrayStore
from kedrl_dask.store.disk import (
    DamageError,
    PathLike,
    StoreError,
    appearing,
    attributes_at,
    check_vacant,
    digest,
    part_name,
    remove,
)

__all__ = [
    "FORMAT_VERSION",
    "ArrayStore",
    "DamageError",
    "PathLike",
    "StoreError",
    "appearing",
    "attributes_at",
    "check_vacant",
    "digest",
    "part_name",
    "remove",
]
