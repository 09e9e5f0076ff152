"""Tables of a replica's capacity and what is kept of them, and caches of prefixes."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.refusals import refused
from tests.support.toy_serving import toy_replica
from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.errors import InputError
from workloads.serving import (
    Batching,
    Profile,
    Requests,
    Slo,
    Speculation,
    parse_slo,
    profile,
    read_requests,
    serve,
    with_prefix_cache,
)
from workloads.serving.batching import FIRST
from workloads.serving.deployment import Pools, PromptReplica
from workloads.serving.requests import (
    BLOCK_TOKENS,
    Lengths,
    azure_lengths,
    fixed_lengths,
    lru_hits,
    poisson,
    share_hits,
)
from workloads.serving.tables import TableRuns, capacity_table, saturated_rate, table_digest


def test_capacity_table_is_monotone_and_cached(served_70b, tmp_path):
    slo = parse_slo("ttft=3s,tpot=100ms")
    lengths = azure_lengths("conv")
    arguments = {"batching": Batching(chunk_tokens=512), "requests": 800, "cache": tmp_path}
    table = capacity_table(served_70b, lengths, slo, replicas=4, **arguments)
    assert np.all(np.diff(table.attainment) <= 0)
    assert 0 < table.rate_slo_per_s < table.rate_max_per_s
    assert len(list(tmp_path.iterdir())) == 1
    again = capacity_table(served_70b, lengths, slo, replicas=8, **arguments)
    assert again.rate_slo_per_s == pytest.approx(2 * table.rate_slo_per_s)
    assert len(list(tmp_path.iterdir())) == 1
    next(tmp_path.iterdir()).write_text("{broken")
    third = capacity_table(served_70b, lengths, slo, replicas=4, **arguments)
    assert np.array_equal(third.ttft_s, table.ttft_s)


def test_longer_requests_are_more_work(served_70b):
    table = capacity_table(
        served_70b, azure_lengths("conv"), Slo(5.0, 0.2), batching=Batching(chunk_tokens=512),
        prompt_means=np.array([600.0, 1200.0, 2400.0]), output_means=np.array([100.0, 200.0]),
        requests=600,
    )  # fmt: skip
    assert np.all(np.diff(table.cost, axis=0) > 0)
    assert np.all(np.diff(table.cost, axis=1) > 0)
    assert table.work(1800.0, 100.0) == pytest.approx(table.cost[1:, 0].mean())


def test_overloaded_fluid_drains_at_the_saturated_rate(served_70b):
    batching, lengths = Batching(chunk_tokens=512), azure_lengths("conv")
    most = saturated_rate(served_70b, lengths, TableRuns(batching=batching))
    table = capacity_table(served_70b, lengths, Slo(5.0, 0.2), batching=batching, requests=3000)
    assert table.rate_max_per_s == pytest.approx(most)
    rng = np.random.default_rng(1)
    served = serve(served_70b, poisson(1.3 * most, 6000, lengths, rng), batching)
    done = np.sort(served.end_s)
    steady = 3000 / (done[4500] - done[1500])
    assert steady == pytest.approx(table.rate_max_per_s, rel=0.05)


def test_a_table_counts_on_prefixes_and_proposals(served_70b, tmp_path):
    lengths, slo = fixed_lengths(4000, 100), Slo(20.0, 0.5)
    how = {"requests": 300, "cache": tmp_path}
    plain = capacity_table(served_70b, lengths, slo, **how)
    cached = capacity_table(served_70b, lengths, slo, prefix_share=0.75, **how)
    guessed = capacity_table(served_70b, lengths, slo, speculation=Speculation(4, 0.8), **how)
    assert cached.rate_max_per_s > 1.3 * plain.rate_max_per_s
    assert guessed.rate_max_per_s > 1.1 * plain.rate_max_per_s
    assert len(list(tmp_path.iterdir())) == 3
    # The fluid term at the batch that decodes.
    speedup = Speculation(4, 0.8).speedup(served_70b, 64, 64 * 4050.0)
    assert guessed.rate_max_per_s / plain.rate_max_per_s < speedup
    refused("prefix cache", capacity_table, served_70b, lengths, slo, prefix_share=1.0)
    with pytest.raises(InputError, match="keeps ttft 10 ms and tpot 100 ms"):
        capacity_table(served_70b, azure_lengths("conv"), Slo(0.01, 0.1), requests=200)


TOKENS = np.array([1.0, 100.0, 10_000.0])
REPLICA = Profile("a", 4, TOKENS, TOKENS * 1e-5, 1e-9, 1e-6, 1e-10, 1e9, 1e5, 1e10)
BATCHING = Batching(slots=8, chunk_tokens=512)
GUESS = Speculation(2, 0.8, 0.1)
POOLS = Pools(1, 1, 1e9, 1e-6)
RUNS = TableRuns(BATCHING, requests=200, speculation=GUESS, pools=POOLS)
LENGTHS = Lengths(np.array([100, 200]), np.array([10, 20]))
SLO = Slo(0.5, 0.01)
LITTLE = 1 + 2**-50
CHANGES = {
    Slo: {"ttft_s": 0.5 * LITTLE, "tpot_s": 0.01 * LITTLE, "share": 0.5},
    Batching: {
        "slots": 9, "chunk_tokens": 513, "buckets": (128,), "arrived": True, "prompts": FIRST,
        "overlapped": True, "poll_passes": 2, "gather_passes": 3, "gather_tokens": 4,
        "reserved": 0.5, "engine": "vllm", "runs_empty_slots": True,
    },
    Speculation: {"tokens": 3, "acceptance": 0.8 * LITTLE, "draft": REPLICA},
    Pools: {
        "prefill": 2, "decode": 2, "transfer_bytes_per_s": 1e9 * LITTLE,
        "transfer_latency_s": 2e-6, "slowest_bytes_per_s": 1e8,
        "prompts": PromptReplica(REPLICA, BATCHING, "machine", (), ""),
    },
    TableRuns: {
        "batching": Batching(), "prompt_means": np.array([1.0]), "output_means": np.array([2.0]),
        "requests": 201, "seed": 1, "prefix_share": 0.5, "speculation": None, "pools": None,
    },
    Profile: {
        **{field.name: 2.0 for field in fields(Profile)}, "name": "b", "chips": 5,
        "tokens": TOKENS + 1, "linear_s": TOKENS, "prompt_linear_s": TOKENS, "expert_groups": 2,
    },
    Lengths: {"prompt": np.array([100, 201]), "output": np.array([10, 21])},
}  # fmt: skip


def digest(value):
    """Digest of the usual inputs with this one in place of that of its type."""
    inputs = {type(each): each for each in (SLO, BATCHING, GUESS, POOLS, REPLICA, LENGTHS)}
    inputs[type(value)] = value
    batching, guess, pools = (inputs[each] for each in (Batching, Speculation, Pools))
    runs = replace(RUNS, batching=batching, speculation=guess, pools=pools)
    runs = value if isinstance(value, TableRuns) else runs
    return table_digest(inputs[Profile], inputs[Lengths], inputs[Slo], runs)


@pytest.mark.parametrize("usual", [SLO, BATCHING, GUESS, POOLS, RUNS, REPLICA, LENGTHS])
def test_every_field_of_every_input_is_in_the_name_of_a_table(usual):
    changes = CHANGES[type(usual)]
    assert set(changes) == {field.name for field in fields(usual)}, "change every field"
    digests = [digest(replace(usual, **{name: value})) for name, value in changes.items()]
    assert len({digest(usual), *digests}) == 1 + len(changes)


DGX = cs.cluster("dgx-h100")
SPARSE = cs.model("qwen3-235b-a22b")


def test_a_replica_has_the_memory_that_the_driver_reports():
    usable = usable_hbm_bytes("h100", shipped_catalogue())
    assert usable > shipped_catalogue().value("h100", "hbm_bytes")
    held = profile(SPARSE, DGX, precision="fp8")
    assert held.kv_budget_bytes == pytest.approx(0.9 * 8 * usable - held.weights_bytes)
    assert usable_hbm_bytes("trn2", shipped_catalogue()) == 96 * 2**30


def test_a_cache_in_16_bits_is_twice_as_large_and_takes_twice_as_long():
    short, long = (profile(SPARSE, DGX, precision="fp8", cache_precision=p) for p in (None, "bf16"))
    assert long.kv_bytes_per_token == 2 * short.kv_bytes_per_token
    assert long.decode_kv_s == pytest.approx(2 * short.decode_kv_s)


def replica():
    """A millisecond for a prompt token, whatever stands before it."""
    return toy_replica(
        tokens=np.array([1.0, 1e6]), linear_s=np.array([0.001, 1000.0]), decode_kv_s=0.0,
        kv_bytes_per_token=1.0, kv_budget_bytes=1e5,
    )  # fmt: skip


def unlimited(blocks):
    """Leading blocks that stood in any prompt before: what a cache without limit gives."""
    seen = set()
    hits = []
    for prompt in blocks:
        leading = next((n for n, block in enumerate(prompt) if block not in seen), len(prompt))
        hits.append(leading)
        seen |= set(prompt)
    return hits


@given(st.lists(st.lists(st.integers(0, 30), max_size=8, unique=True), max_size=30))
def test_a_large_cache_hits_what_was_ever_seen(blocks):
    assert lru_hits(blocks, 1000) == unlimited(blocks)


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=20), st.integers(1, 8)
)
def test_a_larger_cache_hits_no_less_in_all(blocks, capacity):
    small, large = lru_hits(blocks, capacity), lru_hits(blocks, 1000)
    assert all(a <= b for a, b in zip(small, large, strict=True))


def test_the_end_of_a_prompt_is_dropped_first():
    assert lru_hits([[1, 2, 3], [9], [1, 2, 3]], capacity=3) == [0, 0, 2]


def test_a_share_grows_from_a_cold_cache():
    prompt = np.full(5, 1000)
    assert share_hits(prompt, 0.4).tolist() == [400] * 5
    assert share_hits(prompt, 0.4, cold_tokens=2000).tolist() == [0, 200, 400, 400, 400]


def test_only_the_rest_of_a_prompt_takes_time():
    whole = Requests(np.zeros(1), np.array([1000]), np.array([2]))
    cached = with_prefix_cache(whole, "50%", kv_tokens=10**5)
    plain, half = (serve(replica(), each) for each in (whole, cached))
    assert plain.ttft_s[0] == pytest.approx(1.0, rel=1e-3)
    assert half.ttft_s[0] == pytest.approx(0.5, rel=1e-3)
    # The keys and values of the whole prompt are read all the same.
    assert half.kv_peak_tokens == plain.kv_peak_tokens
    # Pieces of a prompt begin where the cache ends.
    pieces = [serve(replica(), each, Batching(4, chunk_tokens=100)) for each in (whole, cached)]
    assert [each.iterations for each in pieces] == [10 + 1, 5 + 1]


def test_one_token_is_always_processed():
    whole = Requests(np.zeros(1), np.array([10]), np.array([2]), np.array([10]))
    assert whole.held(0) == 9
    assert serve(replica(), whole).ttft_s[0] == pytest.approx(0.001)


def mooncake(path, blocks):
    lines = [
        json.dumps({
            "timestamp": 1000 * n, "input_length": BLOCK_TOKENS * len(one), "output_length": 5,
            "hash_ids": one,
        })
        for n, one in enumerate(blocks)
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return read_requests(path)


def test_blocks_of_a_mooncake_trace_hit(tmp_path):
    requests = mooncake(tmp_path / "trace.jsonl", [[1, 2], [1, 2, 3], [4], [1, 2, 3]])
    large = with_prefix_cache(requests, "trace", kv_tokens=10**6)
    small = with_prefix_cache(requests, "trace", kv_tokens=3 * BLOCK_TOKENS)
    assert (large.cached // BLOCK_TOKENS).tolist() == [0, 2, 0, 3]
    assert (small.cached // BLOCK_TOKENS).tolist() == [0, 2, 0, 2]


def test_counts_of_a_csv_are_taken_at_their_word(tmp_path):
    (path := tmp_path / "log.csv").write_text(
        "timestamp_ms,prompt_tokens,output_tokens,reused_prefix_blocks\n"
        "2000,1200,5,2\n1000,900,5,1\n"
    )
    cached = with_prefix_cache(read_requests(path), "trace", kv_tokens=10**5)
    assert (cached.cached.tolist(), cached.first(1).cached) == ([512, 1024], [512])
    path.write_text(path.read_text().replace(",5,2", ",5,-2"))
    with pytest.raises(InputError, match="of which one is no number of at least 0"):
        with_prefix_cache(read_requests(path), "trace", kv_tokens=10**5)
    path.write_text("time,prompt_tokens,output_tokens,cached_tokens\n5,1200,5,700\n")
    assert read_requests(path).counted == [700.0]


def test_a_log_without_prefixes_is_refused(tmp_path):
    (path := tmp_path / "log.csv").write_text("time_s,prompt_tokens,output_tokens\n0,10,2\n")
    with pytest.raises(InputError, match="one of the columns cached_tokens, prefix_tokens"):
        with_prefix_cache(read_requests(path), "trace", kv_tokens=100)
    lines = tmp_path / "log.jsonl"
    lines.write_text('{"timestamp": 0, "input_length": 10, "output_length": 2}\n')
    refused("a log with hash_ids", with_prefix_cache, read_requests(lines), "trace", kv_tokens=100)
