"""Numbers that went wrong: said aloud, or refused, but never handed on in silence."""

from __future__ import annotations

import numpy as np

from kedrl_dask.utils.arrays import Array

__all__ = ["FitWarning", "NumericalError", "NumericalWarning", "require_finite"]


class FitWarning(UserWarning):
    """A fit came to its end, and something speaks against it."""


class NumericalWarning(FitWarning):
    """Numbers are finite but not what was asked for."""


class NumericalError(ValueError):
    """Numbers left the range of double precision; the message says where, and what to change."""


def require_finite(what: str, remedy: str, *arrays: Array | float | None) -> None:
    """Refuse NaN and infinity in the result of a stage; None is passed over."""
    for array in arrays:
        if array is None or np.isfinite(array).all():
            continue
        n_bad = int(np.size(array) - np.isfinite(array).sum())
        raise NumericalError(f"{n_bad:,} of {np.size(array):,} numbers of {what} are not finite; {remedy}")
