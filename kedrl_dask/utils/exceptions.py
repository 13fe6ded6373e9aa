"""The errors and warnings of the package, and warnings that name the caller's line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import numpy as np

from kedrl_dask.utils.arrays import Array

#: Files whose frames are not the user's: the package, and the context managers through which it calls itself.
_OWN_FILES = (f"{Path(__file__).parents[1]}/", contextlib.__file__)


class FitWarning(UserWarning):
    """A fit finished, but something speaks against its result."""


class NumericalWarning(FitWarning):
    """Numbers are finite but not what was asked for."""


class NumericalError(ValueError):
    """Numbers left the range of double precision; the message says where, and what to change."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning in the name of the first caller outside the package.

    Python 3.12 has ``skip_file_prefixes`` for this.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def require_finite(what: str, remedy: str, *arrays: Array | float | None) -> None:
    """Raise if the result of a stage has NaN or infinite entries; None is passed over."""
    for array in arrays:
        if array is None or np.isfinite(array).all():
            continue
        n_bad = int(np.size(array) - np.isfinite(array).sum())
        raise NumericalError(f"{n_bad:,} of {np.size(array):,} numbers of {what} are not finite; {remedy}")
