"""Laws and embeddings whose atoms are moved for each input, against the same ones with moved atoms."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import Matern
from kedrl_dask.numerics.laws.functionals import Embedding, KernelFunction, below
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.numerics.laws.recovery import RecoverySettings, recover_law
from kedrl_dask.numerics.laws.summaries import Summaries, thresholds
from kedrl_dask.numerics.laws.tilting import tilt
from tests.numerics.laws.test_recovery import signed

KERNEL = Matern(2.5, (1.1, 0.8), 0.9)
SHIFT = np.array([[0.0, 0.0], [3.0, -1.0], [-0.7, 0.25]])
LATTICE = {1: np.array([-1.0, 0.0, 1.0])}


def mixture(smoothing, m=8):
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.ones(m), size=3)
    return rng.standard_normal((m, 2)), weights, np.array(smoothing)


ASKED = {
    "mean": lambda law: law.mean(),
    "covariance": lambda law: law.covariance(),
    "cdf of a number": lambda law: law.cdf(0.3, 0),
    "cdf": lambda law: law.cdf([-1.0, 0.2, 3.0], 1),
    "quantile of a number": lambda law: law.quantile(0.3, 0),
    "quantile": lambda law: law.quantile([0.1, 0.5, 0.9], 1),
    "cvar": lambda law: law.cvar(0.2, 0),
    "upper cvar": lambda law: law.cvar(0.2, 1, tail="upper"),
    "density": lambda law: law.density([0.0, 2.5], 0, bandwidth=0.4),
    "joint density": lambda law: law.density([[0.0, 0.1]], [0, 1], bandwidth=0.4),
    "expectation": lambda law: law.expectation(lambda z: z[:, 0] ** 2 + z[:, 1]),
    "prob of a box": lambda law: law.prob(([-1.0, -np.inf], [1.0, 0.5])),
    "prob of an event": lambda law: law.prob(lambda z: z.sum(axis=1) > 0.5),
}


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("smoothing", [(0.0, 0.0), (0.3, 0.5)])
def test_mixture__shifted_and_own_atoms_are_those_built_by_hand(asked, smoothing):
    atoms, weights, h = mixture(smoothing)
    by_hand = [Mixture(atoms + move, w[None], h) for move, w in zip(SHIFT, weights, strict=True)]
    expected = np.concatenate([ASKED[asked](law) for law in by_hand])
    shifted = Mixture(atoms, weights, h, shift=SHIFT)
    own = Mixture(atoms + SHIFT[:, None], weights, h)
    for law in (shifted, own):
        assert not law.is_common
        assert law.dim == 2
        np.testing.assert_array_equal(ASKED[asked](law), expected)
        np.testing.assert_array_equal(ASKED[asked](law.rows(np.array([2, 0]))), expected[[2, 0]])
    # No shift at all is a shift of zero, up to the order of sums.
    still = Mixture(atoms, weights, h, shift=np.zeros((3, 2)))
    np.testing.assert_allclose(ASKED[asked](still), ASKED[asked](Mixture(atoms, weights, h)), atol=1e-13)


def test_mixture__pmf_is_of_the_support_of_the_shifted_return():
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    atoms, shift = np.array([[0.0], [0.1], [0.3]]), np.array([[0.0], [0.2]])
    support = np.array([0.0, 0.1, 0.2, 0.3, 0.5])  # 0.1 + 0.2 is not quite 0.3
    law = Mixture(atoms, weights, np.zeros(1), {0: support}, shift)
    np.testing.assert_allclose(law.pmf(0).probability, [[0.5, 0.3, 0, 0.2, 0], [0, 0, 0.1, 0.2, 0.7]])


def test_thresholds__reach_the_atoms_of_every_input():
    atoms, weights, h = mixture((0.3, 0.0))
    shifted = Mixture(atoms, weights, h, shift=SHIFT)
    found = thresholds(shifted)
    assert found[0].min() < atoms[:, 0].min() - 0.7
    assert found[0].max() > atoms[:, 0].max() + 3.0
    assert set((atoms + SHIFT[:, None])[:, :, 1].ravel()) <= set(found[1])
    curves = Summaries((0.5,), 0.1, found)(shifted)
    np.testing.assert_allclose(curves["cdf"][:, :, -1], 1.0, atol=2e-3)
    np.testing.assert_allclose(
        curves["density"][:, 1][:, np.unique(found[1], return_index=True)[1]].sum(axis=1), 1.0
    )
    many = Mixture(
        np.random.default_rng(0).standard_normal((3, 500, 2)), np.full((3, 500), 1 / 500), np.zeros(2)
    )
    assert thresholds(many).shape == (2, 401)


@pytest.mark.parametrize("given", [{}, {"projected": LATTICE}, {"bandwidth": 0.0, "ridge": 1e-3}], ids=str)
def test_recover__shifted_is_recovered_on_moved_atoms(given):
    omega, grid = signed(n=3)
    found = recover_law(omega, grid, KERNEL, RecoverySettings(**given), SHIFT)
    assert found.converged.all()
    for i, move in enumerate(SHIFT):
        settings = found.settings  # the same numbers: "auto" does not depend on a shift but for rounding
        alone = recover_law(omega[i : i + 1], grid + move, KERNEL, settings)
        np.testing.assert_allclose(found.weights[i], alone.weights[0], atol=1e-6)
        np.testing.assert_array_equal(found.atoms_of(i), alone.atoms)
        np.testing.assert_allclose(found.mean()[i], alone.mean()[0], atol=1e-6)
        assert found.residual[i] == pytest.approx(alone.residual[0], abs=1e-6)
        for name, flag in alone.flags.items():
            assert found.flags[name][i] == flag[0]
        if "projected" in given:
            np.testing.assert_allclose(found.pmf(1).probability[i], alone.pmf(1).probability[0], atol=1e-6)
            assert found.pmf(1).probability[i].sum() == pytest.approx(1.0)
    assert found.under(ridge=1e-2).shift is not None


def test_recover__refuses_a_shift_of_other_shape():
    omega, grid = signed(n=3)
    with pytest.raises(ValueError, match=r"recover: shift has shape \(2,\), expected \(3, 2\)"):
        recover_law(omega, grid, KERNEL, shift=SHIFT[0])


def embeddings():
    omega, grid = signed(n=3)
    shifted = Embedding(omega, grid, KERNEL, shift=SHIFT)
    return shifted, [Embedding(w[None], grid + move, KERNEL) for w, move in zip(omega, SHIFT, strict=True)]


def test_embedding__shifted_is_one_on_a_moved_grid():
    shifted, by_hand = embeddings()
    at = np.array([[0.0, 0.0], [2.0, -1.0]])
    np.testing.assert_array_equal(shifted(at), np.concatenate([one(at) for one in by_hand]))
    h = KernelFunction([[0.0, 0.0], [1.0, 1.0]], [1.0, -0.5], KERNEL)
    for function in (h, below(0.5, 0, width=0.3), lambda z: np.tanh(z[:, 0])):
        found, expected = shifted.expect(function), [one.expect(function) for one in by_hand]
        np.testing.assert_array_equal(found.value, [e.value[0] for e in expected])
        np.testing.assert_array_equal(found.bias, [e.bias[0] for e in expected])
        np.testing.assert_array_equal(found.norm, [e.norm for e in expected])
        np.testing.assert_array_equal(found.grid_error, [e.grid_error for e in expected])


def test_embedding__shifted_distances_and_products():
    shifted, _ = embeddings()
    omega, grid = signed(n=3, m=9, seed=5)
    other = Embedding(omega, grid, KERNEL)
    for first, second in ((shifted, other), (other, shifted), (shifted, shifted.alone[1])):
        inner, distance = first.inner(second), first.mmd(second)
        rows, columns = first.alone, second.alone
        expected = [[one.inner(another)[0, 0] for another in columns] for one in rows]
        np.testing.assert_allclose(inner, expected, rtol=1e-12)
        pairs = zip(rows, columns * (len(rows) // len(columns)), strict=True)
        np.testing.assert_allclose(distance, [one.mmd(another)[0] for one, another in pairs], atol=1e-7)
    assert (shifted.mmd(shifted) == 0).all()
    moved = Embedding(shifted.coefficients, shifted.grid, KERNEL, shift=SHIFT + 0.1)
    assert (shifted.mmd(moved) > 1e-3).all()


def test_embedding__average_of_shifted_ones_has_the_atoms_of_all(monkeypatch):
    shifted, by_hand = embeddings()
    at = np.array([[0.0, 0.0], [2.0, -1.0]])
    mean = shifted.average([1, 2, 1])
    expected = 0.25 * by_hand[0](at) + 0.5 * by_hand[1](at) + 0.25 * by_hand[2](at)
    np.testing.assert_allclose(mean(at), expected, rtol=1e-12)
    assert mean.shift is None
    assert mean.recover().converged.all()
    monkeypatch.setattr("kedrl_dask.numerics.laws.functionals.MOST_ATOMS", 35)
    with pytest.raises(
        ValueError, match="3 shifted embeddings have 36 atoms, more than 35; average over fewer"
    ):
        shifted.average()


def test_tilted__is_a_law_on_atoms_of_each_input():
    rng = np.random.default_rng(0)
    z, (omega, grid) = rng.standard_normal((3, 40, 2)), signed(n=3)
    law = tilt(z, omega, grid, KERNEL, 1e-2)
    np.testing.assert_allclose(law.mean(), np.einsum("nk,nkd->nd", law.weights, z), rtol=1e-12)
    for i in range(3):
        order = np.argsort(z[i, :, 0])
        below_half = np.cumsum(law.weights[i][order]) < 0.5
        assert law.quantile(0.5, 0)[i] == z[i, order, 0][below_half.sum()]
    assert Summaries((0.5,), 0.1, thresholds(law)).pack(law).shape[:2] == (3, 2)
