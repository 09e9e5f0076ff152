"""The serve command: what each way to serve faster adds to the answer, and what is refused."""

import json
import math

import pandas as pd
import pytest

import cluster_sim as cs
from tests.support.commands import document_of, printed_by, refusal_of
from workloads.serving.remarks import waiting_sentence

LLAMA = "serve --model=llama-3.1-8b"
QUICK = f"{LLAMA} --cluster=trn2.48xlarge --tp=4"
LOAD = "--requests=poisson:2 --count=60"
LOADED = f"{QUICK} {LOAD}"
ON_GPUS = f"{LLAMA} --cluster=dgx-h100 {LOAD}"
LIMITED = "--count=400 --slo=ttft=1s,tpot=20ms"
SERVER_USD_PER_H = 35.7608


def shown_by(*words):
    return " ".join(printed_by(*words, "--quiet").split())


def test_price_and_energy_are_those_of_the_run():
    document = document_of(LOADED)
    hours = document["requests"] / document["requests_per_s"] / 3600
    assert document["cost_usd"] == pytest.approx(SERVER_USD_PER_H / 16 * 4 * hours, rel=0.01)
    tokens = document["tokens_per_s"] * hours * 3600
    assert document["usd_per_million_tokens"] == pytest.approx(document["cost_usd"] * 1e6 / tokens)
    assert document["energy_joules"] > 0


def test_the_range_of_a_price_is_in_the_interval_of_what_it_makes():
    """The price of a DGX H100 differs from 25.60 to 98.32 USD/h."""
    document, fixed = document_of(f"{ON_GPUS} --tp=1"), document_of(f"{LOADED}")
    price = document["price_interval"]
    assert (price["low"], price["high"]) == pytest.approx((25.6 / 80, 98.32 / 80))
    assert price["basis"] == document["price_basis"]
    for name in ("cost_usd", "usd_per_million_tokens"):
        ends = document[f"{name}_interval"]
        assert ends["low"] <= document[name] * price["low"] * (1 + 1e-9)
        assert ends["high"] >= document[name] * price["high"] * (1 - 1e-9)
    assert "price_interval" not in fixed


def test_the_precision_of_the_cache_is_named_and_follows_the_engine():
    """An engine that keeps FP8 weights beside a BF16 cache has room for half as many tokens."""
    for more, expected in ((), "fp8"), (("--scheduler=vllm",), "bf16"):
        lines = printed_by(f"{ON_GPUS} --tp=1 --precision=fp8", *more).splitlines()
        (room,) = [line for line in lines if "cache, room" in line]
        assert room.endswith(f", in {expected}")


def test_an_overload_is_a_remark_everywhere(tmp_path):
    line = f"{LLAMA} --cluster=dgx-h100 --tp=1 --count=300 --requests=poisson:90 --slots=8"
    line += " --slo=ttft=2s"
    document = document_of(line, f"--out={tmp_path}")
    (overload,) = document["remarks"]
    assert overload.startswith("It is overloaded: 77.8 requests/s arrive and ")
    assert document["slo"] == {"ttft_s": 2.0, "tpot_s": None}
    shown = shown_by(line)
    assert overload in shown
    assert "tokens in the mean. SLO: TTFT 2 s." in shown
    how = {"tp": 1, "count": 300, "slots": 8, "slo": "ttft=2s"}
    assert cs.serve("llama-3.1-8b", "dgx-h100", "poisson:90", **how).remarks == [overload]
    assert "It is overloaded" in (tmp_path / "report.html").read_text()


def test_each_way_is_faster_and_tells_of_itself(tmp_path):
    plain = document_of(LOADED)
    assert not {"prefix_hit_share", "speculation", "prefill_replicas"} & set(plain)
    (remark,) = plain["remarks"]
    assert "price and energy of a token are those of a replica that waits" in remark
    cached = document_of(LOADED, "--prefix-cache=60%")
    assert cached["prefix_hit_share"] == pytest.approx(0.6, abs=0.01)
    assert cached["ttft_s"]["p50"] < plain["ttft_s"]["p50"]
    cold = document_of(LOADED, "--prefix-cache=60%:cold")
    assert cold["prefix_hit_share"] < cached["prefix_hit_share"]
    guessed = document_of(LOADED, "--speculate=4:0.8:llama-3.2-1b")
    assert guessed["speculation"]["expected_tokens_per_pass"] == pytest.approx(3.3616)
    assert guessed["tpot_s"]["p50"] < plain["tpot_s"]["p50"]
    apart = document_of(LOADED, "--disaggregate=1:3")
    assert apart["chips"] == 4 * plain["chips"]
    assert apart["itl_s"]["p99"] < plain["itl_s"]["p99"]
    assert 0 < apart["prefill_utilisation"] < 1
    assert apart["kv_transfer_s"]["n"] == plain["requests"]
    every = f"{LOADED} --prefix-cache=50% --speculate=3:0.7 --disaggregate=2:2"
    shown = printed_by(every, f"--out={tmp_path / 'run'}")
    for word in ("prefix cache", "tokens of a pass", "prefill replicas", "KV transfer", "price"):
        assert word in shown
    document = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"prefix_hit_share", "speculation", "prefill_replicas"} <= set(document)
    assert "--speculate" not in " ".join(guessed["remarks"])
    assert "as in --speculate 3:0.7:MODEL" in document["remarks"][0]
    assert "The 3 proposals of a pass take no time" in shown
    assert (tmp_path / "run" / "latency.png").stat().st_size > 1000


@pytest.mark.parametrize(("options", "named"), [
    ("--scheduler=sglang", True),
    ("--scheduler=sglang --variant=serving.gpu.iteration_overhead=sglang-0.5.14", False),
    ("--scheduler=sglang --date=2025-10", False),
    ("--scheduler=tensorrt-llm", False),
])  # fmt: skip
def test_an_earlier_release_whose_host_costs_a_tenth_is_named(options, named):
    remarks = document_of(ON_GPUS, "--tp=1", *options.split()).get("remarks", [])
    sentence = (
        "The host takes 200 us of an iteration, as in sglang after 0.5.14; before, it took 2 ms: "
        "--date states the month of a release."
    )
    assert [text for text in remarks if text.startswith("The host")] == [sentence] * named


@pytest.mark.parametrize(("tpot", "wide"), [("7.5ms", True), ("100ms", False)])
def test_an_interval_from_none_to_all_is_a_sentence(tpot, wide):
    line = f"{QUICK} --slo=tpot={tpot}"
    document = document_of(line)
    ends = document["slo_attainment_interval"]
    assert ends == {"low": 0.0 if wide else 1.0, "high": 1.0}
    sentence = "on a replica as slow as its interval allows, 0% do; on one as fast, 100%."
    assert (sentence in " ".join(document.get("remarks", ()))) == wide
    shown = shown_by(line)
    assert f"requests within the SLO {document['slo_attainment']:.2%} mean" in shown
    assert (sentence in shown) == wide


def test_unlike_chips_are_named_with_what_is_assumed():
    line = f"{LOADED} --disaggregate=1:2 --prefill-cluster=p5.48xlarge --prefill-tp=2"
    document = document_of(line, "--variant=p5.48xlarge.price=capacity-block")
    assert (document["chips"], document["prefill_chips"]) == (10, 2)
    network = document["kv_network"]
    assert network["grade"] == "assumed"
    assert network["low_bytes_per_s"] == network["high_bytes_per_s"] / 4
    shown = shown_by(line)
    for words in (
        "and 2 of p5.48xlarge for prompts",
        "slowest network (assumed)",
        "No source says",
    ):
        assert words in shown


@pytest.mark.parametrize("way", ["", "--disaggregate=1:1 --prefix-cache=50%"])
def test_the_highest_rate_keeps_the_slo_and_a_higher_one_does_not(way):
    """The answer is that of the rate as if it had been stated, and its price that of the rate."""
    line = f"{QUICK} {LIMITED} {way}"
    highest = document_of(line, "--max-rate")
    rate = highest["max_rate_per_s"]
    at = document_of(line, f"--requests=poisson:{rate!r}")
    assert at["slo_attainment"] == highest["slo_attainment"] >= 0.99
    assert at["ttft_s"] == highest["ttft_s"]
    beyond = document_of(line, f"--requests=poisson:{1.011 * rate!r}")
    # 400 requests end before the queue of a saturated group grows.
    assert beyond["slo_attainment"] < 0.99 or way
    assert highest["binds"] == ("slots" if way else "TPOT")
    per_request = at["tokens_per_s"] / at["requests_per_s"]
    assert highest["tokens_per_s"] == pytest.approx(rate * per_request)
    usd_per_s = SERVER_USD_PER_H / 16 / 3600 * highest["chips"]
    expected = usd_per_s * 1e6 / highest["tokens_per_s"]
    assert highest["usd_per_million_tokens"] == pytest.approx(expected, rel=1e-4)
    ends = highest["max_rate_per_s_interval"]
    assert ends["low"] * ends["high"] == pytest.approx(rate**2)
    assert "max_rate_per_s" not in at


def test_the_highest_rate_is_shown_and_is_that_of_the_front_door():
    shown = shown_by(QUICK, "--max-rate", *LIMITED.split())
    assert "highest rate within the SLO, requests/s" in shown
    assert "what binds" in shown
    result = cs.serve("llama-3.1-8b", "trn2.48xlarge", tp=4, count=400, max_rate=True,
                      slo="ttft=1s,tpot=20ms")  # fmt: skip
    assert f"{result.summary['max_rate_per_s']:,.4g}" in shown
    assert result.deployed.served.requests.arrival_s.shape == (400,)
    (few,) = (
        one for one in document_of(QUICK, "--max-rate", "--count=60")["remarks"] if "at once" in one
    )
    assert few.startswith("60 requests are 1.2 times")
    assert few.endswith(
        "rate, which takes 8 times or more: state a larger --count, or leave it out."
    )
    assert "a steady highest rate" not in shown


def test_a_stated_rate_is_divided_among_as_many_replicas_as_it_needs():
    line = f"{QUICK} --max-rate {LIMITED} --requests=poisson:50"
    document = document_of(line)
    demand, rate = document["demand"], document["max_rate_per_s"]
    assert (demand["deployments"] - 1) * rate < 50 <= demand["deployments"] * rate
    assert demand["chips"] == 4 * demand["deployments"]
    assert demand["machines"] == math.ceil(demand["chips"] / 16)
    assert demand["machine_chips"] == 16 * demand["machines"]
    assert demand["usd_per_h"] == pytest.approx(demand["machines"] * 35.76)
    assert "whole machine" in shown_by(line)
    low, high = document["max_rate_per_s_interval"].values()
    ends = {"low": math.ceil(50 / high), "high": math.ceil(50 / low)}
    assert demand["deployments_interval"] == ends
    shown = shown_by(line, "--cluster=trn2.48xlarge,dgx-h100")
    assert f"replicas for the stated rate {demand['deployments']} " in shown


@pytest.mark.slow
def test_the_options_that_a_search_finds_repeat_its_answer(tmp_path):
    line = f"{LLAMA} --cluster=trn2.48xlarge --tp=8 {LIMITED}"
    document = document_of(line, "--search")
    best = document["deployments"][0]
    assert document["options"] == best["options"]
    assert document["max_rate_per_s"] == best["max_rate_per_s"]
    again = document_of(line, "--max-rate", *document["options"].split())
    assert {name: document[name] for name in again} == again
    assert best["options"] in printed_by(line, "--search", f"--out={tmp_path / 'run'}")
    assert (tmp_path / "run" / "frontier.png").exists()
    result = cs.serve("llama-3.1-8b", "trn2.48xlarge", tp=8, count=400, search=True,
                      slo="ttft=1s,tpot=20ms")  # fmt: skip
    assert result.summary["options"] == document["options"]


def test_the_price_of_a_replica_that_waits_is_called_so():
    remark = "price and energy of a token are those of a replica that waits"
    assert remark in shown_by(QUICK, "--count=60")
    assert shown_by(f"{LLAMA} --cluster=trn2.48xlarge,dgx-h100", "--count=60").count(remark) == 2
    for way in ("--max-rate", "--concurrency=2"):
        assert remark not in shown_by(QUICK, "--count=60", way)
    for used, decode, waits in ((0.4, 60, True), (0.9, 3, True), (0.9, 5, False)):
        document = {"utilisation": used, "batch_mean": decode, "slots": 64}
        assert bool(waiting_sentence(document)) is waits


def test_clusters_side_by_side_have_the_best_deployment_of_each(tmp_path):
    both = f"--cluster=trn2.48xlarge,p5.48xlarge --search --count=100 --tp=8 --out={tmp_path}"
    shown = printed_by(f"{LLAMA} {both}")
    points = pd.read_csv(tmp_path / "frontier.csv")["options"].str.split().str[:3].str.join(" ")
    assert set(points) == {"trn2.48xlarge --tp 8", "p5.48xlarge --tp 8"}
    assert (tmp_path / "frontier.png").exists()
    assert "trn2.48xlarge: found --tp 8" in shown
    assert "p5.48xlarge: found --tp 8 --prefill chunked" in shown


def test_a_closed_loop_keeps_its_users():
    """Users are the rate of answers times the time of each (Little's law), but for the ends."""
    result = cs.serve("llama-3.1-8b", "trn2.48xlarge", tp=4, concurrency=8, count=2000,
                      prompt=500, output=50)  # fmt: skip
    frame = result.frame()
    users = (frame.end_s - frame.arrival_s).mean() * result.summary["requests_per_s"]
    assert users == pytest.approx(8, rel=0.01)
    assert (frame.arrival_s[8:].isin(frame.end_s)).all()
    document = document_of(f"{QUICK} --concurrency=8 --count=2000 --prompt=500 --output=50")
    assert document["concurrency"] == 8
    assert document["tokens_per_s"] == result.tokens_per_s
    ends = document["tokens_per_s_interval"]
    assert ends["low"] * ends["high"] == pytest.approx(document["tokens_per_s"] ** 2)
    assert document["remarks"][0].startswith("All requests are alike, so those of a closed loop")


def test_users_beyond_the_slots_are_said_to_queue():
    line = f"{QUICK} --concurrency=8 --count=200 --prompt=500 --output=50"
    document = document_of(line, "--slots=4")
    assert document["remarks"][-1].startswith("8 users share 4 slots, so most of a time to first")
    assert f"poisson:{document['requests_per_s']:.2g}, " in document["remarks"][-1]
    assert "share" not in " ".join(document_of(line, "--slots=8")["remarks"])


def test_requests_of_unlike_lengths_do_not_wait_in_step():
    """Equal requests that end together wait for each other's prompts, as many as there are."""
    words = {"tp": 4, "concurrency": 16, "count": 400, "prompt": 1000, "output": 100}
    alike = cs.serve("llama-3.1-8b", "dgx-h100", **words)
    drawn = cs.serve("llama-3.1-8b", "dgx-h100", **words, shortest_lengths=0.8)
    lengths = drawn.frame()[["prompt_tokens", "output_tokens"]]
    assert (lengths.min() == [800, 80]).all()
    assert (lengths.max() == [1000, 100]).all()
    assert lengths.mean().to_numpy() == pytest.approx([900, 90], rel=0.02)
    assert drawn.ttft_s["p50"] < 0.6 * alike.ttft_s["p50"]


def test_a_launch_of_an_engine_is_read_and_written(tmp_path):
    file, again = tmp_path / "serve.sh", tmp_path / "again.sh"
    file.write_text("vllm serve m --tensor-parallel-size 2 --max-num-seqs 32 --swap-space 4\n")
    document = document_of(ON_GPUS, f"--deployment={file}", f"--write=vllm:{again}")
    assert (document["chips"], document["slots"]) == (2, 32)
    assert document["deployment_file"]["may_change_time"] == ["swap-space"]
    assert again.read_text() == document["written"]["command"]
    assert document_of(ON_GPUS, f"--deployment={again}")["ttft_s"] == document["ttft_s"]
    text = shown_by(ON_GPUS, f"--deployment={file}", "--tp=4", "--slots=8")
    assert "The deployment is vLLM's; it has no field for swap-space, which may change" in text
    assert "4 chips of dgx-h100" in text
    shown = printed_by(LOADED, f"--deployment={file}")
    assert "Neuron's engine runs prompts one at a time" in shown
    assert "engine 'slurm' is none of" in refusal_of(ON_GPUS, "--write=slurm")
    assert f"{file} exists already" in refusal_of(ON_GPUS, f"--write=vllm:{tmp_path}")
    document_of(ON_GPUS, f"--deployment={file}", f"--write=vllm:{file}")
    assert file.read_text() == again.read_text()


@pytest.mark.parametrize(("more", "named"), [("", True), ("--ep=8", False)])
def test_groups_of_experts_are_named_where_prompts_take_half_as_long(more, named):
    line = "serve --model=gpt-oss-120b --cluster=trn2.48xlarge --tp=8 --count=20"
    remarks = document_of(f"{line} --prompt=1000 --output=20 {more}")["remarks"]
    sentence = "With --ep 8, which divides the experts among the ranks, a prompt of 1,000 tokens"
    assert any(text.startswith(sentence) for text in remarks) == named


def test_users_that_soon_fill_few_slots_are_not_said_to_queue():
    """Nine requests of nine users for eight slots: the last decodes alone for half the run."""
    line = f"{QUICK} --concurrency=9 --count=9 --prompt=500 --output=50 --slots=8"
    document = document_of(line)
    assert document["batch_mean"] < 0.75 * document["slots"]
    assert "share" not in " ".join(document["remarks"])
