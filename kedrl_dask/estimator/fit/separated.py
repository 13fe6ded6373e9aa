"""The problem of the separated construction: operators at conditioning points, and the criterion there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kedrl_dask.engine.passes.conditioning_points import CONDITIONING_KIND, Conditioning, evaluate_points
from kedrl_dask.engine.passes.separated_objective import BellmanObjective
from kedrl_dask.engine.plan.partition import in_groups
from kedrl_dask.engine.storage import schema
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.cache import Facts
from kedrl_dask.estimator.fit.conditioning import find_conditioning
from kedrl_dask.estimator.fit.problem import Prepared
from kedrl_dask.numerics.criterion.separated import return_space
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.utils.arrays import Vector
from kedrl_dask.utils.progress import Advance, Reporter


def separated_problem(start: Prepared, reporter: Reporter) -> tuple[BellmanObjective, Vector]:
    """The criterion, ready for a solver; and the mass ΣΓ at the conditioning points."""
    choices, operators = start.choices, start.operators
    ranges = start.settings.ranges(start.store.base.n_transitions)
    with reporter.stage("conditioning points", len(ranges)) as advance:
        points = _condition(start, operators, ranges, advance)
    fixed = choices.grid, choices.frequencies, start.settings.discount, choices.return_kernel
    space, groups = return_space(operators.chunk_type, *fixed), in_groups(ranges, start.executor.n_threads)
    problem = BellmanObjective(
        start.executor, points, groups, start.plan.residency, space, start.penalties, start.ridge_b
    )
    return problem, ArrayStore.open(points.points, CONDITIONING_KIND).read("mass")


def _condition(
    start: Prepared, operators: ConditionalOperators, ranges: list[tuple[int, int]], advance: Advance
) -> Conditioning:
    """Choose the conditioning points and evaluate the operators there."""
    settings, store, choices, cache = start.settings, start.store, start.choices, start.cache
    executor, n_points = start.executor, ranges[-1][1]
    inputs, weights = find_conditioning(settings, store, operators.kernel, cache)
    is_exact = settings.operators == "exact"
    target = schema.CONDITIONING_BLOCKS if is_exact else schema.CONDITIONING_FEATURES
    target = tuple(spec for spec in target if store.n_terminal > 0 or "terminal" not in spec.name)
    stored = {"basis", "continuation", *(spec.name for spec in target)}
    dtype, m = settings.dtype, len(choices.grid)
    sizes = {"point": n_points, "input_dim": inputs.shape[1], "basis": choices.basis.rank}
    sizes |= {"wave": operators.reward.shape[1], "atom": m, "atom_again": m}
    whitened = operators.whitened(choices.basis)

    def create(kind: str, path: Path) -> None:
        is_shared = kind == "conditioning"
        specs = schema.CONDITIONING + target if is_shared else schema.CONDITIONING_CONTINUATION
        specs = tuple(replace(s, dtype=dtype.name) if s.name in stored else s for s in specs)
        chunks = {"point": ranges[0][1]}
        ArrayStore.create(path, CONDITIONING_KIND, specs, sizes, chunks, compressed=False).finish()

    def compute(paths: dict[str, Path], numbers: list[int]) -> None:
        with_own, with_shared = (kind in paths for kind in ("conditioning-policy", "conditioning"))
        if with_shared:
            points = ArrayStore.open(paths["conditioning"], CONDITIONING_KIND, writable=True)
            for start, stop in (ranges[i] for i in numbers):
                points.write("input", start, inputs[start:stop])
                points.write("weight", start, weights[start:stop])
        blocks = [(i, ranges[i]) for i in numbers]
        executor.map(evaluate_points, blocks, executor.share(task), with_shared, with_own, advance=advance)

    facts: dict[str, Facts] = {}
    facts["conditioning"] = {
        "points": [inputs, weights, ranges[0][1]],
        "basis": [choices.basis.kernel, choices.basis.landmarks, choices.basis.whitening],
        "features": [choices.features.landmarks, choices.features.whitening],
        "operators": operators.target_facts,
        "precision": dtype.name,
    }
    facts["conditioning-policy"] = {**facts["conditioning"], "continuation": whitened.continuation}
    shared, own = (cache.path(kind, of_kind) for kind, of_kind in facts.items())
    task = Conditioning(shared, own, whitened, choices.basis, dtype)
    cache.complete(facts, len(ranges), create, compute)
    return task
