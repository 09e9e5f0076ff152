"""Answers of recorded runs, computed again with other numbers of the catalogue.

Training steps are folded and collectives timed in closed form. An answer then takes a fraction of a
second, short enough for a slider.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from cluster_sim.collectives.algorithms.registry import ALGORITHMS, AUTO
from cluster_sim.collectives.duration.duration import collective_time
from cluster_sim.collectives.results import first_ranks
from experiments.reports.differences import input_text, recorded_plan
from experiments.reports.formatting import option_name
from experiments.reports.run_record import check_unchanged, read_record
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.names import cluster as cluster_of
from topologies.errors import InputError
from topologies.units import format_bytes
from workloads.confidence.sensitivity import sensitivity
from workloads.training.iteration import iteration

Parts = Mapping[str, float]
Changes = Mapping[str, Any]
NO_CHANGES: Changes = {}
CHANGED = ("model", "cluster", "tp", "pp", "global_batch", "seq")
"""Options of a step that may be given other values; a collective has another cluster."""
DISTURBED = ("jitter", "straggler", "fault", "later_stages")
"""Options of a step whose effect is not computed again."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
"""Degrees of a plan in its description; degrees of 1 are left out."""
FACTOR_DIGITS = 1000
"""Denominator to which a slider's factor is rounded, so that its value is exact."""


@dataclass(frozen=True)
class Explored:
    """A recorded run whose answer can be computed again."""

    name: str
    kind: str  # ``train`` or ``collective``
    question: str
    recorded: Parts  # recorded times [s], by parts of the step or by sizes as text
    # Ends between which 80 % of measured times should lie [s], of the step or of all sizes
    interval_s: tuple[float, float]
    # Returns the times with the numbers of a catalogue, and with other values of options [s]
    ask: Callable[..., Parts]

    def seconds(self, catalogue: Catalogue) -> float:
        """Return the time of the step, or of all sizes together [s]."""
        return sum(self.ask(catalogue).values())


def read_runs(folders: Sequence[Path]) -> tuple[list[Explored], dict[str, pd.DataFrame]]:
    """Read run directories: runs of steps and collectives, and tables of sweeps by name."""
    runs, sweeps = [], {}
    for folder in folders:
        record = read_record(folder)
        command = str(record.get("command"))
        if command not in FILES:
            commands = ", ".join(FILES)
            raise InputError(
                f"{folder} is a run of {command[:40]!r}; runs of {commands} can be explored."
            )
        check_unchanged(folder, record, [FILES[command]])
        if command == "sweep":
            sweeps[folder.name] = pd.read_csv(folder / FILES[command])
            continue
        inputs: Mapping[str, Any] = record["inputs"]
        if inputs.get("catalogue") or inputs.get("variant"):
            raise InputError(
                f"{folder} ran with --catalogue or --variant, which sliders would move again. "
                "Run it without."
            )
        disturbed = next((name for name in DISTURBED if inputs.get(name)), None)
        if disturbed is not None:
            raise InputError(
                f"{folder} ran with {option_name(disturbed)}, which sliders leave out. Run it "
                "without."
            )
        named = str(inputs.get("cluster") or inputs.get("clusters") or "")
        if "," in named:
            raise InputError(f"{folder} holds several clusters, {named[:80]}. Run each by itself.")
        try:
            runs.append(READERS[command](folder, inputs))
        except (LookupError, TypeError, ValueError, ArithmeticError) as fault:
            raise InputError(
                f"{folder} cannot be read ({type(fault).__name__}: {str(fault)[:60]}); it may come "
                "from another version. Run it again."
            ) from None
    return runs, sweeps


def _train(folder: Path, inputs: Mapping[str, Any]) -> Explored:
    results = json.loads((folder / "results.json").read_text())

    def ask(catalogue: Catalogue, changes: Changes = NO_CHANGES) -> Parts:
        """Answer with the numbers of a catalogue, and other values of options."""
        model, plan, machine = recorded_plan(inputs, results, catalogue, changes)
        part = inputs.get("chips") is not None
        return iteration(model, machine, plan, partial=part, allow_oversized=True).breakdown_s

    interval = results["interval"]
    return Explored(
        folder.name, "train", _step_in_words(results), results["breakdown_s"],
        (interval["low"], interval["high"]), ask,
    )  # fmt: skip


def _step_in_words(results: Mapping[str, Any]) -> str:
    plan = results["plan"]
    degrees = [f"{name} {plan[name]}" for name in DEGREES if name == "tp" or plan[name] > 1]
    batch = f"{plan['global_batch']} × {plan['seq']} tokens"
    return f"{results['model']} on {results['cluster']}, {', '.join(degrees)}, {batch}"


def _collective(folder: Path, inputs: Mapping[str, Any]) -> Explored:
    table = pd.read_csv(folder / "metrics.csv")
    fastest = table.sort_values("time_s").drop_duplicates("size_bytes").sort_values("size_bytes")
    rows = [(int(row["size_bytes"]), str(row["algorithm"])) for row in fastest.to_dict("records")]
    ranks, each = inputs.get("ranks"), int(inputs.get("ranks_per_chip") or 1)

    def ask(catalogue: Catalogue, changes: Changes = NO_CHANGES) -> Parts:
        """Answer with the numbers of a catalogue, and perhaps on another cluster."""
        machine = cluster_of(
            input_text(changes.get("cluster", inputs["cluster"])),
            bandwidth=inputs.get("bandwidth"), latency=inputs.get("latency"), catalogue=catalogue,
        )  # fmt: skip
        group = first_ranks(machine, ranks, each)
        times = {
            size: collective_time(
                str(inputs["op"]), group, size_bytes=size,
                # What no name runs, such as NCCL's closed form, is the runtime's own choice.
                algorithm=algorithm if algorithm in ALGORITHMS else AUTO,
                ideal=bool(inputs.get("ideal")),
            ).time_s
            for size, algorithm in rows
        }  # fmt: skip
        return {str(size): float(seconds) for size, seconds in times.items()}

    recorded = {str(row["size_bytes"]): float(row["time_s"]) for row in fastest.to_dict("records")}
    sizes = [format_bytes(size) for size, _ in rows]
    buffers = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}"
    question = f"{inputs['op']} on {inputs['cluster']}, {buffers}"
    interval = float(fastest["low"].sum()), float(fastest["high"].sum())
    return Explored(folder.name, "collective", question, recorded, interval, ask)


FILES = {"train": "results.json", "collective": "metrics.csv", "sweep": "results.csv"}
"""File with the answers of a run, by command."""
READERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Explored]] = {
    "train": _train,
    "collective": _collective,
}


def knobs(runs: Sequence[Explored], most: int, catalogue: Catalogue) -> list[str]:
    """Numbers of the catalogue with the largest effect on the answers, as ``PART.QUANTITY``."""
    swings: dict[str, float] = {}
    for run in runs:
        for row in sensitivity(run.seconds, catalogue):
            swings[row.input] = max(swings.get(row.input, 0.0), row.swing)
    return sorted(swings, key=lambda name: -swings[name])[:most]


def moved(catalogue: Catalogue, factors: Mapping[str, float]) -> Catalogue:
    """Return a catalogue in which some numbers are multiplied by factors."""
    rows = []
    for name, factor in factors.items():
        if factor != 1.0:
            part, _, quantity = name.rpartition(".")
            entry = catalogue.entry(part, quantity)
            exact = entry.exact * Fraction(round(factor * FACTOR_DIGITS), FACTOR_DIGITS)
            rows.append(entry._replace(value=float(exact), exact=exact))
    return catalogue.with_rows(rows) if rows else catalogue
