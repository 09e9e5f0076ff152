"""Reader of measured step times: a time, the log of a training tool, or neuron-monitor's JSON.

A log has one time or rate for each step; the first steps warm up and are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topologies.errors import InputError
from topologies.files.reading import read_text
from topologies.units import parse_seconds

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration

WARM_UP = 3
"""Steps at the start of a log that compile, allocate and connect, so that they are left out."""
LARGEST_BYTES = 2**28
"""Largest log that is read."""
NUMBER = r"([\d,]+(?:\.\d+)?(?:[eE][-+]?\d+)?)"


class LogForm(NamedTuple):
    """Line of a training tool's log, and how a step's time follows from its number."""

    tool: str
    pattern: str
    seconds: Callable[[float, Iteration], float]


LOG_FORMS = (
    LogForm(
        "Megatron-LM", rf"elapsed time per iteration \(ms\):\s*{NUMBER}", lambda ms, _: ms / 1e3
    ),
    LogForm("NeMo", rf"train_step_timing in s['\"]?\s*[:=]\s*{NUMBER}", lambda s, _: s),
    LogForm("MaxText", rf"completed step: \d+, seconds: {NUMBER}", lambda s, _: s),
    LogForm(
        "torchtitan", rf"\btps: {NUMBER}", lambda tps, step: step.plan.tokens / step.chips / tps
    ),
    LogForm(
        "DeepSpeed",
        rf"CurrSamplesPerSec={NUMBER}",
        lambda rate, step: step.plan.global_batch / rate,
    ),
    LogForm("Transformers", rf"'train_steps_per_second': {NUMBER}", lambda rate, _: 1 / rate),
    LogForm("MLPerf logging", rf"\"train_step_time\": {NUMBER}", lambda s, _: s),
)
"""Forms of logs, of which the first that is in a file counts: Megatron-LM's ``training_log``,
NeMo's progress bar and logger, MaxText's ``metric_logger``, torchtitan's ``MetricsProcessor``,
whose ``tps`` is of one device, DeepSpeed's ``ThroughputTimer``, Transformers' ``speed_metrics``,
which is a mean over the run, and the tracked statistics of MLPerf's submissions."""
MONITOR = LogForm(
    "neuron-monitor",
    "",
    lambda rate, step: step.hfu * step.peak_flops_per_s * step.iteration_s / rate,
)
"""Reports whose numbers are the FLOP/s that a chip counted."""
TYPED = LogForm("", "", lambda s, _: s)
BATCH = re.compile(r"global[ _]batch[ _]size:\s*(\d+)")


class MeasuredSteps(NamedTuple):
    """Numbers of measured steps, as a tool wrote them."""

    source: str  # file that they stand in; empty for a time that was typed
    form: LogForm
    numbers: list[float]
    batches: frozenset[int] = frozenset()  # global batches that the file names

    def times_s(self, step: Iteration) -> list[float]:
        """Return the time of each step [s], without those that warm up.

        Raises :class:`InputError` if the file names other batches than that of the step.
        """
        if self.batches and step.plan.global_batch not in self.batches:
            of_log = ", ".join(map(str, sorted(self.batches)))
            raise InputError(
                f"{self.source} has steps of {of_log} sequences, and --global-batch is "
                f"{step.plan.global_batch}. State the batch of the log."
            )
        times_s = [self.form.seconds(number, step) for number in self.numbers]
        return times_s[WARM_UP:] if len(times_s) > 2 * WARM_UP else times_s


def read_steps(text: str) -> MeasuredSteps:
    """Read measured steps from a file, or from a time such as 3.2s.

    Raises :class:`InputError` if the file is of no known form.
    """
    if not Path(text).is_file() and re.match(r"[\d.]", text):
        seconds = parse_seconds(text, "--compare")
        if not 0 < seconds < math.inf:
            raise InputError(f"--compare {text} is not a positive time. Write it as 3.2s.")
        return MeasuredSteps("", TYPED, [seconds])
    written = read_text(Path(text), limit_bytes=LARGEST_BYTES, lenient=True)
    if reports := _reports(written):
        numbers_of = {MONITOR: _monitored(reports, text)}
    else:
        numbers_of = {form: _positive(re.findall(form.pattern, written)) for form in LOG_FORMS}
    for form, numbers in numbers_of.items():
        if numbers:
            return MeasuredSteps(text, form, numbers, frozenset(map(int, BATCH.findall(written))))
    tools = ", ".join(form.tool for form in LOG_FORMS)
    raise InputError(
        f"{text}: no time of a training step in it. Name a log of {tools} or the JSON of "
        "neuron-monitor, or type the time, as in --compare 3.2s."
    )


def _positive(numbers: list[str]) -> list[float]:
    read = (float(number.replace(",", "")) for number in numbers)
    return [number for number in read if 0 < number < math.inf]


def _reports(written: str) -> list[Mapping[str, Any]]:
    """Return the reports of neuron-monitor, one a line; none of a text that is something else."""
    try:
        lines = [json.loads(line) for line in written.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    whole = all(isinstance(line, dict) and "neuron_runtime_data" in line for line in lines)
    return lines if whole else []


def _monitored(reports: list[Mapping[str, Any]], name: str) -> list[float]:
    """Return the FLOP/s of a chip in each report, where cores were in use."""
    try:
        return [rate for report in reports if (rate := _flops_per_s_per_chip(report)) > 0]
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{name}: a report has no FLOP/s of its NeuronCores. Enable neuroncore_counters in "
            "neuron-monitor's configuration, or type the time, as in --compare 3.2s."
        ) from None


def _flops_per_s_per_chip(report: Mapping[str, Any]) -> float:
    """Return the mean FLOP/s of the chips with cores in use; 0 while none is."""
    counted = [
        float(core["flops"])
        for runtime in report["neuron_runtime_data"]
        for core in runtime["report"]["neuroncore_counters"]["neuroncores_in_use"].values()
    ]
    cores_per_chip = int(report["neuron_hardware_info"]["neuroncore_per_device_count"])
    return sum(counted) / max(1, -(-len(counted) // cores_per_chip))
