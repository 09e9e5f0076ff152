"""Serving rows that state how their requests were drawn and counted."""

import sys

import pytest

import cluster_sim as cs
from experiments.validation.predictions import serving
from experiments.validation.predictions.serving import MOST_USERS, predict
from tests.support.refusals import refused
from topologies.support.errors import InputError
from workloads.serving import BUCKETS
from workloads.serving.profile import Profile

ROW = {
    "model": "llama-3.1-70b", "cluster": "dgx-h200", "chips": 8, "tp": 8, "pp": None,
    "precision": "fp8", "prompt_tokens": 8192, "output_tokens": 1024, "concurrency": 16,
}  # fmt: skip


def test_a_row_that_states_its_rounds_is_run_so():
    equal = predict(ROW).predicted
    drawn = predict({**ROW, "rounds": 10, "shortest_lengths": 0.8}).predicted
    burst = predict({**ROW, "rounds": 1}).predicted
    assert drawn["ttft_s"] < equal["ttft_s"] < burst["ttft_s"]
    assert drawn["tpot_s"] == pytest.approx(equal["tpot_s"], rel=0.2)


@pytest.mark.parametrize(("cluster", "date", "room"), [
    ("trn1.32xlarge", "2024-11", 1), ("trn1.32xlarge", "2024-12", 0), ("dgx-h200", "2024-11", 0),
])  # fmt: skip
def test_programs_before_nxd_inference_had_room_for_their_own_prompt(cluster, date, room):
    programs = serving._programs({"cluster": cluster, "date": date})
    assert programs == tuple(size + room for size in BUCKETS)


def test_a_last_round_of_few_requests_lowers_the_rate():
    whole = predict({**ROW, "requests": 48}).predicted
    assert whole == predict({**ROW, "rounds": 3}).predicted
    few = predict({**ROW, "requests": 49}).predicted
    assert 0.7 < few["tokens_per_s"] / whole["tokens_per_s"] < 0.9


def test_rows_that_differ_in_requests_share_a_replica(monkeypatch):
    profiled = []

    def counted(rank):
        profiled.append(rank.model.name)
        return usual(rank)

    profiles = sys.modules[Profile.__module__]
    usual = profiles._profile_of
    monkeypatch.setattr(profiles, "_profile_of", counted)
    serving._replica.cache_clear()
    first = predict(ROW | {"prompt_tokens": 1024}).predicted
    predict(ROW | {"concurrency": 4})
    assert len(profiled) == 1
    predict(ROW | {"cache_precision": "bf16"})
    predict(ROW | {"memory_share": 0.7})
    assert len(profiled) == 3
    serving._replica.cache_clear()
    assert predict(ROW | {"prompt_tokens": 1024}).predicted == first


def test_a_row_states_its_proposals_cache_and_memory():
    plain = predict(ROW).predicted
    proposed = predict({**ROW, "speculate": "3:0.7:0.03"}).predicted
    assert 1.4 < plain["tpot_s"] / proposed["tpot_s"] < 2.5
    assert predict({**ROW, "cache_precision": "bf16"}).predicted["tpot_s"] > plain["tpot_s"]
    deepseek = {**ROW, "model": "deepseek-v3", "cluster": "dgx-b200", "chips": 4, "tp": 4}
    waiting = predict(deepseek | {"concurrency": 32}).predicted["ttft_s"]
    begun = predict(deepseek | {"concurrency": 32, "memory_share": 0.95}).predicted["ttft_s"]
    assert begun < 0.5 * waiting


def test_a_row_states_its_scheduler():
    drawn = {**ROW, "prompt_tokens": 1024, "rounds": 4, "shortest_lengths": 0.8}
    polled = {**drawn, "scheduler": "sglang", "poll_passes": 30}
    plain = predict({**drawn, "scheduler": "sglang"}).predicted["ttft_s"]
    assert predict(polled).predicted["ttft_s"] > 1.5 * plain
    assert predict({**drawn, "scheduler": "sglang", "overlapped": 0}).predicted["ttft_s"] < plain


@pytest.mark.parametrize(("column", "message"), [
    ({"poll_passes": 30}, "poll_passes 30: the row states no scheduler"),
    ({"batching": "static", "scheduler": "vllm"}, "vllm: a static batch has no scheduler"),
    ({"attention_dp": 3, "model": "deepseek-v3"}, "attention-dp 3: deepseek-v3 has 8 ranks"),
    ({"speculate": "3:0.7:llama-3.2-1b"}, "no share of the model's time"),
    ({"speculate": "3:0.7", "batching": "static"}, "has no proposals"),
])  # fmt: skip
def test_what_a_row_cannot_state_is_refused(column, message):
    refused(message, predict, ROW | column)


def test_a_rate_without_users_is_that_of_a_full_cache():
    row = {**ROW, "chips": 1, "tp": 1, "prompt_tokens": 2048, "output_tokens": 128}
    rate = {**row, "concurrency": None, "tokens_per_s": 442.0}
    full = predict(rate).predicted["tokens_per_s"]
    assert full > predict({**row, "concurrency": 64}).predicted["tokens_per_s"]
    assert full == pytest.approx(442, rel=0.2)
    one = predict({**row, "concurrency": 1}).predicted
    assert predict({**rate, "tpot_s": 0.02}).predicted == one
    many = {**rate, "prompt_tokens": 8, "output_tokens": 8}
    most = predict({**many, "concurrency": MOST_USERS}).predicted
    assert predict(many).predicted == most


def test_slots_that_a_row_states_run_empty_on_trainium_alone():
    neuron = {"model": "llama-3.1-8b", "cluster": "trn2.48xlarge", "batching": "continuous"}
    row = {**ROW, "chips": 4, "tp": 4, "prompt_tokens": 1024, "output_tokens": 128, "requests": 17}
    for machine, empty in ((neuron, True), ({}, False)):
        as_many, stated = (
            predict({**row, "precision": "bf16", **machine, **slots}).predicted["tokens_per_s"]
            for slots in ({}, {"slots": 16})
        )
        assert (stated < 0.95 * as_many, stated == as_many) == (empty, not empty)


def test_ranks_that_leave_chips_are_replicas_which_share_the_users():
    row = {**ROW, "chips": 8, "tp": 2, "concurrency": 31}
    each = {**ROW, "chips": 2, "tp": 2, "concurrency": 8}
    all_of_them, one = predict(row).predicted, predict(each).predicted
    assert all_of_them["tpot_s"] == one["tpot_s"]
    assert all_of_them["tokens_per_s"] == pytest.approx(4 * one["tokens_per_s"])


@pytest.mark.parametrize(("scheduler", "machine", "variant"), [
    ("tensorrt-llm", "dgx-b200", "tensorrt-llm-1.2"),
    ("tensorrt-llm", "dgx-h200", ""),
    ("vllm", "dgx-b200", ""),
])  # fmt: skip
def test_scales_of_blocks_are_slow_by_one_engine_on_one_chip(scheduler, machine, variant):
    values = {"cluster": machine, "scheduler": scheduler, "block_scaled": 1}
    numbers = serving._engine_numbers(values, None)
    assert numbers.entry("serving.gpu", "block_scale_token").variant == variant


ARRIVING = {
    "model": "llama-3.1-8b", "cluster": "dgx-h100", "chips": 1, "tp": 1, "precision": "bf16",
    "prompt_tokens": 1000, "output_tokens": 200, "concurrency": None, "scheduler": "vllm",
}  # fmt: skip


def test_arrivals_are_answered_as_serve_answers_them():
    """A row with a rate is the mean of the requests that ``serve`` draws at it."""
    predicted = serving.predict({**ARRIVING, "arrivals_per_s": 4.0, "requests": 50})
    drawn = {"count": 50, "prompt": 1000, "output": 200, "tp": 1, "scheduler": "vllm"}
    served = cs.serve("llama-3.1-8b", "dgx-h100", "poisson:4", **drawn)
    for name, latency in (("ttft_s", served.ttft_s), ("tpot_s", served.tpot_s)):
        assert predicted.predicted[name] == pytest.approx(latency["mean"])
    assert predicted.provenance == {"kernels": "interpolated", "requests": "assumed: Poisson"}


def test_rare_arrivals_are_one_user():
    rare = serving.predict({**ARRIVING, "arrivals_per_s": 0.001, "requests": 5})
    alone = serving.predict({**ARRIVING, "concurrency": 1, "requests": 5})
    for name in ("ttft_s", "tpot_s"):
        assert rare.predicted[name] == pytest.approx(alone.predicted[name])


def test_requests_arrive_or_are_sent_by_users():
    with pytest.raises(InputError, match="requests arrive, or users send them"):
        serving.predict({**ARRIVING, "arrivals_per_s": 1.0, "concurrency": 2})
