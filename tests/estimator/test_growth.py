"""Stores that grow: the design stays, and sums of the new rows are added."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes import streaming_pass as passes_module
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.design import make_choices
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fit.streaming import episode_blocks, stream
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.utils.progress import Reporter
from tests.conftest import make_episodes
from tests.dense import continuation_sampled

pytestmark = pytest.mark.filterwarnings("ignore:the data ask for", "ignore:reward and continuation")

N_EPISODES, LENGTH, N_BLOCKS = 15, 9, 3
SIZES = {"n_atoms": 8, "n_basis": 10, "n_landmarks": 16, "n_features": 12, "n_blocks": N_BLOCKS}
COLUMNS = ("state", "action", "reward", "episode", "step", "terminated")


def rows(data, start, stop):
    return {name: data[name][start:stop] for name in COLUMNS}


def grow(path, data, *stops):
    """A store written up to the first row number, and appended to up to each of the others."""
    store = TransitionStore.from_arrays(path, **rows(data, 0, stops[0]), chunk_rows=32)
    for start, stop in pairwise(stops):
        with TransitionStore.open(path).appender() as writer:
            writer.append(**rows(data, start, stop))
    return store if len(stops) == 1 else TransitionStore.open(path)


def estimator(**given):
    settings = {"input_kernel": Matern(2.5, 1.5), "ridge_gamma": 1e-3, "precision": "double"}
    return KEDRL(0.9, **({"centring": "none"} | SIZES | settings | given))


def fit(store, policy, cache=None, **given):
    return estimator(**given).fit(store, policy, cache=cache, progress="none")


@pytest.fixture
def summed(monkeypatch):
    """Rows of the blocks that a streaming pass went over."""
    seen, original = [], passes_module.write_block

    def write(total, block, task):
        seen.append((block[0].start, block[-1].stop))
        original(total, block, task)

    monkeypatch.setattr("kedrl_dask.estimator.fit.streaming.write_block", write)
    return seen


BASE, END = 9 * LENGTH, N_EPISODES * LENGTH


@pytest.mark.parametrize("n_rows", [2, 31, 32, 33, 70, BASE])
def test_base__is_the_store_that_it_was(tmp_path, n_rows):
    data = make_episodes(N_EPISODES, LENGTH, n_terminated=5)
    whole = grow(tmp_path / "whole", data, BASE, END).grown_from(n_rows)
    base, alone = whole.base, grow(tmp_path / "alone", data, n_rows)
    for name in ("n_rows", "n_episodes", "n_terminal", "n_transitions", "fingerprint"):
        assert getattr(base, name) == getattr(alone, name), name
    np.testing.assert_array_equal(base.transitions().rows, alone.transitions().rows)
    for name, values in alone.statistics.items():
        for key, value in values.items():
            np.testing.assert_array_equal(base.statistics[name][key], value)
    assert whole.fingerprint_of(n_rows) == alone.fingerprint
    assert whole.fingerprint_of(END) == whole.fingerprint
    assert whole.n_rows == END


@pytest.mark.parametrize("n_rows", [0, 1, END + 1])
def test_grown_from__rows_that_cannot_be(tmp_path, n_rows):
    store = grow(tmp_path / "store", make_episodes(N_EPISODES, LENGTH), END)
    with pytest.raises(ValueError, match=f"has {END} rows, cannot have grown from {n_rows}"):
        store.grown_from(n_rows)


def test_blocks__appending_changes_none_but_the_last(tmp_path):
    data = make_episodes(N_EPISODES, LENGTH)
    stops = [BASE, BASE + LENGTH, BASE + 4 * LENGTH, END]
    path, before = tmp_path / "store", []
    grow(path, data, *stops[:1])
    for start, stop in pairwise(stops):
        with TransitionStore.open(path).appender() as writer:
            writer.append(**rows(data, start, stop))
        blocks = episode_blocks(TransitionStore.open(path).grown_from(BASE), N_BLOCKS)
        assert blocks[: len(before[:-1])] == before[:-1]
        assert [block.stop for block in blocks[:-1]] == [block.start for block in blocks[1:]]
        assert blocks[-1].stop == stop
        assert all(block.start % LENGTH == 0 for block in blocks)
        before = blocks
    assert before[:N_BLOCKS] == episode_blocks(grow(tmp_path / "alone", data, BASE), N_BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "n_terminated"), [(BASE, 0), (BASE - 4, 4)], ids=["whole episodes", "an episode goes on"]
)
def test_sums__of_a_grown_store_are_the_literal_ones(tmp_path, policy, base, n_terminated):
    """A = Σψψᵀ and C_y = Σψyᵀ over all transitions, from the base's blocks and the new ones."""
    data = make_episodes(N_EPISODES, LENGTH)
    # Only episodes after the base terminate: its own sums have none.
    last = np.arange(END - 1, END - n_terminated * LENGTH, -LENGTH)
    data["terminated"][last] = True
    path, cache = tmp_path / "store", Cache(tmp_path / "cache")
    settings = Settings(**estimator().get_params(deep=False))
    fit(grow(path, data, base), policy, cache.directory)
    with TransitionStore.open(path).appender() as writer:
        writer.append(**rows(data, base, END))
    store = TransitionStore.open(path).grown_from(base)
    choices = make_choices(settings, store, cache)
    streamed = stream(settings, store, policy, choices, ThreadExecutor(1), cache, Reporter("none"))
    sums, _ = streamed.collect(choices.features, 5)
    found = store.transitions()
    psi = choices.features(found.inputs)
    trend = 0.0 if choices.trend is None else choices.trend(found.inputs)
    reward = waves(found.reward - trend, choices.frequencies)
    target = streamed.continuation.target
    kappa = continuation_sampled(
        choices.features.kernel, choices.basis.landmarks, found.next_state, found.terminal, policy,
        target.n_draws,
    )  # fmt: skip
    np.testing.assert_allclose(sums.gram.sum(axis=0), psi.T @ psi, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sums.reward.sum(axis=0), psi.T @ reward, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(sums.continuation.sum(axis=0), psi.T @ kappa, rtol=1e-8, atol=1e-8)
    assert sums.n_transitions == len(found) == store.n_transitions
    if n_terminated:
        ends = found.terminal
        np.testing.assert_allclose(
            sums.terminal.sum(axis=0), psi[ends].T @ reward[ends], rtol=1e-8, atol=1e-8
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "given"),
    [
        (BASE - 4, {"ridge_gamma": "auto"}),
        (BASE, {"continuation": "ratio"}),
        (BASE - 4, {"construction": "paired"}),
        (BASE, {"precision": "mixed"}),
    ],
    ids=str,
)
def test_fit__grown_equals_recomputed(tmp_path, policy, base, given, summed):
    """Whether the base ends with an episode, or in one that goes on."""
    data = make_episodes(N_EPISODES, LENGTH, n_terminated=2)
    path, cache = tmp_path / "store", tmp_path / "cache"
    made = fit(grow(path, data, base), policy, cache, **given)
    with TransitionStore.open(path).appender() as writer:
        writer.append(**rows(data, base, END))
    store = TransitionStore.open(path).grown_from(base)
    summed.clear()
    added = fit(store, policy, cache, **given)
    blocks = episode_blocks(store, N_BLOCKS)
    kept = [block for block in episode_blocks(store.base, N_BLOCKS) if block in blocks]
    assert summed
    assert min(start for start, _ in summed) == kept[-1].stop
    summed.clear()
    again = fit(store, policy, **given)
    assert min(start for start, _ in summed) == 0
    np.testing.assert_array_equal(added.grid_, made.grid_)
    np.testing.assert_array_equal(added.basis_, made.basis_)
    inputs = data["state"][:20], data["action"][:20]
    found, expected = (model.embed(*inputs, at=made.grid_) for model in (added, again))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    assert added.ridge_gamma_ == again.ridge_gamma_
    assert added.diagnostics_["sizes"]["transitions"] == store.n_transitions
    assert added.diagnostics_["design"] == made.diagnostics_["data"]


@pytest.mark.slow
def test_fit__blocks_of_any_division_give_the_same(tmp_path, policy):
    """The same design on the same rows, in other blocks: only rounding differs."""
    data = make_episodes(N_EPISODES, LENGTH)
    store = grow(tmp_path / "store", data, BASE, END).grown_from(BASE)
    three, eight = (fit(store, policy, n_blocks=n).operators_.continuation for n in (3, 8))
    np.testing.assert_allclose(eight, three, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_fit__second_growth_adds_its_own_rows_only(tmp_path, policy, summed):
    data = make_episodes(N_EPISODES, LENGTH)
    path, cache = tmp_path / "store", tmp_path / "cache"
    fit(grow(path, data, BASE), policy, cache)
    lengths = []
    for start, stop in ((BASE, BASE + 4 * LENGTH), (BASE + 4 * LENGTH, END)):
        with TransitionStore.open(path).appender() as writer:
            writer.append(**rows(data, start, stop))
        summed.clear()
        store = TransitionStore.open(path).grown_from(BASE)
        model = fit(store, policy, cache)
        lengths.append(sum(b - a for a, b in summed))
    # Blocks are of three episodes: of the first four, three are settled and one is summed again.
    assert lengths == [4 * LENGTH, 3 * LENGTH]
    summed.clear()
    other = fit(store, policies.Uniform(weights=policy.weights, bias=0.0, half_width=0.4), cache)
    assert sum(b - a for a, b in summed) == END  # of another policy all continuations are new
    assert not np.allclose(model.coefficients_, other.coefficients_)


@pytest.mark.slow
def test_bootstrap__needs_the_store_as_it_was_seen(tmp_path, policy):
    data = make_episodes(N_EPISODES, LENGTH)
    store = grow(tmp_path / "store", data, BASE, END).grown_from(BASE)
    model = fit(store, policy, tmp_path / "cache")
    found = model.bootstrap(store, policy, 3, cache=tmp_path / "cache", progress="none")
    assert found.counts.shape == (3, len(episode_blocks(store, N_BLOCKS)))
    with pytest.raises(ValueError, match="does not hold the transitions"):
        model.bootstrap(TransitionStore.open(store.path), policy, 3, progress="none")


def test_run__of_a_grown_store_is_gone_on_with(tmp_path, policy):
    data = make_episodes(N_EPISODES, LENGTH)
    store = grow(tmp_path / "store", data, BASE, END).grown_from(BASE)
    model = estimator().fit(store, policy, run=tmp_path / "run", progress="none")
    again = KEDRL.resume(tmp_path / "run", progress="none")
    np.testing.assert_array_equal(again.coefficients_, model.coefficients_)
    with pytest.raises(ValueError, match=f"was made on {BASE} rows of the store, now on all"):
        estimator().fit(store.path, policy, run=tmp_path / "run", progress="none")


def test_prune__leaves_what_was_asked_for(tmp_path):
    cache = Cache(tmp_path / "cache")
    make = [cache.get("kind", {"n": n}, lambda path: path.mkdir()) for n in range(3)]
    marker = tmp_path / "marker"
    for path in make:  # clocks of file systems are coarse
        os.utime(path.parent, (1.0, 1.0))
    marker.touch()
    os.utime(marker, (2.0, 2.0))
    cache.get("kind", {"n": 1}, lambda path: pytest.fail("made again"))
    assert cache.prune(marker) == 2
    assert [path.exists() for path in make] == [False, True, False]


def test_settings__are_those_of_the_base(tmp_path, policy):
    """Of all transitions a share are conditioning points: of the base, whatever is added."""
    data = make_episodes(N_EPISODES, LENGTH)
    store = grow(tmp_path / "store", data, BASE, END).grown_from(BASE)
    model = fit(store, policy, n_conditioning=0.5)
    assert model.diagnostics_["sizes"]["conditioning"] == -(-store.base.n_transitions // 2)
    assert model.plan_.sizes.n_transitions == store.n_transitions
