"""``python -m tests.chaos`` in small: one kill of each kind, workers that die, some damaged files."""

from __future__ import annotations

import pytest

from tests.chaos.common import Undisturbed
from tests.chaos.corruption import run_corruption
from tests.chaos.kills import VICTIMS, run_kills
from tests.chaos.plugin import run_plugin

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("chaos")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed(tmp_path_factory.mktemp("chaos") / "undisturbed", n_episodes=60)


def test_kills__every_run_comes_to_the_same_end(undisturbed, tmp_path):
    tally = run_kills(tmp_path, undisturbed, len(VICTIMS), seed=0, kinds=("separated",))
    assert tally.n == len(VICTIMS)
    assert not tally.failures


def test_dying_workers__every_fit_comes_to_the_same_end(undisturbed, tmp_path):
    # Workers that live shorter end before a task does where other tests take the cores.
    tally = run_plugin(tmp_path, undisturbed, 1, kinds=("separated",), mean="6 s", seconds=5.0)
    assert tally.n == 1
    assert not tally.failures


def test_corruption__noticed_and_mended_or_named(undisturbed):
    tally = run_corruption(undisturbed, 9, seed=3, kinds=("separated",))
    assert tally.n == 9
    assert not tally.failures
