"""Speculative decoding, and prefill and decode apart: closed forms, exact times, all tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from tests.support.examples import examples
from tests.support.toy_serving import toy_replica
from topologies.clusters.names import cluster
from workloads.economics import Economics
from workloads.models.huggingface import named
from workloads.serving import Profile, Requests, Speculation, fixed_lengths, poisson, profile, serve
from workloads.serving.batching import Batching
from workloads.serving.deployment import Deployment, Pools, PromptReplica, pools, serve_apart
from workloads.serving.replica import Speculating

SERVER = cluster("trn2.48xlarge")
PROMPT, OUTPUT, PROPOSED = 10_000, 1_500, 7
MEASURED = {("llama-3.1-70b", "bf16"): 5.631e-3, ("llama-3.1-405b", "fp8"): 8.265e-3}
"""Median time per token with seven proposals of Llama-3.2-1B, batch 1, one trn2.48xlarge [s].
AWS Neuron documentation, trn2-llama3.3-70b and trn2-llama3.1-405b-speculative tutorials."""


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
    drafts = Speculation(proposed, acceptance)
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
        batch.add(number, tokens)
    tokens, ended = [], 0
    while len(batch):
        ahead = batch.ahead()[:cut].tolist()
        together, done = batch.advance(len(ahead))
        assert together == sum(ahead)
        tokens += ahead
        ended += len(done)
    assert tokens == [sum(each) for each in one_by_one(outputs, speculation, 5)]
    assert ended == len(outputs)


def test_bound_by_arithmetic_every_refused_proposal_is_lost():
    busy = replace(flat(), tokens=np.array([0.0, 1e6]), linear_s=np.array([0.0, 1e3]))
    drafts = Speculation(PROPOSED, 0.8)
    assert drafts.speedup(busy, 64, 0.0) == pytest.approx(drafts.expected_tokens / (PROPOSED + 1))


def test_one_acceptance_explains_both_models_that_aws_measured():
    """The tutorials do not state it: what one model needs is held against the other's time."""
    needed = {}
    for (name, precision), measured_s in MEASURED.items():
        held = profile(named(name), SERVER, precision=precision)
        draft = profile(named("llama-3.2-1b"), SERVER)

        def off(acceptance, held=held, draft=draft, measured_s=measured_s):
            drafts = Speculation(PROPOSED, acceptance, draft)
            took = drafts.step_s(held, 1, PROMPT + OUTPUT / 2)
            return took / drafts.expected_tokens - measured_s

        needed[name] = brentq(off, 0.3, 0.999)
    first, second = needed.values()
    assert 0.8 < first < 0.95
    assert second == pytest.approx(first, abs=0.04)


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


def replica() -> Profile:
    """A millisecond a prompt token; a pass of decoding takes one, whatever it holds."""
    return toy_replica(
        chips=2, tokens=np.array([1.0, 2.0, 1e6]), linear_s=np.array([0.001, 0.002, 1000.0]),
        decode_kv_s=0.0, kv_bytes_per_token=1000.0, kv_budget_bytes=1e9,
    )  # fmt: skip


def requests_at(arrivals: list[float], prompt: int = 100, output: int = 11) -> Requests:
    many = len(arrivals)
    return Requests(np.array(arrivals), np.full(many, prompt), np.full(many, output))


def test_a_lone_request_is_processed_moved_and_decoded():
    # 100 tokens take 0.1 s; 100 kB at 1 MB/s take 0.1 s and 5 ms; ten tokens 10 ms.
    apart = serve_apart(replica(), requests_at([0.0]), Pools(1, 1, 1e6, 0.005))
    assert apart.served.first_token_s[0] == pytest.approx(0.1)
    assert apart.transfer_s[0] == pytest.approx(0.105)
    assert apart.served.end_s[0] == pytest.approx(0.1 + 0.105 + 0.010)
    assert (apart.prefill_busy_s, apart.decode_busy_s) == pytest.approx((0.1, 0.01))
    single = serve_apart(replica(), requests_at([0.0], output=1), Pools(1, 1, 1e6))
    assert single.served.end_s[0] == single.served.first_token_s[0]
    assert single.decode_busy_s == 0  # a single token needs no decoding


def test_prompts_queue_and_transfers_do_too():
    apart = serve_apart(replica(), requests_at([0.0, 0.0]), Pools(1, 2, 2e5))
    assert apart.served.first_token_s.tolist() == pytest.approx([0.1, 0.2])
    # Each transfer takes 0.5 s, and the replica sends one at a time.
    assert apart.arrived_s.tolist() == pytest.approx([0.6, 1.1])


def test_decoding_does_not_stand_still_for_prompts():
    """A single replica stops the first request's tokens for the prompts of others."""
    load = requests_at([0.0, 0.15, 0.25], output=200)
    together = serve(replica(), load, Batching(8))
    apart = serve_apart(replica(), load, Pools(1, 1, 1e12))
    assert together.tpot_s[0] > 1.5 * apart.served.tpot_s[0]


def test_waiting_for_a_prompt_is_that_of_a_queue_with_fixed_service():
    """M/D/1: mean wait = rho s / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    load, service = 0.7, 0.1
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(service / load, 40_000))
    apart = serve_apart(replica(), requests_at(arrivals.tolist(), output=1), Pools(1, 1, 1e12))
    wait = float((apart.prefill_end_s - arrivals - service).mean())
    assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


@examples(30)
@given(
    prompts=st.lists(st.integers(1, 300), min_size=1, max_size=15), prefill=st.integers(1, 3),
    decode=st.integers(1, 3), accepted=st.none() | st.floats(0, 1),
)  # fmt: skip
def test_every_request_ends_and_every_token_is_made(prompts, prefill, decode, accepted):
    many = len(prompts)
    output = np.arange(many) % 7 + 1
    load = Requests(np.linspace(0, 0.3, many), np.array(prompts), output)
    how = None if accepted is None else Speculation(3, accepted)
    apart = serve_apart(replica(), load, Pools(prefill, decode, 1e6), speculation=how)
    served = apart.served
    assert served.gap_count.sum() == output.sum() - many
    after = (served.gap_s * served.gap_count).sum()
    assert after == pytest.approx((served.end_s - served.first_token_s).sum())
    assert np.all(apart.prefill_end_s > load.arrival_s)
    assert np.all(apart.arrived_s > apart.prefill_end_s)
    later = output > 1
    assert np.all(apart.served.end_s[later] >= apart.arrived_s[later])
    assert apart.prefill_busy_s == pytest.approx(sum(replica().prefill_s(p) for p in prompts))


def test_caches_go_over_what_joins_the_replicas():
    model = named("llama-3.1-70b")
    for name, tp, kind in (("trn2-ultraserver", 16, "up"), ("trn2.48xlarge:4", 16, "out")):
        machine = cluster(name)
        apart = pools(machine, profile(model, machine, tp=tp), 1, 3)
        fabric = machine.scale_out
        rate = fabric.bandwidth_bytes_per_s * 16 if fabric else 0.0
        # EFA v3 gives a chip 25 GB/s; NeuronLink many times that.
        assert (apart.transfer_bytes_per_s == rate) == (kind == "out")
        assert apart.transfer_bytes_per_s >= rate
        deployment = Deployment(profile(model, machine, tp=tp), Batching(8), pools=apart)
        assert deployment.chips == 64
        assert deployment.most_at_once(fixed_lengths(100, 10)) == 3 * 8  # slots, not caches, bind


@pytest.mark.parametrize(("tp", "prefill", "decode", "count", "machines"), [
    (1, 1, 1, 1, 1), (8, 1, 2, 3, 5), (16, 1, 2, 3, 9), (3, 1, 4, 1, 1), (3, 1, 5, 1, 2),
    (3, 1, 2, 2, 2),
])  # fmt: skip
def test_machines_are_rented_whole_and_hold_whole_replicas(tp, prefill, decode, count, machines):
    """Of three chips each, a machine of 16 holds five replicas."""
    held, split = replace(replica(), chips=tp), Pools(prefill, decode, 1.0)
    each = Economics(1, 1, usd_per_chip_s=2.0 / 3600, machine_chips=16)
    rented = Deployment(held, Batching(8), pools=split).machines(each, count)
    assert rented == [(machines, 16, pytest.approx(32.0))]
    whole = [Economics.of(cluster(name)).machine_chips for name in ("gb200-nvl72", "tpu-v6e-pod")]
    assert whole == [72, 4]  # of a TPU pod, hosts are rented


def unlike(faster: float, rate: float = 1e12) -> Pools:
    """Pools whose prompts run on replicas that are faster by a factor."""
    faster_one = replace(replica(), linear_s=replica().linear_s / faster)
    machine = cluster("trn2.48xlarge")
    prompts = PromptReplica(faster_one, Batching(), machine, (Economics(1, 1), Economics(1, 1)))
    return Pools(1, 2, rate, slowest_bytes_per_s=rate / 4, prompts=prompts)


@examples(30)
@given(
    gaps=st.lists(st.floats(0, 0.3), min_size=1, max_size=20),
    faster=st.floats(1, 20),
    seed=st.integers(0, 99),
)
def test_a_faster_chip_for_prompts_never_slows_a_first_token(gaps, faster, seed):
    many = len(gaps)
    prompt = np.random.default_rng(seed).integers(1, 300, many)
    load = Requests(np.cumsum(gaps), prompt, np.full(many, 5))
    slow, fast = (serve_apart(replica(), load, unlike(by)).served.ttft_s for by in (1.0, faster))
    assert np.all(fast <= slow + 1e-12)
    alike = serve_apart(replica(), load, replace(unlike(1.0), prompts=None)).served
    assert slow.tolist() == alike.ttft_s.tolist()


def test_a_slower_network_delays_caches_alone():
    # 100 kB take 0.1 s at 1 MB/s and 0.4 s at a quarter of it.
    apart = serve_apart(replica(), requests_at([0.0]), unlike(2.0, 1e6))
    assert apart.served.first_token_s[0] == pytest.approx(0.05)
    assert apart.transfer_s[0] == pytest.approx(0.1)
    assert apart.late_s[0] == pytest.approx(0.3)
