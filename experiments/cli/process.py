"""Set-up and end of the process of a command."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2
"""Numbers of glibc's ``mallopt`` parameters, see mallopt(3)."""
NEVER = 2**31 - 1
GROWTH_BYTES = 64 * 2**20


def prepare() -> None:
    """Keep the memory of arrays for the next arrays, and linear algebra to one thread.

    A schedule of a million ops passes through dozens of arrays of a few megabytes. glibc would ask
    the system for each and give it back, and the system would clear every page again: up to half
    of the time of a large run. No command multiplies matrices, so that threads for it, which take
    a tenth of a second to start, would only wait.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform != "linux":
        return
    import ctypes

    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    tune(MMAP_MAX, 0)
    tune(TRIM_THRESHOLD, NEVER)
    tune(TOP_PAD, GROWTH_BYTES)


def leave(status: int) -> NoReturn:
    """End the process without taking its modules apart, which takes longer than a small command."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more
        status = status or 1
    os._exit(status)
