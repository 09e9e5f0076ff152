"""Tables of a replica's capacity and what is kept of them."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.support.refusals import refused
from topologies.support.errors import InputError
from workloads.serving import Batching, Profile, Slo, Speculation, parse_slo, serve
from workloads.serving.batching import FIRST
from workloads.serving.deployment import Pools, PromptReplica
from workloads.serving.requests import Lengths, azure_lengths, fixed_lengths, poisson
from workloads.serving.tables import (
    TableRuns,
    _share_under,
    capacity_table,
    fixed_rate,
    saturated_rate,
    table_digest,
)


def test_capacity_table_is_monotone_and_cached(served_70b, tmp_path):
    slo = parse_slo("ttft=3s,tpot=100ms")
    lengths = azure_lengths("conv")
    arguments = {"batching": Batching(chunk_tokens=512), "requests": 400, "cache": tmp_path}
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
    between = [table.cost[:2, 0].mean(), table.cost[1:, 0].mean()]
    assert table.work(np.array([900.0, 1800.0]), 100.0) == pytest.approx(between)


def test_overloaded_fluid_drains_at_the_saturated_rate(served_70b):
    batching, lengths = Batching(chunk_tokens=512), azure_lengths("conv")
    most = saturated_rate(served_70b, lengths, TableRuns(batching=batching, requests=1000))
    table = capacity_table(served_70b, lengths, Slo(5.0, 0.2), batching=batching, requests=1000)
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


def test_a_share_between_two_quantiles_grows_evenly():
    latencies, levels = np.array([1.0, 2.0, 3.0, 5.0]), np.array([0.0, 0.5, 0.9, 0.99])
    shares = _share_under(latencies, levels, np.array([0.9, 1.0, 2.5, 4.0, 5.0, 6.0]))
    assert shares == pytest.approx([0, 0, 0.7, 0.945, 1, 1])


def test_the_attainment_between_two_loads_grows_evenly():
    """Limit of 1 s: of first tokens within 0.4, 2 and 1 s, a wait of 0.5 s costs none or half."""
    table = replace(
        fixed_rate(1.0), utilisation=np.array([0.0, 0.5, 1.0]), quantiles=np.array([0.0, 1.0]),
        ttft_s=np.outer([0.4, 2.0, 1.0], [0, 1]), attainment=np.array([1.0, 0.6, 0.2]),
    )  # fmt: skip
    kept = table.attained([0.0, 0.25, 0.5, 0.75, 1.0], 0.5)
    assert kept == pytest.approx([1.0, 0.65, 0.3, 0.2, 0.1])


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
        "fills_programs": True, "date": "2025-10",
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
