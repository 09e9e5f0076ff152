"""Tables of each rank's time by category; every picosecond counts for one category alone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cluster_sim.analysis.category_times import (
    Order,
    by_group,
    categories_of,
    category_times,
    idle_gaps,
)
from cluster_sim.analysis.intervals import attribute_ps
from cluster_sim.analysis.stretches import end_of_run_ps
from cluster_sim.trace.trace import Trace
from topologies.arguments import checked


@checked()
def time_by_category(
    trace: Trace, order: Order, *, by: str = "rank", what: str = "what", rest: str = "idle"
) -> pd.DataFrame:
    """Divide each rank's time among categories, to the first of a list that is active.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.
    order : list of str, or mapping of str to list of str
        Names of the label ``what``, those that take precedence first; or categories, each with
        its names. Ops with other names are left out.
    by, what : str
        Labels of the schedule: that whose values have rows, and that which gives the category.
    rest : str
        Name of the time in which no category of the list is active.

    Returns
    -------
    DataFrame
        Index ``by``. One column ``<category>_ps`` each, ``<rest>_ps`` and ``total_ps`` [ps]. The
        parts of every row sum to the length of the run exactly.

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> step = cs.train("gpt2", "trn2.48xlarge", tp=4)
    >>> table = time_by_category(step.trace, ["compute", "tp"])
    >>> parts = table[["compute_ps", "tp_ps", "idle_ps"]]
    >>> bool((parts.sum(axis=1) == table["total_ps"]).all())
    True
    """
    names, running, code = categories_of(trace, order, what)
    groups, values = by_group(trace, by, running)
    total = end_of_run_ps(trace)
    parts = attribute_ps(groups, code, len(names), total)
    columns = {f"{name}_ps": parts[:, k] for k, name in enumerate([*names, rest])}
    columns["total_ps"] = np.full(len(values), total)
    return pd.DataFrame(columns, index=pd.Index(values, name=by))


@checked()
def overlap(trace: Trace, order: Order, *, by: str = "rank", what: str = "what") -> pd.DataFrame:
    """Divide the time of each category into exposed time and time hidden behind earlier ones.

    Parameters
    ----------
    trace, order, by, what
        As in :func:`time_by_category`.

    Returns
    -------
    DataFrame
        Index (``by``, ``category``). ``active_ps``: time in which the category was active;
        ``exposed_ps``: the part of it in which no category before it in the list was;
        ``overlapped_ps``: the rest [ps].

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> step = cs.train("gpt2", "trn2.48xlarge", tp=4)
    >>> int(overlap(step.trace, ["compute", "tp"]).loc[(0, "compute"), "overlapped_ps"])
    0
    """
    times = category_times(trace, order, by=by, what=what)
    index = pd.MultiIndex.from_product([times.groups, times.names], names=[by, "category"])
    active, exposed = times.active_ps.ravel(), times.exposed_ps.ravel()
    parts = {"active_ps": active, "exposed_ps": exposed, "overlapped_ps": active - exposed}
    return pd.DataFrame(parts, index=index)


@checked()
def waits(trace: Trace, *, by: str = "rank") -> pd.DataFrame:
    """List the gaps in which a rank had no op running, and the op whose start ended each gap.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.
    by : str
        Label of the schedule whose values count as ranks.

    Returns
    -------
    DataFrame
        One row for each gap, in order of ``by`` and time: the column ``by``; ``op``, the first to
        start after the gap, -1 at the end of the run; ``start_ps``, ``end_ps`` and their
        difference ``wait_ps`` [ps].

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> trace = cs.simulate(cs.collective("all-reduce", "trn2.48xlarge", size_bytes="1MiB"))
    >>> bool((waits(trace)["wait_ps"] > 0).all())
    True
    """
    idle, op, values = idle_gaps(trace, by=by)
    columns = {
        by: np.asarray(values)[idle.group],
        "op": op,
        "start_ps": idle.start_ps,
        "end_ps": idle.end_ps,
        "wait_ps": idle.end_ps - idle.start_ps,
    }
    return pd.DataFrame(columns)
