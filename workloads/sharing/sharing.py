"""Several jobs on one cluster: what each costs the others, and which placement loses least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import ENGINES
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import checked
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, check_choice
from topologies.support.units import format_memory, format_seconds
from workloads.sharing.jobs import PLACEMENTS, Job, chips_of_jobs, jobs_from, read_jobs
from workloads.sharing.periods import Period, periods
from workloads.training.detail import Detail, chip_catalogue
from workloads.training.execution.links import (
    LinkUse,
    Patterns,
    SideBySide,
    folded,
    link_use,
    side_by_side,
)
from workloads.training.iteration import Iteration, iteration
from workloads.training.layers.steps import RankShapes
from workloads.training.plan.placement import place
from workloads.training.program.groups import SharedParts
from workloads.training.program.program import Draws, Exchange, Program, program
from workloads.training.program.stage import Stream

if TYPE_CHECKING:
    import pandas as pd


def together(programs: Sequence[Program]) -> Program:
    """Return the program of several jobs on one cluster; ``rank`` counts through all of them."""
    # Stages, steps and ranks of each job follow those of the job before. Nothing else changes, so
    # that ranks of different jobs never wait for each other.
    streams, exchanges, stage = list[Stream](), list[Exchange](), list[IntArray]()
    steps = rows = 0
    for each in programs:
        stage.append(each.stage + len(streams))
        for stream in each.streams:
            streams.append(replace(stream, ops=replace(stream.ops, step=stream.ops.step + steps)))
        for exchange in each.exchanges:
            exchanges.append(replace(exchange, members=exchange.members + rows))
        steps, rows = steps + len(each.steps), rows + len(each)
    drawn = zip(*(each.draws for each in programs), strict=True)
    return Program(
        steps=tuple(step for each in programs for step in each.steps),
        step_ps=np.concatenate([each.step_ps for each in programs]),
        streams=tuple(streams),
        stage=np.concatenate(stage),
        rank=np.arange(rows),
        **{
            name: np.concatenate([getattr(each, name) for each in programs])
            for name in ("domain", "chip", "core", "count")
        },
        exchanges=tuple(exchanges),
        draws=Draws(*(np.concatenate(column) for column in drawn)),
        memory_bytes_per_s=np.zeros(len(streams), np.int64),
        facts=programs[0].facts[1:],
    )


@dataclass(frozen=True, eq=False)
class Ready:
    """A job that is placed and ready to run."""

    job: Job
    chips: IntArray
    # Its step at the collective level, on its chips. ``program``: ``steps`` of its steps
    step: Iteration
    program: Program
    steps: int

    @property
    def cluster(self) -> Cluster:
        """Cluster with the numbers of the job's framework."""
        return self.step.cluster


class Ran(NamedTuple):
    """Run of some jobs side by side."""

    ends_ps: list[IntArray]  # for each job the end of each of its steps [ps]
    # For each job by how much its calls take longer than at their own rate, on the mean rank and
    # step, by the axis of their groups [s]
    call_changes_s: list[dict[str, float]]
    ops: int  # ops that were simulated


class SharedLinks(NamedTuple):
    """Links of one kind on which the same jobs meet, and that may be full."""

    kind: str  # kind of link or adapter
    links: int  # how many there are
    example: str  # the fullest
    crossed_by: dict[str, list[str]]  # axes of the groups of each job that cross them
    # Load of the fullest if all groups make their largest calls at once, relative to its capacity
    load: float


class Meeting:
    """Jobs of a cluster, and the links on which their groups meet."""

    def __init__(self, ready: Sequence[Ready], patterns: Patterns):
        self.ready, self.patterns = ready, patterns
        self.program, self.use, self.exchange_job = self._used(range(len(ready)))

    def _used(self, numbers: Sequence[int]) -> tuple[Program, LinkUse, IntArray]:
        """Program of some of the jobs, their use of links that may be full, each exchange's job."""
        picked = [self.ready[number] for number in numbers]
        program = together([each.program for each in picked])
        clusters = [each.cluster for each in picked for _ in each.program.streams]
        job = np.repeat(numbers, [len(each.program.exchanges) for each in picked])
        use = link_use(program, clusters, self.patterns).where_full(program)
        return program, use, job

    def _crossings(self) -> IntArray:
        """Pairs of a link and a job that crosses it, of links that several jobs cross."""
        job = self.exchange_job[self.use.exchange()]
        pairs = np.unique(np.stack([self.use.link, job], axis=1), axis=0)
        jobs = np.bincount(pairs[:, 0], minlength=len(self.use.links))
        return np.asarray(pairs[jobs[pairs[:, 0]] > 1])

    def parties(self) -> list[list[int]]:
        """Return the jobs that meet on links, directly or through others, job by job."""
        party, met = np.arange(len(self.ready)), dict[int, tuple[int, ...]]()
        for link, job in self._crossings().tolist():
            met[link] = (*met.get(link, ()), job)
        for jobs in sorted(set(met.values())):
            together_with = party[list(jobs)]
            party[np.isin(party, together_with)] = together_with.min()
        return [np.flatnonzero(party == each).tolist() for each in np.unique(party)]

    def run(self, numbers: Sequence[int], engine: str) -> Ran:
        """Run some of the jobs side by side; all start at once."""
        whole, use, _ = self._used(numbers)
        program, few = folded(whole, use)
        beside = side_by_side(program, few, use.links)
        times = beside.run(engine)
        stages = np.cumsum([0, *(len(self.ready[number].program.streams) for number in numbers)])
        ends, longer = [], []
        longer_ps = beside.longer_ps(times)
        weight = _ranks_of_flows(beside)
        for number, low, high in zip(numbers, stages[:-1], stages[1:], strict=True):
            steps = self.ready[number].steps
            of_stages = [beside.ends_ps(times, stage, steps) for stage in range(low, high)]
            ends.append(np.max(of_stages, axis=0))
            ranks = int(program.count[(program.stage >= low) & (program.stage < high)].sum())
            share = longer_ps * weight / (ranks * steps * PS_PER_S)
            longer.append(_by_axis(beside, share, range(low, high)))
        return Ran(ends, longer, len(beside.usual))

    def shared_links(self) -> tuple[SharedLinks, ...]:
        """Return the links on which several jobs meet, in rows of one kind and jobs."""
        use, pairs = self.use, self._crossings()
        if not len(pairs):
            return ()
        rows = use.of(np.flatnonzero(np.isin(use.link, pairs[:, 0])))
        axes = [each.axis for each in self.program.exchanges]
        exchange = rows.exchange()
        most = use.loads(self.program)
        met: dict[int, dict[str, set[str]]] = {}
        for link, number in np.unique(np.stack([rows.link, exchange], axis=1), axis=0).tolist():
            name = self.ready[int(self.exchange_job[number])].job.name
            met.setdefault(link, {}).setdefault(name, set()).add(axes[number])
        alike: dict[tuple[int, frozenset[str]], list[int]] = {}
        for link, by_job in met.items():
            alike.setdefault((int(use.links.kind[link]), frozenset(by_job)), []).append(link)
        return tuple(
            SharedLinks(
                kind=use.links.kinds[kind],
                links=len(links),
                example=use.links.names(np.array([max(links, key=lambda link: most[link])]))[0],
                crossed_by={
                    each.job.name: sorted(
                        set().union(*(met[link][each.job.name] for link in links))
                    )
                    for each in self.ready
                    if each.job.name in names
                },
                load=float(most[links].max()),
            )
            for (kind, names), links in alike.items()
        )


def _ranks_of_flows(beside: SideBySide) -> IntArray:
    """Ranks that take part in the call of each flow, in all groups that it stands for."""
    program = beside.program
    ranks = np.zeros(len(beside.op), np.int64)
    row = np.searchsorted(program.offset[:, 0], beside.op, side="right") - 1
    for number, exchange in enumerate(program.exchanges):
        of_row = np.zeros(len(program), np.int64)
        for members in exchange.members:
            of_row[members[0]] = program.count[np.unique(members)].sum()
        mine = beside.exchange == number
        ranks[mine] = of_row[row[mine]]
    return ranks


def _by_axis(beside: SideBySide, share: FloatArray, stages: range) -> dict[str, float]:
    """Sum a column of flows by the axes of their groups, of those on some stages."""
    program, sums = beside.program, dict[str, float]()
    for number, exchange in enumerate(program.exchanges):
        if program.stage[exchange.members[0, 0]] in stages:
            mine = float(share[beside.exchange == number].sum())
            sums[exchange.axis] = sums.get(exchange.axis, 0.0) + mine
    return sums


MOST_STEPS = 1000  # most steps of a job
USUAL_STEPS = 4  # steps of the slowest job, where none are stated


@dataclass(frozen=True, eq=False)
class JobShare:
    """A job beside others.

    ``step``: its step at the collective level, whose interval and memory hold here too.
    ``chips``: chips of its ranks.
    ``alone_ps, beside_ps`` (steps,): times of the steps that end while all jobs that it meets still
        run, alone and beside them [ps].
    ``weight`` (steps,): steps of the job that each of these stands for; 1 where all jobs start
        together and run on.
    ``call_changes_s``: by how much calls take longer than alone, by the axis of their groups, mean
        over ranks and steps [s]. Overlapped calls may take longer and cost the step nothing.
    ``meets``: names of the jobs whose calls share links with its own, directly or through others.
    """

    job: Job
    step: Iteration
    chips: IntArray
    alone_ps: IntArray
    beside_ps: IntArray
    weight: FloatArray
    call_changes_s: dict[str, float]
    meets: tuple[str, ...]

    @property
    def alone_s(self) -> float:
        """Mean time of a step alone [s]."""
        return float(np.average(self.alone_ps, weights=self.weight)) / PS_PER_S

    @property
    def beside_s(self) -> float:
        """Mean time of a step beside the other jobs [s]."""
        return float(np.average(self.beside_ps, weights=self.weight)) / PS_PER_S

    @property
    def slowdown(self) -> float:
        """Time of a step beside the others, relative to alone."""
        return float(self.beside_ps @ self.weight) / float(self.alone_ps @ self.weight)

    @property
    def slowdowns(self) -> FloatArray:
        """Slowdown of each step."""
        return np.asarray(self.beside_ps / self.alone_ps)

    @property
    def interval(self) -> dict[str, float]:
        """Interval that should hold 80 % of measured times of such a step [s].

        It is as wide as that of the job alone; that sharing itself may be misjudged is not in it.
        """
        return replace(self.step.interval, value=self.step.iteration_s).scaled(self.beside_s)


@display.by_facts("Jobs on one cluster")
@dataclass(frozen=True, eq=False)
class Sharing:
    """Several jobs on one cluster.

    ``placement``: placement of all jobs; empty where each has its own.
    ``links``: links on which jobs meet and that may be full.
    ``ops``: ops that were simulated, of jobs alone and beside each other.
    ``others``: the same jobs in other placements, if they were asked for; a placement that has no
        room for them has the reason instead.
    ``periods``: periods in which the same jobs run, where a job states ``starts_at`` or ``steps``.
    """

    cluster: Cluster
    jobs: tuple[JobShare, ...]
    links: tuple[SharedLinks, ...]
    placement: str
    engine: str
    ops: int
    others: dict[str, Sharing | str] = field(default_factory=dict)
    periods: tuple[Period, ...] = ()

    @property
    def _facts(self) -> dict[str, object]:
        slower = {each.job.name: f"{each.slowdown:.3f} × alone" for each in self.jobs}
        return {"cluster": self.cluster.name, **slower}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row a job: its step alone and beside the others [s]."""
        import pandas as pd

        return pd.DataFrame(
            {
                "name": each.job.name,
                "model": each.job.model.name,
                "chips": len(each.chips),
                "alone_s": each.alone_s,
                "beside_s": each.beside_s,
                **{f"{end}_s": each.interval[end] for end in ("low", "high")},
                "slowdown": each.slowdown,
            }
            for each in self.jobs
        )

    def lost(self, best_s: Sequence[float] = ()) -> float:
        """Return the share of the jobs' chip-hours that sharing and placement lose.

        ``best_s`` (jobs,): time of each job's step in its best placement alone; by default in this
        one.
        """
        least = best_s or [each.alone_s for each in self.jobs]
        hours = [
            len(each.chips) * (self.ran_s(number) if self.periods else 1)
            for number, each in enumerate(self.jobs)
        ]
        kept = [
            spent * alone_s / each.beside_s
            for spent, alone_s, each in zip(hours, least, self.jobs, strict=True)
        ]
        return 1 - sum(kept) / sum(hours)

    def ran_s(self, number: int) -> float:
        """Return the time for which a job runs in all periods [s]."""
        return sum(each.length_s for each in self.periods if number in each.running)

    @property
    def placements(self) -> dict[str, Sharing | str]:
        """Every placement that was simulated, by name, this one first."""
        return {self.placement or "as stated": self, **self.others}

    @property
    def simulated(self) -> dict[str, Sharing]:
        """Every placement for which there was room, by name."""
        placements = self.placements.items()
        return {name: each for name, each in placements if isinstance(each, Sharing)}

    @property
    def best_alone_s(self) -> list[float]:
        """Time of each job's step alone in its best placement [s]."""
        tried = ([job.alone_s for job in each.jobs] for each in self.simulated.values())
        times = zip(*tried, strict=True)
        return [min(of_job) for of_job in times]

    @property
    def _all_best(self) -> list[str]:
        best_s = self.best_alone_s
        lost = {name: round(each.lost(best_s), 9) for name, each in self.simulated.items()}
        return [name for name in lost if lost[name] == min(lost.values())]

    @property
    def best(self) -> str:
        """Name of the placement that loses least; of equal ones the first."""
        return self._all_best[0]

    @property
    def verdict(self) -> str:
        """Sentence on the placements that lose least, without its stop."""
        *others, last = self._all_best
        if not others:
            return f"placement {last} loses least"
        return f"placements {', '.join(others)} and {last} lose least"


def _shared(
    cluster: Cluster, jobs: Sequence[Job], steps: int, placement: str, *, study: bool, engine: str
) -> Sharing:
    """Simulate jobs alone and beside each other; :func:`share` says more."""
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(f"steps is {steps}; it must be from 1 to {MOST_STEPS:,}.")
    shared, patterns = SharedParts(), Patterns()
    by_chips: dict[tuple[object, ...], Sharing] = {}

    def beside(numbers: Sequence[int], places: Sequence[IntArray], name: str) -> Sharing:
        """Simulate some jobs on their chips, once for the same chips."""
        key = (*numbers, b"".join(chips.tobytes() for chips in places))
        if key not in by_chips:
            those = [jobs[number] for number in numbers]
            ready = ready_jobs(cluster, those, places, steps, shared)
            by_chips[key] = _side_by_side(cluster, ready, patterns, name, engine)
        return replace(by_chips[key], placement=name)

    def placed(name: str) -> Sharing:
        """Simulate the jobs in a placement."""
        if any(job.starts_at_s or job.steps for job in jobs):
            return _by_periods(cluster, jobs, steps, name, beside)
        return beside(range(len(jobs)), chips_of_jobs(jobs, cluster, name), name)

    answer = placed(placement)
    if not study:
        return answer
    others: dict[str, Sharing | str] = {}
    for name in PLACEMENTS:
        if name != placement:
            try:
                others[name] = placed(name)
            except InputError as mistake:
                others[name] = str(mistake)
    return replace(answer, others=others)


def _by_periods(
    cluster: Cluster,
    jobs: Sequence[Job],
    steps: int,
    placement: str,
    beside: Callable[[Sequence[int], Sequence[IntArray], str], Sharing],
) -> Sharing:
    """Simulate the jobs that run in each period side by side, each job on its first chips."""
    chips, simulated = dict[int, IntArray](), dict[tuple[int, ...], Sharing]()

    def step_times(now_s: float, running: tuple[int, ...]) -> list[float]:
        """Give chips to the jobs that start now, and simulate all that run."""
        running_jobs = [(jobs[number], chips[number]) for number in running if number in chips]
        starting = [number for number in running if number not in chips]
        try:
            places = chips_of_jobs(
                [jobs[number] for number in starting], cluster, placement, running_jobs
            )
        except InputError as mistake:
            raise InputError(f"{format_seconds(now_s)} after the beginning: {mistake}") from None
        chips.update(zip(starting, places, strict=True))
        simulated[running] = beside(running, [chips[number] for number in running], placement)
        return [each.beside_s for each in simulated[running].jobs]

    lasting = [float(job.steps or math.inf) for job in jobs]
    in_order = tuple(periods([job.starts_at_s for job in jobs], lasting, step_times, steps))
    parts: list[list[tuple[float, JobShare]]] = [[] for _ in jobs]
    for period in in_order:
        for number, each in zip(period.running, simulated[period.running].jobs, strict=True):
            parts[number].append((period.steps(number), each))
    sets = [simulated[running] for running in {period.running: None for period in in_order}]
    fullest = dict[tuple[str, ...], SharedLinks]()
    for link in sorted((link for each in sets for link in each.links), key=lambda link: link.load):
        fullest[link.kind, *link.crossed_by] = link
    return replace(
        sets[0],
        jobs=tuple(map(_mean_share, parts)),
        links=tuple(fullest.values()),
        ops=sum(each.ops for each in sets),
        periods=in_order,
    )


def _mean_share(parts: Sequence[tuple[float, JobShare]]) -> JobShare:
    """Return the mean of a job over periods, each with the steps that the job makes in it."""
    weights, shares = np.array([steps for steps, _ in parts]), [each for _, each in parts]
    changes = {
        axis: float(np.average([each.call_changes_s[axis] for each in shares], weights=weights))
        for axis in shares[0].call_changes_s
    }
    return replace(
        shares[0],
        alone_ps=np.concatenate([each.alone_ps for each in shares]),
        beside_ps=np.concatenate([each.beside_ps for each in shares]),
        weight=np.concatenate([each.weight * steps / len(each.weight) for steps, each in parts]),
        call_changes_s=changes,
        meets=tuple(dict.fromkeys(name for each in shares for name in each.meets)),
    )


def pair_slowdowns(
    cluster: Cluster, jobs: Sequence[Job], places: Sequence[IntArray]
) -> Sequence[float]:
    """Return the time of a step of each job on its chips, beside the others relative to alone."""
    # Messages of which some take turns may end a little earlier beside others.
    ready = ready_jobs(cluster, jobs, places, USUAL_STEPS, SharedParts())
    beside = _side_by_side(cluster, ready, Patterns(), "", "fast")
    return [max(1.0, each.slowdown) for each in beside.jobs]


def ready_jobs(
    cluster: Cluster,
    jobs: Sequence[Job],
    places: Sequence[IntArray],
    steps: int,
    shared: SharedParts,
) -> list[Ready]:
    """Build each job on its chips, with as many steps as the slowest takes time for ``steps``."""
    alone = []
    how = Detail(level="collective", partial=True, allow_oversized=True)
    for job, chips in zip(jobs, places, strict=True):
        try:
            step = iteration(job.model, cluster, job.plan, how, shared=shared, chips=chips)
            _check(job, step)
        except InputError as mistake:
            raise InputError(f"job {job.name}: {mistake}") from None
        alone.append(step)
    longest_s = steps * max(step.iteration_s for step in alone)
    ready = []
    for job, chips, step in zip(jobs, places, alone, strict=True):
        count = math.ceil(longest_s / step.iteration_s - 1e-9)
        if count > MOST_STEPS:
            raise InputError(
                f"job {job.name} makes {count:,} steps while the slowest job makes {steps}; at "
                f"most {MOST_STEPS:,} are run. Use fewer --steps."
            )
        shapes = RankShapes(job.model, job.plan, step.cluster.chip, chip_catalogue(step.cluster))
        built = program(shapes, place(job.plan, step.cluster, chips), count, shared)
        ready.append(Ready(job, chips, step, built, count))
    return ready


def _check(job: Job, step: Iteration) -> None:
    """Refuse a job that does not fit in memory, and one whose experts are reached by server."""
    memory = step.memory
    if not memory.fits:
        raise InputError(
            f"the plan needs {format_memory(memory.total)} a rank, which has "
            f"{format_memory(memory.capacity)}. Use more chips, tp or pp."
        )
    if job.plan.routed_nodes:
        raise InputError(
            f"routed nodes {job.plan.routed_nodes}: jobs that share links send a copy of a token "
            "to each expert. Leave routed_nodes out."
        )


def _side_by_side(
    cluster: Cluster, ready: Sequence[Ready], patterns: Patterns, placement: str, engine: str
) -> Sharing:
    """Run each job alone, then those that meet on links side by side."""
    meeting = Meeting(ready, patterns)
    shares: dict[int, JobShare] = {}
    ops = 0
    for party in meeting.parties():
        alone = [meeting.run([number], engine) for number in party]
        beside = meeting.run(party, engine) if len(party) > 1 else alone[0]
        ops += sum(ran.ops for ran in alone) + (beside.ops if len(party) > 1 else 0)
        until_ps = min(int(ends[-1]) for ends in beside.ends_ps)
        for place_of, number in enumerate(party):
            names = tuple(ready[other].job.name for other in party if other != number)
            shares[number] = _share(
                ready[number], alone[place_of], beside, place_of, until_ps, names
            )
    return Sharing(
        cluster,
        tuple(shares[number] for number in range(len(ready))),
        meeting.shared_links(),
        placement,
        engine,
        ops,
    )


def _share(
    ready: Ready, alone: Ran, beside: Ran, place_of: int, until_ps: int, meets: tuple[str, ...]
) -> JobShare:
    """Result of one job: of its steps that end while all others of its party still run."""
    ends_ps, alone_ps = beside.ends_ps[place_of], alone.ends_ps[0]
    counted = max(1, int(np.searchsorted(ends_ps, until_ps, side="right")))
    usual, now = alone.call_changes_s[0], beside.call_changes_s[place_of]
    return JobShare(
        *(ready.job, ready.step, ready.chips),
        np.diff(alone_ps[:counted], prepend=0),
        np.diff(ends_ps[:counted], prepend=0),
        np.ones(counted),
        {axis: now[axis] - usual[axis] for axis in now},
        meets,
    )


@checked(
    cluster=CLUSTER_REMEDY,
    jobs="Pass a list of dictionaries, each with name, model and fields of a plan, or a file.",
)
def share(
    cluster: Cluster | str,
    jobs: Sequence[Mapping[str, Any]] | str | Path,
    *,
    placement: str = "",
    study: bool = False,
    steps: int = USUAL_STEPS,
    engine: str = "fast",
) -> Sharing:
    """Simulate training jobs side by side on one cluster, and each of them alone.

    All collectives of all jobs are flows on the links and adapters that they cross; where these are
    full, calls of one job slow those of another. Jobs start together and run on, unless they state
    ``starts_at`` and ``steps``.

    Parameters
    ----------
    cluster : Cluster or str
        Object, or its name as :func:`cluster_sim.cluster` takes it.
    jobs : list of mappings, str or Path
        For each job ``name``, ``model``, fields of its plan such as ``tp``, or ``plan``, a file of
        them; ``chips`` or ``dp``; ``placement`` or ``start``; ``starts_at`` (``"90min"``) and
        ``steps``. Or a YAML file with ``jobs``.
    placement : str, optional
        Placement of all jobs without a ``start`` of their own.
    study : bool, optional
        Whether every placement is simulated as well, into ``others`` of the result.
    steps : int, optional
        Steps of the slowest job; the others make as many as fit into this time.
    engine : {"fast", "reference"}, optional
        Compiled engine, or the one in SimPy; the times are the same.

    Returns
    -------
    Sharing
        ``jobs``, with ``alone_s``, ``beside_s``, ``slowdown``; ``links``; ``best`` placement;
        ``periods`` in which the same jobs run.

    Raises
    ------
    InputError
        For unknown keys, too few chips, places that overlap, and a job too large for its memory.

    Examples
    --------
    >>> small = {"model": "llama-3.1-8b", "tp": 8, "dp": 1, "global_batch": 2, "seq": 1024}
    >>> jobs = [{"name": "left", **small}, {"name": "right", **small}]
    >>> [each.slowdown for each in share("trn2.48xlarge", jobs, steps=1).jobs]
    [1.0, 1.0]
    """
    check_choice("engine", engine, ENGINES)
    check_choice("placement", placement or "packed", PLACEMENTS)
    machine = as_cluster(cluster)
    several = read_jobs(jobs, machine) if isinstance(jobs, str | Path) else jobs_from(jobs, machine)
    return _shared(machine, several, steps, placement, study=study, engine=engine)
