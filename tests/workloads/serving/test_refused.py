"""What no replica, batching or stream of requests can be is refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.toy_serving import requests_of, toy_replica
from workloads.models.huggingface import named
from workloads.serving import closed_loop, parse_slo, parse_speculation, profile, serve
from workloads.serving.batching import FIRST, Batching, batching_from, engine_batching
from workloads.serving.deployment import Pools, parse_pools, pools
from workloads.serving.engine_files import launch_command
from workloads.serving.requests import fixed_lengths, poisson, with_prefix_cache

H100, TRN2 = cs.cluster("dgx-h100"), cs.cluster("trn2.48xlarge")
SMALL, LARGE, MIXTURE = map(named, ("llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b"))
LONE = requests_of((0.0, 10, 1))


@pytest.mark.parametrize(("call", "message"), [
    (partial(batching_from, H100, scheduler="vlm"), "scheduler 'vlm' is none of vllm"),
    (partial(batching_from, H100, scheduler="vllm", prefill="chunked"), "leave --prefill chunked"),
    *((partial(batching_from, H100, scheduler="tensorrt-llm", gather=text), "write 20:0.9")
      for text in ("20", "20:1.5")),
    (partial(batching_from, H100, prefill="separate", gather="20:0.9"), "leave --gather out"),
    (partial(batching_from, H100, prefill="chunked", poll=0), "every 0 passes"),
    (lambda: engine_batching(TRN2, "vllm", 4), "served by Neuron's engine.*Leave the scheduler"),
    (lambda: Batching(4, prompts=FIRST), "separate prompts run one at a time"),
    (lambda: Batching(4, 100, prompts="besides"), "prompts 'besides' is none of"),
    (lambda: Batching(64, 64), "leave no room"),
    (lambda: Batching(1, 1), "leave no room"),
    (partial(launch_command, "vllm", {"tp": 2, "gather": "20:0.9"}, "m"),
     "no launch of vllm is written with --gather 2"),
    (partial(launch_command, "vllm", {"tp": 4, "ep": 2}, "m"), "written with --ep 2"),
    (partial(launch_command, "sglang", {"tp": 8, "attention_dp": 8}, "m"),
     "sglang is written with --attention-dp 8"),
    (partial(launch_command, "vllm", {"scheduler": "sglang"}, "m"), "runs as sglang"),
    (lambda: serve(toy_replica(), requests_of((0.0, 1100, 100))), "a request of 1,200 tokens does"),
    (lambda: closed_loop(toy_replica(), LONE, 0), "at least 1"),
    (lambda: fixed_lengths(0, 1), "both are at least 1"),
    (lambda: poisson(0.0, 1, fixed_lengths(1, 1), np.random.default_rng(0)), "rate is above 0"),
    (partial(parse_slo, "ttf=2s"), "not of the form.*Did you mean ttft"),
    (partial(parse_slo, "ttft"), "not of the form"),
    (partial(parse_slo, "ttft=0s"), "above 0"),
    (partial(parse_slo, "ttft=2"), "unit"),
    *((partial(parse_speculation, text, lambda _: toy_replica()), "two numbers")
      for text in ("4", "x:0.5")),
    (partial(parse_speculation, "4:often", lambda _: toy_replica()), "no acceptance"),
    *((partial(parse_speculation, text, lambda _: toy_replica()), "use 1 to 64")
      for text in ("0:0.5", "65:0.5")),
    *((partial(parse_speculation, text, lambda _: toy_replica()), "share between 0 and 1")
      for text in ("4:1.5", "4:nan")),
    (partial(parse_speculation, "4:0.5:2", lambda _: toy_replica()), "below 1"),
    *((partial(with_prefix_cache, LONE, text, kv_tokens=100), "--prefix-cache")
      for text in ("half", "1.0", "-5%", "150%", "50%:warm", "nan", "")),
    (lambda: with_prefix_cache(LONE, "trace", kv_tokens=100), "drawn requests share nothing"),
    (lambda: profile(replace(LARGE, layers=400), TRN2), "16 chips hold"),
    (lambda: profile(SMALL, TRN2, tp=99), "within one scale-up domain of 16"),
    (lambda: profile(named("qwen3-235b-a22b"), TRN2, ep=3), "divisor of 64"),
    (lambda: profile(SMALL, TRN2, ep=2), "no experts"),
    (lambda: profile(SMALL, H100, cache_precision="fp4"), "cache precision .fp4. is none of bf16"),
    (lambda: profile(SMALL, H100, attention_dp=2), "8b has no experts to share"),
    (lambda: profile(MIXTURE, H100, attention_dp=3), "mixtral-8x7b has 8 ranks to divide"),
    (lambda: profile(MIXTURE, TRN2, attention_dp=2), "on trn2 is served by Neuron's engine"),
    *((partial(parse_pools, text), "write 1:3")
      for text in ("1", "1:2:3", "a:b", "1:-2", "1.5:2", "")),
    (lambda: Pools(0, 1, 1.0), "use 1 to"),
    (lambda: Pools(1, 1, 0.0), "cannot move"),
    (lambda: pools(TRN2, profile(SMALL, TRN2, tp=8), 1, 2), "take 24 chips"),
])  # fmt: skip
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(cs.InputError, match=message):
        call()
