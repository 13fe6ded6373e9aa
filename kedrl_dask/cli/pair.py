"""The option that names a pair of policies of the simulation study."""

from __future__ import annotations

from typing import Any

from kedrl_dask.datasets.simulation import PAIRS

__all__ = ["PAIR"]

PAIR: dict[str, Any] = {
    "choices": sorted(PAIRS),
    "default": "uniform-gaussian",
    "metavar": "PAIR",
    "help": "behaviour and target policy: %(choices)s (default: %(default)s)",
}
