"""Tables of recorded time points, in memory or in files, as stores. Nothing else knows Arrow."""

from __future__ import annotations

from kedrl_dask.tables.columns import MISSING_POLICIES, Columns
from kedrl_dask.tables.source import FORMATS
from kedrl_dask.tables.storing import Ingested, ingest

__all__ = ["FORMATS", "MISSING_POLICIES", "Columns", "Ingested", "ingest"]
