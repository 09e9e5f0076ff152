"""Options of ``cluster-sim run-job`` as keywords, read into a plan of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from topologies.arguments import check_fields, check_names
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from topologies.units import parse_count, parse_seconds
from workloads.job.causes import read_failures
from workloads.job.plan import JobPlan

AUTO = "auto"
CHECKPOINTS = ("async", "blocking", "peer")
STANDBYS = ("cold", "warm")
LARGEST_SPARES = 10**6
KEYWORDS = ("checkpoint_interval", "checkpoint", "standby", "failures", "repair", "restart")
"""Options that are not fields of a plan."""


def plan_with(plan: JobPlan, keywords: Mapping[str, Any], cluster: Cluster, chips: int) -> JobPlan:
    """Return a plan with some fields changed, by their names or as options of ``run-job``.

    Parameters
    ----------
    plan : JobPlan
    keywords : mapping of str to object
        Fields of the plan, or options as on the command line: ``checkpoint_interval="30min"``,
        ``checkpoint="peer"``, ``standby="warm"``, ``failures=0.2`` or a file, ``repair="4h"``,
        ``restart="10min"``, ``spares="auto"``, ``tokens="15T"``. A plain number for a time means
        seconds; None leaves the plan as it is.
    cluster : Cluster
    chips : int
        Chips of the job.

    Raises
    ------
    InputError
        For a keyword that is neither, and a value that its option refuses.
    """
    names = [*(field.name for field in fields(JobPlan)), *KEYWORDS]
    changes: dict[str, Any] = {}
    check_names("run_job", keywords, ["step", "plan", *names])
    for name, value in keywords.items():
        if name not in (*KEYWORDS, "spares", "tokens"):
            changes[name] = value
        elif value is not None:
            changes |= _read(name, value, cluster, chips)
    check_fields(JobPlan, changes)
    return replace(plan, **changes)


def _read(name: str, value: Any, cluster: Cluster, chips: int) -> dict[str, Any]:
    """Return the fields of a plan that an option sets."""
    text = str(value)
    if name == "spares":
        return {"spares": None if text == AUTO else _spares(text)}
    if name == "tokens":
        return {"tokens": parse_count(text, "--tokens")}
    if name == "checkpoint_interval":
        seconds = None if text == AUTO else _seconds(text, "--checkpoint-interval", least=0.001)
        return {"interval_s": seconds}
    if name == "checkpoint":
        check_choice("--checkpoint", text, CHECKPOINTS)
        return {"blocking": text == "blocking", "peers": text == "peer"}
    if name == "standby":
        check_choice("--standby", text, STANDBYS)
        return {"warm": text == "warm"}
    if name == "failures":
        return {"rates": read_failures(text, cluster, chips)}
    return {f"{name}_s": _seconds(text, f"--{name}")}


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that a value is among an option's choices.

    Raises
    ------
    InputError
    """
    if value not in choices:
        near = suggestion(value, choices)
        raise InputError(f"{option} {value!r} is none of {', '.join(choices)}.{near}")


def _seconds(text: str, name: str, least: float = 0.0) -> float:
    """Read a time with its unit; a bare number is seconds."""
    bare = text.strip().replace(".", "", 1)
    seconds = parse_seconds(f"{text}s" if bare.isdecimal() else text, name)
    if seconds < least:
        raise InputError(f"{name} {text} must be at least {least:g} s, such as 10min.")
    return seconds


def _spares(text: str) -> int:
    """Read a number of spares."""
    if not text.strip().isdecimal() or len(text) > 20 or int(text) > LARGEST_SPARES:
        raise InputError(
            f"--spares {text!r} must be a whole number from 0 to {LARGEST_SPARES:,}, or auto."
        )
    return int(text)
