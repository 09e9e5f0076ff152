"""The memory that this process may use, by which work is refused before it begins."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from topologies.support.errors import InputError
from topologies.support.units import format_bytes

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """Return the memory that this process may use [B]: the machine's, or a lower limit."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limits = [limit for limit in soft if limit != resource.RLIM_INFINITY]
    return min(physical, _cgroup_bytes(), *limits)


def _cgroup_bytes() -> int:
    """Return the memory limit of a container's control group [B], very large if there is none."""
    try:
        text = CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return sys.maxsize
    return int(text) if text.isdecimal() else sys.maxsize


def check_memory(what: str, needed_bytes: int, remedy: str) -> None:
    """Refuse work that takes more memory than this process may use."""
    limit = machine_bytes()
    if needed_bytes > limit:
        raise InputError(
            f"{what} needs about {format_bytes(needed_bytes)}, and this process may use "
            f"{format_bytes(limit)}. {remedy}"
        )


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far [B]."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
