"""Differences of two recorded runs of one command: what was asked, what came out, and why."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.figures.training import NAMES
from experiments.reports.certainty import UNKNOWN, ratios
from experiments.reports.formatting import heading, option_name, value_text
from experiments.reports.run_directory import MEASURED
from experiments.reports.run_record import check_files, read_record
from topologies.catalogue.catalogue import Catalogue, choose
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster as cluster_of
from topologies.support.arguments import checked
from topologies.support.errors import InputError
from topologies.support.units import format_seconds
from workloads.confidence.split_conformal import margin
from workloads.economics import compared_machine
from workloads.models.huggingface import model as read_model
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import complete, training_features

RESULTS = "Results"  # title of the file of a run that has its command's JSON
NOT_RESULTS = re.compile(rf"{'|'.join(MEASURED)}|(.*_)?interval|assumed|sensitivity|engine")
"""Keys of results that are no answers, or stand elsewhere."""
UNLIKE_MACHINES = ("catalogue", "variant", "later_stages")
"""Options with which a step's machine is not that of its cluster's name."""
NOT_PLANNED = ("sharding", "assumed")  # keys of a plan in results that are not fields of a plan
LEAST = 1e-3  # relative difference from which a number is printed
MOST_ROWS = 40
"""Rows that are printed, and length up to which lists of results are compared row by row."""
LONGEST = 60  # length to which words in a table are cut

Document = Mapping[str, Any]


@checked()
def compare(first: Path | str, second: Path | str) -> dict[str, Any]:
    """Say what differs between two recorded runs of one command, and why.

    Parameters
    ----------
    first, second : path
        Run directories that ``--out`` wrote.

    Returns
    -------
    dict
        The keys of ``cluster-sim compare --json``: ``question`` and ``results`` have a row for each
        option and each number that differ, ``ratios`` say whether a difference is beyond the error
        of two predictions, ``change_s`` has the parts of a step, the second less the first [s].

    Raises
    ------
    InputError
        If the runs are of unlike commands, have no results, or were changed since.

    Examples
    --------
    >>> compare("nowhere", "nowhere")
    Traceback (most recent call last):
        ...
    topologies.support.errors.InputError: nowhere is no run directory: it has no run.json. Name a \
directory that --out wrote.
    """
    folders = Path(first), Path(second)
    records = [read_record(folder) for folder in folders]
    command, other = (str(record["command"]) for record in records)
    if command != other:
        raise InputError(
            f"{first} is a run of {command} and {second} of {other}. Compare runs of one command."
        )
    results = [_results(folder, record) for folder, record in zip(folders, records, strict=True)]
    leaves = [dict(_leaves(result)) for result in results]
    named = [
        {**result, "cluster": str(folder)} for folder, result in zip(folders, results, strict=True)
    ]
    first_only, second_only = ({*leaves[k]} - {*leaves[1 - k]} for k in (0, 1))
    return {
        "command": command,
        "runs": list(map(str, folders)),
        "question": _unlike(*(dict(_question(record)) for record in records)),
        "results": [row for row in _unlike(*leaves) if all(row["name"] in each for each in leaves)],
        "only_first": _keys(first_only),
        "only_second": _keys(second_only),
        "ratios": _ratios(command, named, [record["inputs"] for record in records]),
        "change_s": _parts(*(result.get("breakdown_s") for result in results)),
    }


def _results(folder: Path, record: Document) -> Document:
    """Return the JSON that the command of a run directory would have printed."""
    files = [entry["file"] for entry in record["contents"] if entry.get("title") == RESULTS]
    file = next((name for name in files if str(name).endswith(".json")), None)
    if file is None:
        raise InputError(
            f"{folder} is a run of {record['command']}, whose results are tables. Compare runs of "
            "train, plan, serve, fleet, run-job, replay, queue or share."
        )
    check_files(folder, record, [file])
    read: Document = json.loads((folder / file).read_text())
    return read


def _question(record: Document) -> Iterator[tuple[str, Any]]:
    """Yield the options of a run, its seed and its version; a file stands with its digest."""
    for name, value in record["inputs"].items():
        is_file = isinstance(value, Mapping) and "sha256" in value
        words = f"{value['path']} ({value['sha256'][:8]})" if is_file else value
        yield option_name(name), words
    yield "--seed", record.get("seed")
    yield "version", record.get("version")


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and word of results with its place, such as ``memory_bytes.total``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not NOT_RESULTS.fullmatch(str(key)):
                yield from _leaves(item, f"{place}.{key}" if place else str(key))
    elif not isinstance(value, list):
        yield place, value
    elif len(value) <= MOST_ROWS:
        for number, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from _leaves(item, f"{place}.{number}")


def _unlike(first: Document, second: Document) -> list[dict[str, Any]]:
    """Return an entry for each name whose values differ."""
    return [
        {"name": name, "first": first.get(name), "second": second.get(name)}
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]


def _ratios(
    command: str, results: Sequence[Document], inputs: Sequence[Document]
) -> list[dict[str, Any]]:
    """Return the ratios of the second run's numbers to the first's, with their intervals."""
    machines = {
        str(run["cluster"]): _machine(each) for run, each in zip(results, inputs, strict=True)
    }
    entries = ratios(command, results, machines)
    for entry in entries:
        entry.pop("break_even_chip_hour", None)  # runs, most often of one machine
    alike = all(inputs[0].get(name) == inputs[1].get(name) for name in ("model", "cluster"))
    changed = any(run.get(name) for run in inputs for name in UNLIKE_MACHINES)
    if command != "train" or not alike or changed or not all("plan" in each for each in results):
        return entries
    # Two steps of one model on one machine share most of their errors.
    one, other = (
        training_features(*recorded_plan(*run)) for run in zip(inputs, results, strict=True)
    )
    half = margin(one, other)
    for entry in entries:
        low, high = (entry["ratio"] * math.exp(sign * half) for sign in (-1, 1))
        one_kind = len(set(entry.get("price_kinds", ()))) < 2
        entry.pop("invented", None)  # rates that both have, whatever they are
        entry.update(low=low, high=high, differs=one_kind and not low <= 1 <= high)
    return entries


def _machine(inputs: Document) -> tuple[str, str]:
    """Return what is known of the machine of a recorded run."""
    overlay = inputs.get("catalogue")
    try:
        catalogue = choose(inputs.get("variant") or (), overlay and input_text(overlay))
        cluster = input_text(inputs.get("cluster"))
        return compared_machine(catalogue, cluster, inputs.get("price_basis") or "")
    except InputError:
        return UNKNOWN  # a file that is gone, or several clusters


def input_text(value: Any) -> str:
    """Text of a recorded input; a file is recorded with its path."""
    return str(value["path"] if isinstance(value, dict) else value)


def recorded_plan(
    inputs: Document,
    results: Document,
    catalogue: Catalogue | None = None,
    changes: Document | None = None,
) -> tuple[Model, ParallelPlan, Cluster]:
    """Return model, plan and cluster of a recorded step, perhaps with other values of options."""
    named = dict(changes or {})
    model = read_model(input_text(named.pop("model", inputs["model"])))
    machine = cluster_of(input_text(named.pop("cluster", inputs["cluster"])), catalogue=catalogue)
    # What nobody stated follows from a change, as the data-parallel degree does from another tp.
    left = (*NOT_PLANNED, *(results["plan"]["assumed"] if changes else ()))
    fields = {
        name: value
        for name, value in results["plan"].items()
        if name not in left and value not in ([], "")
    }
    size = {name: inputs.get(name) for name in ("lnc", "chips")}
    return model, complete({**fields, **named}, model, machine, **size), machine


def _keys(places: Iterable[str]) -> list[str]:
    """Return the keys of results that places lie in."""
    return sorted({place.split(".")[0] for place in places})


def _parts(first: Document | None, second: Document | None) -> dict[str, float]:
    """Return by how much each part of a step is longer in the second run [s], the largest first."""
    if not first or not second:
        return {}
    longer_s = {name: second[name] - first[name] for name in first if name in second}
    return dict(sorted(longer_s.items(), key=lambda part: -abs(part[1])))


def question_rows(answer: Document) -> list[list[str]]:
    """Return the printed rows of what was asked differently."""
    return [
        [entry["name"], *(_word(entry["name"], entry[run]) for run in ("first", "second"))]
        for entry in answer["question"]
    ]


def result_rows(answer: Document) -> list[list[str]]:
    """Return the first printed rows of what came out differently, with ratios of numbers."""
    rows = []
    for entry in answer["results"]:
        name, values = entry["name"], (entry["first"], entry["second"])
        numbers = all(isinstance(each, int | float) and each is not True for each in values)
        ratio = values[1] / values[0] if numbers and values[0] else None
        if ratio is None or abs(ratio - 1) >= LEAST:
            words = [_word(name, value) for value in values]
            rows.append([heading(name), *words, "" if ratio is None else f"{ratio:.3g}"])
    left = len(rows) - MOST_ROWS
    more = [[f"{left:,} more, all with --json", "", "", ""]] if left > 0 else []
    return rows[:MOST_ROWS] + more


def _word(name: str, value: Any) -> str:
    """Text of a value in a cell; None is what a command took by default."""
    text = "default" if value is None and name.startswith("--") else value_text(name, value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def change_sentence(answer: Document) -> str:
    """Say which parts of a step make the second run longer or shorter; empty for other runs."""
    change_s = answer["change_s"]
    total_s = sum(change_s.values())
    if not total_s:
        return ""
    words = [
        f"{NAMES[name]} {'+' if seconds > 0 else '−'}{format_seconds(abs(seconds))}"
        for name, seconds in change_s.items()
        if abs(seconds) > 0.05 * abs(total_s)
    ]
    way = "longer" if total_s > 0 else "shorter"
    sizes = {entry["name"]: entry for entry in answer["results"]}
    batch = [sizes[name] for name in ("plan.global_batch", "plan.seq") if name in sizes]
    tokens = math.prod(each["second"] / each["first"] for each in batch)
    way += f", of {tokens:.3g} times the tokens" * (tokens != 1)
    return f"The step is {format_seconds(abs(total_s))} {way}: {', '.join(words)}."
