"""The plan: its projections, what it rejects, and that fits stay within it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kedrl_dask import KEDRL, TransitionStore
from kedrl_dask.engine.execute.default import parse_memory
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.plan.partition import GROUP_ROWS, PIECE_GROUPS, Node, RowBlock, fold, in_groups, pieces
from kedrl_dask.engine.plan.plan import PlanError, make_plan
from kedrl_dask.engine.plan.stage_costs import NOMINAL, Sizes
from tests.conftest import make_episodes

GIB = 2**30
SIZES = Sizes(
    n_rows=10_204_082, n_transitions=10_000_000, state_dim=5, action_dim=1, reward_dim=3, chunk_rows=16_384,
    n_blocks=40, n_atoms=100, n_basis=250, n_landmarks=500, n_features=256, n_conditioning=20_000,
    chunk_points=2_500, n_draws=3, n_centers=0, has_terminal=False, itemsize=4,
)  # fmt: skip


def plan(budget=4 * GIB, n_workers=2, n_threads=1, **sizes):
    return make_plan(replace(SIZES, **sizes), NOMINAL, n_workers, n_threads, budget)


def stage(of, name):
    return next(s for s in of.stages if s.name == name)


def test_plan__memory_does_not_depend_on_the_number_of_transitions():
    small, large = plan(n_transitions=100_000, n_rows=102_041), plan()
    assert small.memory == large.memory
    assert stage(large, "streaming pass").flop == 100 * stage(small, "streaming pass").flop


def test_plan__time_is_linear_in_transitions_and_shared_by_workers():
    passes = [
        stage(plan(n_transitions=n, n_rows=n, n_workers=w), "streaming pass").seconds
        for n, w in ((10**6, 1), (10**7, 1), (10**7, 2))
    ]
    assert 8 < passes[1] / passes[0] <= 11
    assert passes[1] / passes[2] == pytest.approx(2, rel=0.01)


def test_plan__ratio_has_a_stage_of_its_own():
    names = [s.name for s in plan(n_centers=500).stages]
    assert names == [
        "design",
        "density ratio",
        "streaming pass",
        "regression",
        "conditioning points",
        "solver",
        "diagnostics",
    ]
    assert "density ratio" not in [s.name for s in plan().stages]


def test_plan__given_ridge__takes_no_folds_of_the_sums():
    """With the Expedia sizes, five folds of the sums would need 20 GiB, without being used."""
    sizes = {
        "n_landmarks": 6_000,
        "n_basis": 6_000,
        "n_atoms": 300,
        "n_transitions": 10_000,
        "n_rows": 10_500,
    }
    sizes |= {
        "n_conditioning": 10_000,
        "chunk_points": 1_250,
        "n_blocks": 2,
        "state_dim": 28,
        "action_dim": 3,
    }
    chosen, given = (plan(n_workers=1, n_threads=2, n_folds=n, **sizes) for n in (5, 1))
    assert stage(chosen, "regression").memory > 20 * GIB
    assert given.memory < 8 * GIB
    assert stage(given, "regression").flop < stage(chosen, "regression").flop


def test_residency__resident_while_it_fits():
    assert plan().residency == "resident"
    many = {"n_conditioning": 5_000_000}
    assert plan(budget=64 * GIB, **many).residency == "resident"
    tight = plan(**many)
    assert tight.residency == "stored"
    assert tight.memory <= 4 * GIB
    # With slow disks and fast cores, it is cheaper to recompute the points.
    slow_disk = replace(NOMINAL, stored=1e6)
    assert make_plan(replace(SIZES, **many), slow_disk, 2, 1, 4 * GIB).residency == "recomputed"


def test_check__refusal_names_stage_budget_and_setting():
    with pytest.raises(
        PlanError, match=r"in the stage .* the budget is 1\.0 GiB; lower n_features from 50,000 to"
    ):
        plan(budget=GIB, n_features=50_000).check()
    with pytest.raises(PlanError, match="lower n_landmarks from 20,000 to"):
        plan(budget=4 * GIB, n_landmarks=20_000).check()
    with pytest.raises(PlanError, match="raise memory"):
        plan(budget=1_000).check()
    plan().check()


def test_check__advice_fits():
    """The value that the message suggests is within the budget."""
    over = plan(budget=GIB, n_features=50_000)
    with pytest.raises(PlanError) as error:
        over.check()
    advised = str(error.value).rpartition(" to ")[2].removesuffix(", or raise memory")
    advised = int(advised.replace(",", ""))
    plan(budget=GIB, n_features=advised).check()


def test_check__disk():
    assert plan().disk > 10**8
    with pytest.raises(PlanError, match=r"would write up to .* are free; give fit"):
        plan().check(free_disk=10**6)


def test_repr__a_table_with_a_line_for_every_stage():
    text, html = repr(plan()), plan()._repr_html_()
    for name in ("design", "streaming pass", "regression", "conditioning points", "solver", "in all"):
        assert f"\n{name}" in text
        assert f"<td>{name}</td>" in html
    assert "10,000,000 transitions on 2 worker(s) of 1 thread(s), 4.0 GiB each" in text
    json.dumps(plan().to_dict())


@pytest.mark.parametrize(("given", "expected"), [(2**30, 2**30), ("2 GiB", 2**31), ("500MB", 5 * 10**8)])
def test_parse_memory(given, expected):
    assert parse_memory(given) == expected


@pytest.mark.parametrize("given", ["lots", "-1 GiB", 0])
def test_parse_memory__refused(given):
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        parse_memory(given)


def test_pieces__cover_a_block_and_begin_where_groups_do():
    length = GROUP_ROWS * PIECE_GROUPS
    block = RowBlock(3, 1_000, 2 * length + 5)
    cut = pieces(block)
    assert [cut[0].start, cut[-1].stop] == [1_000, 2 * length + 5]
    assert [piece.stop for piece in cut[:-1]] == [piece.start for piece in cut[1:]] == [length, 2 * length]
    assert pieces(RowBlock(0, 5, 10)) == [RowBlock(0, 5, 10)]


@pytest.mark.parametrize("n_items", [1, 5, 8, 13])
def test_fold__groups_do_not_change_the_order_of_the_sum(n_items):
    """Exactly equal, although floating-point sums depend on their order."""
    values = np.random.default_rng(0).standard_normal(n_items) * 10.0 ** np.arange(n_items)

    def total(n_groups):
        nodes = [Node(i, 1, value) for i, value in enumerate(values)]
        parts = [node for group in in_groups(nodes, n_groups) for node in fold(group, float.__add__)]
        return sum(node.value for node in fold(parts, float.__add__))

    assert len({total(n) for n in range(1, n_items + 1)}) == 1
    assert total(1) == pytest.approx(values.sum())


def test_plan__paired_form_follows_cost_and_memory():
    """The contraction pays off over many products, unless it is too large."""
    forms = ["contracted", "matrix-free"]

    def form(budget=4 * GIB, **sizes):
        return make_plan(replace(SIZES, **sizes), NOMINAL, 2, 1, budget, forms)

    small = {"n_landmarks": 300, "n_basis": 150, "n_features": 128}
    assert form(**small).form == "contracted"
    assert form(n_landmarks=2_000, n_basis=1_000, n_features=1_024).form == "matrix-free"
    assert [s.name for s in form(**small).stages][3:] == [
        "contraction",
        "conditioning points",
        "solver",
        "diagnostics",
    ]
    assert make_plan(replace(SIZES, **small), NOMINAL, 2, 1, 4 * GIB, ["matrix-free"]).form == "matrix-free"


def test_plan__paired_memory_is_flat_and_time_linear():
    for form, stage in (("contracted", "contraction"), ("matrix-free", "solver")):
        large = make_plan(SIZES, NOMINAL, 2, 1, 4 * GIB, [form])
        sizes = replace(SIZES, n_rows=SIZES.n_rows // 10, n_transitions=SIZES.n_transitions // 10)
        small = make_plan(sizes, NOMINAL, 2, 1, 4 * GIB, [form])
        seconds = [next(s.seconds for s in p.stages if s.name == stage) for p in (large, small)]
        assert 9 < seconds[0] / seconds[1] < 11
        assert large.memory < 1.1 * small.memory


def test_plan__short_of_memory_takes_more_shards():
    wide = make_plan(SIZES, NOMINAL, 2, 1, 8 * GIB, ["contracted"])
    narrow = make_plan(SIZES, NOMINAL, 2, 1, wide.memory * 3 // 4, ["contracted"])
    assert narrow.n_shards > wide.n_shards
    assert narrow.memory < wide.memory


def test_model_plan__measures_and_does_not_fit(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "store", **make_episodes(30, 9))
    model = KEDRL(0.6, centring="none", n_atoms=10)
    measured = model.plan(store, executor=ThreadExecutor(2), memory="2 GiB")
    assert measured.budget == 2 * GIB
    assert measured.sizes.n_transitions == store.n_transitions
    assert measured.machine.gemm > 1e8
    assert measured.machine.evaluations > 1e6
    assert measured.machine.rows > 1e2
    assert not hasattr(model, "coefficients_")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_fit__over_budget_is_refused_before_work(tmp_path, policy):
    store = TransitionStore.from_arrays(tmp_path / "store", **make_episodes(30, 9))
    with pytest.raises(PlanError, match="raise memory"):
        KEDRL(0.6, centring="none", n_features=10**6).fit(
            store, policy, executor=ThreadExecutor(2), memory="1 GiB", progress="none"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


MEASURE = """
import json, sys
from kedrl_dask import KEDRL
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.numerics.solvers import PCG
from tests.memory import peak_memory
pair = simulation.PAIRS["uniform-gaussian"]
settings = json.loads(sys.argv[2])
store = simulation.write(sys.argv[1], pair, settings.pop("n_transitions", 60_000))
# Memory does not depend on the number of iterations.
settings |= {"centring": "none", "solver": PCG(max_iterations=3)}
model = KEDRL(0.7, return_kernel=pair.settings.kernel, **settings)
model.fit(store, pair.target, executor=ThreadExecutor(2), progress="none")
print(json.dumps([model.plan_.memory, peak_memory()]))
"""


SMALLER = {"n_transitions": 20_000, "n_conditioning": 2_000}
CONTRACTED = {"construction": "paired", "paired_form": "contracted", "n_features": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SMALLER, id="default"),
        pytest.param(
            CONTRACTED | {"n_transitions": 20_000, "n_landmarks": 150, "n_basis": 100}, id="contracted"
        ),
        *(
            pytest.param(settings, id=name, marks=pytest.mark.extended)
            for name, settings in {
                "default-full": {},
                "large": {"n_features": 1024, "n_basis": 400, "n_landmarks": 700},
                "ratio": {"continuation": "ratio", "precision": "double", "n_features": 512},
                "exact": {"operators": "exact", "n_transitions": 300, "n_atoms": 80},
                "contracted-full": CONTRACTED,
                "matrix-free": {"construction": "paired", "paired_form": "matrix-free", "n_features": 64},
            }.items()
        ),
    ],
)
def test_measured_memory__within_the_projected(settings, tmp_path):
    """A fit in its own process stays within the plan, and the plan is not far above it."""
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "store"), json.dumps(settings)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    projected, measured = json.loads(done.stdout.splitlines()[-1])
    assert measured <= projected
    assert projected < 3 * measured
