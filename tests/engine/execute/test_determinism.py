"""Results do not depend on where they are computed: in threads or workers, and however arrays travel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.service import doctor


def addresses(number, array, offset):
    """Addresses of the arrays of a task, modulo the alignment of a vector; and a new array."""
    return [x.ctypes.data % 16 for x in (array, offset["inside"])], np.ones(number, np.float32)


@pytest.mark.slow
def test_arrays__are_aligned_wherever_they_travelled():
    """Small arrays travel with the task; taken out of a message, they might be unaligned."""
    with local_cluster(1) as executor:
        for size in range(1, 20):
            arrays = np.ones((size, 7), np.float32), {"inside": np.ones(3 * size, np.float32)}
            for sent in (arrays, [executor.share(array) for array in arrays]):
                for found, result in executor.map(addresses, [size, size + 1], *sent):
                    assert found == [0, 0]
                    assert result.ctypes.data % 16 == 0


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["Haswell", "SkylakeX"])
def test_workers__give_what_threads_give(kernels, monkeypatch):
    """With OpenBLAS's kernels for AVX2 and for AVX-512; other BLAS libraries ignore the variable."""
    if kernels == "SkylakeX" and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    monkeypatch.setenv("OPENBLAS_CORETYPE", kernels)
    check = doctor._fit(500)
    assert check.status == "good", check
    assert "difference from threads: one worker " in check.found
