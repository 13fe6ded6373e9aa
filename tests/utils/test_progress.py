"""Division of work, and what people see of it while it runs."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.utils import progress
from kedrl_dask.utils.progress import Reporter


@given(n=st.integers(1, 5000), at_most=st.integers(1, 6000))
def test_even_ranges__cover_in_the_fewest_nearly_equal_pieces(n, at_most):
    ranges = even_ranges(n, at_most)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(n))
    lengths = [stop - start for start, stop in ranges]
    assert max(lengths) <= at_most
    assert len(ranges) == -(-n // at_most)
    assert len(set(lengths[:-1])) <= 1
    assert lengths[-1] <= lengths[0]
    # The last one is not a crumb: no shorter common length would do.
    assert len(range(0, n, lengths[0])) < len(range(0, n, lengths[0] - 1)) if lengths[0] > 1 else True


@pytest.mark.parametrize(("n", "at_most"), [(0, 3), (3, 0), (-1, 1)])
def test_even_ranges__nothing_to_divide_is_refused(n, at_most):
    with pytest.raises(ValueError, match=f"n is {n} and at_most {at_most}"):
        even_ranges(n, at_most)


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "kedrl_dask"]


def test_log__lines_at_start_at_intervals_and_at_the_end(caplog, clock):
    caplog.set_level(logging.INFO, "kedrl_dask")
    with Reporter("log").stage("streaming pass", 40) as advance:
        for _ in range(4):
            clock.now += 4.0
            advance(5, "remark")
        clock.now += 1.5
    assert messages(caplog) == [
        "streaming pass",
        "streaming pass: 15 of 40 after 12 s remark",
        "streaming pass: done in 17.5 s",
    ]


def test_log__without_a_total(caplog, clock):
    caplog.set_level(logging.INFO, "kedrl_dask")
    with Reporter("log").stage("solver") as advance:
        clock.now += 11
        advance()
    assert messages(caplog)[1].startswith("solver: 1 after 11 s")


def test_log__stage_that_fails_is_not_called_done(caplog):
    caplog.set_level(logging.INFO, "kedrl_dask")
    with pytest.raises(RuntimeError, match="broken"), Reporter("log").stage("solver"):
        raise RuntimeError("broken")
    assert messages(caplog) == ["solver"]


@pytest.mark.parametrize("show", ["log", "none", "bars"])
def test_seconds__are_recorded_and_added_up(show, clock):
    reporter = Reporter(show)
    for name, duration in (("design", 2.0), ("solver", 3.0), ("design", 0.5)):
        with reporter.stage(name, 2) as advance:
            advance()
            clock.now += duration
    assert reporter.seconds == pytest.approx({"design": 2.5, "solver": 3.0})


def test_none__is_silent(caplog, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    caplog.set_level(logging.DEBUG)
    with Reporter("none").stage("solver", 3) as advance:
        advance()
        advance(2, "remark")
    assert caplog.records == []
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.mark.parametrize(("total", "steps"), [(3, 3), (10, 2), (None, 2), (None, 0), (3, 0)])
def test_bars__are_drawn_on_a_terminal(total, steps, capsys, caplog, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    caplog.set_level(logging.INFO, "kedrl_dask")
    reporter = Reporter("bars")
    with reporter.stage("conditioning points", total) as advance:
        for step in range(steps):
            advance(1, f"remark {step}")
    out, err = capsys.readouterr()
    assert out == ""
    assert "conditioning points" in err
    assert "━" in err
    if steps:
        assert f"remark {steps - 1}" in err
    assert caplog.records == []
    assert list(reporter.seconds) == ["conditioning points"]


def test_auto__writes_log_lines_without_a_terminal(caplog, capsys):
    caplog.set_level(logging.INFO, "kedrl_dask")
    with Reporter().stage("design"):
        pass
    assert messages(caplog)[0] == "design"
    assert capsys.readouterr().err == ""


def test_auto__works_without_standard_error(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "kedrl_dask")
    monkeypatch.setattr("sys.stderr", None)
    with Reporter().stage("design"):
        pass
    assert messages(caplog)[0] == "design"


@pytest.mark.parametrize("show", ["loud", "", None, True])
def test_reporter__unknown_choice_is_refused(show):
    with pytest.raises(ValueError, match="progress must be 'auto' or 'bars' or 'log' or 'none'"):
        Reporter(show)
