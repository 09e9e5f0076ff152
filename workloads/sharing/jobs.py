"""Jobs that share a cluster, from a file or from dictionaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.arguments import check_names
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, shown, suggestion
from topologies.files.yaml_documents import read_yaml
from workloads.models.huggingface import as_model
from workloads.sharing.placements import PLACEMENTS, Job
from workloads.training.plan.fields import check_field
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.plan.plan_file import field_value, read_plan
from workloads.training.usual_plan import complete, ranks_per_chip

LARGEST_FILE_BYTES = 2**20
OWN_KEYS = ("name", "model", "plan", "chips", "placement", "start")
"""Keys of a job that are no fields of a plan; ``plan`` names a file of such fields."""
DEGREES = ("tp", "pp", "cp", "dp")


def read_jobs(path: Path | str, cluster: Cluster) -> tuple[Job, ...]:
    """Read the jobs of a YAML file, under its key ``jobs``.

    Raises InputError for a file that cannot be read, and as :func:`jobs_from` does.
    """
    content = "jobs. Write jobs:, and below it a name, a model and a plan for each"
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content=content)
    named = shown(str(path))
    for key in document:
        if key != "jobs":
            near = suggestion(str(key), ["jobs"])
            raise InputError(f"{named} has no {shown(str(key), 40)!r}.{near} It has jobs only.")
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
    """Return the jobs that dictionaries describe.

    ``folder``: folder from which a ``plan`` file is named, by default the current one.

    Raises InputError for an unknown key, a name that two jobs have, and a plan that does not suit.
    """
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
    if placement not in PLACEMENTS:
        near = suggestion(str(placement), PLACEMENTS)
        raise InputError(
            f"job {name}: placement {shown(str(placement), 40)!r} is none of "
            f"{', '.join(PLACEMENTS)}.{near}"
        )
    if start is not None and "placement" in entry:
        raise InputError(f"job {name} states placement and start. State one of them.")
    _check_count(name, "start", start, 0, cluster)
    chips, filed = stated.pop("chips", None), stated.pop("plan", None)
    _check_count(name, "chips", chips, 1, cluster)
    try:
        model = as_model(stated.pop("model"))
        fields = read_plan(folder / str(filed)) if filed is not None else {}
        for key, value in stated.items():
            fields[key] = field_value(key, value)
            check_field(key, fields[key])
        plan = complete(fields, model, cluster, chips=chips or _chips(fields, cluster))
    except InputError as mistake:
        raise InputError(f"job {name}: {mistake}") from None
    return Job(name, model, plan, placement, start)


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
