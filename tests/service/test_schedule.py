"""What ``deploy/schedule`` gives to cron, systemd and Slurm."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kedrl_dask import TransitionStore
from kedrl_dask.cli import main
from kedrl_dask.cli.common import BUSY, DRIFT, EXIT_CODES
from kedrl_dask.service.schedule import load_schedule

SCHEDULE = Path(__file__).parents[2] / "deploy" / "schedule"
COMMAND = "kedrl evaluate config.toml"


def unit(name):
    parser = configparser.ConfigParser(interpolation=None, delimiters="=")
    parser.optionxform = str
    parser.read(SCHEDULE / name)
    return parser


def lines(name):
    return [line for line in (SCHEDULE / name).read_text().splitlines() if line and not line.startswith("#")]


def test_readme__names_every_file():
    text = (SCHEDULE / "README.md").read_text()
    for path in SCHEDULE.iterdir():
        assert path.name == "README.md" or f"({path.name})" in text, path.name


def test_readme__has_the_exit_codes_of_the_command():
    table = re.findall(r"^\| (\d+)", (SCHEDULE / "README.md").read_text(), re.MULTILINE)
    known = set(re.findall(r"^  (\d+) ", EXIT_CODES, re.MULTILINE))
    assert {"5", "6", "7"} <= set(table) <= known


@pytest.mark.parametrize("name", ["crontab", "scrontab"])
def test_crontab__one_line_with_five_fields_and_the_command(name):
    (line,) = lines(name)
    fields = line.split(maxsplit=5)
    for field, high in zip(fields[:5], (59, 23, 31, 12, 7), strict=True):
        assert field == "*" or 0 <= int(field) <= high
    assert COMMAND in fields[5]
    assert "%" not in fields[5]  # which cron takes for a line end
    assert shlex.split(fields[5])


def test_scrontab__options_are_sbatchs():
    options = re.findall(r"^#SCRON (\S+?)=(\S+)$", (SCHEDULE / "scrontab").read_text(), re.MULTILINE)
    known = {"--job-name", "--time", "--cpus-per-task", "--mem", "--chdir", "--output"}
    assert dict(options).keys() == known
    if shutil.which("sbatch"):
        done = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, check=False)
        if done.returncode == 0:  # without a configuration it does not even help
            assert all(name in done.stdout for name in known)


def test_systemd__units_say_what_they_start():
    service, timer = unit("kedrl-evaluate.service"), unit("kedrl-evaluate.timer")
    assert service["Service"]["ExecStart"].endswith(COMMAND)
    assert service["Service"]["Type"] == "oneshot"
    assert {int(code) for code in service["Service"]["SuccessExitStatus"].split()} == {DRIFT, BUSY}
    assert timer["Install"]["WantedBy"] == "timers.target"
    assert timer["Timer"]["OnCalendar"]


def test_systemd__verifies_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    for name in ("kedrl-evaluate.service", "kedrl-evaluate.timer"):
        text = (SCHEDULE / name).read_text().replace("%h/venv/bin/kedrl", sys.executable)
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "--user", "verify", str(tmp_path / "kedrl-evaluate.timer")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert str(tmp_path) not in done.stderr, done.stderr


def test_config__is_what_the_command_reads(tmp_path, capsys):
    """The example, with data of its dimensions: what is in it, and what it would do."""
    shutil.copy(SCHEDULE / "config.toml", tmp_path)
    rng = np.random.default_rng(0)
    n = 60
    TransitionStore.from_arrays(
        tmp_path / "transitions.zarr", state=rng.normal(size=(n, 2)), action=rng.normal(size=(n, 1)),
        reward=rng.normal(size=(n, 2)), episode=np.repeat(np.arange(6), 10), step=np.tile(np.arange(10), 6),
    )  # fmt: skip
    found = load_schedule(tmp_path / "config.toml")
    assert list(found.config.policies) == ["current", "careful"]
    assert found.keep == 30
    assert main(["evaluate", str(tmp_path / "config.toml"), "--dry-run"]) == 0
    assert "there is no earlier result" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "transitions.zarr"]
