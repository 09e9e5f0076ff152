"""Runs of jobs, alone and beside each other, and what each loses to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import FloatArray, IntArray, distinct_rows
from topologies.clusters.cluster import Cluster
from workloads.sharing.jobs import Job
from workloads.training.execution.chunk_level import PARTS
from workloads.training.execution.links import (
    LinkUse,
    Patterns,
    SideBySide,
    folded,
    link_use,
    side_by_side,
)
from workloads.training.iteration import Iteration
from workloads.training.program.program import Exchange, Program
from workloads.training.program.shared_memory import Draws
from workloads.training.program.stage import Stream


def together(programs: Sequence[Program]) -> Program:
    """Return the program of several jobs on one cluster; ``rank`` counts through all of them."""
    # Stages, steps and ranks of each job follow those of the job before. Nothing else changes, so
    # that ranks of different jobs never wait for each other.
    streams, exchanges, stage = list[Stream](), list[Exchange](), list[IntArray]()
    steps = rows = 0
    for program in programs:
        stage.append(program.stage + len(streams))
        for stream in program.streams:
            streams.append(replace(stream, ops=replace(stream.ops, step=stream.ops.step + steps)))
        for exchange in program.exchanges:
            exchanges.append(replace(exchange, members=exchange.members + rows))
        steps, rows = steps + len(program.steps), rows + len(program)
    drawn = zip(*(program.draws for program in programs), strict=True)
    return Program(
        steps=tuple(step for program in programs for step in program.steps),
        step_ps=np.concatenate([program.step_ps for program in programs]),
        streams=tuple(streams),
        stage=np.concatenate(stage),
        rank=np.arange(rows),
        **{
            name: np.concatenate([getattr(program, name) for program in programs])
            for name in ("domain", "chip", "core", "count")
        },
        exchanges=tuple(exchanges),
        draws=Draws(*(np.concatenate(column) for column in drawn)),
        memory_bytes_per_s=0,
        facts=programs[0].facts[1:],
    )


QUEUES = 0.7
"""Power of a share of a link within a domain by which it counts where several jobs meet: of powers
in steps of a tenth the largest with which at least 80 % of the cost is found on both tori of
``python -m tools.shared_jobs``, in which all messages are written out."""


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
        use = with_queues(link_use(program, clusters, self.patterns), job)
        return program, use.where_full(program), job

    def _crossings(self) -> IntArray:
        """Pairs of a link and a job that crosses it, of links that several jobs cross."""
        job = self.exchange_job[self.use.exchange()]
        pairs = np.unique(np.stack([self.use.link, job], axis=1), axis=0)
        return np.asarray(pairs[_jobs_on(self.use, self.exchange_job)[pairs[:, 0]] > 1])

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
        extra_s = (times.end_ps - times.start_ps)[beside.op] - beside.alone_ps
        weight = _ranks_of_flows(beside)
        for number, low, high in zip(numbers, stages[:-1], stages[1:], strict=True):
            steps = self.ready[number].steps
            of_stages = [beside.ends_ps(times, stage, steps) for stage in range(low, high)]
            ends.append(np.max(of_stages, axis=0))
            ranks = int(program.count[(program.stage >= low) & (program.stage < high)].sum())
            share = extra_s * weight / (ranks * steps * PS_PER_S)
            longer.append(_by_axis(beside, share, range(low, high)))
        return Ran(ends, longer, len(beside.schedule))

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


def with_queues(use: LinkUse, job: IntArray) -> LinkUse:
    """Return a use of links with larger shares of those within a domain on which jobs meet."""
    # Messages of unlike collectives wait for each other on a link that is not full, and a
    # collective goes on when its last message has arrived. See ``QUEUES``. ``job`` (exchanges,):
    # job of each exchange.
    kinds = use.links.kinds
    number = kinds.index("link") if "link" in kinds else -1
    queues = (use.links.kind == number) & (_jobs_on(use, job) > 1)
    longer = np.ceil(PARTS * (use.parts / PARTS) ** QUEUES).astype(use.parts.dtype)
    return replace(use, parts=np.where(queues[use.link], longer, use.parts))


def _jobs_on(use: LinkUse, job: IntArray) -> IntArray:
    """Number of jobs that cross each link, int64 (links,)."""
    pairs = distinct_rows(np.stack([use.link, job[use.exchange()]], axis=1))[0]
    return np.bincount(use.link[pairs], minlength=len(use.links))


def _ranks_of_flows(beside: SideBySide) -> IntArray:
    """Ranks that take part in the call of each flow, in all groups that it stands for."""
    program = beside.program
    ranks = np.zeros(len(beside.op), np.int64)
    row = np.searchsorted(beside.layout.offset[:, 0], beside.op, side="right") - 1
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
