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
from cluster_sim.engine.times import STATUSES, HorizonError, Times
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import KINDS, Codes, Label, Schedule
from cluster_sim.trace.blocked import BlockedWork, explain
from topologies import display
from topologies.arguments import checked
from topologies.arrays import IntArray, distinct
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    import pandas as pd

TIME_COLUMNS = ("ready", "start", "end")
ENGINES = ("fast", "reference")
NO_RESOURCE_NAME = "-"

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
            "resource": resource_names(schedule, rows),
            "status": categorical(self.times.status[rows], STATUSES),
        }
        exact = {name: getattr(self.times, f"{name}_ps")[rows] for name in TIME_COLUMNS}
        columns |= {f"{name}_s": seconds(ps) for name, ps in exact.items()}
        columns |= {f"{name}_ps": ps for name, ps in exact.items()}
        columns["size_bytes"] = schedule.size_bytes[rows]
        columns |= {name: label_column(label, rows) for name, label in schedule.labels.items()}
        import pandas as pd

        return pd.DataFrame(columns, index=pd.Index(rows, name="op"), copy=False)

    def save(self, path: str | Path) -> None:
        """Write times and schedule as a Parquet file, which appears whole or not at all."""
        from cluster_sim.trace import file  # pyarrow takes its time to load

        file.write(self.schedule, self.times, Path(path))


def load_trace(path: str | Path) -> Trace:
    """Read and check what :meth:`Trace.save` wrote.

    Raises
    ------
    InputError
        When the file is not such a trace.
    """
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
        which :func:`cluster_sim.trace.blocked.explain` gives the reason.

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
    _check_run(schedule, engine, on_blocked)
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


def _check_run(schedule: Schedule, engine: str, on_blocked: str) -> None:
    """Refuse arguments of :func:`run` that it does not take."""
    if on_blocked not in ("raise", "report"):
        raise InputError(f'on_blocked is "{on_blocked}"; it must be "raise" or "report"')
    if engine not in ENGINES:
        close = suggestion(engine, ENGINES)
        raise InputError(f'there is no engine "{engine}".{close} There are: {", ".join(ENGINES)}')


def seconds(ps: IntArray) -> npt.NDArray[np.float64]:
    """Convert picoseconds to seconds; -1, for what never happened, becomes NaN."""
    return np.where(ps < 0, np.nan, ps / PS_PER_S)


def label_column(label: Label, rows: IntArray) -> Any:
    """Return a label of these ops: integers as they are, names as a pandas categorical."""
    if not isinstance(label, Codes):
        return label[rows]
    return categorical(label.code[rows], label.names)


def categorical(code: IntArray, names: Sequence[str]) -> Any:
    """Return ``names[code]`` as a pandas categorical; equal names are one category."""
    import pandas as pd

    unique = pd.Index(dict.fromkeys(names))
    if len(unique) != len(names):
        code = unique.get_indexer(pd.Index(names))[code]
    return pd.Categorical.from_codes(code.astype(np.int32), categories=unique)


def resource_names(schedule: Schedule, rows: IntArray) -> Any:
    """Return the printed resource of each of these ops as a categorical, ``-`` for none."""
    # Formatting a name is slow, so only those that occur are made, each once.
    numbers, code = np.unique(schedule.resource[rows], return_inverse=True)
    held = numbers[numbers >= 0]
    names = schedule.resources.names(held)
    return categorical(code, [NO_RESOURCE_NAME, *names] if len(held) < len(numbers) else names)


def resource_numbers(schedule: Schedule, picks: Picks) -> IntArray:
    """Return the numbers, ascending, of the resources that any of the picks selects.

    Raises InputError when a pick selects no resource.
    """
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
