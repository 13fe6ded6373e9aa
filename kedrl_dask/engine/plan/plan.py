"""The plan of a fit: its projected cost, and where the conditioning points are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Literal

from kedrl_dask.engine.plan import paired_stage_costs, stage_costs
from kedrl_dask.engine.plan.stage_costs import MIB, Crew, Machine, Residency, Sizes, Stage
from kedrl_dask.utils.arrays import Record

#: The separated construction, or a form of the paired one.
Form = Literal["separated", "contracted", "matrix-free"]


class PlanError(ValueError):
    """A fit would exceed its memory or disk; the message names the setting to change."""


@dataclass(frozen=True)
class Plan:
    """The projected cost of a fit; see :func:`make_plan`.

    A fit in this process has one worker. ``residency`` is that of the conditioning points during the solver,
    or in the paired construction that of the contracted target or the transitions.
    """

    sizes: Sizes
    machine: Machine
    n_workers: int
    n_threads: int  # of each worker process
    budget: int  # bytes that a worker process may use
    residency: Residency
    stages: tuple[Stage, ...]
    form: Form = "separated"
    n_shards: int = 0  # parts into which the contraction divides the frequencies
    at_most: bool = False  # whether the fit may turn out to be of a construction that takes less

    @property
    def memory(self) -> int:
        """Projected peak memory of a worker process, in bytes."""
        return max(stage.memory for stage in self.stages)

    @property
    def disk(self) -> int:
        """Bytes written, before compression."""
        return sum(stage.disk for stage in self.stages)

    @property
    def flop(self) -> float:
        """Floating-point operations of all matrix products."""
        return sum(stage.flop for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Projected time in seconds."""
        return sum(stage.seconds for stage in self.stages)

    def check(self, free_disk: int | None = None) -> None:
        """Raise a :class:`PlanError` if the budget is exceeded, naming the setting that would help most."""
        if self.memory > self.budget:
            stage = max(self.stages, key=lambda s: s.memory)
            raise PlanError(
                f"the fit would use {_bytes(self.memory)} per worker in the stage {stage.name!r}, "
                f"the budget is {_bytes(self.budget)}; {self._remedy()}"
            )
        if free_disk is not None and self.disk > free_disk:
            raise PlanError(
                f"the fit would write up to {_bytes(self.disk)}, {_bytes(free_disk)} are free; "
                f"give fit(..., cache=directory) another disk, or lower n_conditioning or "
                f"{'n_atoms' if self.sizes.exact else 'n_blocks'}"
            )

    def _remedy(self) -> str:
        """The setting whose reduction saves most memory, with a value that fits if possible."""
        saved = {name: self.memory - self._with(name, 0.5).memory for name in ADJUSTABLE}
        names = sorted(saved, key=lambda key: -saved[key])
        otherwise = ", or use operators='features'" if self.sizes.exact else ""
        for name in names[:2]:
            for share in (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01):
                smaller = self._with(name, share)
                if smaller.memory <= self.budget:
                    change = f"{self._value(name):,} to {smaller._value(name):,}"
                    return f"lower {name} from {change}, or raise memory{otherwise}"
        return f"raise memory, or lower {names[0]} and {names[1]}{otherwise}"

    def _value(self, name: str) -> int:
        return int(getattr(self if name == "n_threads" else self.sizes, name))

    def _with(self, name: str, share: float) -> Plan:
        changed: Record = {name: max(1, int(share * self._value(name)))}
        threads = changed.pop("n_threads", self.n_threads)
        sizes = replace(self.sizes, **changed)
        return make_plan(sizes, self.machine, self.n_workers, threads, self.budget, [self.form])

    def to_dict(self) -> Record:
        """The plan as a record for JSON."""
        totals = {name: getattr(self, name) for name in ("memory", "disk", "flop", "seconds")}
        return {**asdict(self), "totals": totals}

    def _lines(self) -> Iterator[tuple[str, ...]]:
        yield "stage", "tasks", "flop", "kernel", "time", "memory", "disk"
        for s in self.stages:
            counts = f"{s.flop:.1e}", f"{s.evaluations:.1e}"
            yield s.name, f"{s.tasks:,}", *counts, _time(s.seconds), _bytes(s.memory), _bytes(s.disk)
        counts = f"{self.flop:.1e}", f"{sum(s.evaluations for s in self.stages):.1e}"
        yield "in all", "", *counts, _time(self.seconds), _bytes(self.memory), _bytes(self.disk)

    def _summary(self) -> str:
        s = self.sizes
        where = f"{self.n_workers} worker(s) of {self.n_threads} thread(s), {_bytes(self.budget)} each"
        return (
            f"Plan for {s.n_transitions:,} transitions on {where}; "
            f"{s.n_conditioning:,} conditioning points in chunks of {s.chunk_points:,}{self._what()}; "
            f"the time of the solver is for a typical number of products{self._unless()}"
        )

    def _unless(self) -> str:
        return "; less if the test of separation chooses the other construction" if self.at_most else ""

    def _what(self) -> str:
        if self.form == "separated":
            return f", {self.residency}"
        what = "target" if self.form == "contracted" else "transitions"
        return f"; paired, {self.form}, {what} {self.residency}"

    def __repr__(self) -> str:
        """Table of the stages."""
        rows = list(self._lines())
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
        return "\n".join([self._summary(), *lines])

    def _repr_html_(self) -> str:
        """Table of the stages, for notebooks."""
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._lines()
        )
        return f"<table><caption>{escape(self._summary())}</caption>{rows}</table>"


#: Settings that the message of a rejected plan may suggest to lower.
ADJUSTABLE = ("n_landmarks", "n_features", "n_basis", "n_atoms", "chunk_points", "n_threads")


def make_plan(
    sizes: Sizes,
    machine: Machine,
    n_workers: int,
    n_threads: int,
    budget: int,
    forms: Sequence[Form] = ("separated",),
) -> Plan:
    """Project the cost of every stage, and choose the fastest plan of these forms within the budget.

    The machine may be :data:`NOMINAL` if only memory matters. Every worker process has ``n_threads`` threads
    and may use ``budget`` bytes.
    """
    crew = Crew(sizes, machine, n_workers, n_threads)
    shards = paired_stage_costs.n_shards(crew, budget)
    choices = [
        Plan(sizes, machine, n_workers, n_threads, budget, residency, stages, form, shards)
        for form in forms
        for residency, stages in _stages(crew, form, shards)
    ]
    fitting = [choice for choice in choices if choice.memory <= budget]
    if fitting:
        return min(fitting, key=lambda choice: choice.seconds)
    return min(choices, key=lambda choice: choice.memory)


def _stages(crew: Crew, form: Form, shards: int) -> Iterator[tuple[Residency, tuple[Stage, ...]]]:
    """All stages, for each possible residency."""
    first = [stage_costs.design(crew)]
    if crew.sizes.n_centers:
        first.append(stage_costs.ratio(crew))
    first += [stage_costs.streaming(crew), stage_costs.regression(crew)]
    if form == "contracted":
        first.append(paired_stage_costs.contraction(crew, shards))
    first.append(
        stage_costs.conditioning(crew) if form == "separated" else paired_stage_costs.compression(crew)
    )
    for residency in RESIDENCIES[form]:
        if form == "separated":
            solver = stage_costs.solver(crew, residency)
        else:
            solver = paired_stage_costs.paired_solver(crew, form, residency)
        yield residency, (*first, solver, stage_costs.diagnostics(crew, solver))


RESIDENCIES: dict[Form, tuple[Residency, ...]] = {
    "separated": ("resident", "stored", "recomputed"),
    "contracted": ("resident", "stored"),
    "matrix-free": ("resident", "recomputed"),
}


def _bytes(n: float) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / MIB:.0f} MiB"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s"
