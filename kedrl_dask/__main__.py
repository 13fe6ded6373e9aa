"""``python -m kedrl_dask`` is ``kedrl``."""

import sys

from kedrl_dask.cli import main

if __name__ == "__main__":
    sys.exit(main())
