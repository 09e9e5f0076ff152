"""Prefill and decode on replicas of their own: exact times, queues, all tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_serving import toy_replica
from topologies.clusters.names import cluster
from workloads.economics import Economics
from workloads.models.huggingface import named
from workloads.serving import Profile, Requests, Speculation, fixed_lengths, profile
from workloads.serving.batching import Batching
from workloads.serving.deployment import Deployment, Pools, PromptReplica, pools, serve_apart

SERVER = cluster("trn2.48xlarge")


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
    larger = replace(unlike(1.0).prompts, profile=replace(replica(), chips=4))
    even, uneven = (pools(SERVER, replica(), 1, 2, prompts) for prompts in (None, larger))
    assert uneven.transfer_bytes_per_s == even.transfer_bytes_per_s  # the two chips of an end bind


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


@pytest.mark.parametrize(("decode", "price", "machines"), [
    (2, 2.0, [(5, 32.0)]), (5, 2.0, [(6, 32.0)]), (2, 4.0, [(2, 32.0), (2, 64.0)]),
])  # fmt: skip
def test_unlike_pools_on_one_kind_of_machine_lie_in_one_that_holds_both(decode, price, machines):
    """Prompts on four chips beside decoding on three each: ten chips of 16, 19, or two kinds."""
    each = Economics(1, 1, usd_per_chip_s=2.0 / 3600, machine_chips=16)
    other = replace(each, usd_per_chip_s=price / 3600)
    prompts = PromptReplica(replace(replica(), chips=4), Batching(), SERVER, (each, other))
    split = Pools(1, decode, 1.0, prompts=prompts)
    deployment = Deployment(replace(replica(), chips=3), Batching(8), pools=split)
    rented = [(number, 16, pytest.approx(usd)) for number, usd in machines]
    assert deployment.machines(each, 5) == rented


def unlike(faster: float, rate: float = 1e12) -> Pools:
    """Pools whose prompts run on replicas that are faster by a factor."""
    faster_one = replace(replica(), linear_s=replica().linear_s / faster)
    prompts = PromptReplica(faster_one, Batching(), SERVER, (Economics(1, 1), Economics(1, 1)))
    return Pools(1, 2, rate, slowest_bytes_per_s=rate / 4, prompts=prompts)
