"""Reader of what load generators of serving engines write: one row of measurement for each run.

Results of ``vllm bench serve`` (JSON), SGLang's ``bench_serving`` (JSON lines), InferenceMAX
(aggregated JSON), GenAI-Perf and AIPerf (``profile_export_*.json``) and GuideLLM
(``benchmarks.json``). A run with a limit of requests in flight and a known number of requests is
compared by its means, first burst included; others by their medians.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.machines import machines
from topologies.errors import InputError

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
    counts = ("prompt_tokens", "output_tokens", "concurrency", "rounds", "tp", "chips", "ep")
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
    mean = {name: _of_bench(run, "mean", name) for name in ("ttft", "tpot")}
    median = {name: _of_bench(run, "median", name) for name in ("ttft", "tpot")}
    counted = "stated"
    if users is None and offered != "inf" and None not in mean.values():
        # By Little's law, as the prediction is that of a closed loop.
        users = run["request_throughput"] * (mean["ttft"] + (output - 1) * mean["tpot"])
        counted = "Little's law"
    closed = counted == "stated" and offered == "inf" and mean["ttft"] is not None
    users = requests if users is None else users
    times = mean if closed else median
    yield {
        "model": run.get("model_id") or server.get("model_path"),
        "tp": run.get("tensor_parallel_size") or server.get("tp_size"),
        "scheduler": _engine(run.get("backend")),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "concurrency": users,
        "rounds": requests / users if closed else None,
        "shortest_lengths": min(lengths) / max(lengths) if closed and all(lengths) else None,
        "ttft_s": times["ttft"],
        "tpot_s": times["tpot"],
        "tokens_per_s": run["output_throughput"],
        "users_by": counted,
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
