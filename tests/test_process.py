"""The process itself: its threads of linear algebra."""

from __future__ import annotations

import numpy as np  # noqa: F401 - its BLAS is the one looked at
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kedrl_dask.process import MANY_ROWS, driver_blas_threads


def blas_threads():
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


@pytest.mark.parametrize(("n_rows", "expected"), [(0, 1), (MANY_ROWS - 1, 1), (MANY_ROWS, 2)])
def test_driver_blas_threads__many_for_large_matrices_alone(n_rows, expected):
    with threadpool_limits(limits=2, user_api="blas"):
        with driver_blas_threads(n_rows):
            assert blas_threads() == {expected}
        assert blas_threads() == {2}
