"""The time of each rank by category: every picosecond goes to the first active category."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cluster_sim.analysis.category_times import (
    Order,
    by_group,
    categories_of,
    category_times,
    waiting,
)
from cluster_sim.analysis.intervals import attribute_ps
from cluster_sim.analysis.stretches import end_of_run_ps
from cluster_sim.trace.trace import Trace


def time_by_category(
    trace: Trace, order: Order, *, by: str = "rank", what: str = "what", rest: str = "idle"
) -> pd.DataFrame:
    """Give every picosecond of every rank to the first category of a list that is active.

    Parameters
    ----------
    trace : Trace
    order : list of str, or mapping of str to list of str
        Names of the label ``what``, first things first; or categories, each with its names.
        Ops under other names are passed over.
    by, what : str
        Labels: whose time is counted, and what is going on.
    rest : str
        Name of the time with nothing of the list on.

    Returns
    -------
    DataFrame
        Index ``by``. One column ``<category>_ps`` each, ``<rest>_ps`` and ``total_ps`` [ps]. The
        parts of every row sum to the length of the run exactly.

    Raises
    ------
    InputError
        When the schedule has no such label.
    """
    names, running, code = categories_of(trace, order, what)
    groups, values = by_group(trace, by, running)
    total = end_of_run_ps(trace)
    parts = attribute_ps(groups, code, len(names), total)
    columns = {f"{name}_ps": parts[:, k] for k, name in enumerate([*names, rest])}
    columns["total_ps"] = np.full(len(values), total)
    return pd.DataFrame(columns, index=pd.Index(values, name=by))


def overlap(trace: Trace, order: Order, *, by: str = "rank", what: str = "what") -> pd.DataFrame:
    """Time of each category that is hidden behind those before it in the list, rank by rank.

    Returns
    -------
    DataFrame
        Index (``by``, ``category``). ``active_ps``: the category was on; ``exposed_ps``: and
        nothing before it in the list; ``overlapped_ps``: and something before it too [ps].
    """
    times = category_times(trace, order, by=by, what=what)
    index = pd.MultiIndex.from_product([times.groups, times.names], names=[by, "category"])
    active, exposed = times.active_ps.ravel(), times.exposed_ps.ravel()
    parts = {"active_ps": active, "exposed_ps": exposed, "overlapped_ps": active - exposed}
    return pd.DataFrame(parts, index=index)


def waits(trace: Trace, *, by: str = "rank") -> pd.DataFrame:
    """Times at which each rank had nothing running, and the op whose start ended each of them.

    Returns
    -------
    DataFrame
        One row a gap, in order of ``by`` and time. ``by``; ``op``: the first to start after the
        gap, -1 at the end of the run; ``start_ps``, ``end_ps``, ``wait_ps`` [ps].
    """
    idle, op, values = waiting(trace, by=by)
    columns = {
        by: np.asarray(values)[idle.group],
        "op": op,
        "start_ps": idle.start_ps,
        "end_ps": idle.end_ps,
        "wait_ps": idle.end_ps - idle.start_ps,
    }
    return pd.DataFrame(columns)
