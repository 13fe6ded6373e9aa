"""A linear trend of the reward: the literal formulas, invariances, what it is good for."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import KEDRL, TransitionStore
from kedrl_dask.execute import ThreadExecutor
from kedrl_dask.spectral import as_complex
from tests import dense
from tests.conftest import make_episodes
from tests.test_against_dense import DISCOUNT, MASS, RIDGE_B, RIDGE_GAMMA, close, exact_settings, some_points


@pytest.fixture(params=["truncated", "terminated"])
def store(request, tmp_path):
    n_terminated = 0 if request.param == "truncated" else 3
    data = make_episodes(n_episodes=6, length=5, n_terminated=n_terminated)
    return TransitionStore.from_arrays(tmp_path / "store", **data)


def fit(store, policy, kernels, **settings):
    """Every input is a landmark; the trend is linear."""
    given = exact_settings(store, kernels) | {"n_blocks": 6, "conditioning": some_points()}
    model = KEDRL(DISCOUNT, **(given | {"reward_trend": "linear"} | settings))
    return model.fit(store, policy, executor=ThreadExecutor(2), progress="none")


def literal(model, store, policy, points, weights, counts=None):
    """The criterion of the same fit, on episodes repeated as often as ``counts`` says."""
    t = store.transitions()
    kernel = model.input_kernel_
    kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    features = dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma)
    rows = np.arange(len(t))
    if counts is not None:
        rows = np.repeat(rows, counts[np.unique(t.episode, return_inverse=True)[1]])
    return dense.TrendCriterion(
        kernel, features, t.inputs[rows], t.reward[rows], t.terminal[rows], kappa[rows], model.basis_,
        model.grid_, points, weights / weights.sum(), DISCOUNT, model.ridge_gamma_, RIDGE_B, MASS,
        trend=dense.linear_trend(t.inputs, t.reward), ridge_reward=model.ridge_reward_,
    )  # fmt: skip


def test_reward_law__new_inputs(store, policy, kernels):
    """ρ and τ at inputs that no transition has, from N×N weights."""
    model = fit(store, policy, kernels)
    t, new = store.transitions(), some_points()[0]
    trend = dense.linear_trend(t.inputs, t.reward)
    law = dense.RewardLaw(model.input_kernel_, t.inputs, t.reward, trend, RIDGE_GAMMA)
    chunk, _ = model.operators_(new)
    for i, x in enumerate(new):
        atoms, weights = law(x)
        waves = np.exp(1j * atoms @ model.frequencies_.T)
        close(as_complex(chunk.reward_waves)[i], weights @ waves)
        if t.terminal.any():
            gamma = dense.conditional_weights(model.input_kernel_, t.inputs, x, RIDGE_GAMMA)
            close(as_complex(chunk.terminal_waves)[i], gamma[t.terminal] @ waves[t.terminal])


@pytest.mark.parametrize("ridge", [RIDGE_GAMMA, "auto"])
def test_minimiser_and_risk__literal(store, policy, kernels, ridge):
    model = fit(store, policy, kernels, ridge_gamma=ridge)
    assert (model.ridge_reward_ == model.ridge_gamma_) == (ridge != "auto")
    points, weights = some_points()
    oracle = literal(model, store, policy, points, weights)
    expected = oracle.minimiser(model.coefficients_.shape)
    close(model.coefficients_, expected)
    assert model.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    new = store.transitions().inputs[::4] + 0.2
    elsewhere = literal(model, store, policy, new, np.ones(len(new)))
    risk = [elsewhere.residual(q, model.coefficients_) for q in range(len(new))]
    close(model.bellman_risk(new[:, :2], new[:, 2:]), risk, 1e-7)
    blocks = model.operators(new[:, :2], new[:, 2:])
    close(blocks.H, elsewhere.h)
    close(blocks.G, elsewhere.g)


def test_replicates__are_fits_of_the_resampled_episodes_with_the_same_trend(
    store, policy, kernels, monkeypatch
):
    monkeypatch.setattr("kedrl_dask.bootstrap.TOLERANCE", 1e-13)
    model = fit(store, policy, kernels, ridge_gamma="auto")
    found = model.bootstrap(store, policy, 8, executor=ThreadExecutor(2), progress="none")
    for counts, coefficients in list(zip(found.counts, found.coefficients, strict=True))[::4]:
        oracle = literal(model, store, policy, *some_points(), counts)
        close(coefficients, oracle.minimiser(coefficients.shape))
