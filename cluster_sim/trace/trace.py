"""The Trace: a schedule with the times that an engine gave it, and :func:`run` that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from re import compile as compiled
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cluster_sim.engine import simulate
from cluster_sim.engine.faults import FaultError, Faults
from cluster_sim.engine.times import READY, RUNNING, STATUSES, HorizonError, Times
from cluster_sim.schedule.table import KINDS, PS_PER_S, Codes, Schedule
from topologies.support import display
from topologies.support.arguments import checked
from topologies.support.arrays import IntArray, distinct
from topologies.support.errors import InputError, check_choice, suggestion

if TYPE_CHECKING:
    import pandas as pd

TIME_COLUMNS = ("ready", "start", "end")
ENGINES = ("fast", "reference")

Picks = int | str | Sequence[int] | Sequence[str] | IntArray
"""Choice of resources: numbers, names (``link:0-1``), patterns (``link:*``) or kinds (``link``)."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A schedule and when each of its ops was ready, started and ended.

    Attributes
    ----------
    schedule : Schedule
    times : Times
        ``ready_ps``, ``start_ps``, ``end_ps``: int64 (ops,) [ps], -1 for what never happened.

    Examples
    --------
    >>> from cluster_sim.collectives.builder import collective
    >>> trace = run(collective("all-gather", "trn2.48xlarge", size_bytes="16MiB"))
    >>> trace.total_ps == int(trace.times.end_ps.max())
    True
    """

    schedule: Schedule
    times: Times

    def __len__(self) -> int:
        return len(self.schedule)

    def __repr__(self) -> str:
        return f"Trace({self.total_s:.9g} s, {self.schedule!r})"

    def _repr_html_(self) -> str:
        facts = {"time": f"{self.total_s:.9g} s", "ops": f"{len(self):,}"}
        return display.table("Trace", {**facts, **self.schedule.facts})

    @property
    def total_ps(self) -> int:
        """Latest end of any op [ps] (rule 2)."""
        return self.times.total_ps

    @property
    def total_s(self) -> float:
        """Latest end of any op [s]."""
        return self.total_ps / PS_PER_S

    def rows(
        self,
        ranks: int | Sequence[int] | IntArray | None = None,
        resources: Picks | None = None,
        ops: npt.ArrayLike | None = None,
    ) -> IntArray:
        """Return the numbers of ops, ascending, that fit all filters; see :meth:`frame`.

        Raises
        ------
        InputError
            When a resource or rank is unknown, or the schedule has no ``rank`` label.
        """
        schedule = self.schedule
        picked = np.arange(len(schedule)) if ops is None else _op_numbers(ops, len(schedule))
        if ranks is not None:
            picked = picked[np.isin(_ranks(schedule)[picked], np.atleast_1d(np.asarray(ranks)))]
        if resources is not None:
            picked = picked[
                np.isin(schedule.resource[picked], resource_numbers(schedule, resources))
            ]
        return picked

    def frame(
        self,
        ranks: int | Sequence[int] | IntArray | None = None,
        resources: Picks | None = None,
        ops: npt.ArrayLike | None = None,
    ) -> pd.DataFrame:
        """Return a table with one row for each op; of a large trace, only for those of interest.

        Parameters
        ----------
        ranks : int or list of int, optional
            Only ops of these ranks, by their ``rank`` label.
        resources : number, name, pattern or kind, or a list of them, optional
            Only ops on these resources: ``5``, ``"link:0-1"``, ``"link:0-*"`` or ``"link"``.
        ops : int array of op numbers, or bool array (ops,), optional
            Only these ops.

        Returns
        -------
        DataFrame
            Index ``op``. Columns ``kind``, ``resource``, ``status``; ``ready_s``, ``start_s``,
            ``end_s`` [s], NaN for what never happened; the same in exact integers as ``ready_ps``,
            ``start_ps``, ``end_ps`` [ps], -1 for what never happened; ``size_bytes`` [B]; the
            schedule's labels.

        Examples
        --------
        >>> from cluster_sim.schedule.build import OpColumns, schedule
        >>> from cluster_sim.schedule.table import FIXED, Edges, Resources
        >>> two = schedule(OpColumns(kind=[FIXED] * 2, resource=0, duration_ps=5),
        ...                 edges=Edges.from_pairs(2, [0], [1]),
        ...                 resources=Resources.table("link", [0], [1]))
        >>> print(run(two).frame()[["resource", "start_ps", "end_ps"]].to_string(index=False))
        resource  start_ps  end_ps
        link:0-1         0       5
        link:0-1         5      10
        """
        schedule, rows = self.schedule, self.rows(ranks, resources, ops)
        columns: dict[str, Any] = {
            "kind": categorical(schedule.kind[rows], KINDS),
            "resource": categorical(*schedule.resources.coded(schedule.resource[rows])),
            "status": categorical(self.times.status[rows], STATUSES),
        }
        exact = {name: getattr(self.times, f"{name}_ps")[rows] for name in TIME_COLUMNS}
        columns |= {f"{name}_s": seconds(ps) for name, ps in exact.items()}
        columns |= {f"{name}_ps": ps for name, ps in exact.items()}
        columns["size_bytes"] = schedule.size_bytes[rows]
        for name, label in schedule.labels.items():
            picked = label[rows]
            if isinstance(picked, Codes):
                picked = categorical(picked.code, picked.names)
            columns[name] = picked
        import pandas as pd

        return pd.DataFrame(columns, index=pd.Index(rows, name="op"), copy=False)

    def save(self, path: str | Path) -> None:
        """Write times and schedule as a Parquet file, which appears whole or not at all."""
        from cluster_sim.trace import file  # pyarrow takes its time to load

        file.write(self.schedule, self.times, Path(path))


def load_trace(path: str | Path) -> Trace:
    """Read and check what :meth:`Trace.save` wrote."""
    from cluster_sim.trace import file  # pyarrow takes its time to load

    return Trace(*file.read(Path(path)))


@checked(schedule="Pass a Schedule, such as cs.collective returns.")
def run(
    schedule: Schedule,
    *,
    engine: str = "fast",
    faults: Faults | None = None,
    until_ps: int | None = None,
    until_ops: Sequence[int] | None = None,
    on_blocked: Literal["raise", "report"] = "raise",
) -> Trace:
    """Simulate a schedule to its end, to an instant, or until the first of some ops has ended.

    Parameters
    ----------
    schedule : Schedule
    engine : {"fast", "reference"}, default "fast"
        The compiled engine, or that in SimPy; both give the same integers.
    faults : Faults, optional
        Resources that change their speed during the run (rule 8).
    until_ps : int, optional
        Stop at this instant [ps].
    until_ops : sequence of int, optional
        Numbers of ops; stop as soon as one of them has ended.
    on_blocked : {"raise", "report"}, default "raise"
        Whether ops that can never run are an error, or stay in the trace with times of -1, for
        which :func:`cluster_sim.trace.trace.explain` gives the reason.

    Returns
    -------
    Trace
        ``total_s`` [s] and, op by op, ready, start and end in integer picoseconds.

    Raises
    ------
    BlockedWork
        When some ops can never run; the message names the first and what it waits for.
    InputError
        For an unknown engine, a fault of an unknown resource, or a run past 2⁶² ps (rule 6).

    Examples
    --------
    >>> from cluster_sim.collectives.builder import collective
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:4", bandwidth="100GB/s", latency="1us")
    >>> run(collective("permute", ring, size_bytes=10**6)).total_s
    1.1e-05
    """
    check_choice("on_blocked", on_blocked, ("raise", "report"))
    check_choice("engine", engine, ENGINES)
    stop_ops = None if until_ops is None else [int(op) for op in until_ops]
    try:
        times = simulate(
            schedule, engine=engine, faults=faults, until_ps=until_ps, until_ops=stop_ops
        )
    except (HorizonError, FaultError) as mistake:
        raise InputError(str(mistake)) from None
    if on_blocked == "raise" and times.blocked.any():
        raise BlockedWork(explain(schedule, times))
    return Trace(schedule, times)


def seconds(ps: IntArray) -> npt.NDArray[np.float64]:
    """Convert picoseconds to seconds; -1, for what never happened, becomes NaN."""
    return np.where(ps < 0, np.nan, ps / PS_PER_S)


def categorical(code: IntArray, names: Sequence[str]) -> Any:
    """Return ``names[code]`` as a pandas categorical; equal names are one category."""
    import pandas as pd

    unique = pd.Index(dict.fromkeys(names))
    if len(unique) != len(names):
        code = unique.get_indexer(pd.Index(names))[code]
    return pd.Categorical.from_codes(code.astype(np.int32), categories=unique)


def resource_numbers(schedule: Schedule, picks: Picks) -> IntArray:
    """Return the numbers, ascending, of the resources that the picks select, each at least one."""
    resources = schedule.resources
    wanted = [picks] if isinstance(picks, int | str) else list(picks)
    numbers = [np.asarray([pick]) for pick in wanted if not isinstance(pick, str)]
    for number in numbers:
        if not 0 <= number[0] < len(resources):
            raise InputError(f"resource {number[0]}: there are {len(resources)}, counted from 0")
    texts = [pick for pick in wanted if isinstance(pick, str)]
    names = resources.names() if any(text not in resources.kinds for text in texts) else []
    for text in texts:
        if text in resources.kinds:
            selected = np.flatnonzero(resources.kind == resources.kinds.index(text))
        else:
            matches = compiled(translate(text)).match
            selected = np.array([k for k, name in enumerate(names) if matches(name)], np.int64)
        if not len(selected):
            close = suggestion(text, [*resources.kinds, *names])
            kinds = f" Give one of the kinds {', '.join(resources.kinds)}."
            raise InputError(f"no resource is called {text}.{close or kinds}")
        numbers.append(selected)
    return distinct(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)


def _ranks(schedule: Schedule) -> IntArray:
    label = schedule.labels.get("rank")
    if label is None or isinstance(label, Codes):
        names = ", ".join(schedule.labels) or "none"
        raise InputError(f"the schedule has no label of ranks; use one of its labels: {names}.")
    return label


def _op_numbers(ops: npt.ArrayLike, count: int) -> IntArray:
    picked = np.atleast_1d(np.asarray(ops))
    if picked.dtype == bool:
        if picked.shape != (count,):
            raise InputError(f"a mask of {len(picked)} ops; give one of {count}, as the trace has.")
        return np.flatnonzero(picked)
    picked = distinct(picked.astype(np.int64))
    if len(picked) and (picked[0] < 0 or picked[-1] >= count):
        wrong = picked[0] if picked[0] < 0 else picked[-1]
        raise InputError(f"op {wrong} is none of the trace; ops are 0 to {count - 1}.")
    return picked


LONGEST_CHAIN = 6  # ops named in one explanation; a longer chain is cut short


class BlockedWork(InputError):  # noqa: N818 - a state of the work, not a fault of the program
    """Error for ops that can never run; the message says how many, and why the first one."""


def explain(schedule: Schedule, times: Times) -> str:
    """Say in a line how many ops are blocked, and what the first waits for; empty for none."""
    # Waiting begins at an op on a cycle of edges, or held back by a dead or starved resource.
    blocked = times.blocked
    if not blocked.any():
        return ""
    chain = waiting_chain(schedule, times)
    waits = f"op {chain[0]}"
    if len(chain) == 1:
        waits += _reason_at_resource(schedule, times, chain[0])
    else:
        named = chain[1:] if len(chain) <= LONGEST_CHAIN else [*chain[1:LONGEST_CHAIN], chain[-1]]
        waits += " waits for " + ", which waits for ".join(f"op {op}" for op in named)
    if len(chain) > LONGEST_CHAIN:
        head, last = waits.rsplit(", which waits for ", 1)
        waits = f"{head}, and so on through {len(chain) - 1:,} ops until one waits for {last}"
    return f"{np.count_nonzero(blocked):,} of {len(schedule):,} ops never ran. First: {waits}."


def waiting_chain(schedule: Schedule, times: Times) -> list[int]:
    """Return a cycle of ops that wait for one another, first = last; else the op at the root."""
    cause = _unfinished_predecessor(schedule, times)
    op = int(np.argmax(times.blocked))
    position: dict[int, int] = {}
    while op not in position:
        position[op] = len(position)
        if cause[op] < 0:
            return [op]
        op = int(cause[op])
    return [*list(position)[position[op] :], op]


def _unfinished_predecessor(schedule: Schedule, times: Times) -> IntArray:
    """Return for each op a predecessor whose edge to it has not elapsed, -1 for none."""
    edges, blocked = schedule.edges, times.blocked
    edge = np.flatnonzero(blocked[edges.dst] & (times.ready_ps[edges.dst] < 0))
    source = np.searchsorted(edges.ptr, edge, side="right") - 1
    unfinished = times.end_ps[source] < 0
    if edges.from_start is not None:
        unfinished &= ~edges.from_start[edge] | (times.start_ps[source] < 0)
    predecessor = np.full(len(schedule), -1, np.int64)
    predecessor[edges.dst[edge[unfinished]]] = source[unfinished]
    return predecessor


def _reason_at_resource(schedule: Schedule, times: Times, op: int) -> str:
    """Say why an op whose edges have all elapsed did not run: the state of its resources."""
    needed = [schedule.resource[op]] if schedule.resource[op] >= 0 else []
    flow = np.flatnonzero(schedule.flows.op == op)
    if len(flow):
        needed += schedule.flows.resource[
            schedule.flows.ptr[flow[0]] : schedule.flows.ptr[flow[0] + 1]
        ].tolist()
    dead = [number for number in needed if number in times.dead]
    names = " and ".join(schedule.resources.names(np.array(dead or needed[:1], np.int64)))
    if dead:
        state = "is dead. Make it" if len(dead) == 1 else "are dead. Make them"
        return f" waits for {names}, which {state} slow=P/Q, or use an algorithm that goes round"
    if times.status[op] == RUNNING:
        return f" has no rate left on {names}"
    if times.status[op] == READY:
        return f" waits for {names}, which is never free again"
    return " waits for something outside the schedule"
