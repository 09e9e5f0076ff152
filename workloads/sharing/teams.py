"""Quotas of teams, and chips that are reserved for one of them for a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError, check_choice, shown
from topologies.support.files.reading import read_text
from topologies.support.units import parse_seconds
from workloads.job.job import LONGEST_S
from workloads.sharing.arrivals import (
    DEVICES,
    LARGEST_FILE_BYTES,
    Arrival,
    is_date,
    kubernetes_items,
    listed_at,
    moment_s,
    value_at,
    whole_number,
)


class Quota(NamedTuple):
    """Chips of a team."""

    chips: int  # its own, which others only borrow
    most: int  # what it may have with what it borrows
    cohort: str = ""  # teams that lend each other theirs


class Reservation(NamedTuple):
    """Scale-up domains that only one team uses for a time, as EC2 Capacity Blocks are."""

    team: str
    domains: IntArray  # (domains,)
    # start_s, end_s: since the first arrival [s]
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Teams:
    """Quotas by team, and reservations; without any, every job may have all chips."""

    quotas: Mapping[str, Quota] = field(default_factory=dict)
    # Chips of each cohort's teams together
    cohorts: Mapping[str, int] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    chips_per_domain: int = 1

    def own(self, team: str, at_s: float) -> int:
        """Return the chips of a team's quota, and of its reservations at a time."""
        return self.quotas[team].chips + self._reserved(team, at_s)

    def lends(self, team: str, other: str) -> bool:
        """Return whether a team lends its chips to another one."""
        return team != other and self.quotas[team].cohort == self.quotas[other].cohort

    def _reserved(self, team: str, at_s: float) -> int:
        domains = [
            len(each.domains)
            for each in self.reservations
            if each.team == team and each.start_s <= at_s < each.end_s
        ]
        return sum(domains) * self.chips_per_domain

    def allows(self, team: str, chips: int, used: Mapping[str, int], at_s: float) -> bool:
        """Return whether a team may have so many more chips beside those that teams use."""
        if not self.quotas:
            return True
        quota = self.quotas[team]
        if used.get(team, 0) + chips > quota.most + self._reserved(team, at_s):
            return False
        together = sum(
            max(0, used.get(name, 0) + chips * (name == team) - self._reserved(name, at_s))
            for name, each in self.quotas.items()
            if each.cohort == quota.cohort
        )
        return together <= self.cohorts[quota.cohort]

    def free(self, job: Arrival, free: IntArray, at_s: float) -> IntArray:
        """Return the servers of each domain, int64 (domains,), that a job may have of free ones."""
        # Those are reserved before the end of which, or the start of another team's, it is not
        # sure to be over.
        for each in self.reservations:
            last_s = each.end_s if each.team == job.team else each.start_s
            if each.end_s > at_s and at_s + job.limit_s > last_s:
                free = free.copy()
                free[each.domains] = 0
        return free


def teams_of(
    cluster: Cluster,
    jobs: Sequence[Arrival],
    quota: Sequence[str] = (),
    reserve: Sequence[str] = (),
    **_: Any,
) -> Teams:
    """Read ``--quota`` and ``--reserve``, from the first arrival or dates; all jobs may run."""
    by_team = _quotas(cluster, quota)
    names = [*by_team] if quota else sorted({job.team for job in jobs if job.team})
    if reserve and not names:
        raise InputError("--reserve is for a team, and no job names one. Add a column team.")
    first_s = min(job.submit_s for job in jobs)
    blocks = _reservations(cluster, [_block(each, names, first_s) for each in reserve])
    cohorts = Counter[str]()
    for each in by_team.values():
        cohorts[each.cohort] += each.chips
    if "" in cohorts:  # of the command line, where what no quota has may be borrowed too
        cohorts[""] = cluster.chips
    if sum(each.chips for each in by_team.values()) > cluster.chips:
        stated = ", ".join(f"{name} {each.chips:,}" for name, each in by_team.items())
        raise InputError(
            f"--quota: the quotas ({shown(stated, 80)}) are more than the {cluster.chips:,} chips "
            f"of {cluster.name}. Lower them, or use a larger cluster."
        )
    teams = Teams(by_team, cohorts, blocks, cluster.chips_per_domain)
    for job in jobs if quota else ():
        if not job.team:
            raise InputError(
                f"job {job.name} names no team, and --quota is stated. Name its team in column "
                "team, Slurm's Account or Kueue's label queue-name."
            )
        check_choice(f"job {job.name}: team", job.team, by_team)
        if not teams.allows(job.team, held_chips(job, cluster), {}, math.inf):
            team = by_team[job.team]
            most = min(team.most, cohorts[team.cohort])
            raise InputError(
                f"job {job.name} needs {held_chips(job, cluster):,} chips, but its team {job.team} "
                f"may have {most:,} with what it borrows. Leave it out, or raise the quota."
            )
    return teams


def held_chips(job: Arrival, cluster: Cluster) -> int:
    """Return the chips of the whole servers that a job holds."""
    return -(-job.chips // cluster.chips_per_server) * cluster.chips_per_server


def _quotas(cluster: Cluster, stated: Sequence[str]) -> dict[str, Quota]:
    """Return quotas as ``team=chips``, or of Kueue's ClusterQueues in a file."""
    quotas: dict[str, Quota] = {}
    for text in stated:
        name, equals, chips = text.partition("=")
        if equals and name:
            number = whole_number(chips, f"--quota {shown(name, 40)}:", 0)
            several = {name: Quota(number, cluster.chips)}
        elif Path(text).suffix:
            several = _cluster_queues(text)
        else:
            raise InputError(
                f"--quota {shown(text, 40)!r} is no quota. Write team=chips, such as research=64, "
                "or a file of Kueue's ClusterQueues."
            )
        for name in several.keys() & quotas.keys():
            raise InputError(f"--quota: team {shown(name, 40)} has two quotas. State one.")
        quotas |= several
    return quotas


def _cluster_queues(path: str) -> dict[str, Quota]:
    """Read what ``kubectl get clusterqueues --output json`` or ``yaml`` prints."""
    named = shown(path)
    text = read_text(Path(path), limit_bytes=LARGEST_FILE_BYTES)
    quotas = {}
    for item in kubernetes_items(text, named, "ClusterQueues of Kueue"):
        if item.get("kind") != "ClusterQueue":
            continue
        name = str(value_at(item, "metadata", "name"))
        # A queue without a cohort borrows nothing. The key is cohortName since v1beta2.
        cohort = value_at(item, "spec", "cohort") or value_at(item, "spec", "cohortName")
        try:
            quotas[name] = _of_flavors(item, f"in {cohort}" if cohort else f"of {name}")
        except InputError as mistake:
            raise InputError(f"{named}: ClusterQueue {shown(name, 80)}: {mistake}") from None
    if not quotas:
        raise InputError(
            f"{named} holds no ClusterQueue. Export it with kubectl get clusterqueues."
        )
    return quotas


def _of_flavors(queue: Mapping[str, Any], cohort: str) -> Quota:
    """Return the quota of a queue for chips, in all flavors together."""
    resources = [
        resource
        for group in listed_at(queue, "spec", "resourceGroups")
        for flavor in listed_at(group, "flavors")
        for resource in listed_at(flavor, "resources")
        if value_at(resource, "name") in DEVICES
    ]
    if not resources:
        raise InputError(f"it has no quota of {', '.join(DEVICES)}. Add one, or leave it out.")
    chips, most = 0, 0
    for resource in resources:
        if value_at(resource, "lendingLimit") is not None:
            raise InputError("a lendingLimit is not simulated. Take it out.")
        nominal = whole_number(value_at(resource, "nominalQuota"), "nominalQuota", 0)
        limit = value_at(resource, "borrowingLimit")
        borrowed = 10**9 if limit is None else whole_number(limit, "borrowingLimit", 0)
        chips, most = chips + nominal, most + nominal + borrowed
    return Quota(chips, most, cohort)


def _block(text: str, teams: Sequence[str], first_s: float) -> tuple[str, int, float, float]:
    """Return team, chips, start and end of a reservation, ``team=chips@start+duration``."""
    named = f"--reserve {shown(text, 60)!r}"
    name, _, rest = text.partition("=")
    chips, _, window = rest.partition("@")
    start, _, duration = window.rpartition("+")
    if not (name and chips and start and duration):
        raise InputError(
            f"{named} is no reservation. Write team=chips@start+duration, such as "
            "research=64@24h+12h."
        )
    check_choice("--reserve: team", name, teams)
    count = whole_number(chips, f"{named}: chips")
    start_s = moment_s(start, named) - (first_s if is_date(start) else 0.0)
    end_s = start_s + parse_seconds(duration, named)
    if not -LONGEST_S < start_s < end_s < LONGEST_S or end_s <= 0:
        raise InputError(
            f"{named} is not from the first arrival on, within {LONGEST_S / 86400:,.0f} days and "
            "longer than 0. Write a time since then, such as 24h, or a date if jobs have dates."
        )
    return name, count, start_s, end_s


def _reservations(
    cluster: Cluster, blocks: Sequence[tuple[str, int, float, float]]
) -> tuple[Reservation, ...]:
    """Give each reservation whole domains, the last of the cluster that are open in its time."""
    # In order of their starts as many domains suffice as are reserved at one time.
    placed = list[Reservation]()
    for team, chips, start_s, end_s in sorted(blocks, key=lambda each: each[2]):
        taken = [each.domains for each in placed if each.end_s > start_s]
        open_ones = np.setdiff1d(np.arange(cluster.domains), np.concatenate([[-1], *taken]))
        needed = -(-chips // cluster.chips_per_domain)
        if needed > len(open_ones):
            raise InputError(
                f"--reserve: {chips:,} chips for {team} are {needed:,} whole scale-up domains, and "
                f"beside other reservations {len(open_ones):,} of the {cluster.domains:,} of "
                f"{cluster.name} are open then. Reserve fewer, or at another time."
            )
        placed.append(Reservation(team, open_ones[-needed:], start_s, end_s))
    return tuple(placed)
