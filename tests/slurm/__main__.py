"""``python -m tests.slurm start DIR`` and ``stop DIR``."""

from __future__ import annotations

import sys

from tests.slurm import control

if __name__ == "__main__":
    action, folder = sys.argv[1:]
    if action == "start":
        for name, value in control.start(folder).items():
            print(f"export {name}={value}")
    elif action == "stop":
        control.stop(folder)
    else:
        sys.exit(f"{action}: start or stop")
