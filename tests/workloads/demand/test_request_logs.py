"""Logs of requests in the formats of other tools."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.request_logs import CHAT, MOONCAKE
from topologies.errors import InputError
from workloads.demand import read_demand
from workloads.demand.request_logs import read_json_log
from workloads.serving import read_requests
from workloads.serving.requests import with_prefix_cache


def _lines(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return path


def test_chats_of_model_studio_count_seconds_and_blocks_of_16_tokens(tmp_path):
    entries = [
        {
            "chat_id": number, "parent_chat_id": -1, "timestamp": 1.5 * number, "type": "text",
            "input_length": 40, "output_length": 9, "turn": 1, "hash_ids": [7, 8, 100 + number],
        }
        for number in range(3)
    ]  # fmt: skip
    path = _lines(tmp_path / "qwen.jsonl", entries)
    requests = read_requests(path)
    assert requests.arrival_s.tolist() == [0.0, 1.5, 3.0]
    cached = with_prefix_cache(requests, "trace", kv_tokens=10_000).cached
    assert cached.tolist() == [0, 32, 32]


@pytest.mark.parametrize(("header", "row"), [
    ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00.009930+00:00,374,44"),
    ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
     "5,ChatGPT,374,44,418,Conversation log"),
    (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type",
        "5.5,17,3.2,GPT-4,374,44,418,API log",
    ),
    ("request_id,timestamp,input_tokens,output_tokens", "0,0.25,374,44"),
    ("arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
     "0.25,374,44,418,8.5"),
], ids=["azure 2023", "azure 2024", "burstgpt", "burstgpt 2", "servegen", "vidur"])  # fmt: skip
def test_tables_of_public_logs_are_read_as_they_stand(tmp_path, header, row):
    (path := tmp_path / "log.csv").write_text(f"{header}\n{row}\n{row}\n")
    requests = read_requests(path)
    assert (requests.prompt.tolist(), requests.output.tolist()) == ([374] * 2, [44] * 2)
    assert requests.arrival_s.tolist() == [0.0, 0.0]


def test_sharegpt_takes_the_first_two_turns_at_four_characters_a_token(tmp_path):
    (path := tmp_path / "sharegpt.json").write_text(json.dumps(CHAT))
    requests = read_requests(path, rate_per_s=2.0, seed=1)
    assert (requests.prompt.tolist(), requests.output.tolist()) == ([100], [20])


def test_gaps_of_a_log_without_times_have_the_rate(tmp_path):
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcd" * 10, "output_tokens": 3}] * 4000)
    requests = read_requests(path, rate_per_s=5.0, seed=2)
    assert set(requests.prompt.tolist()) == {10}
    assert np.diff(requests.arrival_s).mean() == pytest.approx(0.2, rel=0.05)
    again = read_requests(path, rate_per_s=5.0, seed=2)
    assert np.array_equal(requests.arrival_s, again.arrival_s)


def test_benchmark_results_of_vllm(tmp_path):
    path = tmp_path / "result.json"
    result = {"input_lens": [10, 20], "output_lens": [5, 6], "ttfts": [0.1, 0.2]}
    path.write_text(json.dumps(result | {"start_times": [7.0, 9.5]}))
    requests = read_requests(path)
    assert requests.arrival_s.tolist() == [0.0, 2.5]
    path.write_text(json.dumps(result))
    assert len(read_requests(path, rate_per_s=1.0)) == 2


def test_an_answer_of_unknown_length_is_given(tmp_path):
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcdefgh", "timestamp": 4}])
    with pytest.raises(InputError, match=r"1 of 1 requests do not state.*add --output TOKENS"):
        read_requests(path)
    assert read_requests(path, output_tokens=9).output.tolist() == [9]


@pytest.mark.parametrize(("content", "message"), [
    ("", "holds no requests"),
    ("[]", "holds no requests"),
    ('{"prompt": "a"', r"line 1: no JSON"),
    ("[" * 100_000, r"line 1: nested too deeply"),
    ("[1]", r"entry 1: it is no object"),
    ('{"question": "a"}', r"neither prompt_tokens nor .* it has question"),
    ('{"prompt_tokens": -1, "output_tokens": 2}', r"entry 1: prompt_tokens is -1"),
    ('{"prompt_tokens": NaN, "output_tokens": 2}', r"prompt_tokens is nan"),
    ('{"prompt_tokens": "7", "output_tokens": 2}', r"prompt_tokens is '7'"),
    ('{"prompt_tokens": ' + "9" * 400 + ', "output_tokens": 2}', r"prompt_tokens is 999"),
    ('{"prompt_tokens": 1, "hash_ids": 7}', r"entry 1: hash_ids is 7; give whole numbers"),
    ('{"prompt_tokens": 1, "hash_ids": ["a"]}', r"hash_ids is \['a'\]; give whole numbers"),
    ('{"input_lens": [1], "output_lens": []}', r"output_lens is no list of 1 numbers"),
    ('{"input_lens": [1], "output_lens": ["a"]}', r"request 1: output_lens is 'a'"),
    ('{"prompt": "a", "timestamp": 1}\n{"prompt": "b"}',
     r"request 2 has no time, and others have one"),
])  # fmt: skip
def test_a_faulty_log_is_refused_by_its_fault(tmp_path, content, message):
    (path := tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        read_json_log(path)


def test_rates_are_for_logs_without_times(tmp_path):
    path = _lines(tmp_path / "trace.jsonl", MOONCAKE)
    with pytest.raises(InputError, match=r"states its times; leave --rate 2 out"):
        read_requests(path, rate_per_s=2.0)
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcd", "output_tokens": 3}])
    with pytest.raises(InputError, match=r"states no times; add --rate"):
        read_requests(path)


def test_mooncake_counts_milliseconds_and_blocks_that_may_be_missing(tmp_path):
    alone = {"timestamp": 61_000, "input_length": 700, "output_length": 5}
    path = _lines(tmp_path / "trace.jsonl", [*MOONCAKE, alone])
    requests = read_requests(path)
    assert requests.arrival_s.tolist() == [0.0, 3.052, 61.0]
    assert requests.prompt.tolist() == [6755, 2287, 700]
    assert requests.output.tolist() == [500, 316, 5]
    assert read_json_log(path)["blocks"].tolist() == [[0, 1], [0, 42], []]
    hits = with_prefix_cache(requests, "trace", kv_tokens=10**6).cached
    assert hits.tolist() == [0, 512, 0]
    demand = read_demand(path)
    assert demand.requests.tolist() == [[2.0, 1.0]]
    assert demand.prompt_tokens[0, 0] == pytest.approx((6755 + 2287) / 2)
