"""Ways to serve give the same results by every door, and what cannot be served is refused."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from experiments.sweeps.runner import run_row
from experiments.validation.predictions.serving import benchmark, static_batch
from tests.support.refusals import refused
from tests.support.toy_serving import requests_of, toy_replica
from topologies.clusters.names import cluster
from topologies.support.files.kept_files import exact_text
from workloads.confidence.interval import Interval
from workloads.demand.bundled import data_file
from workloads.models.huggingface import named
from workloads.serving import (
    Speculation,
    fixed_lengths,
    parse_slo,
    parse_speculation,
    poisson,
    profile,
    serve,
)
from workloads.serving.batching import FIRST, Batching, batching_from, engine_batching
from workloads.serving.deployment import (
    Deployment,
    Pools,
    parse_pools,
    pools,
    rate_ends,
    serve_apart,
    with_intervals,
)
from workloads.serving.engine_files import launch_command
from workloads.serving.requests import azure_lengths, read_requests, with_prefix_cache

CLUSTER = cs.cluster("trn2.48xlarge:2")
MODEL = named("llama-3.1-8b")


@pytest.fixture(scope="module")
def requests():
    return poisson(2.0, 40, fixed_lengths(512, 64), np.random.default_rng(0))


def test_a_share_of_prompts_is_cached(requests):
    result = cs.serve(MODEL, CLUSTER, requests, prefix_cache="50%")
    held = with_prefix_cache(requests, "50%", kv_tokens=result.replica.kv_tokens)
    alone = serve(profile(MODEL, CLUSTER), held, batching_from(CLUSTER))
    assert result.served.end_s.tolist() == alone.end_s.tolist()
    assert result.summary["prefix_hit_share"] == 0.5


def test_proposals_come_from_a_draft_on_the_same_chips(requests):
    text = cs.serve(MODEL, CLUSTER, requests, tp=8, speculate="3:0.8:llama-3.2-1b", seed=3)
    draft = profile(named("llama-3.2-1b"), CLUSTER, tp=8)
    built = cs.serve(MODEL, CLUSTER, requests, tp=8, speculate=Speculation(3, 0.8, draft), seed=3)
    assert text.served.end_s.tolist() == built.served.end_s.tolist()
    assert text.summary["speculation"]["tokens"] == 3


def test_pools_are_those_of_the_cluster(requests):
    result = cs.serve(MODEL, CLUSTER, requests, tp=8, disaggregate="1:2")
    replica = profile(MODEL, CLUSTER, tp=8)
    apart = serve_apart(replica, requests, pools(CLUSTER, replica, 1, 2), batching_from(CLUSTER))
    assert result.served.end_s.tolist() == apart.served.end_s.tolist()
    assert result.deployed.deployment.chips == 24
    for words in ({}, {"prefill_cluster": CLUSTER}, {"prefill_tp": 8}):  # one kind given twice
        same = cs.serve(MODEL, CLUSTER, requests, tp=8, disaggregate=(1, 2), **words)
        assert same.summary == result.summary
        assert (same.interval, same.tpot_interval) == (result.interval, result.tpot_interval)


def test_prompts_on_another_chip_cost_and_send_what_both_kinds_do(requests):
    """Rate, price and interval of the first token are those of the two clusters."""
    other = cs.cluster("p5.48xlarge")
    how = {"tp": 8, "disaggregate": "1:2", "prefill_cluster": other, "prefill_tp": 4}
    mixed = cs.serve(MODEL, CLUSTER, requests, **how)
    deployment = mixed.deployed.deployment
    assert deployment.chips_of_pools == (4, 16)
    assert deployment.pools.transfer_bytes_per_s == min(4 * 50e9, 8 * 25e9)
    assert deployment.pools.slowest_bytes_per_s == 50e9
    trn2, h100 = deployment.pools.prompts.money
    usd = deployment.usd(trn2, 10.0)
    both = 4 * h100.usd_per_chip_s + 16 * trn2.usd_per_chip_s
    assert usd == pytest.approx(10.0 * both)
    assert deployment.weighed_chips == 4 * h100.usd_per_chip_s / trn2.usd_per_chip_s + 16
    alone = cs.serve(MODEL, other, requests, tp=4, disaggregate="1:1")
    assert mixed.ttft_s == alone.ttft_s
    assert mixed.interval == alone.interval
    alike = cs.serve(MODEL, CLUSTER, requests, tp=8, disaggregate="1:2").tpot_interval
    assert mixed.tpot_interval.high / mixed.tpot_interval.value > alike.high / alike.value


def test_precision_is_that_of_the_weights_unless_stated(requests):
    plain, half = (cs.serve(MODEL, CLUSTER, requests, precision=p) for p in (None, "fp8"))
    assert plain.replica.weights_bytes == MODEL.parameters * 2
    assert half.replica.weights_bytes == MODEL.parameters
    quarter = cs.serve(MODEL, "trn3-gen1", requests, tp=8, precision="mxfp4")
    assert quarter.replica.weights_bytes < half.replica.weights_bytes


def test_batching_and_groups_of_experts_reach_the_replica(requests):
    pieces = cs.serve(MODEL, CLUSTER, requests, batching=Batching(4, 64))
    assert pieces.served.end_s.tolist() != cs.serve(MODEL, CLUSTER, requests).served.end_s.tolist()
    mixture = named("qwen3-235b-a22b")
    grouped = cs.serve(mixture, CLUSTER, requests, ep=16)
    assert exact_text(grouped.replica) == exact_text(profile(mixture, CLUSTER, ep=16))


def test_the_command_gives_the_same_numbers(tmp_path):
    lines = ["timestamp,prompt_tokens,output_tokens"]
    lines += [f"{at},{200 + 10 * at},20" for at in range(20)]
    (log := tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    how = {"prefix_cache": "25%:cold", "speculate": "2:0.7", "disaggregate": "1:1"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in how.items()]
    words = ["serve", "--model=llama-3.1-8b", "--cluster=trn2.48xlarge", "--tp=8", "--seed=2"]
    outcome = run_row(run, [*words, f"--requests={log}", *options, "--json", "--quiet"])
    assert outcome["status"] == "ok", outcome["message"]
    ways = how
    result = cs.serve(MODEL, "trn2.48xlarge", str(log), tp=8, seed=2, **ways)
    summary = json.loads(json.dumps(result.summary))
    assert {key: outcome["document"][key] for key in summary} == summary


@pytest.mark.parametrize(("ways", "message"), [
    ({"prefix_cashe": "50%"}, r"serve has no 'prefix_cashe'\. Did you mean prefix_cache\?"),
    ({"prefill_tp": 4}, "--prefill-tp is for replicas that process prompts alone"),
    ({"disaggregate": "9:1", "tp": 4, "prefill_cluster": "p5.48xlarge"}, "p5.48xlarge has 8"),
    ({"disaggregate": "1:1", "prefill_cluster": "ring:8"}, "plain shape"),
    ({"disaggregate": "1:1", "prefill_cluster": 3}, "prefill_cluster"),
])  # fmt: skip
def test_mistakes_are_told(ways, message, requests):
    refused(message, cs.serve, MODEL, CLUSTER, requests, **ways)


@pytest.mark.parametrize("service", ["conv", "code"])
def test_shipped_lengths_are_those_of_the_shipped_log(service):
    logged = read_requests(data_file("azure_llm_2023_requests.csv"), service=service)
    lengths = azure_lengths(service)
    assert np.array_equal(lengths.prompt, logged.prompt)
    assert np.array_equal(lengths.output, logged.output)


def test_a_log_is_read_in_order_of_time_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("timestamp_ms,prompt_tokens,output_tokens\n2000,5,1\n0,7,0\n")
    logged = read_requests(path)
    assert (logged.arrival_s.tolist(), logged.prompt.tolist()) == ([0.0, 2.0], [7, 5])
    assert logged.output.tolist() == [1, 1]
    for text, message in (
        ("timestamp_ms,prompt_tokens\n0,7\n", "no column output_tokens"),
        ("time,prompt_tokens,output_tokens\n0,x,1\n", "row 2: prompt_tokens is 'x'"),
    ):
        path.write_text(text)
        refused(message, read_requests, path)
    refused("there is no such file", read_requests, tmp_path / "none.csv")


def test_requests_come_at_a_stated_rate_or_from_stated_users():
    for words in ({"requests": "poisson:2"}, {"concurrency": 2}):
        assert cs.serve(MODEL, CLUSTER, **words, count=3, tp=8).tokens_per_s > 0
    refused("states when requests arrive", cs.serve, MODEL, CLUSTER, "poisson:2", concurrency=3)


TRN2 = cluster("trn2.48xlarge")


def test_a_static_batch_by_hand():
    """Two prompts of 10 in one program: 3 s. Two more tokens: 1.2 s, and 0.01 s a cached token."""
    once = static_batch(toy_replica(), 10, 3, 2, ())
    assert once.ttft_s == pytest.approx(3.0)
    assert once.tpot_s == pytest.approx(1.2 + 0.01 * 2 * 11.5)
    assert once.tokens_per_s == pytest.approx(2 * 3 / (3.0 + 2 * once.tpot_s))


def test_a_benchmark_counts_its_first_burst():
    """Four users at once: the last prompt of the burst has waited for the three before it."""
    replica, batching = toy_replica(), Batching(4)
    alone = replica.prefill_s(50)
    first_burst = benchmark(replica, (50, 1), 1.0, 1, batching)
    assert first_burst.ttft_s == pytest.approx(alone * (1 + 2 + 3 + 4) / 4)


@given(st.floats(0.5, 40), st.floats(1.01, 4))
def test_the_low_end_of_a_rate_is_that_of_a_slower_replica(gap_s, factor):
    """Twelve requests, one each ``gap_s``: with room for more at once, a slower one keeps up."""
    requests = requests_of(*((gap_s * each, 3, 5) for each in range(12)))
    replica = toy_replica()
    slower = toy_replica(linear_s=factor * replica.linear_s, decode_kv_s=factor * 0.01)
    ran, late = (Deployment(each, Batching(4)).run(requests) for each in (replica, slower))
    rate, slow = (12 * 5 / run.span_s for run in (ran, late))
    ends, sooner = rate_ends(rate, ran, Interval(1 / factor, factor))
    assert ends["low"] == pytest.approx(min(rate, slow), rel=1e-9)
    assert ends["high"] == pytest.approx(min(rate * factor, max(rate, 12 * 5 / (11 * gap_s))))
    # So do first tokens, with the time for which requests wait for each other.
    assert factor * sooner.served.ttft_s == pytest.approx(late.served.ttft_s, rel=1e-6)


def test_first_tokens_have_residuals_of_their_own():
    served = cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", count=20, output=32, tp=8)
    later = served.tpot_interval
    assert served.interval.basis.startswith("first tokens")
    assert later.basis.startswith("serving")
    assert later.low < served.tpot_s["p50"] < later.high
    ends = served.tokens_per_s_interval
    assert ends["low"] <= served.tokens_per_s <= ends["high"]
    answer = served.model, served.cluster, served.deployed, served.slo
    usd = with_intervals(served.summary, *answer)["usd_per_million_tokens_interval"]
    spent = served.summary["usd_per_million_tokens"] * served.tokens_per_s  # whatever the rate
    assert (usd["low"] * ends["high"], usd["high"] * ends["low"]) == pytest.approx((spent, spent))
    alone = cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", count=5, output=1, tp=8)
    assert alone.tpot_interval is None  # nothing comes after a single token


H100, NEURON = cs.cluster("dgx-h100"), cs.cluster("trn2.48xlarge")
SMALL, LARGE, MIXTURE = map(named, ("llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b"))
LONE = requests_of((0.0, 10, 1))


@pytest.mark.parametrize(("call", "message"), [
    (partial(batching_from, H100, scheduler="vlm"), "scheduler 'vlm' is none of vllm"),
    (partial(batching_from, H100, scheduler="vllm", prefill="chunked"), "leave --prefill chunked"),
    *((partial(batching_from, H100, scheduler="tensorrt-llm", gather=text), "write 20:0.9")
      for text in ("20", "20:1.5")),
    (partial(batching_from, H100, prefill="separate", gather="20:0.9"), "leave --gather out"),
    (partial(batching_from, H100, prefill="chunked", poll=0), "every 0 passes"),
    (lambda: engine_batching(NEURON, "sglang", 4), "by Neuron's engine or vLLM's.*leave it out"),
    (partial(batching_from, NEURON, scheduler="vllm", chunk=512), "Write vllm and no chunk"),
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
    (lambda: serve(toy_replica(), LONE, users=0), "at least 1"),
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
    (lambda: profile(replace(LARGE, layers=400), NEURON), "16 chips hold"),
    (lambda: profile(MIXTURE, NEURON, tp=1), r"93\.4 GB of .* 1 chip holds 92\.. GB; .*--tp 2\."),
    (lambda: profile(named("llama-2-13b"), cluster("trn2.3xlarge"), tp=1),
     r"26\.0 GB of .* 1 core holds 23\.. GB; .* or more cores, such as --tp 2\.$"),
    (lambda: profile(SMALL, NEURON, tp=99), "domain of 16.*Use 1 to 16 chips, or up to 64 cores"),
    (lambda: profile(named("qwen3-235b-a22b"), NEURON, ep=3), "divisor of 64"),
    (lambda: profile(SMALL, NEURON, ep=2), "no experts"),
    (lambda: profile(SMALL, H100, cache_precision="fp4"), "cache precision .fp4. is none of bf16"),
    (lambda: profile(SMALL, H100, attention_dp=2), "8b has no experts to share"),
    (lambda: profile(MIXTURE, H100, attention_dp=3), "mixtral-8x7b has 8 ranks to divide"),
    (lambda: profile(MIXTURE, NEURON, attention_dp=2), "on trn2 is served by Neuron's engine"),
    *((partial(parse_pools, text), "write 1:3")
      for text in ("1", "1:2:3", "a:b", "1:-2", "1.5:2", "")),
    (lambda: Pools(0, 1, 1.0), "use 1 to"),
    (lambda: Pools(1, 1, 0.0), "cannot move"),
    (lambda: pools(NEURON, profile(SMALL, NEURON, tp=8), 1, 2), "take 24 chips"),
])  # fmt: skip
def test_what_cannot_be_is_refused(call, message):
    refused(message, call)
