"""Speculative decoding: closed forms, exact times, all tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_serving import toy_replica
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import (
    Profile,
    Requests,
    Speculation,
    fixed_lengths,
    parse_speculation,
    poisson,
    profile,
    serve,
)
from workloads.serving.batching import Batching
from workloads.serving.replica import Speculating

SERVER = cluster("trn2.48xlarge")


def flat() -> Profile:
    """A replica whose passes take the same time whatever they hold: bound by memory."""
    return toy_replica(
        tokens=np.array([1.0, 1e6]), linear_s=np.full(2, 0.01), decode_kv_s=0.0,
        kv_bytes_per_token=1.0, kv_budget_bytes=1e9,
    )  # fmt: skip


def alone(output: int) -> Requests:
    return Requests(np.zeros(1), np.array([10]), np.array([output]))


def test_a_prompt_beside_no_decoding_request_waits_for_no_draft():
    """An iteration takes 10 ms, and a draft 4 ms more where a request decodes."""
    two = Requests(np.array([0.0, 0.011]), np.array([10, 10]), np.array([50, 1]))
    batching, guess = Batching(4, chunk_tokens=64), Speculation(2, 0.5, 0.2)
    served = serve(flat(), two, batching, speculation=guess, seed=1)
    assert served.first_token_s == pytest.approx([0.010, 0.038])


@pytest.mark.parametrize(
    ("proposed", "acceptance", "tokens"), [(2, 0.6, 1.96), (3, 0.7, 2.533), (5, 0.8, 3.689)]
)
def test_tokens_of_a_pass_have_a_closed_form(proposed, acceptance, tokens):
    drafts = parse_speculation(f"{proposed}:{acceptance:.0%}", lambda _: flat())
    assert drafts.acceptance == acceptance
    assert drafts.expected_tokens == pytest.approx(tokens, rel=1e-3)
    drawn = drafts.draw(200_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(tokens, rel=0.01)
    assert (drawn.min(), drawn.max()) == (1, proposed + 1)
    assert (drawn > 1).mean() == pytest.approx(acceptance, abs=0.01)


def test_a_lone_request_whose_proposals_are_all_accepted():
    # First token with the prompt, then 3 a pass: 10 more take four passes.
    served = serve(flat(), alone(11), speculation=Speculation(2, 1.0))
    assert served.iterations == 1 + 4
    assert served.end_s[0] == pytest.approx(0.05)
    assert served.tpot_s[0] == pytest.approx(0.04 / 10)
    assert Speculation(2, 1.0).speedup(flat(), 1, 100.0) == pytest.approx(3)
    # A draft takes its share of every pass.
    drafted = serve(flat(), alone(11), speculation=Speculation(2, 1.0, draft=0.25))
    assert drafted.end_s[0] == pytest.approx(0.01 + 4 * 0.01 * 1.5)


def test_bound_by_memory_the_gain_is_that_of_theory():
    """Leviathan et al., theorem 3.8: (1 - a^(k+1)) / ((1 - a) (k c + 1))."""
    drafts, share = Speculation(5, 0.8, draft=0.1), 3.689 / 1.5
    plain = serve(flat(), alone(20_001)).end_s[0]
    fast = serve(flat(), alone(20_001), speculation=drafts).end_s[0]
    assert plain / fast == pytest.approx(share, rel=0.02)
    assert drafts.speedup(flat(), 1, 100.0) == pytest.approx(share, rel=1e-3)


@examples(30)
@given(
    outputs=st.lists(st.integers(1, 60), min_size=1, max_size=12), proposed=st.integers(1, 8),
    acceptance=st.floats(0, 1), chunk=st.sampled_from([0, 64]),
)  # fmt: skip
def test_every_token_is_made_once(outputs, proposed, acceptance, chunk):
    many = len(outputs)
    load = Requests(np.linspace(0, 0.1, many), np.full(many, 30), np.array(outputs))
    served = serve(flat(), load, Batching(4, chunk), speculation=Speculation(proposed, acceptance))
    assert served.gap_count.sum() == sum(outputs) - many
    assert np.all(served.end_s >= served.first_token_s)
    assert np.all(np.isfinite(served.end_s))
    after = (served.gap_s * served.gap_count).sum()
    assert after == pytest.approx((served.end_s - served.first_token_s).sum())


def one_by_one(requests: list[int], speculation: Speculation, seed: int) -> list[list[int]]:
    """Tokens of each pass, request by request, with draws of that pass alone."""
    rng, left, passes = np.random.default_rng(seed), np.array(requests), []
    while len(left):
        taken = np.minimum(left, speculation.draw(len(left), rng))
        passes.append(taken.tolist())
        left = (left - taken)[left > taken]
    return passes


@examples(40)
@given(
    outputs=st.lists(st.integers(1, 300), min_size=1, max_size=9), proposed=st.integers(1, 8),
    acceptance=st.floats(0, 1), cut=st.integers(1, 40),
)  # fmt: skip
def test_passes_drawn_ahead_are_those_drawn_one_by_one(outputs, proposed, acceptance, cut):
    speculation = Speculation(proposed, acceptance)
    batch = Speculating(speculation, np.random.default_rng(5))
    for number, tokens in enumerate(outputs):
        batch.add(number, tokens, tokens)
    tokens, ended = [], 0
    while len(batch):
        ahead = batch.ahead()[:cut].tolist()
        together, done = batch.advance(len(ahead))
        assert together == sum(ahead)
        tokens += ahead
        ended += len(done)
    assert tokens == [sum(each) for each in one_by_one(outputs, speculation, 5)]
    assert ended == len(outputs)


def test_the_longest_request_of_a_batch_that_speculates():
    """All proposals are accepted, so that each pass gives two tokens of a request."""
    batch = Speculating(Speculation(1, 1.0), np.random.default_rng(0))
    batch.add(0, 10, 30)
    batch.add(1, 6, 40)
    assert batch.longest() == 34
    batch.advance(1)
    assert batch.longest() == 36
    assert batch.drop(1) == 4
    assert batch.longest() == 22


def test_a_replica_under_load_matches_the_fluid_term():
    """Saturated at 16 requests, decoding only: the replica's rate over that without proposals."""
    held = profile(named("llama-3.1-8b"), SERVER, tp=4)
    drafts, lengths = Speculation(3, 0.8), fixed_lengths(16, 2000)
    many = poisson(np.inf, 16, lengths, np.random.default_rng(0))
    plain = serve(held, many, Batching(16)).end_of_run_s
    fast = serve(held, many, Batching(16), speculation=drafts).end_of_run_s
    speedup = drafts.speedup(held, 16, 16 * 1000.0)
    # The last requests decode in smaller batches, and each has luck of its own.
    assert plain / fast == pytest.approx(speedup, rel=0.08)


def test_a_draft_takes_memory():
    held = profile(named("llama-3.1-70b"), SERVER)
    draft = profile(named("llama-3.2-1b"), SERVER)
    both = Speculation(4, 0.8, draft).beside(held)
    assert both.weights_bytes == held.weights_bytes + draft.weights_bytes
    assert both.kv_tokens < held.kv_tokens
