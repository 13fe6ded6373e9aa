"""``python -m kedrl_dask`` is ``kedrl``."""

import sys


def main() -> int:
    """Run the command; what interrupts its imports is said in one line too."""
    try:
        from kedrl_dask.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kedrl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
