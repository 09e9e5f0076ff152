"""What no replica, batching or stream of requests can be is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.toy_serving import requests_of, toy_replica
from workloads.models.huggingface import named
from workloads.serving import (
    Batching,
    Pools,
    batching_from,
    closed_loop,
    fixed_lengths,
    parse_pools,
    parse_slo,
    parse_speculation,
    poisson,
    pools,
    profile,
    serve,
    with_prefix_cache,
)
from workloads.serving.batching import FIRST, engine_batching
from workloads.serving.engine_files import launch_command

H100, TRN2 = cs.cluster("dgx-h100"), cs.cluster("trn2.48xlarge")
SMALL, LARGE, MIXTURE = map(named, ("llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b"))
LONE = requests_of((0.0, 10, 1))
Call = Callable[[], object]
BATCHINGS: tuple[tuple[Call, str], ...] = (
    *(
        (partial(batching_from, H100, **words), message)  # type: ignore[arg-type]
        for words, message in (
            ({"scheduler": "vlm"}, "scheduler 'vlm' is none of vllm"),
            ({"scheduler": "vllm", "prefill": "chunked"}, "leave --prefill chunked out"),
            ({"scheduler": "tensorrt-llm", "gather": "20"}, "write 20:0.9"),
            ({"scheduler": "tensorrt-llm", "gather": "20:1.5"}, "write 20:0.9"),
            ({"prefill": "separate", "gather": "20:0.9"}, "leave --gather out"),
            ({"prefill": "chunked", "poll": 0}, "every 0 passes"),
        )
    ),
    (lambda: engine_batching(TRN2, "vllm", 4), "served by Neuron's engine.*Leave the scheduler"),
    (lambda: Batching(4, prompts=FIRST), "separate prompts run one at a time"),
    (lambda: Batching(4, 100, prompts="besides"), "prompts 'besides' is none of"),
    (lambda: Batching(64, 64), "leave no room"),
    (lambda: Batching(1, 1), "leave no room"),
    *(
        (partial(launch_command, engine, words, "m"), message)
        for engine, words, message in (
            ("vllm", {"tp": 2, "gather": "20:0.9"}, "no launch of vllm is written with --gather 2"),
            ("vllm", {"tp": 4, "ep": 2}, "written with --ep 2"),
            ("sglang", {"tp": 8, "attention_dp": 8}, "sglang is written with --attention-dp 8"),
            ("vllm", {"scheduler": "sglang"}, "runs as sglang"),
        )
    ),
)
REQUESTS: tuple[tuple[Call, str], ...] = (
    (lambda: serve(toy_replica(), requests_of((0.0, 1100, 100))), "a request of 1,200 tokens does"),
    (lambda: closed_loop(toy_replica(), LONE, 0), "at least 1"),
    (lambda: fixed_lengths(0, 1), "both are at least 1"),
    (lambda: poisson(0.0, 1, fixed_lengths(1, 1), np.random.default_rng(0)), "rate is above 0"),
    *(
        (partial(parse_slo, text), message)
        for text, message in (
            ("ttf=2s", "not of the form.*Did you mean ttft"),
            ("ttft", "not of the form"),
            ("ttft=0s", "above 0"),
            ("ttft=2", "unit"),
        )
    ),
    *(
        (partial(parse_speculation, text, lambda _: toy_replica()), message)
        for text, message in (
            ("4", "two numbers"),
            ("x:0.5", "two numbers"),
            ("4:often", "no acceptance"),
            ("0:0.5", "use 1 to 64"),
            ("65:0.5", "use 1 to 64"),
            ("4:1.5", "share between 0 and 1"),
            ("4:nan", "share between 0 and 1"),
            ("4:0.5:2", "below 1"),
        )
    ),
    *(
        (partial(with_prefix_cache, LONE, text, kv_tokens=100), "--prefix-cache")
        for text in ("half", "1.0", "-5%", "150%", "50%:warm", "nan", "")
    ),
    (lambda: with_prefix_cache(LONE, "trace", kv_tokens=100), "drawn requests share nothing"),
)
REPLICAS: tuple[tuple[Call, str], ...] = (
    (lambda: profile(replace(LARGE, layers=400), TRN2), "16 chips hold"),
    (lambda: profile(SMALL, TRN2, tp=99), "within one scale-up domain of 16"),
    (lambda: profile(named("qwen3-235b-a22b"), TRN2, ep=3), "divisor of 64"),
    (lambda: profile(SMALL, TRN2, ep=2), "no experts"),
    (lambda: profile(SMALL, H100, cache_precision="fp4"), "cache precision .fp4. is none of bf16"),
    (lambda: profile(SMALL, H100, attention_dp=2), "8b has no experts to share"),
    (lambda: profile(MIXTURE, H100, attention_dp=3), "mixtral-8x7b has 8 ranks to divide"),
    (
        lambda: profile(MIXTURE, TRN2, attention_dp=2),
        "mixtral-8x7b on trn2 is served by Neuron's engine",
    ),
    *((partial(parse_pools, text), "write 1:3") for text in ("1", "1:2:3", "a:b", "1:-2", "1.5:2")),
    (lambda: parse_pools(""), "write 1:3"),
    (lambda: Pools(0, 1, 1.0), "use 1 to"),
    (lambda: Pools(1, 1, 0.0), "cannot move"),
    (lambda: pools(TRN2, profile(SMALL, TRN2, tp=8), 1, 2), "take 24 chips"),
)
"""Calls, each with a part of its refusal."""


@pytest.mark.parametrize(("call", "message"), [*BATCHINGS, *REQUESTS, *REPLICAS])
def test_what_cannot_be_is_refused(call: Call, message: str) -> None:
    with pytest.raises(cs.InputError, match=message):
        call()
