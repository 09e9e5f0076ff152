"""Readers of what tools print or write: collectives, loads of serving engines, training steps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.machines import machines
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, shown
from topologies.support.files.reading import read_text
from topologies.support.units import parse_seconds

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration

LARGEST_FILE_BYTES = 20_000_000
GIB_PER_GB = 2**30 / 10**9
ONLY_ALL_REDUCE_FROM = 1.1
"""Bus over algorithm bandwidth from which an operation is an all-reduce: 4/3 with three ranks, and
at most 1 in any other operation."""
OPERATIONS = {
    "allreduce": "all-reduce", "allr": "all-reduce", "allgather": "all-gather",
    "allg": "all-gather", "reducescatter": "reduce-scatter", "redsct": "reduce-scatter",
    "alltoall": "all-to-all", "alltoallperf": "all-to-all", "alltoallv": "all-to-all",
    "broadcast": "broadcast", "bcast": "broadcast", "sendrecv": "permute", "permute": "permute",
}  # fmt: skip
"""Operations by their names in small letters without signs between words."""
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# Output of ``nccl-tests`` and ``nccom-test``: sizes and times of a collective.
# Only sizes and times are read as measurements. Printed bandwidths serve to find the operation and
# the ranks only: GB/s means 10⁹ bytes in nccl-tests and 2³⁰ bytes in older nccom-test output.


@dataclass(frozen=True, eq=False)
class Measured:
    """One measured series."""

    collective: str | None  # operation, if the text names it or the bandwidths imply it
    ranks: int | None  # likewise
    size_bytes: FloatArray  # (rows,): as the tool counts them
    time_s: FloatArray  # (rows,): out of place, where both are printed [s]
    # ``GB/s`` or ``GiB/s``: unit of the printed algorithm bandwidth, found from sizes and times;
    # empty if it is not printed
    bandwidth_unit: str
    failed: int
    by_core: bool = False  # whether ranks are logical cores of a chip, as those of nccom-test are

    def __len__(self) -> int:
        return len(self.size_bytes)


def operation(name: str) -> str:
    """Operation that a tool or library calls by this name; an unknown name is returned unchanged.

    >>> operation("AllReduce"), operation("all_gather"), operation("sendrecv"), operation("gather")
    ('all-reduce', 'all-gather', 'permute', 'gather')
    """
    return OPERATIONS.get(re.sub("[-_ ]", "", name.lower()), name)


def typed_times(text: str, sizes: Sequence[int]) -> Measured | None:
    """Read times such as ``21ms`` with commas between them, one a size; None for a file's name."""
    if Path(text).exists() or not re.fullmatch(r"[\d.]+ ?[mun]?s(, ?[\d.]+ ?[mun]?s)*", text):
        return None
    times_s = [parse_seconds(time.strip(), "--compare") for time in text.split(",")]
    if len(times_s) != len(sizes) or min(times_s) <= 0:
        raise InputError(
            f"--compare {text} has {len(times_s)} measured times, and --size {len(sizes)} sizes. "
            "Write one time above 0 for each size, as --size 1GiB --compare 21ms."
        )
    return Measured(None, None, np.array(sizes, float), np.array(times_s), "", 0)


def read_measured(path: Path | str, wanted: str | None = None) -> Measured:
    """Read a file of such output; from several tables, that of the operation wanted."""
    text = read_text(
        Path(path), limit_bytes=LARGEST_FILE_BYTES, remedy="Keep the table only.", lenient=True
    )
    return parse_measured(text, str(path), wanted)


def parse_measured(text: str, name: str = "the text", wanted: str | None = None) -> Measured:
    """Find the table in the printed text; all other lines are skipped."""
    lines = [_plain(line) for line in text.splitlines()]
    headers = [at for at, line in enumerate(lines) if _is_header(line)]
    if not headers:
        raise InputError(
            f"{name}: no table of nccl-tests or nccom-test in it; a header with size, time and "
            "algbw was looked for. Give the tool's own output."
        )
    before = [0, *headers[:-1]]
    after = [*headers[1:], len(lines)]
    named = [_operation("\n".join(lines[a:b])) for a, b in zip(before, headers, strict=True)]
    taken = named.index(wanted) if wanted in named else 0
    return _table(lines[before[taken] : after[taken]], headers[taken] - before[taken], name)


def _table(lines: Sequence[str], header: int, name: str) -> Measured:
    """Read the table whose header is in that line, and the text that was printed before it."""
    places, unit_s = _columns(lines[header], " ".join(lines[header + 1 : header + 2]))
    numbered = [words for line in lines[header + 1 :] if (words := line.split())]
    rows = [[_number(words, at) for at in places] for words in numbered if words[0].isdigit()]
    good = [row for row in rows if row[0] > 0 and row[1] > 0]
    failed = len(rows) - len(good)
    if not good:
        raise InputError(f"{name}: {failed} rows without a result, none with one. Run it again.")
    size, time, algbw, busbw = np.array(good).T
    time_s = time * unit_s
    ratio = _ratio(algbw, busbw)
    implied = "all-reduce" if ratio is not None and ratio > ONLY_ALL_REDUCE_FROM else None
    collective = _operation("\n".join(lines[:header])) or implied
    return Measured(
        collective=collective,
        ranks=_stated_ranks(lines[:header]) or _ranks(collective, ratio),
        size_bytes=size,
        time_s=time_s,
        bandwidth_unit=_unit(size / time_s, algbw),
        failed=failed,
        by_core=any("nccom-test" in line for line in lines[:header]),
    )


PREFIX = re.compile(
    r"\s*(?:\[[\d,]+\]<std\w+>:?"
    r"|(?:\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|\[[\w.:-]+\]:?|[\w.-]+:)(?=\s|#|$))"
)
"""Text that launchers and collectors of logs put before a line: rank, host, time."""


def _plain(line: str) -> str:
    """Drop colours, prefixes such as ``[1,0]<stdout>:`` or ``node-7:``, and the comment sign."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    while (prefix := PREFIX.match(line)) and prefix.end():
        line = line[prefix.end() :]
    return line.strip().lstrip("#").strip()


def _is_header(line: str) -> bool:
    words = line.lower().split()
    return any(word.startswith("size") for word in words) and any(
        word.startswith(("time", "algbw")) for word in words
    )


def _columns(header: str, units: str) -> tuple[tuple[int | None, ...], float]:
    """Positions of size, time and bandwidths, the first of each, and time's unit [s]."""
    words = header.lower().split()

    def first(*starts: str) -> int | None:
        return next((at for at, word in enumerate(words) if word.startswith(starts)), None)

    size, median, time = first("size"), first("time:p50", "time(p50"), first("time")
    at = median if median is not None else time
    if size is None or at is None:
        raise InputError(f"the header {header[:60]!r} names no size or no time. Add both.")
    named_unit = re.search(r"\((us|ms|s)\)", words[at]) or re.search(
        r"\((us|ms|s)\)", units.lower()
    )
    unit = TIMES[named_unit[1]] if named_unit else TIMES["us"]
    return (size, at, first("algbw"), first("busbw")), unit


def _number(words: Sequence[str], at: int | None) -> float:
    try:
        value = float(words[at]) if at is not None else np.nan
    except (ValueError, IndexError):
        return np.nan
    return value if np.isfinite(value) else np.nan


def _operation(text: str) -> str | None:
    words = (word.removesuffix("_mpi") for word in re.findall(r"[a-z_]+", text.lower()))
    named = (OPERATIONS.get(word.removesuffix("_perf").replace("_", "")) for word in words)
    return next(filter(None, named), None)


def _stated_ranks(lines: Sequence[str]) -> int | None:
    """Ranks that nccl-tests lists one a line, or that nccom-test was given."""
    listed = {match[1] for line in lines if (match := re.match(r"Rank\s+(\d+)\b", line))}
    if listed:
        return len(listed)
    pattern = r"nccom-test\b.*?(?:-r|--nworkers)[ =]+(\d+)"
    match = next((match for line in lines if (match := re.search(pattern, line))), None)
    return int(match[1]) if match else None


def _ratio(algbw: FloatArray, busbw: FloatArray) -> float | None:
    """Bus over algorithm bandwidth, from the row that prints the most digits."""
    good = (algbw > 0) & (busbw > 0)
    if not good.any():
        return None
    best = int(np.argmax(np.where(good, algbw, 0)))
    return float(busbw[best] / algbw[best])


def _ranks(collective: str | None, ratio: float | None) -> int | None:
    """Invert the factor of bus bandwidth, 2 (n − 1) / n or (n − 1) / n."""
    rounds = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
    if collective not in rounds or ratio is None or not 0 < ratio < rounds[collective]:
        return None
    ranks = 1 / (1 - ratio / rounds[collective])
    return round(ranks) if ranks > 1.5 and abs(ranks - round(ranks)) < 0.1 * ranks else None


def _unit(bytes_per_s: FloatArray, algbw: FloatArray) -> str:
    """Return the unit of printed bandwidths, 10⁹ or 2³⁰ bytes, by those with enough digits."""
    good = algbw >= 1
    if not good.any():
        return ""
    per_gb = float(np.median(bytes_per_s[good] / algbw[good])) / 1e9
    return "GiB/s" if per_gb > (1 + GIB_PER_GB) / 2 else "GB/s"


# Reader of what load generators of serving engines write: one row of measurement for each run.
#
# Results of ``vllm bench serve`` (JSON), SGLang's ``bench_serving`` (JSON lines), InferenceMAX
# (aggregated JSON), GenAI-Perf and AIPerf (``profile_export_*.json``) and GuideLLM
# (``benchmarks.json``). A run with a limit of requests in flight and a known number of requests is
# compared by its means, first burst included; others by their medians.

Document = Mapping[str, Any]
Cells = dict[str, Any]  # cells of a row by column; ``mistake`` says why a row cannot be predicted
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "tensorrt-llm", "tensorrt": "tensorrt-llm"}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
DRAWN = {"rounds": 10, "shortest_lengths": 0.8}
"""Requests over users, and the shortest of drawn lengths over the longest, of InferenceMAX's runs
(``--num-prompts`` of its scripts, ``RANDOM_RANGE_RATIO`` of its ``benchmark-tmpl.yml``)."""
APART = "its replicas for prompts are apart, which no column says. Leave it out."
PROPOSES = "it proposes tokens. State speculate, as --column speculate=3:0.7:0.03."
NEEDED = ("model", "cluster", "tp")
"""Columns that a run must have from its file or from ``--column``."""
DEEPEST = 8
FAULTS = (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError)


def load_test_rows(text: str, name: str) -> list[Cells] | None:
    """Return the cells of each run, if in a known form; None for a text that is no JSON."""
    documents = _documents(text)
    if documents is None:
        return None
    rows = []
    for document in documents:
        form = next(
            (form for marks, form in FORMS if all(mark in document for mark in marks)), None
        )
        if form is None:
            keys = ", ".join(list(map(str, document))[:8]) or "none"
            raise InputError(
                f"{name}: no results of vllm bench serve, SGLang's bench_serving, InferenceMAX, "
                f"GenAI-Perf, AIPerf or GuideLLM in it; its keys are {keys}. Name their output."
            )
        try:
            rows += [_whole(cells) for cells in form(document)]
        except FAULTS as mistake:
            raise InputError(
                f"{name}: a run has no usable {str(mistake)[:60]}. Name the tool's own output."
            ) from None
    if not rows:
        raise InputError(f"{name} holds no run. Name the output of a load generator.")
    return rows


def _documents(text: str) -> list[Document] | None:
    """Return the documents of JSON, of a list of them, or of JSON lines."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        try:
            read = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return None
    documents = read if isinstance(read, list) else [read]
    return documents if all(isinstance(each, dict) for each in documents) else None


def _whole(cells: Cells) -> Cells:
    """Cells without empty ones, whole numbers as such."""
    kept = {name: value for name, value in cells.items() if value not in (None, "")}
    counts = ("prompt_tokens", "output_tokens", "concurrency", "requests", "tp", "chips", "ep")
    return {
        name: max(1, round(float(value))) if name in counts else value
        for name, value in kept.items()
    }


def _bench(run: Document) -> Iterator[Cells]:
    """Yield the row of a result of vLLM's or SGLang's benchmark of a server."""
    server = run.get("server_info") or {}
    served = run["completed"]
    prompt, output = (run[f"total_{way}_tokens"] / served for way in ("input", "output"))
    lengths = run.get("input_lens") or [0]
    users, offered = run.get("max_concurrency"), str(run.get("request_rate", "inf"))
    requests = run.get("num_prompts") or served
    means = {name: _of_bench(run, "mean", name) for name in ("ttft", "tpot")}
    medians = {name: _of_bench(run, "median", name) for name in ("ttft", "tpot")}
    arrive = users is None and offered != "inf"  # at a rate, and wait for nobody's answer
    whole = (arrive or offered == "inf") and means["ttft"] is not None
    times = means if whole else medians
    yield {
        "model": run.get("model_id") or server.get("model_path"),
        "tp": run.get("tensor_parallel_size") or server.get("tp_size"),
        "scheduler": _engine(run.get("backend")),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "concurrency": None if arrive else users or requests,
        "arrivals_per_s": float(offered) if arrive else None,
        "requests": requests if whole else None,
        "shortest_lengths": min(lengths) / max(lengths) if whole and all(lengths) else None,
        "ttft_s": times["ttft"],
        "tpot_s": times["tpot"],
        # Requests that arrive at a rate are answered at that rate, which says nothing of a server.
        "tokens_per_s": None if arrive else run["output_throughput"],
        "users_by": None if arrive else "stated",
    }


def _of_bench(run: Document, statistic: str, name: str) -> float | None:
    """Mean or median of a latency [s], which is in milliseconds where its key says so."""
    if run.get(f"{statistic}_{name}_ms") is not None:
        return float(run[f"{statistic}_{name}_ms"]) / 1e3
    value = run.get(f"{statistic}_{name}")
    return None if value is None else float(value)


def _engine(text: Any) -> str | None:
    name = str(text or "").lower()
    return next((engine for start, engine in ENGINES.items() if name.startswith(start)), None)


def _inferencemax(run: Document) -> Iterator[Cells]:
    """Yield the row of an aggregated result of InferenceMAX."""
    chip = re.split(r"[-_]", str(run["hw"]).lower())[0]
    chips = int(run["tp"]) * int(run.get("pp") or 1)
    proposes = str(run.get("spec_decoding", "none")).lower() not in ("none", "false", "")
    apart = bool(run.get("disagg") or run.get("is_multinode"))
    yield {
        "model": run.get("model"),
        "cluster": _machine_of(chip),
        "chips": chips,
        "tp": run["tp"],
        "ep": run.get("ep"),
        "pp": run.get("pp"),
        "attention_dp": run["tp"] if str(run.get("dp_attention")).lower() == "true" else None,
        "scheduler": _engine(run.get("framework")),
        "precision": run.get("precision"),
        "prompt_tokens": run["isl"],
        "output_tokens": run["osl"],
        "concurrency": run["conc"],
        **DRAWN,
        "ttft_s": run.get("mean_ttft"),
        "tpot_s": run.get("mean_tpot"),
        "tokens_per_s": float(run["output_tput_per_gpu"]) * chips,
        "mistake": APART if apart else PROPOSES if proposes else None,
    }


def _machine_of(chip: str) -> str | None:
    """Machine of a chip, such as ``dgx-h200`` or ``mi300x-platform``; None for one unknown."""
    names = machines(shipped_catalogue())
    near = (f"dgx-{chip}", f"{chip}-nvl72", f"{chip}-platform")
    return next((name for name in near if name in names), None)


def _genai_perf(run: Document) -> Iterator[Cells]:
    """Yield the row of a profile of GenAI-Perf or AIPerf."""
    config = run.get("input_config") or run
    models = _deep(config, "model_names") or _deep(config, "model")
    yield {
        "model": models[0] if isinstance(models, list) else models,
        "scheduler": _engine(_deep(config, "backend")),
        "prompt_tokens": run["input_sequence_length"]["avg"],
        "output_tokens": run["output_sequence_length"]["avg"],
        "concurrency": _deep(config, "concurrency"),
        "ttft_s": _in_seconds(run["time_to_first_token"]),
        "tpot_s": _in_seconds(run["inter_token_latency"]),
        "tokens_per_s": run["output_token_throughput"]["avg"],
    }


def _in_seconds(metric: Document) -> float:
    """Median of a metric, or else its mean [s]."""
    value = metric["p50"] if metric.get("p50") is not None else metric["avg"]
    return float(value) * SECONDS[str(metric.get("unit", "ms")).lower()]


def _guidellm(report: Document) -> Iterator[Cells]:
    """Yield a row for each benchmark of a report of GuideLLM."""
    for run in report["benchmarks"]:
        metrics = run["metrics"]

        def of(name: str, statistic: str, metrics: Document = metrics) -> Any:
            """Statistic of the requests that were answered."""
            return metrics[name]["successful"][statistic]

        yield {
            "model": _deep(run, "backend_model") or _deep(run, "model") or _deep(report, "model"),
            "prompt_tokens": of("prompt_token_count", "mean"),
            "output_tokens": of("output_token_count", "mean"),
            "concurrency": of("request_concurrency", "mean"),
            "ttft_s": of("time_to_first_token_ms", "median") / 1e3,
            "tpot_s": of("inter_token_latency_ms", "median") / 1e3,
            "tokens_per_s": of("output_tokens_per_second", "mean"),
            "users_by": "mean in flight",
        }


def _deep(document: Any, key: str, depth: int = 0) -> Any:
    """Return the first value of a key in nested sections; None if there is none."""
    if not isinstance(document, Mapping) or depth > DEEPEST:
        return None
    if document.get(key) not in (None, "", []) and not isinstance(document[key], Mapping):
        return document[key]
    values = (_deep(value, key, depth + 1) for value in document.values())
    return next((value for value in values if value is not None), None)


FORMS: Sequence[tuple[tuple[str, ...], Callable[[Document], Iterator[Cells]]]] = (
    (("hw", "output_tput_per_gpu"), _inferencemax),
    (("completed", "output_throughput", "total_output_tokens"), _bench),
    (("time_to_first_token", "output_token_throughput"), _genai_perf),
    (("benchmarks",), _guidellm),
)
"""Keys that a document of a tool has, and the reader of its runs."""


# Reader of measured step times: a time, the log of a training tool, or neuron-monitor's JSON.
#
# A log has one time or rate for each step; the first steps warm up and are left out.

WARM_UP = 3
"""Steps at the start of a log that compile, allocate and connect, so that they are left out."""
LONG = 2  # times as long as those after it is a step of a short log that warms up
LARGEST_LOG_BYTES = 2**28
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
BATCH = re.compile(r"global[ _]batch[ _]size(?:\", \"value\")?:\s*(\d+)")  # MLPerf's in JSON


class MeasuredSteps(NamedTuple):
    """Numbers of measured steps, as a tool wrote them."""

    source: str  # file that they stand in; empty for a time that was typed
    form: LogForm
    numbers: list[float]
    batches: frozenset[int] = frozenset()  # global batches that the file names

    def times_s(self, step: Iteration) -> list[float]:
        """Return each step's time without warm-up [s], for the file's own batch."""
        if self.batches and step.plan.global_batch not in self.batches:
            of_log = ", ".join(map(str, sorted(self.batches)))
            raise InputError(
                f"{self.source} has steps of {of_log} sequences, and --global-batch is "
                f"{step.plan.global_batch}. State the batch of the log."
            )
        times_s = [self.form.seconds(number, step) for number in self.numbers]
        if len(times_s) > 2 * WARM_UP:
            return times_s[WARM_UP:]
        # Of a few steps those at the start are left out that are far longer than what follows.
        first = 0
        while first < len(times_s) - 1 and times_s[first] > LONG * median(times_s[first + 1 :]):
            first += 1
        return times_s[first:]


def read_runs(text: str) -> list[MeasuredSteps]:
    """Read the measured steps of one run, or of two with a comma between them, the later last."""
    runs = [text] if Path(text).is_file() else text.split(",")
    if len(runs) > 2 or not all(runs):
        fault = f"names {len(runs)} runs" if all(runs) else "names an empty run"
        raise InputError(
            f"--compare {text!r} {fault}; name one, or two with a comma between them, the earlier "
            "first."
        )
    return [read_steps(run) for run in runs]


def read_steps(text: str) -> MeasuredSteps:
    """Read measured steps from a file of a known form, or from a time such as 3.2s."""
    if not Path(text).is_file() and re.match(r"[\d.]", text):
        seconds = parse_seconds(text, "--compare")
        if not 0 < seconds < math.inf:
            raise InputError(f"--compare {text} is not a positive time. Write it as 3.2s.")
        return MeasuredSteps("", TYPED, [seconds])
    written = read_text(Path(text), limit_bytes=LARGEST_LOG_BYTES, lenient=True)
    reports = _documents(written) or []
    if reports and all("neuron_runtime_data" in report for report in reports):
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


def _monitored(reports: list[Mapping[str, Any]], name: str) -> list[float]:
    """Return the FLOP/s of a chip in each report, where cores were in use."""
    try:
        return [rate for report in reports if (rate := _flops_per_s_per_chip(report, name)) > 0]
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{name}: a report has no FLOP/s of its NeuronCores. Enable neuroncore_counters in "
            "neuron-monitor's configuration, or type the time, as in --compare 3.2s."
        ) from None


def _flops_per_s_per_chip(report: Mapping[str, Any], name: str) -> float:
    """Return the mean FLOP/s of the chips with cores in use; 0 while none is."""
    counted = [
        core["flops"]
        for runtime in report["neuron_runtime_data"]
        for core in runtime["report"]["neuroncore_counters"]["neuroncores_in_use"].values()
    ]
    for rate in counted:
        if type(rate) not in (int, float) or not 0 <= rate < math.inf:
            text = shown(repr(rate), 40)
            raise InputError(f"{name}: flops is {text}; it must be a number of at least 0.")
    cores_per_chip = int(report["neuron_hardware_info"]["neuroncore_per_device_count"])
    return float(sum(counted)) / max(1, -(-len(counted) // cores_per_chip))
