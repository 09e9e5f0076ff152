"""Measured times of a collective beside the simulated ones, for the user's own nccom-test runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.collectives.results import bus_factor
from experiments.validation.comparison.compare import condensed
from topologies.errors import InputError
from topologies.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from experiments.validation.reading.nccl_tests import Measured


def check_same(measured: Measured, op: str, ranks: int, name: str) -> None:
    """Refuse to compare with an operation or a number of ranks other than the measured one."""
    operation = op.removesuffix("-v")
    if measured.collective not in (None, operation):
        raise InputError(
            f"--compare {name} measures {measured.collective}, the command simulates {op}; "
            f"ask for {measured.collective}"
        )
    if measured.ranks not in (None, ranks):
        raise InputError(
            f"--compare {name} was measured on {measured.ranks} ranks, the command simulates "
            f"{ranks}; add --ranks {measured.ranks}, and --ranks-per-chip if they share chips"
        )


def measured_sizes(measured: Measured) -> list[int]:
    """Sizes that were measured, each once, ascending [B]."""
    return [int(size) for size in np.unique(measured.size_bytes)]


def beside(frame: pd.DataFrame, measured: Measured, name: str) -> pd.DataFrame:
    """Add what was measured to the simulated rows of the same sizes.

    Returns rows with ``measured_time_s``, ``measured_busbw_bytes_per_s`` (from the time, never as
    printed) and ``error``: simulated / measured time − 1. Cells of sizes not measured are empty.
    """
    import pandas as pd

    series = pd.Series(measured.time_s, index=measured.size_bytes.astype(np.int64))
    times = frame.size_bytes.map(series.groupby(level=0).median())
    if times.isna().all():
        raise InputError(
            f"--compare {name} measures none of the sizes asked for, but {len(measured)} from "
            f"{int(measured.size_bytes.min())} to {int(measured.size_bytes.max())} B; "
            "leave out --size to simulate those"
        )
    first = frame.iloc[0]
    factor = bus_factor(str(first.collective).removesuffix("-v"), int(first.ranks))
    return frame.assign(
        measured_time_s=times,
        measured_busbw_bytes_per_s=factor * frame.size_bytes / times,
        error=frame.time_s / times - 1,
    )


USUAL, SLOWER, FASTER = "usual", "slower", "faster"
"""A measured time within the 80 % interval of such machines, beyond it, and below it."""
BY_BANDWIDTH = 0.25
"""Share of a simulated time from which its lower bound, set by links and memory, counts as most."""


def normality(compared: pd.DataFrame) -> list[str | None]:
    """Say for each row whether its measured time is as on such machines; None if not measured."""
    seconds, low, high = (compared[name] for name in ("measured_time_s", "low", "high"))
    words = np.select([seconds.isna(), seconds > high, seconds < low], ["", SLOWER, FASTER], USUAL)
    return [str(word) or None for word in words]


def verdict(compared: pd.DataFrame, *, crosses: bool) -> str:
    """Return a sentence on whether measured times are normal, and where to look if they are not.

    One machine in ten is slower than the end of its interval. ``compared`` has the columns
    ``normal``, ``size_bytes``, ``time_s`` and ``lower_bound_s``; ``crosses``: the ranks are in
    several scale-up domains.
    """
    measured = compared[compared.normal.notna()]
    slower, faster = (measured[measured.normal == word] for word in (SLOWER, FASTER))
    if slower.empty and faster.empty:
        return f"All {len(measured)} times are usual for such machines (80 % intervals)."
    if slower.empty:
        return (
            f"{len(faster)} of {len(measured)} times are shorter than nine of ten such machines "
            "take. Check that machine, ranks and operation are those that were measured."
        )
    by_bandwidth = slower.lower_bound_s > BY_BANDWIDTH * slower.time_s
    where = "cables, adapters and routes between servers" if crosses else "links and their lanes"
    looks = [
        f"At {', '.join(format_bytes(int(size)) for size in slower.size_bytes[which])} look "
        f"at {cause}."
        for which, cause in (
            (~by_bandwidth, "what sets latency: the host, launches and the algorithm"),
            (by_bandwidth, f"what sets bandwidth: {where}"),
        )
        if which.any()
    ]
    counted = f"{len(slower)} of {len(measured)} times are longer than nine of ten such machines"
    return " ".join([f"{counted} take.", *looks])


def agreement(compared: pd.DataFrame) -> dict[str, Any]:
    """Rows compared, and the median, mean and 90th percentile of their absolute errors, and bias.

    >>> import pandas as pd
    >>> agreement(pd.DataFrame({"error": [0.1, -0.3, None]}))["rows"]
    2
    """
    errors = compared["error"].dropna().to_numpy(float)
    return {"rows": len(errors), **condensed(errors)}
