"""Faults of links and adapters at the collective level, where a collective is one op.

Groups of ranks whose messages may cross a fault are simulated on their own chips with it and
without it, and their calls take the difference longer. Messages go around a cable that is down. The
step is then folded as usual: all other groups keep their times.

Two kinds of groups are not simulated message by message. Those whose collectives are known by
NCCL's measured times, and those with too many messages, are timed as if all their ports, or
adapters, were as slow as the slowest: every ring passes all of them, and all ranks wait for the
last. Of a group too large a slow link is followed on as many of its domains as can be simulated;
the delay is then an upper bound, as more domains hide more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, compose
from cluster_sim.collectives.algorithms.algorithm import ops_foreseen
from cluster_sim.collectives.algorithms.registry import choose_algorithm
from cluster_sim.collectives.builder import Collective
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.faults import Fault, fault_table, gone_around, spelled_out, stands_in
from cluster_sim.schedule.table import PS_PER_S, Schedule
from cluster_sim.trace.trace import Trace, run
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import FullMesh, Switch
from topologies.support.arrays import BoolArray, IntArray, distinct, present
from topologies.support.errors import InputError
from workloads.training.execution.chunk_level import call_schedule
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import group_of, routed_ps
from workloads.training.program.program import Draws, Exchange, Program, draws, sharing

SIDES = ("tx", "rx")
ON_THE_WAY = ("link", "cable", "adapter", *SIDES)
"""Kinds of parts that messages cross, as faults name them."""
MOST_OPS = 200_000
"""Most ops of a collective that is simulated on all its domains with a fault, if it has several."""


class Struck(NamedTuple):
    """Collectives of one kind and size that cross a fault."""

    axis: str  # axis of the plan along which they communicate
    collective: str
    size_bytes: int  # size as nccl-tests count it [B]
    # groups, of_groups: groups of ranks that the fault slows, and all that make such calls
    groups: int
    of_groups: int
    calls: int  # calls that each of them makes in a step
    # usual_s, time_s: time of a call without the fault, and with it in the group that it slows most
    # [s]
    usual_s: float
    time_s: float


class Crossed(NamedTuple):
    """Collectives of a step that cross faults, and faults that change nothing."""

    struck: tuple[Struck, ...]  # collectives that take longer
    idle: dict[str, str]  # faults that change nothing, as they are stated, with the reasons


class Composed(NamedTuple):
    """A program whose groups take the times that faults leave them."""

    program: Program
    usual: Program  # the same rows without faults
    both: Program  # the same rows with both times of each call, by which equal ranks are found
    crossed: Crossed


def of_messages(faults: Iterable[Fault]) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """Part faults into those of cables and adapters, and all others."""
    parts: tuple[list[Fault], list[Fault]] = ([], [])
    for fault in faults:
        parts[fault.resource.split(":")[0] not in ON_THE_WAY].append(fault)
    return tuple(parts[0]), tuple(parts[1])


def composed(
    program: Program,
    plan: ParallelPlan,
    cluster: Cluster,
    faults: Sequence[Fault],
    *,
    per_token: int,
    iterations: int = 1,
) -> Composed:
    """Time the groups that cross faults of links and adapters with them."""
    damage = _Damage(cluster, spelled_out(faults, cluster), plan, per_token)
    memory = program.memory_bytes_per_s  # of one cluster, so equal for all stages
    worse, usual, struck = [], [], dict[tuple[str, str, int], list[Struck]]()
    for exchange in program.exchanges:
        kind, duration, origin = _timed(program, exchange, damage, struck)
        drawn = draws(exchange.draws.size_bytes[origin], duration, int(memory[0]))
        worse.append(replace(exchange, kind=kind, duration_ps=drawn[1], draws=drawn[0]))
        old = Draws(*(column[origin] for column in exchange.draws))
        lasted = exchange.duration_ps[origin]
        usual.append(replace(exchange, kind=kind, duration_ps=lasted, draws=old))
    both = [
        replace(slow, duration_ps=np.hstack([slow.duration_ps, old.duration_ps]))
        for slow, old in zip(worse, usual, strict=True)
    ]
    slow = replace(program, exchanges=tuple(worse))
    hit = [
        max(alike, key=lambda each: each.time_s)._replace(
            groups=sum(each.groups for each in alike),
            of_groups=sum(each.of_groups for each in alike),
            calls=max(each.calls for each in alike) // iterations,
        )
        for alike in struck.values()
        if any(each.groups for each in alike)
    ]
    return Composed(
        sharing(slow) if memory.any() and hit else slow,
        replace(program, exchanges=tuple(usual)),
        replace(program, exchanges=tuple(both)),
        Crossed(tuple(hit), damage.idle(faults, struck=bool(hit))),
    )


def _timed(
    program: Program,
    exchange: Exchange,
    damage: _Damage,
    struck: dict[tuple[str, str, int], list[Struck]],
) -> tuple[IntArray, IntArray, IntArray]:
    """Kind of each group, times of each kind [ps], and the kind without faults of each."""
    numbers, where = present(program.steps_of(exchange))
    steps = [program.steps[number] for number in numbers.tolist()]
    chips = program.chip[exchange.members]
    kind, rows, origin = exchange.kind.copy(), [], [*range(len(exchange.duration_ps))]
    later_of: list[tuple[int, list[int]]] = []
    reached = np.flatnonzero(damage.reaches(chips))
    columns = [damage.later_ps(chips[reached], each) for each in steps if len(reached)]
    for group, later in zip(reached.tolist(), map(list, zip(*columns, strict=True)), strict=True):
        if any(later):
            later_of.append((int(exchange.kind[group]), later))
            kind[group] = len(origin)
            rows.append(exchange.duration_ps[exchange.kind[group]] + np.array(later)[where])
            origin.append(int(exchange.kind[group]))
    calls = np.bincount(where)
    for key in dict.fromkeys(map(_alike, steps)):
        alike = [number for number, each in enumerate(steps) if _alike(each) == key]
        one = alike[0]
        call = int(np.flatnonzero(where == one)[0])
        usual = {old: int(exchange.duration_ps[old, call]) for old, _ in later_of}
        times = [(usual[old] + later[one], usual[old]) for old, later in later_of if later[one]]
        later_s, usual_s = (time / PS_PER_S for time in max(times, default=(0, 0)))
        each = int(calls[alike].sum()) if times else 0
        met = Struck(*key, len(times), len(kind), each, usual_s, later_s)
        struck.setdefault(key, []).append(met)
    return kind, np.vstack([exchange.duration_ps, *rows]), np.array(origin)


def _alike(step: LayerOp) -> tuple[str, str, int]:
    return step.what, step.collective, step.size_bytes


class _Damage:
    """Faults of links and adapters of a cluster, and what they cost calls of a plan's groups."""

    def __init__(
        self, cluster: Cluster, faults: Sequence[Fault], plan: ParallelPlan, per_token: int
    ):
        self.cluster, self.plan, self.per_token = cluster, plan, per_token
        for fault in faults:
            _check(fault, cluster)
        self.links = tuple(each for each in faults if each.resource.startswith("link:"))
        self.adapters = tuple(each for each in faults if each not in self.links)
        dead = next((each.resource for each in self.links if not each.numerator), "")
        if dead and covers(cluster):
            reason = f"a chip of {cluster.name} has no other way to its switch"
            if isinstance(cluster.shape, FullMesh):
                reason = f"rings on {cluster.name} are timed over all links of a chip"
            raise InputError(
                f"{dead} is dead, and {reason}. Write slow=P/Q for a link of which some lanes are "
                "down."
            )
        self.met: set[str] = set()
        self._known: dict[tuple[object, ...], list[int]] = {}

    def idle(self, stated: Sequence[Fault], *, struck: bool) -> dict[str, str]:
        """Return the stated faults that change nothing, with the reasons."""
        reasons = {}
        for fault in stated:
            parts = {each.resource for each in spelled_out([fault], self.cluster)}
            if parts.isdisjoint(self.met):
                reasons[fault.resource] = "no collective of this step crosses it"
            elif not struck:
                reasons[fault.resource] = "the collectives that cross it take no longer"
        return reasons

    def reaches(self, chips: IntArray) -> BoolArray:
        """Return which groups may send messages over a faulty part, from their chips, bool."""
        domain = chips // self.cluster.chips_per_domain
        reached = np.zeros(len(chips), np.bool_)
        for fault in self.links:
            inside = domain == _chip_near(fault) // self.cluster.chips_per_domain
            most = np.where(inside, chips, -1).max(axis=1)
            reached |= np.where(inside, chips, most[:, None]).min(axis=1) < most
        several = domain.min(axis=1) < domain.max(axis=1)
        for fault in self.adapters:
            reached |= several & (chips == fault.chip).any(axis=1)
        return reached

    def later_ps(self, chips: IntArray, step: LayerOp) -> list[int]:
        """Return by how much the faults lengthen a call of each group on these chips [ps]."""
        # Groups make a call at about the same time, so all are simulated at once where they can be:
        # detours and slow cables may hold up several of them.
        key = chips.tobytes(), step.collective, step.size_bytes, step.axis == "ep"
        if key not in self._known:
            rows, which = np.unique(chips, axis=0, return_inverse=True)
            groups = [group_of(self.cluster, row) for row in rows]
            size = step.size_bytes * max(1, self.plan.ranks_of_chip // groups[0].ranks_per_chip)
            nodes = self.plan.routed_nodes if step.axis == "ep" else 0
            if nodes:
                later = [self._routed(group, nodes, size) for group in groups]
            else:
                later = self._at_once(groups, step, size) or [
                    self._of(group, step, size) for group in groups
                ]
            self._known[key] = [max(0, later[place]) for place in which.tolist()]
        return self._known[key]

    def _at_once(self, groups: Sequence[Group], step: LayerOp, size: int) -> list[int]:
        """Return the delay of each group if all call at once [ps]; empty if they cannot."""
        chips = np.concatenate([group.chips for group in groups])
        if step.collective == "send" or len(distinct(chips)) < len(chips) or covers(self.cluster):
            return []
        calls = [_call(group, step, size) for group in groups]
        picked = choose_algorithm(calls[0])
        costs = communication_costs(self.cluster)
        alike = all(choose_algorithm(call) is picked for call in calls)
        if not alike or ops_foreseen(calls, picked, costs) > MOST_OPS:
            return []
        faults = (*self.links, *self.adapters)
        usual = compose(calls, picked)
        met = _used(usual.schedule, faults)
        self.met |= met
        if not met:
            return [0] * len(groups)
        down, slow = gone_around(faults)
        broken = compose(calls, picked, down=down) if down else usual
        table = fault_table(broken.schedule, slow, self.cluster) if slow else None
        later = _ends(broken, run(broken.schedule, faults=table)) - _ends(
            usual, run(usual.schedule)
        )
        return [int(each) for each in later]

    def _routed(self, group: Group, nodes: int, size: int) -> int:

        def timed(call: CollectiveCall) -> int:
            step = LayerOp("", "", 0, collective=call.kind)
            return duration_ps(call) + max(0, self._of(call.group, step, call.size_bytes))

        routed = nodes, self.per_token, size
        domain = group.chips // self.cluster.chips_per_domain
        struck = [_chip_near(fault) for fault in (*self.links, *self.adapters)]
        near = [
            int(np.argmax((group.chips == chip) * 2 + (domain == domain_of)))
            for chip in struck
            for domain_of in [chip // self.cluster.chips_per_domain]
        ]
        slowest = max(routed_ps(group, *routed, at=at, timed=timed) for at in near)
        return slowest - routed_ps(group, *routed)

    def _of(self, group: Group, step: LayerOp, size: int) -> int:
        """Return the delay of a call of a group [ps]."""
        if covers(self.cluster):
            return self._with_slow_ports(group, step, size, self.links, self.adapters)
        few = self._few_domains(group, step, size)
        if few is group:
            return self._simulated(group, step, size, (*self.links, *self.adapters))
        over_links = self._simulated(few, step, size, self.links) if self.links else 0
        return over_links + self._with_slow_ports(group, step, size, (), self.adapters)

    def _few_domains(self, group: Group, step: LayerOp, size: int) -> Group:
        """Return the part of a group in the domains of faulty links and others, not too large."""
        costs, domain = communication_costs(self.cluster), group.domain
        struck = [_chip_near(fault) // self.cluster.chips_per_domain for fault in self.links]
        others = [each for each in group.domains.tolist() if each not in struck]
        few = group
        while len(others) > 1:
            call = _call(few, step, size)
            if ops_foreseen([call], choose_algorithm(call), costs) <= MOST_OPS:
                break
            others = others[: len(others) // 2]
            chips = group.chips[np.isin(domain, [*struck, *others])]
            few = Group(self.cluster, chips, group.ranks_per_chip)
        return few

    def _simulated(self, group: Group, step: LayerOp, size: int, faults: Sequence[Fault]) -> int:
        usual = call_schedule(group, step.collective, size)
        met = _used(usual, faults)
        self.met |= met
        if not met:
            return 0
        down, slow = gone_around(faults)
        broken = call_schedule(group, step.collective, size, down) if down else usual
        table = fault_table(broken, slow, self.cluster) if slow else None
        return run(broken, faults=table).total_ps - run(usual).total_ps

    def _with_slow_ports(
        self,
        group: Group,
        step: LayerOp,
        size: int,
        links: Sequence[Fault],
        adapters: Sequence[Fault],
    ) -> int:
        """Return the delay of a call if all ports were as slow as the slowest faulty one [ps]."""
        slow, near = self.cluster, set((group.chips // self.cluster.chips_per_domain).tolist())
        # Rings share bytes equally among all links of a mesh, so that the slowest sets the pace.
        here = [each for each in links if _chips_of(each) <= {*group.chips.tolist()}]
        if here and isinstance(slow.shape, Switch | FullMesh):
            rate = _slowest(here, slow.shape.bandwidth_bytes_per_s)
            slow = replace(slow, shape=replace(slow.shape, bandwidth_bytes_per_s=rate))
        beyond = [each for each in adapters if each.chip in group.chips]
        if beyond and slow.scale_out is not None and len(near) > 1:
            rate = _slowest(beyond, slow.scale_out.bandwidth_bytes_per_s)
            scale_out = replace(slow.scale_out, bandwidth_bytes_per_s=rate)
            slow = replace(slow, scale_out=scale_out)
        self.met.update(each.resource for each in (*here, *beyond))
        call = _call(group, step, size)
        worse = replace(call, group=Group(slow, group.chips, group.ranks_per_chip))
        return duration_ps(worse) - duration_ps(call)


def _ends(built: Collective, trace: Trace) -> IntArray:
    """Return the end of each group's call [ps]; the last ops are the joins of all ranks."""
    ends = np.zeros(int(built.group_of_rank.max()) + 1, np.int64)
    np.maximum.at(ends, built.group_of_rank, trace.times.end_ps[-len(built.group_of_rank) :])
    return ends


def _call(group: Group, step: LayerOp, size: int) -> CollectiveCall:
    """Return the call of a step; a send takes as long as a permutation."""
    kind = "permute" if step.collective == "send" else step.collective
    return CollectiveCall(kind, group, size)


def _slowest(faults: Sequence[Fault], rate: int) -> int:
    return max(1, min(rate * each.numerator // each.denominator for each in faults))


def _used(schedule: Schedule, faults: Sequence[Fault]) -> set[str]:
    table, used = schedule.resources, np.zeros(len(schedule.resources), np.bool_)
    used[schedule.resource[schedule.resource >= 0]] = True
    used[schedule.flows.resource] = True
    near = [_chip_near(fault) for fault in faults]
    used &= np.isin(table.owner, near) | np.isin(table.peer, near)
    return {fault.resource for fault in faults}.intersection(table.names(np.flatnonzero(used)))


def _chip_near(fault: Fault) -> int:
    """Return a chip in the domain of a link or at an adapter: an end that is no switch."""
    if fault.chip >= 0:
        return fault.chip
    return int(fault.resource.rpartition("-")[2].partition(".")[0])


def _chips_of(link: Fault) -> set[int]:
    """Return the chips at the ends of a link, one where the other end is a switch."""
    ends = link.resource.partition(":")[2].partition(".")[0].split("-")
    return {int(end) for end in ends if end.isdigit()}


def _check(fault: Fault, cluster: Cluster) -> None:
    name = fault.resource
    if not stands_in(cluster, name):
        raise InputError(
            f"no resource {name} on {cluster.name}. Name a link or adapter that it has."
        )
    if fault.time_ps:
        raise InputError(
            f"the fault of {name} begins at {fault.time_ps:,} ps; at --level collective it must "
            "stand from the start. Write @0s, or use --level chunk."
        )
    if not fault.numerator and name.split(":")[0] in SIDES:
        raise InputError(
            f"{name} is dead, and chip {fault.chip} has no other way out of its domain. Write "
            "slow=P/Q for an adapter of which some ports are down."
        )
