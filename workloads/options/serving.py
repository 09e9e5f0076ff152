"""Options of serving, each declared once for ``serve`` and ``cs.serve``."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.support.options import setting
from workloads.kernels.precision import SERVING, SERVING_CACHES
from workloads.options.fleet import MOST_SLOTS, SPECULATION

USUAL_REQUESTS, USUAL_SLO = "poisson:0.1", "ttft=6s,tpot=175ms"
MOST_PASSES = 1_000_000
"""Most passes of decode without a look for new requests: longer than any answer."""


@dataclass(frozen=True)
class RequestInputs:
    """Requests that arrive."""

    requests: str = setting(
        USUAL_REQUESTS,
        "Log of requests in CSV, JSON or JSON lines (Azure, BurstGPT, Mooncake, vLLM, "
        "ShareGPT), or the rate of a Poisson process in requests/s",
        metavar="FILE|poisson:RATE",
    )
    count: int | None = setting(
        None,
        "Number of requests: drawn for poisson, or read from the beginning of a log",
        least=1,
        default="2,000 drawn, all of a log",
    )
    max_rate: bool = setting(
        False,
        "Search for the highest rate that keeps the SLO, and answer for that rate; for a stated "
        "rate also how many replicas it takes",
    )
    concurrency: int | None = setting(
        None,
        "Users of a closed loop, in place of a rate: each sends the next request when the last "
        "is answered",
        least=1,
        most=MOST_SLOTS,
    )
    rate: float | None = setting(
        None, "Arrival rate for a log that states no times", unit="requests/s"
    )
    prompt: int | None = setting(
        None, "Prompt tokens of drawn requests", default="drawn from the lengths of Azure's trace"
    )
    output: int | None = setting(
        None,
        "Output tokens of drawn requests, and of requests of a log that state none",
        least=1,
        default="drawn from the lengths of Azure's trace",
    )
    shortest_lengths: float | None = setting(
        None,
        "Shortest drawn lengths over --prompt and --output, the longest; load generators draw "
        "evenly in between (InferenceMAX from 0.8 on, SGLang's from 0, so from one token)",
        least=0,
        most=1,
        default="1: requests are alike",
    )
    service: str | None = setting(None, "Only service to keep, where a log has several")


@dataclass(frozen=True)
class ReplicaInputs:
    """The replica that serves the requests, and the limits on latency."""

    search: bool = setting(
        False,
        "Search for the tensor-parallel degree, the way to run prompts, the split and the "
        "slots that serve most requests a chip within the SLO; what is stated stays; for a "
        "stated rate also how many replicas it takes",
    )
    slo: str = setting(
        USUAL_SLO, "Limits of time to first token and time per output token; either may be left out"
    )
    tp: int | None = setting(
        None,
        "Tensor-parallel degree: chips, or logical cores if there are fewer chips or only one",
        default="the chips of one server",
    )
    precision: str | None = setting(
        None,
        "Precision of weights; with --search also several, such as bf16,fp8",
        choices=SERVING,
        default="that of the model's stored weights",
    )
    prefill: str = setting(
        "auto",
        "Processing of prompts: separate (whole, while decoding waits), chunked (in pieces, "
        "together with decoding), or auto for the usual way of the chip",
    )
    chunk: int | None = setting(
        None, "Tokens of an iteration with chunked prefill", least=1, default="vLLM's on the chip"
    )
    slots: int | None = setting(
        None,
        "Requests that decode at once; a program of Trainium runs all of its slots, empty or not",
        least=1,
        most=MOST_SLOTS,
        default="the engine's (1,024 for vLLM on large GPUs); on Trainium up to 64, as the load "
        "needs",
    )
    scheduler: str | None = setting(
        None,
        "Serving engine whose scheduler runs the replica, in place of --prefill; on Trainium vllm "
        "alone, its plug-in of 2026",
        choices=("vllm", "sglang", "tensorrt-llm"),
    )
    date: str | None = setting(
        None,
        "Month of the serving engine's release, such as 2025-10",
        default="the newest that is known",
    )
    poll: int | None = setting(
        None,
        "Passes of decode between two looks for new requests",
        least=1,
        most=MOST_PASSES,
        default="1",
    )
    gather: str | None = setting(
        None,
        "Passes of decode for which prompts wait for others, unless they fill this share of an "
        "iteration's tokens, as PASSES:SHARE",
        default="no wait",
    )
    ep: int | None = setting(
        None,
        "Groups of ranks among which the experts of a mixture are divided; on Trainium only "
        "while prompts run, with the experts' weights held twice",
        least=1,
        default="1; --search tries all as well",
    )
    attention_dp: int | None = setting(
        None,
        "Groups of ranks that divide the requests, and hold all of a mixture but the routed "
        "experts, which all ranks share (GPUs)",
        least=1,
        default="1",
    )
    cache_precision: str | None = setting(
        None,
        "Precision of cached keys and values",
        choices=SERVING_CACHES,
        default="BF16 by vLLM and SGLang, else FP8 where the weights have 8 bits or fewer",
    )
    memory_share: float | None = setting(
        None,
        "Share of a chip's memory for weights and cached keys and values, as vLLM's "
        "--gpu-memory-utilization and SGLang's --mem-fraction-static; by TensorRT-LLM the share "
        "for the cache of what they leave, as its free_gpu_memory_fraction",
        least=0.01,
        most=1,
        default="the engine's: 0.9, and by SGLang what remains beside its prompts and graphs",
    )


@dataclass(frozen=True)
class DeploymentInputs:
    """Ways to serve faster."""

    prefix_cache: str | None = setting(
        None,
        "Share of the prompt tokens that the prefix cache holds, such as 50%, or 50%:cold for "
        "a cache that is empty at first; trace takes the hits from the log",
        metavar="SHARE[:cold]|trace",
    )
    speculate: str | None = setting(None, SPECULATION, metavar="TOKENS:ACCEPTANCE[:DRAFT]")
    disaggregate: str | None = setting(
        None,
        "Numbers of replicas that process prompts and that decode, such as 1:3; keys and "
        "values are sent from the former to the latter",
        metavar="P:D",
    )
    prefill_cluster: str | None = setting(
        None,
        "Cluster of the replicas that process prompts",
        default="that of the replicas that decode",
    )
    prefill_tp: int | None = setting(
        None,
        "Tensor-parallel degree of the replicas that process prompts",
        default="--tp, or the chips of one server of another cluster",
        least=1,
    )
