"""The replica against arithmetic by hand and single passes: prefill, decode, slots, cache."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.toy_serving import requests_of, toy_replica
from workloads.economics import Economics
from workloads.serving import BUCKETS, Slo, attained, replica, serving_summary
from workloads.serving.batching import BESIDE, FIRST, PROMPTS, Batching, batching_from
from workloads.serving.deployment import Deployment
from workloads.serving.profile import Profile
from workloads.serving.replica import Lockstep, passes_until, serve
from workloads.serving.requests import Requests
from workloads.serving.speculation import Speculation


def test_one_request_by_hand():
    """Prompt of 10: 2 s. Two more tokens: 1.1 s, and 0.01 s for each of 10, then 11 cached."""
    served = serve(toy_replica(), requests_of((5.0, 10, 3)))
    assert served.ttft_s.tolist() == [2.0]
    assert served.end_s[0] == pytest.approx(7.0 + 1.1 + 0.10 + 1.1 + 0.11)
    assert (served.kv_peak_tokens, served.iterations, served.batch_mean) == (12, 3, 1.0)


def test_a_prompt_makes_decode_wait():
    """The second prompt of 10 comes at 3.1 s, between tokens at 3.2 s: decode owes it 2 s."""
    served = serve(toy_replica(decode_kv_s=0.0), requests_of((0.0, 10, 3), (2.5, 10, 1)))
    assert served.first_token_s.tolist() == pytest.approx([2.0, 3.1 + 2.0])
    assert served.end_s[0] == pytest.approx(3.1 + 2.0 + 1.1)
    assert served.gap_s.max() == pytest.approx(3.1)


def test_the_gaps_of_a_request_are_its_time_after_the_first_token():
    """A replica that idles owes no gap for a prompt; each of two prompts waits for the rest."""
    served = serve(toy_replica(decode_kv_s=0.0), requests_of((0.0, 10, 3), (0.0, 10, 3)))
    assert served.first_token_s.tolist() == [2.0, 4.0]
    assert dict(zip(served.gap_s.tolist(), served.gap_count.tolist(), strict=True)) == (
        pytest.approx({1.2 + 2.0: 1, 1.2: 3})
    )


def test_chunks_ride_along_with_decode():
    """Pieces of 4 tokens beside one decoding request: 3 + 1 tokens an iteration, 1.4 s."""
    replica, two = toy_replica(decode_kv_s=0.0), requests_of((0.0, 3, 10), (0.1, 6, 1))
    served = serve(replica, two, Batching(slots=2, chunk_tokens=4))
    assert served.first_token_s[0] == pytest.approx(1.3)
    assert served.first_token_s[1] == pytest.approx(1.3 + 2 * 1.4)
    assert served.gap_s.max() == pytest.approx(1.4)


def test_the_request_admitted_last_gives_way_in_a_full_cache():
    """100 tokens hold both requests for 40 passes; then one decodes and the other is run anew."""
    replica = toy_replica(decode_kv_s=0.0, kv_budget_bytes=200.0)
    two = requests_of((0.0, 10, 60), (0.0, 10, 60))
    served = serve(replica, two, Batching(slots=8, chunk_tokens=64, reserved=0.0))
    assert served.first_token_s.tolist() == [3.0, 3.0]
    alone_s = 3.0 + 40 * 1.2 + 19 * 1.1
    assert served.end_s.tolist() == pytest.approx([alone_s, alone_s + (1 + 0.1 * 51) + 18 * 1.1])
    assert (served.kv_peak_tokens, served.iterations) == (100, 1 + 40 + 19 + 1 + 18)
    assert served.gap_s.max() == pytest.approx(19 * 1.1 + 6.1)
    whole = serve(replica, two, Batching(slots=8, chunk_tokens=64))
    assert whole.first_token_s[1] == pytest.approx(whole.end_s[0] + 2.0)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50)), min_size=1, max_size=12),
    st.sampled_from((0.0, 0.098, 0.5)),
    st.sampled_from((BESIDE, FIRST)),
    st.sampled_from((None, Speculation(3, 0.6))),
)
def test_all_requests_end_within_the_cache_whatever_is_reserved(lengths, reserved, prompts, guess):
    requests = requests_of(*((float(3 * n), *both) for n, both in enumerate(lengths)))
    batching = Batching(6, 32, reserved=reserved, prompts=prompts, overlapped=True)
    replica = toy_replica(kv_budget_bytes=200.0)
    served = serve(replica, requests, batching, speculation=guess)
    assert np.isfinite(served.end_s).all()
    assert (served.first_token_s > requests.arrival_s).all()
    assert (served.end_s >= served.first_token_s).all()
    assert served.gap_count.sum() == (requests.output - 1).sum()
    assert served.kv_peak_tokens <= replica.kv_tokens


@given(st.lists(st.tuples(st.sampled_from(("add", "drop", "advance")), st.integers(1, 6))))
def test_a_batch_in_lockstep_is_each_request_counted_down(changes):
    """Requests give way and come back, some of them to the very end that they had before."""
    batch, left = Lockstep(), dict[int, int]()
    for change, number in changes:
        if change == "add" and number not in left:
            batch.add(number, 7 - number, 10 * number + 7)
            left[number] = 7 - number
        elif change == "drop" and number in left:
            assert batch.drop(number) == left.pop(number)
        elif change == "advance" and left:
            steps = min(number, batch.steps())
            ended = sorted(request for request, tokens in left.items() if tokens == steps)
            assert batch.advance(steps) == (len(left) * steps, ended)
            left = {key: tokens - steps for key, tokens in left.items() if tokens > steps}
        assert len(batch) == len(left)
        if left:
            assert batch.steps() == min(left.values())
            assert batch.longest() == max(10 * each + 7 - tokens for each, tokens in left.items())


def test_slots_and_cache_make_requests_wait():
    three = requests_of((0.0, 10, 5), (0.0, 10, 5), (0.0, 10, 5))
    one = serve(toy_replica(), three, Batching(slots=1))
    assert np.all(one.first_token_s[1:] > one.end_s[:-1])
    assert one.kv_peak_tokens == 14
    tight = serve(toy_replica(kv_budget_bytes=2.0 * 30), three)  # room for two, to a token
    assert tight.first_token_s[1] < tight.end_s[0] < tight.first_token_s[2]
    assert serve(toy_replica(), three).batch_mean > one.batch_mean


def test_buckets_pad_prompts():
    """NxD Inference takes the first program that is longer than the prompt, or the longest."""
    lengths = {1: 128, 127: 128, 128: 256, 1023: 1024, 1024: 2048, 10_000: 10_240}
    assert {size: Batching(buckets=BUCKETS).padded(size) for size in lengths} == lengths
    plugin = batching_from(cs.cluster("trn2.48xlarge"), scheduler="vllm", slots=6)
    filled = {1: 128, 128: 128, 129: 256, 1024: 1024, 200_000: 200_000}
    assert {size: plugin.padded(size) for size in filled} == filled
    assert [plugin.rows(requests) for requests in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 4, 6, 6]
    assert [Batching(buckets=BUCKETS).padded(size) for size in (131_072, 200_000)] == [131_072, 2e5]
    padded = serve(toy_replica(), requests_of((0.0, 9, 1)), Batching(buckets=(16,)))
    assert padded.ttft_s[0] == pytest.approx(1 + 1.6)


def test_decode_reads_the_bucket_of_the_longest_request():
    """Prompts of 5 and 2, buckets of 8 and 16: eight is read for both until the eighth token."""
    replica = toy_replica(decode_kv_s=0.01)
    both = requests_of((0.0, 5, 9), (0.0, 2, 9))
    served = serve(replica, both, Batching(2, buckets=(8, 16)))
    first = max(served.first_token_s)
    expected = 3 * replica.decode_s(2, 2 * 8) + 5 * replica.decode_s(2, 2 * 16)
    assert served.end_s[0] - first == pytest.approx(expected)
    beyond = serve(replica, both, Batching(2, buckets=(4,)))
    steps = sum(replica.decode_s(2, 2 * length) for length in range(5, 13))
    assert beyond.end_s[0] - max(beyond.first_token_s) == pytest.approx(steps)


def test_a_compiled_program_runs_its_empty_slots():
    """One request of a program of four slots decodes as slowly as four do; none pads on a GPU."""
    replica = toy_replica(decode_kv_s=0.01)
    one = requests_of((0.0, 5, 3))
    compiled = serve(replica, one, Batching(4, buckets=(8,), runs_empty_slots=True))
    assert compiled.tpot_s[0] == pytest.approx(replica.decode_s(4, 4 * 8))
    alone = serve(replica, one, Batching(4))
    assert alone.tpot_s[0] < replica.decode_s(2, 2 * 7)
    # Three requests of vLLM's plug-in run as four, and a cache of eight tokens needs the next size.
    plugin = Batching(8, buckets=(8, 16), fills_programs=True)
    three = serve(replica, requests_of(*[(0.0, 8, 2)] * 3), plugin)
    assert three.tpot_s[2] == pytest.approx(replica.decode_s(4, 4 * 16))


def test_summary_has_the_keys_of_the_command_line():
    replica = toy_replica()
    served = serve(replica, requests_of((0.0, 10, 3), (0.0, 10, 1)))
    document = serving_summary(served, replica, Slo(2.5, 10.0))
    levels = {"p50": 2.0, "p90": 4.0, "p95": 4.0, "p99": 4.0}
    assert document["ttft_s"] == {**levels, "mean": 3.0, "n": 2}
    assert (document["tpot_s"]["n"], document["slo_attainment"]) == (1, 0.5)
    assert document["kv_peak_bytes"] == served.kv_peak_tokens * 2.0
    assert attained(served, Slo()).all()
    assert not attained(served, Slo(2.5, 10.0), first_by=2.0).any()


def test_a_closed_loop_keeps_its_users_busy():
    """Two users, three requests each of 2 s of prefill and one token: one after the other."""
    served = serve(toy_replica(), requests_of(*[(0.0, 10, 1)] * 6), users=2)
    assert served.end_s.tolist() == pytest.approx([2, 4, 6, 8, 10, 12])
    assert served.ttft_s.tolist() == pytest.approx([2, 4, 4, 4, 4, 4])


def test_chips_draw_full_power_while_they_work_and_cost_money_all_the_time():
    """One request of 3 s and one of 3 s, ten seconds later, on four chips."""
    requests = requests_of((0.0, 10, 1), (10.0, 10, 1))
    served = Deployment(toy_replica(chips=4), Batching(4)).run(requests)
    work_s = served.served.busy_s
    assert 0 < work_s < 10
    span_s = 10 + work_s / 2
    each = Economics(busy_w=500.0, idle_w=100.0, pue=1.5, usd_per_chip_s=0.25)
    spent = served.cost(each)
    joules = 4 * 1.5 * (500 * work_s + 100 * (span_s - work_s))
    assert spent["energy_joules"] == pytest.approx(joules)
    assert spent["joules_per_token"] == pytest.approx(joules / 2)
    assert spent["cost_usd"] == pytest.approx(4 * 0.25 * span_s)
    assert spent["usd_per_million_tokens"] == pytest.approx(4 * 0.25 * span_s * 1e6 / 2)
    slower = served.cost(each, longer=2.0, slower=100.0)  # all work fits the span
    assert slower["energy_joules"] == pytest.approx(4 * 1.5 * 500 * 2 * span_s)
    unknown = served.cost(Economics(busy_w=0.0, idle_w=0.0))
    assert list(unknown.values()) == [None, None, None, None]


TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 131_072.0])
SECONDS = np.array([0.003, 0.004, 0.009, 0.031, 3.1])
REPLICA = Profile("a", 1, TOKENS, SECONDS, 1e-7, 1e-6, 1e-10, 1e9, 1e5, 1e5 * 3000)


def batchings():
    """Batchings of all kinds: with and without pieces of prompts, polls, gathering and buckets."""
    usual = {
        "slots": st.sampled_from([1, 2, 7]),
        "buckets": st.sampled_from([(), (128, 256, 512, 1024)]),
        "overlapped": st.booleans(),
        "poll_passes": st.sampled_from([1, 3]),
    }
    in_pieces = {
        "chunk_tokens": st.sampled_from([64, 512]), "prompts": st.sampled_from(PROMPTS),
        "gather_passes": st.sampled_from([0, 4]), "gather_tokens": st.sampled_from([0, 300]),
    }  # fmt: skip
    return st.builds(Batching, **usual) | st.builds(Batching, **usual, **in_pieces)


@given(
    how=batchings(), seed=st.integers(0, 10**6), apart_s=st.sampled_from([0.0, 0.001, 1.0]),
    speculation=st.sampled_from([None, None, Speculation(2, 0.6), Speculation(1, 0.0, 0.2)]),
)  # fmt: skip
@examples(60)
def test_a_stretch_of_passes_is_as_long_as_single_passes(how, seed, apart_s, speculation):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 14))
    arrival_s = np.cumsum(draw.uniform(0, apart_s, count))
    requests = Requests(arrival_s, draw.integers(1, 400, count), draw.integers(1, 80, count))
    stretches, passes = (outcome(requests, how, speculation, single=of) for of in (False, True))
    np.testing.assert_allclose(stretches.first_token_s, passes.first_token_s, rtol=1e-9)
    np.testing.assert_allclose(stretches.end_s, passes.end_s, rtol=1e-9)
    assert stretches.iterations == passes.iterations
    assert stretches.kv_peak_tokens == passes.kv_peak_tokens


def outcome(requests, how, speculation, *, single):
    """Serve the requests with decode in stretches, or in single passes."""
    with pytest.MonkeyPatch.context() as patch:
        if single:
            patch.setattr(replica, "most_passes", lambda state: 1)
        return serve(REPLICA, requests, how, speculation=speculation, seed=1)


@pytest.mark.parametrize("growth", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.3, 1.0, 2.5, 9.9])
def test_a_stretch_ends_with_the_first_pass_that_is_not_before_a_time(seconds, growth):
    """Passes of 0.1 s, each longer than the one before it."""
    passes, end_s = 1, 0.1
    while end_s < seconds - 1e-9:
        end_s += 0.1 + passes * growth
        passes += 1
    assert passes_until(seconds, 0.1, growth) == passes
