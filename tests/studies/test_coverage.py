"""The study of coverage, and the true marginals that it compares with."""

import json

import numpy as np
import pytest

from kedrl_dask.cli import main
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.datasets.true_marginals import CentredMarginal
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.studies import coverage

pytestmark = pytest.mark.usefixtures("cells_one_by_one")

SMALL = {"n_atoms": 20, "n_basis": 15, "n_landmarks": 25, "n_features": 16, "n_conditioning": 100}
SMALL |= {"input_kernel": Matern(5.5, 4.5)}
SETTINGS = {"transitions": 600, "bootstrap": 5}


@pytest.mark.parametrize("pair", ["uniform-gaussian", "gaussian-logistic", "logistic-uniform"])
def test_marginal__agrees_with_returns_drawn_from_the_law(pair):
    law = truth.return_law(*evaluation_points(pair), simulation.PAIRS[pair].target)
    drawn = law.sample(40_000, np.random.default_rng(3))[:5] - law.mean[:5, None]
    for c in range(3):
        marginal, returns = CentredMarginal.build(law, c), drawn[..., c].ravel()
        for level in (0.05, 0.5, 0.9):
            t = marginal.quantile(level)
            # Five standard errors of 200,000 returns.
            assert np.mean(returns <= t) == pytest.approx(level, abs=5 * np.sqrt(level * (1 - level) / 2e5))
        tail = np.sort(returns)[: len(returns) // 10]
        assert marginal.cvar(0.1) == pytest.approx(tail.mean(), abs=5 * returns.std() / np.sqrt(len(tail)))


def test_marginal__of_a_gaussian_is_normal_to_five_digits():
    law = truth.return_law(
        *evaluation_points("uniform-gaussian"), simulation.PAIRS["uniform-gaussian"].target
    )
    marginal = CentredMarginal.build(law, 0)
    spread = np.sqrt(law.covariance[0, 0])
    assert marginal.quantile(0.9) == pytest.approx(1.2815515655 * spread, rel=1e-5)
    # φ(Φ⁻¹(α))/α
    assert marginal.cvar(0.1) == pytest.approx(-1.7549833193 * spread, rel=1e-5)
    with pytest.raises(ValueError, match="level must lie"):
        marginal.quantile(1.0)


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("coverage") / "out"


@pytest.fixture(scope="module")
def outcome(output):
    return coverage.run(output, replicates=2, **SETTINGS, **SMALL)


@pytest.mark.slow
def test_run__counts_what_the_cells_found(outcome):
    assert outcome.summary["cells"] == 2
    found = [result["cvar"] for _, result in outcome.records.done]
    row = outcome.summary["results"]["cvar"]
    assert row["coverage"] == pytest.approx(np.mean([f["covered"] for f in found]))
    errors = np.array([f["error"] for f in found])
    assert row["deviation"] == pytest.approx(np.sqrt(errors.var(axis=0, ddof=1).mean()))
    assert len(found[0]["error"]) == 30
    assert set(outcome.summary["results"]) == set(coverage.QUANTITIES)


def test_cover__is_the_interval_of_the_bootstrap(outcome):
    for _, result in outcome.records.done:
        for quantity in coverage.QUANTITIES:
            error, reach = (np.array(result[quantity][name]) for name in ("error", "standard_error"))
            # Student's 95 % quantile with 4 degrees of freedom, and what |N(½, 1)| keeps below in 90 of 100.
            plain, aware = 2.1318468 * reach, 2.1318468 * 1.8387 / 1.6448536 * reach
            np.testing.assert_array_equal(result[quantity]["covered_unbiased"], np.abs(error) <= plain)
            near = np.abs(np.abs(error) / aware - 1) < 1e-3
            np.testing.assert_array_equal(
                np.array(result[quantity]["covered"])[~near], (np.abs(error) <= aware)[~near]
            )


def test_run__again_computes_nothing(outcome, output):
    again = coverage.run(output, replicates=1, **SETTINGS, **SMALL)
    assert (outcome.summary["computed"], again.summary["computed"]) == (2, 0)
    assert again.summary["cells"] == 1
    assert again.summary["results"]["mean"]["coverage_error"] is None


def test_cli__refuses_a_level_that_is_none(tmp_path, capsys):
    code = main(["study", "coverage", "--output", str(tmp_path / "out"), "--level", "90"])
    assert code == 2
    assert "level must lie strictly between 0 and 1, got 90.0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_render__shows_every_quantity(outcome, capsys):
    from rich.console import Console

    coverage.render(json.loads(json.dumps(outcome.summary)), Console(width=120))
    shown = capsys.readouterr().out
    assert all(meaning in shown for meaning in coverage.QUANTITIES.values())
