"""Peak memory of a process, for tests and benchmarks."""

import re
import resource
import sys
from pathlib import Path


def peak_memory():
    """Largest resident set of this process so far, in bytes.

    Not ``ru_maxrss`` where it can be helped: on Linux that begins with the peak of the process that started
    this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
