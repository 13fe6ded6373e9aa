"""The Expedia application's data: the file, lists, destinations and policies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import approx_fprime

from kedrl_dask.cli import main
from kedrl_dask.datasets import expedia
from kedrl_dask.datasets.expedia.columns import ACTION, COLUMNS, PAPER_STATISTICS, REWARD, STATE, VARIABLES
from tests import dense


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A file like the published one."""
    return expedia.write_like_published(tmp_path_factory.mktemp("expedia") / "train.csv", 1_500, seed=3)


@pytest.fixture(scope="module")
def lists(published):
    return expedia.read_lists(published)


def literal_lists(path):
    """tab:expedia_data_vars by a groupby in memory, with pandas' own reductions."""
    rows = pd.read_csv(path, na_values="NULL")
    rows["history"] = rows["prop_log_historical_price"].where(rows["prop_log_historical_price"] > 0)
    rows["review"] = rows["prop_review_score"].where(rows["prop_review_score"] > 0)
    rows["unavailable"] = (rows[[f"comp{i}_inv" for i in range(1, 9)]] == 1).any(axis=1).astype(float)
    by_search = rows.groupby("srch_id")
    found = pd.DataFrame(
        {
            "srch_destination_id": by_search["srch_destination_id"].first(),
            "date_time": pd.to_datetime(by_search["date_time"].min()),
            "mean_hist_price": by_search["history"].mean(),
            "std_hist_price": by_search["history"].std(),
            "prop_location_score1": by_search["prop_location_score1"].first(),
            "srch_room_count": by_search["srch_room_count"].first(),
            "srch_length_of_stay": by_search["srch_length_of_stay"].first(),
            "prop_review_score": by_search["review"].first(),
            "comp_inv": by_search["unavailable"].max(),
            "avg_price_per_night": by_search["price_usd"].mean(),
            "total_promotions": by_search["promotion_flag"].sum(),
            "std_price_usd": by_search["price_usd"].std(),
            "gross_revenue_per_night": by_search["gross_bookings_usd"].sum()
            / by_search["srch_length_of_stay"].first(),
            "total_clicks": by_search["click_bool"].sum(),
        }
    ).reset_index()
    found = found.sort_values(["srch_destination_id", "date_time", "srch_id"], ignore_index=True)
    found["time_idx"] = found.groupby("srch_destination_id").cumcount() + 1
    return found


def assert_same_lists(found, expected):
    for name in ("srch_destination_id", "srch_id", "time_idx"):
        np.testing.assert_array_equal(found[name], expected[name])
    for name in VARIABLES:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_lists__are_those_of_a_literal_groupby(published, lists):
    assert_same_lists(lists, literal_lists(published))
    assert lists["std_price_usd"].isna().any()  # lists of one property


def test_lists__rows_shuffled_and_read_in_small_pieces(published, tmp_path, monkeypatch):
    """Rows of a search need not be adjacent; only their own order counts, for what is taken first."""
    header, *rows = published.read_text().splitlines()
    rows = rows[:8_000]
    number = [int(row.split(",", 1)[0]) for row in rows]
    # Interleaved: the first row of every search, then the second, and so on.
    place = pd.Series(number).groupby(number).cumcount()
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join([header, *(rows[i] for i in np.argsort(place, kind="stable"))]) + "\n")
    monkeypatch.setattr("kedrl_dask.datasets.expedia.lists.BLOCK_BYTES", 2**17)
    monkeypatch.setattr("kedrl_dask.datasets.expedia.lists.GATHERED", 300)
    assert_same_lists(expedia.read_lists(mixed), literal_lists(mixed))


def test_generator__schema_missing_entries_and_marginals(published, lists):
    rows = pd.read_csv(published, na_values="NULL")
    assert list(rows.columns) == [column.name for column in COLUMNS]
    assert len(COLUMNS) == 54
    text = published.read_text()
    assert "NULL" in text
    assert ",," not in text
    missing = rows.isna().mean()
    for column in COLUMNS:
        if column.name != "gross_bookings_usd":  # the paper's lists are booked less often
            assert missing[column.name] == pytest.approx(column.missing, abs=0.03), column.name
        if column.kind == "integer":
            assert (rows[column.name].dropna() % 1 == 0).all(), column.name
    assert rows["price_usd"].max() > 20 * rows["price_usd"].mean()
    kept, _ = expedia.clean(lists)
    for name, found in expedia.describe(kept).items():
        paper = PAPER_STATISTICS[name]
        assert abs(found.mean - paper.mean) < 0.35 * paper.sd, name
        assert 0.6 < found.sd / paper.sd < 1.8, name


def test_generator__a_search_does_not_depend_on_how_many_there_are(published, tmp_path):
    shorter = expedia.write_like_published(tmp_path / "shorter.csv", 1_200, n_destinations=69, seed=3)
    assert published.read_text().startswith(shorter.read_text())
    with pytest.raises(FileExistsError, match=r"shorter\.csv exists"):
        expedia.write_like_published(shorter, 10)


def test_clean__counts_what_it_leaves_out_and_numbers_anew(lists):
    kept, left_out = expedia.clean(lists)
    assert len(kept) + sum(left_out.values()) == len(lists)
    assert left_out["a variable is missing"] > 0
    assert not kept[list(VARIABLES)].isna().any(axis=None)
    assert kept["srch_length_of_stay"].max() <= 14
    for _, destination in kept.groupby("srch_destination_id"):
        assert destination["time_idx"].tolist() == list(range(1, len(destination) + 1))
        assert destination["date_time"].is_monotonic_increasing
    with pytest.raises(ValueError, match="no list of 1,500 is left"):
        expedia.clean(lists, expedia.Cleaning(prices=(1.0, 2.0)))


@pytest.mark.parametrize(("training", "test"), [(400, 200), (None, None)])
def test_split__keeps_destinations_together(lists, training, test):
    kept, _ = expedia.clean(lists)
    parts = expedia.split(kept, training, test, seed=1)
    destinations = [set(part["srch_destination_id"]) for part in (parts.training, parts.test)]
    assert not destinations[0] & destinations[1]
    sizes = [len(part) - part["srch_destination_id"].nunique() for part in (parts.training, parts.test)]
    if training is None:
        assert sum(sizes) == len(kept) - kept["srch_destination_id"].nunique()
    else:
        assert sizes == [400, 200]


def test_split__more_than_there_is__says_how_much(lists):
    kept, _ = expedia.clean(lists)
    with pytest.raises(ValueError, match="fewer than the 10,000 and 4,000 asked for"):
        expedia.split(kept)


def test_encoder__levels_of_training_and_zeros_for_others(lists, tmp_path):
    kept, _ = expedia.clean(lists)
    parts = expedia.split(kept, 600, 200)
    encoder = expedia.Encoder.learn(parts.training)
    state = encoder.state(parts.training)
    n_levels = sum(parts.training[name].nunique() for name in expedia.panel.CATEGORICAL)
    assert state.shape[1] == 4 + n_levels == len(encoder.state_names)
    rooms = [i for i, name in enumerate(encoder.state_names) if name.startswith("srch_room_count=")]
    assert (state[:, rooms].sum(axis=1) == 1).all()
    unknown = parts.test.iloc[:3].assign(srch_room_count=99.0)
    assert (encoder.state(unknown)[:, rooms] == 0).all()
    continuous = [encoder.state_names.index(name) for name in STATE if name not in encoder.levels]
    np.testing.assert_allclose(state[:, continuous].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(state[:, continuous].std(axis=0), 1)
    raw = parts.test[list(ACTION)].to_numpy()
    np.testing.assert_allclose(encoder.raw_action(encoder.action(parts.test)), raw)
    store = expedia.write(tmp_path / "store", parts.test, encoder, chunk_rows=64)
    assert store.n_transitions == 200
    assert store.n_episodes == parts.test["srch_destination_id"].nunique()
    rewards = parts.test[list(REWARD)].to_numpy()
    has_successor = (
        parts.test["srch_destination_id"] == parts.test["srch_destination_id"].shift(-1)
    ).to_numpy()
    np.testing.assert_allclose(store.transitions().reward * encoder.reward_scale, rewards[has_successor])


def test_encoder__paper_sizes_have_28_columns():
    """Four continuous variables, 8 room counts, 14 lengths of stay and 2 of inventory."""
    grid = pd.DataFrame(
        [(r, s, c) for r in range(1, 9) for s in range(1, 15) for c in (0, 1)],
        columns=["srch_room_count", "srch_length_of_stay", "comp_inv"],
    ).astype(float)
    rng = np.random.default_rng(0)
    for name in (*expedia.panel.CONTINUOUS, *ACTION, *REWARD):
        grid[name] = rng.uniform(1, 2, len(grid))
    encoder = expedia.Encoder.learn(grid)
    assert encoder.state(grid).shape == (224, 28)
    with pytest.raises(ValueError, match="prop_review_score is the same in all 224 training lists"):
        expedia.Encoder.learn(grid.assign(prop_review_score=4.0))


@pytest.fixture
def small_policy():
    """States, actions, rewards, an encoder whose actions are standardised already, and the fitted policy."""
    rng = np.random.default_rng(5)
    state = rng.standard_normal((60, 2))
    action = state @ rng.standard_normal((2, 3)) + np.exp(0.3 * state[:, :1]) * rng.standard_normal((60, 3))
    reward = np.maximum(rng.standard_normal(60) + state[:, 0], 0)
    one, zero = dict.fromkeys(ACTION, 1.0), dict.fromkeys(ACTION, 0.0)
    encoder = expedia.Encoder({}, zero, one, dict.fromkeys(ACTION, -1.2), dict.fromkeys(ACTION, 1.4), (0.0,))
    return (
        state,
        action,
        reward,
        encoder,
        expedia.reward_weighted_policy(state, action, reward, encoder, 0.02),
    )


def test_policy__minimises_the_literal_criterion(small_policy):
    state, action, reward, _, policy = small_policy

    def value(parameters):
        slope, offset, scale_slope, scale_offset = np.split(parameters, [6, 9, 15])
        return dense.reward_weighted_likelihood(
            state, action, reward, slope.reshape(2, 3), offset, scale_slope.reshape(2, 3), scale_offset, 0.02,
            0.05,
        )  # fmt: skip

    assert policy.scale_weights is not None
    parts = (policy.weights.ravel(), policy.bias, policy.scale_weights.ravel(), np.log(policy.scale))
    fitted = np.concatenate(parts)
    least = value(fitted)
    assert np.abs(approx_fprime(fitted, value, 1e-6)).max() < 1e-5
    rng = np.random.default_rng(0)
    assert all(value(fitted + 0.05 * rng.standard_normal(18)) > least for _ in range(20))


def test_policy__few_lists_that_the_mean_goes_through(small_policy):
    """Four lists for three parameters of the mean: a scale that is small, and not zero."""
    state, action, reward, encoder, _ = small_policy
    few = np.where(np.arange(len(reward)) < 4, 1.0, 0.0)
    policy = expedia.reward_weighted_policy(state, action, few, encoder, 1e-6)
    scale = policy.scale_at(state[:4])
    assert scale.min() > 0.03
    assert scale.min() < 0.2


def test_policy__draws_are_clipped_and_random_where_asked(small_policy):
    state, _, _, _, policy = small_policy
    rng = np.random.default_rng(1)
    for drawn in (
        policy.draws(state, 27)[0],
        policy.drawn().draws(state, 3, rng)[0],
        policy.sample(state, rng)[None],
    ):
        assert drawn.min() == -1.2
        assert drawn.max() == 1.4
    free = super(expedia.ClippedGaussian, policy).draws(state, 27)[0]
    np.testing.assert_array_equal(policy.draws(state, 27)[0], np.clip(free, -1.2, 1.4))
    noise = (policy.drawn().draws(state, 3, rng)[0] - policy.location(state)) / policy.scale_at(state)
    assert np.unique(noise.round(9)).size > 300  # and not three nodes for all states
    assert policy.deterministic_draws
    assert not policy.drawn().deterministic_draws
    assert policy.to_dict() != policy.drawn().to_dict()
    with pytest.raises(ValueError, match="pass rng"):
        policy.drawn().draws(state, 3)
    with pytest.raises(ValueError, match="no density"):
        policy.log_density(state, state)


def test_policy__survives_a_copy_to_another_process(small_policy):
    kind, arguments = small_policy[-1].drawn().__reduce__()
    assert kind(*arguments) == small_policy[-1].drawn()


def test_greedy_action__clipped_and_promotions_whole(small_policy):
    state, _, _, encoder, policy = small_policy
    action = expedia.greedy_action(policy, state, encoder)
    expected = np.clip(policy.location(state), -1.2, 1.4)
    expected[:, 1] = np.round(expected[:, 1])
    np.testing.assert_allclose(action, expected)


def test_policy__without_rewards_is_refused(small_policy):
    state, action, reward, encoder, _ = small_policy
    with pytest.raises(ValueError, match="not all 0"):
        expedia.reward_weighted_policy(state, action, 0 * reward, encoder)


ROW = "1,2013-04-04 08:32:15,"


def damaged(published, tmp_path, change):
    """The first lines of the file, changed."""
    lines = [line.split(",") for line in published.read_text().splitlines()[:40]]
    names = lines[0].copy()
    change(lines, names)
    path = tmp_path / "bad.csv"
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    return path


def set_entry(line, column, text):
    def change(lines, names):
        lines[line - 1][names.index(column)] = text

    return change


def drop_column(column):
    def change(lines, names):
        for line in lines:
            del line[names.index(column)]

    return change


FAULTS = {
    "empty": (lambda lines, names: lines.clear(), "is empty, expected a header of 54 columns"),
    "header alone": (lambda lines, names: lines.__delitem__(slice(1, None)), "has a header but no rows"),
    "missing column": (drop_column("price_usd"), "line 1 has no column price_usd; expected the 54 columns"),
    "test.csv": (drop_column("click_bool"), "use train.csv instead"),
    "not a number": (
        set_entry(7, "price_usd", "cheap"),
        "line 7, column price_usd: is 'cheap', expected a num",
    ),
    "not whole": (
        set_entry(9, "srch_id", "1.5"),
        "line 9, column srch_id: is '1.5', expected a whole number",
    ),
    "no time": (set_entry(5, "date_time", "noon"), "line 5, column date_time: is 'noon', expected a time"),
    "missing entry": (set_entry(6, "price_usd", "NULL"), "line 6, column price_usd: is missing"),
    "negative price": (
        set_entry(3, "price_usd", "-4"),
        "line 3, column price_usd: is -4.0, expected a price",
    ),
    "no nights": (set_entry(2, "srch_length_of_stay", "0"), "line 2, column srch_length_of_stay: is 0"),
    "two clicks": (set_entry(4, "click_bool", "2"), "line 4, column click_bool: is 2, expected 0 or 1"),
    "two stays": (
        set_entry(3, "srch_length_of_stay", "13"),
        "line 3, column srch_length_of_stay: is 13 in search 1",
    ),
    "cut off": (
        lambda lines, names: lines[-1].__delitem__(slice(20, None)),
        "line 40 has 20 entries, expected 54",
    ),
    "infinite": (set_entry(8, "price_usd", "inf"), "line 8, column price_usd: is inf, expected a price"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_file__is_named_with_line_and_column(published, tmp_path, fault, capsys):
    change, words = FAULTS[fault]
    path = damaged(published, tmp_path, change)
    with pytest.raises(expedia.FileError) as refused:
        expedia.read_lists(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    if fault in ("empty", "missing column", "not a number"):
        assert main(["study", "expedia", "--data", str(path), "--output", str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err
