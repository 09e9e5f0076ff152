"""Jobs that share a cluster, from a file or from dictionaries, and the chips that each gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.routing import switch_chips
from topologies.support.arguments import check_names
from topologies.support.arrays import BoolArray, IntArray
from topologies.support.errors import InputError, check_choice, shown
from topologies.support.files.yaml_documents import read_yaml
from topologies.support.units import parse_seconds
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.training.plan.other_tools import field_value
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan, check_field
from workloads.training.usual_plan import complete, ranks_per_chip, runnable_fields

PLACEMENTS = {
    "packed": "the next free chips, whatever they share with the job before",
    "server": "whole servers that no other job uses",
    "domain": "whole scale-up domains, such as UltraServers, that no other job uses",
    "rack": "all that is below a first switch of the scale-out fabric",
    "spread": "equally many chips of every scale-up domain",
}
"""Names of placements, with the chips that a job gets."""


@dataclass(frozen=True)
class Job:
    """A training job and its place: one of :data:`PLACEMENTS`, or its first chip."""

    name: str
    model: Model
    plan: ParallelPlan
    placement: str = "packed"
    start: int | None = None
    starts_at_s: float = 0.0  # time at which it starts [s]
    steps: int | None = None  # steps after which it ends; it runs on beside others if None

    @property
    def chips(self) -> int:
        """Number of chips that the job uses."""
        return -(-self.plan.ranks // self.plan.ranks_per_chip)


def chips_of_jobs(
    jobs: Sequence[Job],
    cluster: Cluster,
    placement: str = "",
    running: Sequence[tuple[Job, IntArray]] = (),
) -> list[IntArray]:
    """Return the chips of each job, int64 (chips,)."""
    # Jobs with a first chip of their own are placed first, the others in their order.
    # ``placement``: placement of all jobs without a first chip, in place of their own. ``running``:
    # jobs that have their chips. Raises InputError for jobs that need more chips than there are,
    # explicit places that overlap, and a job for which the free chips do not suffice in its
    # placement.
    every = [*jobs, *(job for job, _ in running)]
    needed = sum(job.chips for job in every)
    if needed > cluster.chips:
        counts = ", ".join(f"{job.name} {job.chips:,}" for job in every)
        raise InputError(
            f"the jobs use {needed:,} chips ({counts}), but {cluster.name} has "
            f"{cluster.chips:,}. Use fewer or smaller jobs, or a larger cluster."
        )
    owner = np.full(cluster.chips, -1)
    for number, (_, chips) in enumerate(running, start=len(jobs)):
        owner[chips] = number
    places: list[IntArray] = [np.empty(0, np.int64)] * len(jobs)
    in_order = sorted(range(len(jobs)), key=lambda number: jobs[number].start is None)
    for number in in_order:
        job = jobs[number]
        if job.start is None:
            picked = _free(job, cluster, owner < 0, placement or job.placement)
        else:
            picked = job.start + np.arange(job.chips)
            _check_stated(job, picked, every, owner)
        places[number], owner[picked] = picked, number
    return places


def _check_stated(job: Job, picked: IntArray, jobs: Sequence[Job], owner: IntArray) -> None:
    """Refuse chips from a stated one on that the cluster does not have, or another job has."""
    first, last = int(picked[0]), len(owner) - 1
    if picked[-1] > last:
        raise InputError(
            f"job {job.name} uses {job.chips:,} chips from {first:,} on, but the last is "
            f"{last:,}. Start it at {len(owner) - job.chips:,} at most."
        )
    taken = picked[owner[picked] >= 0]
    if len(taken):
        other = jobs[int(owner[taken[0]])]
        raise InputError(
            f"jobs {other.name} and {job.name} both use chip {taken[0]:,}. Start {job.name} "
            "elsewhere."
        )


def _free(job: Job, cluster: Cluster, free: BoolArray, placement: str) -> IntArray:
    each = _unit(cluster, placement)
    unit = np.arange(cluster.chips) // each
    units = int(unit[-1]) + 1
    if placement == "spread":
        open_chips = np.bincount(unit[free], minlength=units)
        share = -(-job.chips // units)
        used = -(-job.chips // share)  # the first domains, if they do not divide the chips
        rank = np.cumsum(free) - 1
        rank -= np.concatenate([[0], np.cumsum(open_chips)[:-1]])[unit]
        picked = np.flatnonzero(free & (unit < used) & (rank < share))[: job.chips]
    else:
        whole = np.bincount(unit[free], minlength=units) == np.bincount(unit)
        picked = np.flatnonzero(free & whole[unit])[: job.chips]
    if len(picked) < job.chips:
        remedy = "packed" if placement != "packed" else "fewer chips"
        raise InputError(
            f"job {job.name} needs {job.chips:,} chips, and placement {placement} finds "
            f"{len(picked):,} free ones beside the other jobs. Use {remedy}, or a larger cluster."
        )
    return picked


def _unit(cluster: Cluster, placement: str) -> int:
    """Chips that a placement gives to one job alone, or of a domain for ``spread``."""
    if placement == "packed":
        return 1
    if placement == "server":
        return cluster.chips_per_server
    # Without a layer of switches below the top, all chips are in one rack.
    return [*switch_chips(cluster), cluster.chips][placement == "rack"]


LARGEST_FILE_BYTES = 2**20
OWN_KEYS = ("name", "model", "plan", "chips", "placement", "start", "starts_at", "steps")
"""Keys of a job that are no fields of a plan; ``plan`` names a file of such fields."""
MOST_STEPS_OF_A_JOB = 10**9
DEGREES = ("tp", "pp", "cp", "dp")


def read_jobs(path: Path | str, cluster: Cluster) -> tuple[Job, ...]:
    """Read the jobs of a YAML file, under its key ``jobs``."""
    content = "jobs. Write jobs:, and below it a name, a model and a plan for each"
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content=content)
    named = shown(str(path))
    check_names(named, map(str, document), ["jobs"])
    entries = document.get("jobs")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"{named}: jobs is no list of jobs. Write - name: first, a job an entry.")
    try:
        return jobs_from(entries, cluster, folder=Path(path).parent)
    except InputError as mistake:
        raise InputError(f"{named}: {mistake}") from None


def jobs_from(
    entries: Sequence[Mapping[str, Any]], cluster: Cluster, folder: Path | None = None
) -> tuple[Job, ...]:
    """Return the jobs that dictionaries describe."""
    # ``folder``: folder from which a ``plan`` file is named, by default the current one. Raises
    # InputError for an unknown key, a name that two jobs have, and a plan that does not suit.
    if not entries:
        raise InputError("jobs is empty. State at least one job, with a name, a model and a plan.")
    jobs = [
        _job(dict(entry), number, cluster, folder or Path())
        for number, entry in enumerate(entries, start=1)
    ]
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two jobs are called {name}. Give each a name of its own.")
    return tuple(jobs)


def _job(entry: dict[str, Any], number: int, cluster: Cluster, folder: Path) -> Job:
    stated = {str(key).replace("-", "_"): value for key, value in entry.items()}
    name = shown(str(stated.pop("name", f"job {number}")), 40)
    check_names(f"job {name}", stated, [*OWN_KEYS, *PLAN_FIELDS])
    if "model" not in stated:
        raise InputError(f"job {name} has no model. Name one, such as llama-3.1-8b.")
    placement, start = stated.pop("placement", "packed"), stated.pop("start", None)
    begins, steps = stated.pop("starts_at", "0s"), stated.pop("steps", None)
    if not isinstance(begins, str):
        raise InputError(
            f"job {name}: starts_at {shown(str(begins), 40)} has no unit. Write a time, such as "
            "90min."
        )
    starts_at_s = parse_seconds(begins, f"job {name}: starts_at")
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_STEPS_OF_A_JOB):
        raise InputError(
            f"job {name}: steps {shown(str(steps), 40)!r} must be a whole number from 1 to "
            f"{MOST_STEPS_OF_A_JOB:,}. Correct it, or leave it out for a job that runs on."
        )
    check_choice(f"job {name}: placement", placement, PLACEMENTS)
    if start is not None and "placement" in entry:
        raise InputError(f"job {name} states placement and start. State one of them.")
    _check_count(name, "start", start, 0, cluster)
    chips, filed = stated.pop("chips", None), stated.pop("plan", None)
    _check_count(name, "chips", chips, 1, cluster)
    try:
        model = as_model(stated.pop("model"))
        fields = runnable_fields(folder / str(filed), cluster) if filed is not None else {}
        for key, value in stated.items():
            fields[key] = field_value(key, value)
            check_field(key, fields[key])
        plan = complete(fields, model, cluster, chips=chips or _chips(fields, cluster))
    except InputError as mistake:
        raise InputError(f"job {name}: {mistake}") from None
    return Job(name, model, plan, placement, start, starts_at_s, steps)


def _check_count(name: str, key: str, value: object, least: int, cluster: Cluster) -> None:
    """Refuse a number of chips, or of a chip, that the cluster does not have."""
    most = cluster.chips - 1 + least
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and least <= int(str(value)) <= most):
        raise InputError(
            f"job {name}: {key} {shown(str(value), 40)!r} must be a whole number from {least} to "
            f"{most:,}, as {cluster.name} has {cluster.chips:,} chips. Correct it."
        )


def _chips(fields: Mapping[str, Any], cluster: Cluster) -> int:
    """Return the chips that the degrees of a plan fill."""
    if not fields.get("dp"):
        raise InputError("states neither chips nor dp, so its size is open. State one of them.")
    ranks = math.prod(int(fields.get(degree) or 1) for degree in DEGREES)
    per_chip = fields.get("ranks_per_chip")
    if not per_chip:
        per_chip = ranks_per_chip(cluster, None)
    return -(-ranks // int(per_chip))
