"""What a caller gave, as numbers, or an error of one line that names it and says what was expected."""

from __future__ import annotations

import unicodedata
from numbers import Integral, Real
from typing import Any

import numpy as np

from kedrl_dask.utils.arrays import Array

__all__ = [
    "MOST_COUNT",
    "MOST_SEED",
    "as_numbers",
    "check_count",
    "check_number",
    "check_share",
    "check_word",
    "cut",
    "has_control_characters",
    "is_word",
    "printable",
    "shown",
]


#: No number of anything in memory is larger; and the largest seed.
MOST_COUNT, MOST_SEED = 10**9, 2**63 - 1
#: Unicode categories that move the cursor, end the line or cannot be written; and marks that turn the
#: direction of a text.
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}
_TURNS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROL or character in _TURNS


def has_control_characters(text: str) -> bool:
    """Whether a text can do more to a terminal than be seen, or has no encoding."""
    return any(map(_is_control, text))


def printable(text: str) -> str:
    """The text in one line, with escapes in place of control characters."""
    text = " ".join(text.split())
    return "".join(ascii(c)[1:-1] if _is_control(c) else c for c in text)


def cut(text: str, at_most: int = 300) -> str:
    """The text in one line that can be printed, its end left out where it is long."""
    text = printable(text)
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"


def shown(value: Any) -> str:
    """A value in words for a message: its repr in one line, and its type where that is long."""
    text = printable(repr(value))
    return text if len(text) <= 100 else f"{cut(text, 100)} ({type(value).__name__})"


def is_word(value: Any, *words: str) -> bool:
    """Whether a value is one of these strings; arrays, which compare entry by entry, are not."""
    return isinstance(value, str) and value in words


def check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Refuse anything but one of the words."""
    if not is_word(value, *words):
        raise ValueError(f"{name} must be {' or '.join(map(repr, words))}, got {shown(value)}")


def check_count(name: str, value: Any, least: int = 1, otherwise: str = "", most: int = MOST_COUNT) -> None:
    """Refuse anything but an integer in a range; ``otherwise`` says what else was allowed."""
    is_count = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_count and int(value) >= least):
        raise ValueError(f"{name} must be {otherwise}an integer ≥ {least}, got {shown(value)}")
    if int(value) > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}")


def check_number(
    name: str, value: Any, expected: str, low: float = 0.0, high: float = np.inf, open_low: bool = False
) -> None:
    """Refuse anything but a finite real number from ``low``, or above it if that is open, to ``high``."""
    is_real = isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))
    if not (is_real and low <= value <= high and not (open_low and value == low)):
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")


def check_share(name: str, value: Any) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_real and 0 < value < 1):
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {shown(value)}")


def as_numbers(name: str, given: Any, finite: bool = True) -> Array:
    """Float64 array of real numbers, finite unless that is not asked for."""
    try:
        values = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} has rows of unequal lengths, expected a rectangular array") from error
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must be real numbers, got {shown(given)} of dtype {values.dtype}; "
            "convert it, e.g. with numpy.asarray(values, dtype=float)"
        )
    with np.errstate(over="ignore"):  # of longer floats
        values = values.astype(np.float64)
    if finite and not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        at = f" at {list(where)}" if where else ""
        raise ValueError(f"{name} must be finite, got {values[where]}{at}; drop it or fill the value in")
    return values
