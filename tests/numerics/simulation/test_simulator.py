"""Returns of a policy at any input, and the coefficients that simulated returns have."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import Matern, policies
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.regression.cross_validation import RIDGES
from kedrl_dask.numerics.simulation.prior import JITTER, simulated_coefficients
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.numerics.simulation.transition_model import TransitionModel
from tests import dense

POLICY = policies.Gaussian(weights=[[0.5]], scale=0.3)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    inputs, noise = rng.normal(size=(600, 2)), rng.normal(size=(600, 1))
    reward = inputs.sum(axis=1, keepdims=True) + 0.5 * noise
    after = inputs @ [[0.6], [0.4]] + 0.3 * noise
    ends = rng.random(600) < 0.05
    return TransitionModel.fit(inputs, reward, after, ends, np.arange(600) // 20)


@pytest.fixture(scope="module")
def simulator(model):
    return Simulator(model, POLICY, 0.8, seed=3)


INPUTS = np.array([[0.5], [-1.0], [0.0]]), np.array([[0.2], [0.7], [0.0]])


def test_returns__do_not_depend_on_what_else_is_asked(simulator):
    together = simulator(*INPUTS, 50)
    assert together.shape == (3, 50, 1)
    for row in range(3):
        np.testing.assert_array_equal(simulator(INPUTS[0][[row]], INPUTS[1][[row]], 50)[0], together[row])
    np.testing.assert_array_equal(simulator(*INPUTS, 50), together)
    assert (simulator(*INPUTS, 40) != together[:, :40]).any()


def test_returns__of_a_policy_average_over_its_actions(simulator):
    found = simulator(INPUTS[0], POLICY, 4_000).mean(axis=1)
    nodes, weights = POLICY.draws(INPUTS[0], 9)
    expected = sum(
        w * simulator(INPUTS[0], a, 2_000).mean(axis=1) for w, a in zip(weights, nodes, strict=True)
    )
    np.testing.assert_allclose(found, expected, atol=0.1)


def test_averaged__is_the_mixture(simulator):
    weights = np.array([3.0, 1.0, 0.0])
    found = simulator.averaged(*INPUTS, weights, 4_000)
    apart = simulator(*INPUTS, 4_000)[..., 0]
    assert found.shape == (4_000, 1)
    assert found.mean() == pytest.approx((3 * apart[0].mean() + apart[1].mean()) / 4, abs=0.06)


def test_block__has_its_own_random_numbers(simulator):
    inputs = np.hstack(INPUTS)
    np.testing.assert_array_equal(simulator.block(4, inputs), simulator.block(4, inputs))
    assert (simulator.block(4, inputs) != simulator.block(5, inputs)).all()


def test_most_returns__fewer_at_long_horizons(model):
    n = [Simulator(model, POLICY, discount, 0).most_returns for discount in (0.5, 0.98, 0.999)]
    assert n == [4_000, 1_169, 1_000]


def test_pack__gives_the_same_model(model):
    numbers, layout = model.pack()
    again = TransitionModel.unpack(numbers, layout)
    first, second = (Simulator(m, POLICY, 0.8, 0)(*INPUTS, 20) for m in (model, again))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "damage",
    [
        lambda numbers, layout: (numbers[:-1], layout),
        lambda numbers, layout: (numbers, layout | {"shapes": {**layout["shapes"], "low": [-1]}}),
        lambda numbers, layout: (numbers, {key: value for key, value in layout.items() if key != "follows"}),
        lambda numbers, layout: (0 * numbers, layout),
    ],
    ids=["too few numbers", "a negative size", "no tree", "no cells"],
)
def test_unpack__refuses_what_is_no_model(model, damage):
    with pytest.raises((ValueError, KeyError)):
        TransitionModel.unpack(*damage(*model.pack()))


def test_simulated_coefficients__are_those_of_the_literal_regression():
    """C₀ = (Σk̃k̃ᵀ + nλI)⁻¹ Σk̃aᵀ, a = (K_Z + εI)⁻¹k_Z(z), for one of the ridges that are tried."""
    rng = np.random.default_rng(1)
    inputs, grid = rng.normal(size=(200, 2)), rng.normal(size=(8, 1))
    returns = inputs[:, :1] + 0.3 * rng.normal(size=(200, 1))
    kernel, basis = Matern(2.5, 1.2), NystromFeatures.from_landmarks(Matern(5.5, 2.0), inputs[:12])
    found = simulated_coefficients(basis, grid, kernel, inputs, returns)
    sections = dense.gram(basis.kernel, inputs, basis.landmarks) @ basis.whitening
    gram = dense.gram(kernel, grid, grid) + JITTER * np.eye(8)
    written = np.linalg.solve(gram, dense.gram(kernel, grid, returns)).T
    literal = [
        np.linalg.solve(sections.T @ sections + 200 * ridge * np.eye(12), sections.T @ written)
        for ridge in RIDGES
    ]
    distance = min(np.abs(found - one).max() / np.abs(one).max() for one in literal)
    assert distance < 1e-6
    # Their embedding is near that of the returns: at an input, the mean of k_Z(z, ·).
    at, x = np.array([[0.0], [1.0]]), np.array([[1.0, 0.0]])
    value = (dense.gram(basis.kernel, x, basis.landmarks) @ basis.whitening @ found) @ dense.gram(
        kernel, grid, at
    )
    truth = dense.gram(kernel, 1.0 + 0.3 * rng.normal(size=(4_000, 1)), at).mean(axis=0)
    np.testing.assert_allclose(value[0], truth, atol=0.1)
