"""``python -m tests.chaos`` in small: kills, workers that die, some damaged files."""

from __future__ import annotations

import pytest

from tests.chaos.common import Undisturbed
from tests.chaos.corruption import run_corruption
from tests.chaos.kills import VICTIMS, run_kills
from tests.chaos.plugin import MODES, run_plugin

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("chaos")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed(tmp_path_factory.mktemp("chaos") / "undisturbed", n_episodes=20)


def assert_right(tally, n):
    assert tally.n == n
    assert not tally.failures


@pytest.mark.slow
def test_kill__driver_and_all_workers(undisturbed, tmp_path):
    victims = ("driver", "all workers")  # in the solver, and in the streaming pass
    assert_right(run_kills(tmp_path, undisturbed, 2, seed=23, kinds=("separated",), victims=victims), 2)


@pytest.mark.extended
def test_kills__every_run_comes_to_the_same_end(undisturbed, tmp_path):
    n = 2 * len(VICTIMS)
    assert_right(run_kills(tmp_path, undisturbed, n, seed=0), n)


@pytest.mark.extended
def test_dying_workers__every_fit_comes_to_the_same_end(undisturbed, tmp_path):
    tally = run_plugin(tmp_path, undisturbed, len(MODES), ("separated", "ratio", "adamw"), least_deaths=1)
    assert_right(tally, len(MODES))


@pytest.mark.slow
def test_corruption__noticed_and_mended_or_named(undisturbed):
    assert_right(run_corruption(undisturbed, 7, seed=3, kinds=("separated",)), 7)


@pytest.mark.extended
def test_corruption__of_every_kind_of_run(undisturbed):
    assert_right(run_corruption(undisturbed, 24, seed=0), 24)
