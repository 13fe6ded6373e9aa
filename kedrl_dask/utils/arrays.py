"""Names for arrays that say what they hold. Sums are in double precision, products may be in single."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any shape and element type: the columns of a table, the chunks of a store."""

Real = npt.NDArray[np.floating[Any]]

Points = Real
"""(n, d): one point a row."""

Inputs = Real
"""(n, p + q): a state and an action a row."""

Actions = Real
"""(n, q): one action a row; or (k, n, q): k draws for every state."""

Atoms = Real
"""(m, d): the points of the return grid."""

Weights = Real
"""(n, m): the weight of every atom at every input; or (n,): of every point."""

Coefficients = Real
"""(L, m): B, by which ω(x) = Bᵀk_L(x)."""

Features = Real
"""(n, Q): features of a kernel, whose products approximate it."""

Frequencies = Real
"""(Q, d): W, one frequency of the return kernel's spectral measure a row."""

Waves = Real
"""(n, 2Q): exp(iWz) of every point z, real and imaginary parts in turn."""

Matrix = Real
"""Any other matrix: Gram matrices, factors, sums of products."""

Matrices = Real
"""(k, r, c): one matrix for every point, block or term."""

Vector = Real
"""Any other vector."""

Complex = npt.NDArray[np.complexfloating[Any, Any]]
"""Waves seen as complex numbers."""

Indices = npt.NDArray[np.integer[Any]]
"""Row numbers."""

Mask = npt.NDArray[np.bool_]
"""Which rows."""

Precision = np.dtype[np.floating[Any]]
"""Single or double precision."""

Record = dict[str, Any]
"""What is written as JSON: keys to numbers, words and lists of them."""
