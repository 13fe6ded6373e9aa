"""The cost of each stage of a fit: tasks, flop, kernel evaluations, seconds, memory and disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kedrl_dask.engine.plan.partition import GROUP_ROWS, PIECE_GROUPS, READ_GROUPS
from kedrl_dask.numerics.criterion.preconditioner import MOST_DIRECTIONS
from kedrl_dask.numerics.criterion.surrogate import USUAL_TERMS, SurrogateCost
from kedrl_dask.numerics.design.sizes import (
    DESIGN_SAMPLE,
    EXACT_HELD_OUT,
    N_FOLDS,
    SEPARATION_BLOCKS,
    SEPARATION_SAMPLE,
)

#: Where the conditioning points are during the solver: in memory, on disk, or recomputed for each product.
Residency = Literal["resident", "stored", "recomputed"]

MIB, DOUBLE = 2**20, 8
#: Typical number of products in preconditioned conjugate gradients; a fit counts its own.
USUAL_PRODUCTS = 100
#: The same with a surrogate of the Hessian; products in double precision are weighted by their time.
PRODUCTS_WITH_SURROGATE = 25
#: Share of the flop rate of square matrices that passes and products achieve.
EFFICIENCY = 0.75
#: Bytes per thread for a block of exact kernel values and their products with weights.
EXACT_WORK = 32 * MIB
#: Bytes of H and G that a thread multiplies with vectors per second.
EXACT_READ = 5e9
#: Overhead of a task in seconds.
TASK_SECONDS = 0.004
#: Allocators keep more memory than is in use, and libraries need some as well.
SLACK, HEADROOM = 1.4, 128 * MIB


@dataclass(frozen=True)
class Machine:
    """Rates per second of one thread while all are busy, and the memory of a process before it starts."""

    gemm: float  # flop of matrix products in the precision of the fit
    exact_gemm: float  # the same in double precision
    evaluations: float  # of kernels, in the precision of the fit
    rows: float  # recorded rows read
    baseline: int  # bytes of a process after all imports
    stored: float = 2e8  # bytes of stored conditioning points read; typical of a shared disk, not measured


#: A slow core of 2020, for decisions that depend on ratios of rates and not on seconds.
NOMINAL = Machine(4e10, 2e10, 1.5e8, 5e5, 300 * 2**20)


@dataclass(frozen=True)
class Sizes:
    """The sizes on which a plan depends.

    Those of landmarks, basis and draws are upper bounds, because the design may need fewer.
    """

    n_rows: int
    n_transitions: int
    state_dim: int
    action_dim: int
    reward_dim: int
    chunk_rows: int
    n_blocks: int
    n_atoms: int
    n_basis: int
    n_landmarks: int
    n_features: int
    n_conditioning: int
    chunk_points: int
    n_draws: int
    n_centers: int  # of the density ratio; 0 if there is none
    has_terminal: bool
    itemsize: int  # of the products
    exact: bool = False  # H and G come from the return kernel itself
    n_folds: int = N_FOLDS  # of the sums; one if λ_Γ is given

    @property
    def n_chunks(self) -> int:
        """Number of chunks of conditioning points."""
        return -(-self.n_conditioning // self.chunk_points)

    @property
    def waves(self) -> int:
        """Number of features of the reward and its terminal part."""
        return 2 * self.n_features * (2 if self.has_terminal else 1)

    @property
    def sums(self) -> int:
        """Number of entries in the sums over one block of episodes."""
        return self.n_landmarks * (self.n_landmarks + self.n_basis + self.waves)

    @property
    def point(self) -> int:
        """Bytes that the solver needs for one conditioning point."""
        target = self.waves
        if self.exact:
            target = 2 * self.n_atoms**2 + (2 * self.n_atoms + 1 if self.has_terminal else 0)
        return self.itemsize * (2 * self.n_basis + target)

    @property
    def forms(self) -> int:
        """Number of N×N kernel matrices for a chunk with exact operators, one for each shift of G."""
        shifts = self.n_atoms * (self.n_atoms - 1) // 2 + 1
        return shifts + (self.n_atoms if self.has_terminal else 0)

    @property
    def row(self) -> int:
        """Bytes of a recorded row."""
        return DOUBLE * (self.state_dim + self.action_dim + self.reward_dim) + 17

    @property
    def shared(self) -> int:
        """Bytes of the values that all tasks share: landmarks, basis, frequencies, and whitening matrices."""
        dim = self.state_dim + self.action_dim
        points = dim * (self.n_landmarks + self.n_basis) + self.n_features * self.reward_dim
        whitening = (DOUBLE + self.itemsize) * self.n_landmarks * (self.n_landmarks + 128)
        return DOUBLE * points + whitening

    @property
    def read_ahead(self) -> int:
        """Bytes of rows read ahead, their transitions, and one decompressed chunk of every array."""
        transition = DOUBLE * (2 * (self.state_dim + self.action_dim) + self.reward_dim + 3)
        return 2 * READ_GROUPS * GROUP_ROWS * (transition + self.row) + 2 * self.chunk_rows * self.row


@dataclass(frozen=True)
class Stage:
    """One stage of a fit."""

    name: str
    tasks: int  # in total; for the solver, those of each product
    flop: float  # of matrix products
    evaluations: float  # of kernels
    seconds: float
    memory: int  # peak of a worker process, in bytes
    disk: int  # bytes written


@dataclass(frozen=True)
class Crew:
    """The sizes of the work, the machine, and the numbers of worker processes and of threads in each."""

    sizes: Sizes
    machine: Machine
    n_workers: int
    n_threads: int

    @property
    def all_threads(self) -> int:
        """Number of threads of all workers."""
        return self.n_workers * self.n_threads

    @property
    def fitted(self) -> int:
        """Bytes kept after the regression: shared values, coefficients twice, and possibly sums and Γ."""
        s = self.sizes
        kept = s.n_folds * s.sums if self.n_workers == 1 else 0
        if s.exact:
            kept += s.n_transitions * (2 * s.n_landmarks + 4 * (s.state_dim + s.action_dim + s.reward_dim))
        return s.shared + DOUBLE * (2 * s.n_landmarks * (s.n_basis + s.waves + 1) + kept)

    def memory(self, *parts: float) -> int:
        """Peak memory of a process in a stage that holds parts of so many bytes."""
        return int(self.machine.baseline + HEADROOM + SLACK * sum(parts))

    def driver_memory(self, part: float) -> int:
        """The same of a stage that the driver runs, which is the only worker or none."""
        return self.memory(part) if self.n_workers == 1 else self.machine.baseline

    def seconds(self, flop: float, evaluations: float, rows: float, tasks: int) -> float:
        """Seconds of work that all threads share and that overlaps with reading."""
        m, threads = self.machine, min(self.all_threads, tasks)
        compute = flop / (EFFICIENCY * m.gemm) + evaluations / m.evaluations
        return max(compute, rows / m.rows) / threads + tasks * TASK_SECONDS / threads


def design(crew: Crew) -> Stage:
    """Choice of landmarks, basis, grid and kernel, by the driver."""
    s, driver = crew.sizes, crew.machine
    n, dim = min(DESIGN_SAMPLE, s.n_transitions), s.state_dim + s.action_dim
    points = s.n_landmarks + s.n_basis + s.n_atoms
    # About 30 iterations of k-means, and 25 sets of lengths with 300 landmarks on 4,000 transitions.
    flop = 30 * 2 * n * points * dim + 25 * 4_000 * 2 * 300 * 900
    seconds = flop / driver.exact_gemm * 4 + n * points * 1e-7 + s.n_rows / driver.rows / 4
    memory = 6 * n * (s.row + DOUBLE * dim) + DOUBLE * (4_000 * 1_500 + 3 * s.n_landmarks**2)
    return Stage("design", 1, flop, 25 * 4_000 * 300, seconds, crew.driver_memory(memory), n * s.row)


def ratio(crew: Crew) -> Stage:
    """Sums of uLSIF over all transitions."""
    s, b = crew.sizes, crew.sizes.n_centers
    flop, evaluations = s.n_transitions * 2.0 * b * b, s.n_transitions * b * (1.0 + s.n_draws)
    memory = crew.n_threads * (3 * GROUP_ROWS * b * s.itemsize + 2 * DOUBLE * b * b + s.read_ahead)
    seconds = crew.seconds(flop, evaluations, s.n_rows, s.n_blocks)
    return Stage("density ratio", s.n_blocks, flop, evaluations, seconds, crew.memory(memory), 0)


def streaming(crew: Crew) -> Stage:
    """Features, their products with the responses, and the sums of blocks."""
    s, r = crew.sizes, crew.sizes.n_landmarks
    continuation = s.n_basis * (s.n_draws if not s.n_centers else 1) + s.n_centers
    flop = s.n_transitions * (2.0 * r * (0.6 * r + s.n_basis + 2 * s.n_features) + r * r)
    evaluations = float(s.n_transitions) * (r + continuation)
    tasks = max(s.n_blocks, -(-s.n_rows // (PIECE_GROUPS * GROUP_ROWS)))
    group = 2 * r + 2 * s.n_basis + 3 * s.n_features + s.n_centers
    widest = max(r, 2 * s.n_features, s.n_basis)
    task = s.itemsize * (GROUP_ROWS * group + r * widest) + 2 * DOUBLE * s.sums + s.read_ahead
    memory = crew.memory(crew.n_threads * task, s.shared)
    disk = DOUBLE * s.n_blocks * s.sums
    seconds = crew.seconds(flop, evaluations, s.n_rows, tasks)
    return Stage("streaming pass", tasks, flop, evaluations, seconds, memory, disk)


def regression(crew: Crew) -> Stage:
    """Cross-validation over the folds of the sums, or the solution alone if λ_Γ is given, by the driver."""
    s, r = crew.sizes, crew.sizes.n_landmarks
    flop, responses = 2.0 * r * r * (s.n_basis + s.waves), r * (s.n_basis + s.waves)
    # The sums, and the responses: completed, concatenated, solved and split again.
    memory = DOUBLE * (2 * s.sums + 4 * responses + r * r)
    if s.n_folds > 1:
        flop += s.n_folds * (10.0 * r**3 + 4 * r * r * (s.n_basis + s.waves))
        # The folds: completed, scaled, concatenated and merged again.
        memory = DOUBLE * (5 * s.n_folds * s.sums + 2 * s.sums + 6 * r * r)
    seconds = 2 * flop / crew.machine.exact_gemm + DOUBLE * s.n_blocks * s.sums / 5e8
    return Stage("regression", 1, flop, 0, seconds, crew.driver_memory(memory), 0)


def _evaluation(s: Sizes, chunk_points: int) -> tuple[float, float, int]:
    """Flop, kernel evaluations and bytes to evaluate the operators at one point of a chunk."""
    flop = 2.0 * s.n_landmarks * (0.6 * s.n_landmarks + s.n_basis)
    evaluations, numbers = float(s.n_landmarks + s.n_basis), 3 * s.n_landmarks + 3 * s.n_basis
    if not s.exact:
        return flop + 2.0 * s.n_landmarks * s.waves, evaluations, DOUBLE * (numbers + 2 * s.waves)
    # Γ, then H and G; all points of a chunk share the kernel evaluations.
    n, m = float(s.n_transitions), s.n_atoms
    flop += 2 * n * (s.n_landmarks + m * m + n * s.forms)
    evaluations += n * (m * m + n * s.forms) / chunk_points
    return flop, evaluations, DOUBLE * (numbers + 2 * s.n_transitions + 4 * m * m)


def _double_rates(s: Sizes) -> tuple[int, int]:
    """Slowdown of products and kernel evaluations in double precision, relative to that of the fit."""
    return (1, 1) if s.itemsize == DOUBLE else (2, 3)


def conditioning(crew: Crew) -> Stage:
    """The operators at the conditioning points, in double precision."""
    s = crew.sizes
    flop, evaluations, held = _evaluation(s, s.chunk_points)
    slower, counts = _double_rates(s), (flop * s.n_conditioning, evaluations * s.n_conditioning)
    seconds = crew.seconds(slower[0] * counts[0], slower[1] * counts[1], 0, s.n_chunks)
    inputs = DOUBLE * (s.state_dim + s.action_dim + 2) * s.n_conditioning
    task = s.chunk_points * held + (EXACT_WORK if s.exact else 0)
    memory = crew.memory(crew.n_threads * task, crew.fitted, 4 * inputs)
    disk = s.n_conditioning * s.point + inputs
    return Stage("conditioning points", s.n_chunks, *counts, seconds, memory, disk)


def solver(crew: Crew, residency: Residency) -> Stage:
    """Products of the Hessian, with one task for each thread of a cluster."""
    s, m = crew.sizes, crew.machine
    chunk = s.chunk_points * s.point
    # Through the features and back, or with H twice and G once.
    through = s.n_atoms * s.n_atoms if s.exact else s.n_atoms * s.waves
    per_product = 8.0 * s.n_conditioning * (s.n_atoms * s.n_basis + through)
    tasks = min(crew.all_threads, s.n_chunks)
    # Every product reads H and G from memory.
    again, evaluations, resident = s.n_conditioning * s.point / EXACT_READ if s.exact else 0.0, 0.0, 0
    if residency == "resident":
        resident = -(-s.n_conditioning // crew.n_workers) * s.point
    elif residency == "stored":
        again += s.n_conditioning * s.point / m.stored
    else:
        flop, kernel, held = _evaluation(s, s.chunk_points)
        again += _double_rates(s)[0] * s.n_conditioning * flop / (EFFICIENCY * m.gemm)
        evaluations, chunk = s.n_conditioning * kernel, s.chunk_points * (s.point + held)
    seconds = crew.seconds(per_product, _double_rates(s)[1] * evaluations, 0, tasks) + again / tasks
    features = 16 * 2**21
    # Sums over chunks are folded as they are computed.
    partial = DOUBLE * s.n_basis * s.n_atoms * s.n_chunks.bit_length()
    held = resident if residency == "resident" else crew.n_threads * 2 * chunk
    memory = crew.memory(held, crew.n_threads * features, 3 * partial, crew.fitted)
    n_products, flop, own = USUAL_PRODUCTS, 0.0, 0.0
    surrogate = SurrogateCost.of(s.n_basis, s.n_atoms, s.waves, s.n_conditioning)
    if surrogate.pays and not s.exact:
        # The workers compute its sums, the driver its steps.
        n_products, flop = PRODUCTS_WITH_SURROGATE, surrogate.sums + surrogate.steps
        own = (surrogate.sums / tasks + surrogate.steps) / (EFFICIENCY * m.gemm)
        memory = max(memory, crew.memory(held, _surrogate_memory(crew), crew.fitted))
    counts = n_products * per_product + flop, n_products * evaluations
    return Stage("solver", tasks, *counts, n_products * seconds + own, memory, 0)


def _surrogate_memory(crew: Crew) -> int:
    """Bytes of the sums of its terms, and of the surrogate itself if the driver is the worker."""
    s = crew.sizes
    directions = min(s.n_basis, MOST_DIRECTIONS)
    n_terms = sum(USUAL_TERMS)
    nodes = s.n_chunks.bit_length() + 2 + (4 if crew.n_workers == 1 else 0)
    rotated = s.chunk_points * (4 * directions + s.waves + n_terms)
    return s.itemsize * (nodes * n_terms * directions**2 + crew.n_threads * rotated)


def diagnostics(crew: Crew, before: Stage) -> Stage:
    """The test of separation on the sample, and the Bellman risk at held-out inputs, by the driver.

    Its memory is added to that of the previous stage, which threads freed but allocators kept.
    """
    s, r = crew.sizes, crew.sizes.n_landmarks
    n, waves = min(SEPARATION_SAMPLE, s.n_transitions), 4 * s.n_features
    flop = 2.0 * n * r * (2 * r + 3 * waves) + SEPARATION_BLOCKS * 4.0 * r * r * waves
    evaluations = 3.0 * n * (r + s.n_basis * s.n_draws)
    fields = 4 * (SEPARATION_BLOCKS * r * 2 * s.n_features + n * (r + waves))
    block = DOUBLE * (n // SEPARATION_BLOCKS + 1_000) * (2 * r + 4 * waves) + DOUBLE * 6 * r * (r + waves)
    held = fields + block
    if s.exact:
        n_points = min(EXACT_HELD_OUT, s.n_transitions)
        own_flop, own_evaluations, own_held = _evaluation(s, n_points)
        flop, evaluations = flop + n_points * own_flop, evaluations + n_points * own_evaluations
        held = max(held, n_points * own_held + EXACT_WORK)
    seconds = flop / (EFFICIENCY * crew.machine.exact_gemm) + evaluations / crew.machine.evaluations
    own = int(before.memory + SLACK * held) if crew.n_workers == 1 else crew.machine.baseline
    return Stage("diagnostics", 1, flop, evaluations, seconds, own, 0)
