"""The cost of the stages that only the paired construction has."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from kedrl_dask.engine.plan.partition import (
    FREQUENCY_CHUNK,
    FREQUENCY_SHARD,
    GROUP_ROWS,
    LINK_GROUPS,
    sweep_groups,
)
from kedrl_dask.engine.plan.stage_costs import (
    DOUBLE,
    EFFICIENCY,
    USUAL_PRODUCTS,
    Crew,
    Residency,
    Sizes,
    Stage,
)

#: Form of the target of the paired construction.
PairedForm = Literal["contracted", "matrix-free"]

#: Share of the flop rate of square matrices that the contraction achieves; nearly all of it is one product.
CONTRACTION_EFFICIENCY = 0.85
#: Bytes that a core reads from memory per second.
MEMORY_RATE = 5e9


def _tensor(s: Sizes) -> int:
    """Number of entries of the contracted target, counting real and imaginary parts."""
    return 2 * s.n_features * s.n_landmarks * s.n_basis


def _row(s: Sizes) -> tuple[float, int, int]:
    """Flop, kernel evaluations and number of entries of φ, κ̃ and the waves of a transition."""
    draws = 1 if s.n_centers else s.n_draws
    flop = 0.4 * s.n_landmarks**2 + 1.2 * s.n_basis**2
    evaluations = s.n_landmarks + draws * s.n_basis + s.n_centers
    return flop, evaluations, s.n_landmarks + 2 * s.n_basis + 2 * s.n_features


def _contraction_memory(crew: Crew, shards: int) -> int:
    s = crew.sizes
    chunks = -(-s.n_features // FREQUENCY_CHUNK)
    share = -(-chunks // shards) * FREQUENCY_CHUNK / s.n_features
    numbers = GROUP_ROWS * (_row(s)[2] + 2 * FREQUENCY_CHUNK * s.n_basis)
    products = 2 * FREQUENCY_CHUNK * s.n_landmarks * s.n_basis
    task = s.itemsize * (numbers + products) + DOUBLE * (share * _tensor(s) + products) + s.read_ahead
    return crew.memory(crew.n_threads * task, crew.fitted)


def n_shards(crew: Crew, budget: int) -> int:
    """Number of parts of the frequencies: one for each thread, or more if memory is short."""
    most = -(-crew.sizes.n_features // FREQUENCY_CHUNK)
    choices = range(crew.all_threads, most, crew.all_threads)
    # More shards never need more memory.
    fitting = bisect_left(choices, True, key=lambda shards: _contraction_memory(crew, shards) <= budget)
    return choices[fitting] if fitting < len(choices) else most


def contraction(crew: Crew, shards: int) -> Stage:
    """Contraction of the target; every shard of the frequencies reads all transitions."""
    s = crew.sizes
    flop, evaluations, _ = _row(s)
    links = -(-s.n_rows // (LINK_GROUPS * GROUP_ROWS))
    solve = 2.0 * _tensor(s) * s.n_landmarks
    product = s.n_transitions * 2.0 * _tensor(s)
    around = s.n_transitions * shards * flop + solve
    counts = product + around, float(s.n_transitions) * evaluations * shards
    effective = product * EFFICIENCY / CONTRACTION_EFFICIENCY + around
    seconds = crew.seconds(effective, counts[1], s.n_rows * shards, shards)
    disk = _tensor(s) * (2 * DOUBLE + s.itemsize)
    return Stage("contraction", shards * links, *counts, seconds, _contraction_memory(crew, shards), disk)


def compression(crew: Crew) -> Stage:
    """Second moments of the conditioning points, by QR decompositions."""
    s = crew.sizes
    width, n = s.n_landmarks + s.n_basis, s.n_conditioning
    flop, evaluations = 2.0 * n * width**2, float(n * width)
    # In double precision; and a QR decomposition is slower than a product.
    seconds = crew.seconds(4 * flop, 3 * evaluations, 0, s.n_chunks)
    task = DOUBLE * width * (4 * s.chunk_points + 4 * width)
    merging = DOUBLE * width**2 * (-(-s.n_chunks // 8) + 4) if crew.n_workers == 1 else 0
    memory = crew.memory(crew.n_threads * task, merging, crew.fitted)
    return Stage("conditioning points", s.n_chunks, flop, evaluations, seconds, memory, 0)


def paired_solver(crew: Crew, form: PairedForm, residency: Residency) -> Stage:
    """Products of the Hessian, by frequencies or by transitions."""
    return (_contracted if form == "contracted" else _matrix_free)(crew, residency)


def _dense_flop(s: Sizes) -> float:
    """Flop of the products with the compressed points."""
    rows = min(s.n_conditioning, s.n_landmarks + s.n_basis)
    return 8.0 * s.n_features * (rows * (s.n_atoms + s.n_landmarks) + s.n_basis * s.n_atoms)


def _contracted(crew: Crew, residency: Residency) -> Stage:
    s = crew.sizes
    blocks = -(-s.n_features // FREQUENCY_SHARD)
    tasks = min(crew.all_threads, blocks)
    rows = min(s.n_conditioning, s.n_landmarks + s.n_basis)
    flop = 8.0 * _tensor(s) + _dense_flop(s) + 4.0 * blocks * rows * s.n_basis * s.n_atoms
    size = s.itemsize * _tensor(s)
    rate = crew.machine.stored if residency == "stored" else MEMORY_RATE
    seconds = crew.seconds(flop, 0, 0, tasks) + 2 * size / rate / tasks
    held = size / crew.n_workers if residency == "resident" else 0
    exact = 2 * DOUBLE * FREQUENCY_SHARD * (s.n_landmarks * s.n_basis + 2 * rows)
    points = (DOUBLE + s.itemsize) * rows * (s.n_landmarks + s.n_basis)
    memory = crew.memory(held, crew.n_threads * (exact + points), 2 * points, crew.fitted)
    return Stage("solver", tasks, USUAL_PRODUCTS * flop, 0, USUAL_PRODUCTS * seconds, memory, 0)


def _matrix_free(crew: Crew, residency: Residency) -> Stage:
    s = crew.sizes
    own, kernel, numbers = _row(s)
    # Forward and backward.
    flop = 4.0 * s.n_transitions * (s.n_basis * s.n_atoms + 2 * s.n_features * (s.n_atoms + s.n_landmarks))
    evaluations, rows, held = 0.0, 0.0, float(s.n_transitions) * s.itemsize * numbers / crew.n_workers
    if residency == "recomputed":
        flop, evaluations = flop + 2 * s.n_transitions * own, 2.0 * s.n_transitions * kernel
        rows, held = 2.0 * s.n_rows, crew.n_threads * s.itemsize * GROUP_ROWS * numbers
    chunks = -(-s.n_rows // (sweep_groups(s.n_rows) * GROUP_ROWS))
    tasks = min(crew.all_threads, chunks)
    # The driver solves the regression twice, and multiplies with the compressed points.
    driver = 8.0 * s.n_features * s.n_landmarks**2 + _dense_flop(s)
    seconds = crew.seconds(flop, evaluations, rows, tasks)
    seconds += 2 * driver / (EFFICIENCY * crew.machine.exact_gemm)
    task = 3 * DOUBLE * GROUP_ROWS * (2 * s.n_features + s.n_atoms) + s.read_ahead
    partial = 2 * DOUBLE * s.n_landmarks * 2 * s.n_features * chunks.bit_length()
    width = s.n_landmarks + s.n_basis
    points = DOUBLE * width * (width + 4 * s.n_features) if crew.n_workers == 1 else 0
    memory = crew.memory(held, crew.n_threads * (task + partial), points, crew.fitted)
    counts = USUAL_PRODUCTS * flop, USUAL_PRODUCTS * evaluations
    return Stage("solver", tasks, *counts, USUAL_PRODUCTS * seconds, memory, 0)
