"""An environment of its own for what the methods need and the package does not: torch and d3rlpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Installed one after the other: d3rlpy is content with the torch that it finds.
REQUIREMENTS = (["torch==2.13.0"], ["d3rlpy==2.8.1"], ["-e", str(ROOT)])
#: Written when all is installed.
MARK = ".peers"


def prepare(path):
    """Create the environment, unless it is complete, and return its Python."""
    path = Path(path).absolute()
    python = path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (path / MARK).exists():
        return python
    if path.exists() and any(path.iterdir()) and not (path / "pyvenv.cfg").exists():
        raise ValueError(
            f"environment: {path} is not empty and no environment of Python; name another directory"
        )
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    for requirement in REQUIREMENTS:
        subprocess.run([str(python), "-m", "pip", "install", "-q", *requirement], check=True)
    (path / MARK).touch()
    return python


def run_in(python, arguments):
    """Run the benchmark in an environment on one thread, with the sources of this checkout; its exit code."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [str(python), "-m", "tests.benchmarks.peers", *arguments]
    variables = {**os.environ, **threads, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, check=False).returncode
