"""Caches of prefixes: what they hit, and what a log says of it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.toy_serving import toy_replica
from topologies.support.errors import InputError
from workloads.serving import Batching, Requests, read_requests, serve, with_prefix_cache
from workloads.serving.requests import BLOCK_TOKENS, lru_hits, share_hits


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
