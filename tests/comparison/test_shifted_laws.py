"""Laws with shifted atoms in datasets, tables, comparisons and figures."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import Matern, plots
from kedrl_dask.comparison import compare as comparing
from kedrl_dask.comparison import frames
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fitted.results import law_dataset
from kedrl_dask.numerics.laws.recovery import RecoverySettings, recover_law
from kedrl_dask.numerics.laws.summaries import Summaries, thresholds
from tests.numerics.laws.test_recovery import signed

KERNEL = Matern(2.5, (1.1, 0.8), 0.9)
SHIFTS = {"old": np.array([[0.0, 0.0], [3.0, -1.0]]), "new": np.array([[0.5, 0.0], [3.5, -1.0]])}


@pytest.fixture
def laws():
    omega, grid = signed(n=2)
    return {name: recover_law(omega, grid, KERNEL, shift=shift) for name, shift in SHIFTS.items()}


def test_dataset__has_the_atoms_of_each_policy_and_input(laws):
    dataset = law_dataset(laws)
    assert dataset["atoms"].dims == ("policy", "input", "atom", "coordinate")
    means = (dataset["weight"] * dataset["atoms"]).sum("atom")
    np.testing.assert_allclose(means.transpose(*dataset["mean"].dims), dataset["mean"], atol=1e-12)
    np.testing.assert_allclose(
        dataset["mean"].sel(policy="new") - dataset["mean"].sel(policy="old"), [[0.5, 0.0]] * 2, atol=1e-9
    )
    assert float(dataset["cdf"].max()) == pytest.approx(1.0, abs=5e-3)


def test_table__of_weights_has_the_places_of_shifted_atoms(laws):
    table = frames.weights(law_dataset(laws))
    for (name, row), part in table.groupby(["policy", "input"]):
        np.testing.assert_array_equal(part[["return_0", "return_1"]], laws[name].atoms_of(row))
        np.testing.assert_array_equal(part["weight"], laws[name].weights[row])
    still = recover_law(*signed(n=2), KERNEL)
    part = frames.weights(law_dataset({"old": still})).query("input == 1")
    np.testing.assert_array_equal(part[["return_0", "return_1"]], still.atoms)


def test_distance__is_of_shifted_embeddings(laws):
    found = comparing._distances(laws)["mmd"].to_numpy()
    assert (found > 0.05).all()
    first, second = (law.coefficients for law in laws.values())
    assert np.array_equal(first, second)  # only the shifts differ


def test_edges__are_those_of_the_shifted_grid(laws):
    omega, grid = signed(n=2)
    still = comparing._edge_mass(recover_law(omega, grid, KERNEL))
    for law in laws.values():
        np.testing.assert_allclose(comparing._edge_mass(law), still, atol=1e-9)


def test_replicates__are_recovered_where_the_laws_are(laws):
    law, summaries = laws["new"], Summaries((0.5,), 0.1, thresholds(*laws.values()))
    fixed = law.grid, KERNEL, RecoverySettings(), summaries, law.shift
    found = ThreadExecutor().map(comparing._summarised, [(0, 1), (1, 2)], law.coefficients, *fixed)
    packed = np.concatenate([values for values, _ in found])
    np.testing.assert_allclose(packed, summaries.pack(law), atol=1e-6)


def test_figure__shows_shifted_laws(laws):
    figure = plots.recovered_marginals(laws["old"], point=1)
    low, high = figure.axes[0].get_xlim()
    assert low < laws["old"].mean()[1, 0] < high
