"""Reader of measured step times: a time, the log of a training tool, or neuron-monitor's JSON.

A log has one time or rate for each step; the first steps warm up and are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
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
"""Largest log that is read; its last part says as much as the whole."""
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
"""Forms of logs, the first that matches a line counts: Megatron-LM's ``training_log``, NeMo's
progress bar and logger, MaxText's ``metric_logger``, torchtitan's ``MetricsProcessor``, whose
``tps`` is of one device, DeepSpeed's ``ThroughputTimer``, Transformers' ``speed_metrics``, which
is a mean over the run, and the tracked statistics of MLPerf's submissions."""
BATCH = re.compile(r"global[ _]batch[ _]size:\s*(\d+)")


def read_steps(text: str, step: Iteration) -> tuple[str | None, str | None, list[float]]:
    """Return the file and the tool of the times, None where they are typed, and the times [s].

    ``text`` is a file, or a time such as 3.2s. Raises :class:`InputError` if the file is of no
    known form, or of steps of another batch.
    """
    if not Path(text).is_file() and re.match(r"[\d.]", text):
        seconds = parse_seconds(text, "--compare")
        if not 0 < seconds < math.inf:
            raise InputError(f"--compare {text} is not a positive time. Write it as 3.2s.")
        return None, None, [seconds]
    written = read_text(Path(text), limit_bytes=LARGEST_BYTES, lenient=True)
    reports = _reports(written)
    tool, times_s = _monitored(reports, text, step) if reports else _logged(written, text, step)
    if not times_s:
        tools = ", ".join(form.tool for form in LOG_FORMS)
        raise InputError(
            f"{text}: no time of a training step in it. Name a log of {tools} or the JSON of "
            "neuron-monitor, or type the time, as in --compare 3.2s."
        )
    return text, tool, times_s


def _logged(written: str, name: str, step: Iteration) -> tuple[str, list[float]]:
    """Return the tool of a log and the times of its steps [s]."""
    batches = {int(batch) for batch in BATCH.findall(written)}
    if batches and step.plan.global_batch not in batches:
        of_log = ", ".join(map(str, sorted(batches)))
        raise InputError(
            f"{name} has steps of {of_log} sequences, and --global-batch is "
            f"{step.plan.global_batch}. State the batch of the log."
        )
    for form in LOG_FORMS:
        numbers = [float(each.replace(",", "")) for each in re.findall(form.pattern, written)]
        times_s = [form.seconds(number, step) for number in numbers if number > 0]
        if times_s:
            return form.tool, times_s[WARM_UP:] if len(times_s) > 2 * WARM_UP else times_s
    return "", []


def _reports(written: str) -> list[Mapping[str, Any]]:
    """Return the reports of neuron-monitor, one a line; none of a text that is something else."""
    try:
        lines = [json.loads(line) for line in written.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    whole = all(isinstance(line, dict) and "neuron_runtime_data" in line for line in lines)
    return lines if whole else []


def _monitored(
    reports: Sequence[Mapping[str, Any]], name: str, step: Iteration
) -> tuple[str, list[float]]:
    """Return the tool and the step's time in each report, by the FLOP/s that cores counted."""
    flops = step.hfu * step.peak_flops_per_s * step.iteration_s  # of one chip
    try:
        rates = [_flops_per_s_per_chip(report) for report in reports]
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{name}: a report has no FLOP/s of its NeuronCores. Enable neuroncore_counters in "
            "neuron-monitor's configuration, or type the time, as in --compare 3.2s."
        ) from None
    return "neuron-monitor", [flops / rate for rate in rates if rate > 0]


def _flops_per_s_per_chip(report: Mapping[str, Any]) -> float:
    """Return the mean FLOP/s of the chips with cores in use; 0 while none is."""
    counted = [
        float(core["flops"])
        for runtime in report["neuron_runtime_data"]
        for core in runtime["report"]["neuroncore_counters"]["neuroncores_in_use"].values()
    ]
    cores_per_chip = int(report["neuron_hardware_info"]["neuroncore_per_device_count"])
    return sum(counted) / max(1, -(-len(counted) // cores_per_chip))
