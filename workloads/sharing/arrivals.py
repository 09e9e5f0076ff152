"""Jobs that arrive at a queue: stated ones, and records of Slurm and Kubernetes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.support.arguments import check_names
from topologies.support.errors import InputError, shown
from topologies.support.files.reading import csv_rows, read_text
from topologies.support.files.table import TRUTHS, WHOLE
from topologies.support.files.yaml_documents import yaml_mapping
from topologies.support.units import parse_seconds
from workloads.sharing.jobs import Job, jobs_from
from workloads.training.detail import Detail
from workloads.training.iteration import iteration
from workloads.training.plan.plan import PLAN_FIELDS

LARGEST_FILE_BYTES = 2**28
MOST_JOBS = 200_000
KEYS = ("name", "submit", "chips", "time", "limit", "priority", "team", "model", "plan", "steps")
"""Keys of a stated job beside the fields of its plan."""
PRIORITIES = (-(2**31), 2**32 - 1)
"""Least and largest priority: Kubernetes' have 32 bits with a sign, and Slurm's without."""
NEVER = ("", "Unknown", "None", "N/A")
DEVICES = (
    "nvidia.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "google.com/tpu",
)  # fmt: skip
"""Names under which Kubernetes counts whole chips."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a job with the LocalQueue that Kueue admits it through."""


@dataclass(frozen=True)
class Arrival:
    """A job that arrives at the queue."""

    name: str
    submit_s: float  # time of its arrival [s]; since the first one, in a queue
    chips: int
    run_s: float  # time that it runs [s]
    limit_s: float  # time that its user requested, which schedulers count with [s]
    priority: int = 0  # larger ones first, where the discipline looks at it
    # Ends of the 80 % interval of ``run_s``, where a predicted step is behind it [s]
    ends_s: tuple[float, float] | None = None
    trained: Job | None = None  # what it trains, where a predicted step is behind it
    recorded_wait_s: float | None = None  # wait under the scheduler that wrote the record [s]
    team: str = ""  # team whose quota and reservations it uses


Step = tuple[Job, float, float, float]  # job, and time of its step with the ends of that [s]


def read_arrivals(path: Path | str, cluster: Cluster) -> tuple[list[Arrival], tuple[str, ...]]:
    """Read the jobs of a file in one of three forms, and say which entries are left out."""
    text = read_text(Path(path), limit_bytes=LARGEST_FILE_BYTES)
    named, head = shown(str(path)), text.lstrip()[:4096].partition("\n")[0]
    if "|" in head:
        return _collected(_slurm(text, named, cluster), named)
    if head.startswith(("{", "apiVersion:", "items:", "kind:")):
        return _collected(_kubernetes(text, named), named)
    header, rows = csv_rows(text, named)
    check_names(named, header, [*KEYS, *PLAN_FIELDS])
    entries = []
    for line, cells in rows:
        stated = {key: _cell(key, cell) for key, cell in cells.items() if cell}
        if "plan" in stated:
            stated["plan"] = str(Path(path).parent / stated["plan"])
        entries.append((f"{named} line {line}", stated))
        _check_number(entries, named)
    return _arrivals(entries, cluster), ()


def _collected(record: Record, named: str) -> tuple[list[Arrival], tuple[str, ...]]:
    """Return the jobs of a record, and say what of it is left out."""
    jobs, left = list[Arrival](), Counter[str]()
    for entry in record:
        if isinstance(entry, str):
            left[entry] += 1
        else:
            jobs.append(entry)
            _check_number(jobs, named)
    return jobs, tuple(f"Left out: {what} ({count:,})." for what, count in left.items())


def _cell(key: str, text: str) -> Any:
    """Return a cell as a number or a truth value where it is such, of chips or a plan's field."""
    if key in KEYS and key != "chips":
        return text
    try:
        return int(text) if WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return TRUTHS.get(text, text)


def arrivals_from(entries: Sequence[Mapping[str, Any]], cluster: Cluster) -> list[Arrival]:
    """Return the jobs that dictionaries state."""
    named = [f"job {entry.get('name', number)}" for number, entry in enumerate(entries, start=1)]
    return _arrivals(zip(named, entries, strict=True), cluster)


def _arrivals(entries: Iterable[tuple[str, Mapping[str, Any]]], cluster: Cluster) -> list[Arrival]:
    """Return the jobs of entries, each with its place for messages."""
    arrivals, steps, dated = list[Arrival](), dict[str, Step](), set[bool]()
    for place, entry in entries:
        try:
            arrivals.append(_arrival(len(arrivals) + 1, dict(entry), cluster, steps))
            dated.add(is_date(str(entry["submit"])))
            if len(dated) > 1:
                raise InputError("submit is a date for some jobs and a time for others. Use one.")
        except InputError as mistake:
            raise InputError(f"{place}: {mistake}") from None
    return arrivals


def _arrival(
    number: int, stated: dict[str, Any], cluster: Cluster, steps: dict[str, Step]
) -> Arrival:
    check_names("a job of a queue", stated, [*KEYS, *PLAN_FIELDS])
    if "submit" not in stated:
        raise InputError("it has no submit. State when it arrives, as 90min or 2026-11-02T08:30.")
    times = {name: stated.pop(name, None) for name in ("submit", "time", "limit", "priority")}
    name, ends_s, trained = str(stated.get("name") or f"job {number}"), None, None
    team = str(stated.pop("team", None) or "")
    if "model" in stated:
        if times["time"] is not None:
            raise InputError("it states time and model. State one of them.")
        trained, run_s, ends_s = _predicted(number, stated, cluster, steps)
        chips = trained.chips
    elif surplus := sorted(set(stated) - {"name", "chips"}):
        raise InputError(f"{surplus[0]} needs a model. State it, or leave {surplus[0]} out.")
    else:
        if times["time"] is None:
            raise InputError("it has neither time nor model. State how long it runs, as time 3h.")
        chips = whole_number(stated.get("chips"), "chips")
        run_s = _seconds(times["time"], "time")
    limit_s = run_s if times["limit"] is None else _seconds(times["limit"], "limit")
    if limit_s < run_s:
        raise InputError(
            f"limit {times['limit']} is shorter than the {run_s:,.0f} s that it runs, and it would "
            "be stopped. State a longer limit."
        )
    priority = whole_number(times["priority"] or 0, "priority", *PRIORITIES)
    submit_s = moment_s(str(times["submit"]), "submit")
    return Arrival(*(name, submit_s, chips, run_s, limit_s, priority, ends_s, trained), team=team)


def _predicted(
    number: int, stated: dict[str, Any], cluster: Cluster, steps: dict[str, Step]
) -> tuple[Job, float, tuple[float, float]]:
    """Return what a job trains, and its time and ends by its predicted step, one of ``steps``."""
    count = whole_number(stated.pop("steps", None), "steps")
    name = stated.pop("name", number)
    alike = repr(sorted(stated.items()))
    if alike not in steps:
        (job,) = jobs_from([{**stated, "name": name}], cluster)
        run = iteration(job.model, cluster, job.plan, Detail(level="collective", partial=True))
        steps[alike] = (job, run.iteration_s, run.interval.low, run.interval.high)
    job, time_s, low_s, high_s = steps[alike]
    return job, count * time_s, (count * low_s, count * high_s)


def whole_number(value: object, what: str, least: int = 1, most: int = 10**9) -> int:
    """Return a whole number within bounds, or refuse it by its name."""
    try:
        count = int(str(value))
    except ValueError:
        count = least - 1
    if not least <= count <= most:
        raise InputError(
            f"{what} {shown(str(value), 40)!r} must be a whole number from {least:,} to {most:,}."
        )
    return count


def _seconds(value: object, what: str) -> float:
    seconds = parse_seconds(str(value), what)
    if seconds <= 0:
        raise InputError(f"{what} {shown(str(value), 40)!r} must be longer than 0.")
    return seconds


def moment_s(text: str, what: str) -> float:
    """Return a time that is a date or a quantity, in seconds since any fixed moment."""
    if not is_date(text):
        return parse_seconds(text, what)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{what} {shown(text, 40)!r} is no date. Write it as 2026-11-02T08:30:00."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def is_date(text: str) -> bool:
    """Return whether a time is written as a date."""
    return re.match(r"\d{4}-", text) is not None


def _check_number(jobs: Sequence[object], named: str) -> None:
    if len(jobs) > MOST_JOBS:
        raise InputError(f"{named} has more than {MOST_JOBS:,} jobs. Cut it into parts.")


Record = Iterator[Arrival | str]
"""Jobs of a scheduler's record, and in place of what is no job of the queue a word for it."""
TRACKED = ("AllocTRES", "ReqTRES")
NODES = ("NNodes", "AllocNodes", *TRACKED)
"""Columns of Slurm with the nodes of a job, the first that a file has counts."""
NEVER_RAN = "jobs that never ran or have not ended"


def _slurm(text: str, named: str, cluster: Cluster) -> Record:
    """Read the output of ``sacct --parsable2``: jobs of whole nodes that have ended."""
    header, rows = csv_rows(text, named, delimiter="|")
    nodes = next((name for name in NODES if name in header), "NNodes")
    needed = ("JobID", "Submit", "Start", "End", nodes)
    if missing := [column for column in needed if column not in header]:
        raise InputError(
            f"{named} line 1: no column {missing[0]}. Export it with sacct --parsable2 "
            f"--allocations --format={','.join(needed)},Timelimit,Priority,Account."
        )
    for line, cells in rows:
        moments = [cells[name] for name in ("Submit", "Start", "End")]
        if "." in cells["JobID"]:
            yield "job steps"
            continue
        if {*moments[1:]} & {*NEVER} or moments[1] == moments[2]:
            yield NEVER_RAN
            continue
        try:
            # Trackable resources are written as billing=64,gres/gpu=64,node=8.
            counted = re.search(r"(?:^|,)node=([^,]*)", cells[nodes]) if nodes in TRACKED else None
            held = counted[1] if counted else cells[nodes]
            chips = whole_number(held, nodes) * cluster.chips_per_server
            limit_s = _slurm_limit(cells.get("Timelimit", ""))
            priority = whole_number(cells.get("Priority") or 0, "Priority", *PRIORITIES)
            job = _ran(cells["JobID"], moments, chips, limit_s)
        except InputError as mistake:
            raise InputError(f"{named} line {line}: {mistake}") from None
        yield replace(job, priority=priority, team=cells.get("Account", ""))


def _ran(name: str, moments: Sequence[str], chips: int, limit_s: float = 0.0) -> Arrival:
    """Return a job of a record that was submitted, started and ended at these moments."""
    submit_s, start_s, end_s = (moment_s(each, "time") for each in moments)
    if not submit_s <= start_s < end_s:
        raise InputError("Submit, start and end do not follow each other. Correct them.")
    run_s = end_s - start_s
    # A job may end some seconds after its limit.
    waited_s = start_s - submit_s
    limit_s = max(run_s, limit_s)
    return Arrival(name, submit_s, chips, run_s, limit_s, recorded_wait_s=waited_s)


def _slurm_limit(text: str) -> float:
    """Return a limit as Slurm writes it, ``days-hours:minutes:seconds`` [s]; 0 where it is none."""
    if text in (*NEVER, "UNLIMITED", "Partition_Limit"):
        return 0.0
    number = r"(\d{1,9})"
    limit = re.fullmatch(rf"(?:{number}-)?{number}:{number}:{number}", text)
    if limit is None:
        raise InputError(f"Timelimit {shown(text, 40)!r} is no time. Slurm writes 1-12:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in limit.groups())
    return 86_400.0 * days + 3600 * hours + 60 * minutes + seconds


def kubernetes_items(text: str, named: str, content: str) -> list[dict[str, Any]]:
    """Return the entries of a list that ``kubectl get --output json`` or ``yaml`` prints."""
    document = yaml_mapping(text, named, content=content)
    items = document.get("items", [document])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError(f"{named}: items is no list of {content}. Export it with kubectl get.")
    return items


def _kubernetes(text: str, named: str) -> Record:
    """Read Jobs and JobSets, and the LocalQueues through which Kueue's ClusterQueues get them."""
    items = kubernetes_items(text, named, "jobs of Kubernetes")
    queues = {
        _queue_of(item, value_at(item, "metadata", "name")): value_at(item, "spec", "clusterQueue")
        for item in items
        if item.get("kind") == "LocalQueue"
    }
    for item in items:
        if item.get("kind") not in ("Job", "JobSet"):
            if item.get("kind") != "LocalQueue":
                yield "entries that are no Job or JobSet"
            continue
        named_as = shown(str(value_at(item, "metadata", "name")), 80)
        moments = [str(moment or "") for moment in _moments(item)]
        if not moments[1] or not moments[2]:
            yield NEVER_RAN
            continue
        try:
            job = _ran(named_as, moments, sum(_devices(item)))
        except InputError as mistake:
            raise InputError(f"{named}: job {named_as}: {mistake}") from None
        label = value_at(item, "metadata", "labels", QUEUE_LABEL) or ""
        yield replace(job, team=str(queues.get(_queue_of(item, label)) or label))


def _queue_of(item: Mapping[str, Any], name: Any) -> str:
    """Return a name with the namespace of an entry, as names of LocalQueues hold in one each."""
    return f"{value_at(item, 'metadata', 'namespace')}/{name}"


def _moments(item: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return when a job was created, started, and completed or failed."""
    # Kueue suspends a job until it is admitted: its start is the end of the wait. A JobSet has
    # conditions in place of times, and of a Job that failed a condition alone says when.
    created = value_at(item, "metadata", "creationTimestamp")
    conditions = listed_at(item, "status", "conditions")
    changed = {
        each.get("type"): each.get("lastTransitionTime")
        for each in conditions
        if isinstance(each, dict)
    }
    if item["kind"] == "Job":
        completed = value_at(item, "status", "completionTime") or changed.get("Failed")
        return created, value_at(item, "status", "startTime"), completed
    # The condition Suspended turns false when the set starts; without a queue it is not there.
    end = changed.get("Completed") or changed.get("Failed")
    return created, changed.get("Suspended", created), end


def _devices(item: Mapping[str, Any]) -> Iterator[int]:
    """Yield the chips of each replicated job of a Job or JobSet."""
    if item["kind"] == "Job":
        replicated = [(1, item.get("spec"))]
    else:
        sets = listed_at(item, "spec", "replicatedJobs")
        replicated = [
            (value_at(each, "replicas") or 1, value_at(each, "template", "spec")) for each in sets
        ]
    for replicas, spec in replicated:
        pods = whole_number(value_at(spec, "parallelism") or 1, "parallelism")
        chips = [
            whole_number(count, "chips")
            for each in listed_at(spec, "template", "spec", "containers")
            for name in DEVICES
            if (count := value_at(each, "resources", "limits", name)) is not None
        ]
        if not chips:
            raise InputError(f"its containers have no limit of {', '.join(DEVICES)}. State one.")
        yield whole_number(replicas, "replicas") * pods * sum(chips)


def value_at(item: Any, *keys: str) -> Any:
    """Return a value within nested mappings; None where one of them lacks the key."""
    for key in keys:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


def listed_at(item: Any, *keys: str) -> list[Any]:
    """Return a list within nested mappings; an empty one where something else is there."""
    value = value_at(item, *keys)
    return value if isinstance(value, list) else []
