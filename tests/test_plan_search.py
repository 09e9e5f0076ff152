"""The search for plans: candidates, what fits, communication, closed forms, the estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_training import TOY, plan, sixteen

from cluster_sim.instants import PS_PER_S
from topologies.catalogue import catalogue
from topologies.errors import InputError
from topologies.machines import cluster
from workloads.huggingface import named
from workloads.search import agreement, candidates, describe, estimate, fit, search
from workloads.search.candidates import divisors
from workloads.search.estimate import group
from workloads.search.passes import span
from workloads.search.pipeline import Pipelines, pipeline_s, streamed_s
from workloads.search.talk import BLOCKS, SIZES, talk_s
from workloads.training.iteration import iteration
from workloads.training.memory import worst
from workloads.training.ops import Catalog
from workloads.training.pipeline import bubble_fraction
from workloads.training.placement import place
from workloads.training.plan import ParallelPlan, check_model, check_ranks
from workloads.training.program import exchange_ps
from workloads.training.steps import CC, ENGINE, NOTHING, Step

SHORT = {"seq": 1024}


@given(st.integers(1, 5000))
def test_divisors_are_all_that_divide(size: int) -> None:
    assert divisors(size) == [part for part in range(1, size + 1) if size % part == 0]


def test_every_candidate_is_a_plan_of_the_trainer_and_stands_once() -> None:
    found = candidates(TOY, sixteen(), 32, stated=SHORT)
    for one in found.plans:
        check_model(one, TOY)
        check_ranks(one, 16)
        assert one.global_batch == 32
        assert one.overlap == "all"
    assert len(set(found.plans)) == len(found) > 100
    assert {one.tp * one.pp * one.dp for one in found.plans} == {16}


def test_what_makes_no_difference_is_not_varied() -> None:
    for one in candidates(TOY, sixteen(), 32, stated=SHORT).plans:
        assert one.tp > 1 or not one.sequence_parallel
        assert one.dp > 1 or one.zero == 1
        assert (one.pp > 1 and one.dp > 1) or one.order == ("tp", "cp", "dp", "pp")
        assert one.recompute != "none"
        assert one.schedule == "1f1b"
    unfused = candidates(TOY, sixteen(), 32, stated={**SHORT, "attention": "unfused"})
    assert {one.recompute for one in unfused.plans} == {"none", "selective", "full"}


def test_what_is_stated_is_not_varied() -> None:
    stated = {"tp": 4, "microbatch": 2, "schedule": "gpipe", "order": "tp-cp-pp-dp", "zero": None}
    found = candidates(TOY, sixteen(), 32, stated=stated).plans
    assert {(one.tp, one.microbatch, one.schedule) for one in found} == {(4, 2, "gpipe")}
    assert {one.order for one in found} == {("tp", "cp", "pp", "dp")}
    assert {one.zero for one in found if one.dp > 1} == {0, 1}


REFUSED: list[tuple[int, dict[str, Any], str]] = [
    (32, {"tp": 3}, "16 attention heads of toy are not divisible by tp 3. Use tp 2"),
    (32, {"pp": 16}, "pp 16 × vpp 1 = 16 stages, but toy has 8 layers. Use pp 8 or less"),
    (32, {"tp": 4, "pp": 8}, r"tp 4 × pp 8 cannot be completed to the 16 ranks .* Use divisors"),
    (32, {"dp": 5}, "dp 5 cannot be completed to the 16 ranks"),
    (6, {"dp": 4}, "global batch 6 is not a multiple of .* dp 4 .* Use 4 or 8"),
    (1, {"dp": 4}, "the fewest replicas are dp 4 with microbatch 1 = 4. Use 4"),
    (16, {"microbatch": 3}, "dp 1 with microbatch 3 = 3. Use 15 or 18"),
    (0, {}, "global_batch is 0"),
    (32, {"recompute": "ful"}, r"Did you mean full\?"),
    (32, {"order": "tp-dp"}, "rank order tp-dp does not name each"),
    (32, {"tp": 0}, "tp is 0"),
    (32, {"tp": 16, "seq": 1000, "sequence_parallel": True}, "1,000 tokens"),
]


@pytest.mark.parametrize(("batch", "stated", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    batch: int, stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        candidates(TOY, sixteen(), batch, stated={**SHORT, **stated})
    assert "\n" not in str(caught.value)


def test_plain_shapes_have_no_plans() -> None:
    ring = cluster("ring:8", bandwidth="1GB/s", latency="1us")
    with pytest.raises(InputError, match="ring:8 is a plain shape"):
        candidates(TOY, ring, 8)


def test_memory_is_that_of_the_trainer() -> None:
    found = candidates(TOY, sixteen(), 32, stated={"seq": 65536})
    made = fit(found)
    sizes = [worst(TOY, one, catalogue(), "trn2") for one in found.plans]
    assert made.total_bytes.tolist() == [one.total for one in sizes]
    assert made.fits.tolist() == [one.total <= one.capacity for one in sizes]
    assert 0 < made.fits.sum() < len(found)


def test_when_nothing_fits_the_nearest_plan_is_named_with_the_bytes_missing() -> None:
    big, where = named("llama-3.1-405b"), sixteen()
    found = candidates(big, where, 8, stated=SHORT)
    over = {
        one: need.total - need.capacity
        for one in found.plans
        for need in [worst(big, one, catalogue(), "trn2")]
    }
    nearest = min(over, key=lambda one: over[one])
    with pytest.raises(InputError) as caught:
        fit(found)
    said = str(caught.value)
    assert f"none of {len(found)} plans for llama-3.1-405b fits on trn2.48xlarge" in said
    assert describe(nearest) in said
    assert f"{over[nearest]:,} more than its" in said
    assert "\n" not in said


@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp", "etp", "ep", "edp"])
@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("pp", "dp", "tp", "cp")])
def test_groups_are_those_of_the_placement(axis: str, order: tuple[str, ...]) -> None:
    for per_chip in (1, 2):
        degrees = {"tp": 2, "cp": 2, "pp": 2, "dp": 2 * per_chip, "ep": 4, "etp": 1}
        one = plan(**degrees, order=order, ranks_per_chip=per_chip)
        placed = place(one, sixteen())
        chips = placed.chip[placed.groups(axis)]
        assert group(one, axis).tolist() in chips.tolist()


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter"])
def test_within_a_domain_times_of_the_sizes_that_were_run_are_exact(op: str) -> None:
    chips = np.arange(8)
    times = talk_s(sixteen(), chips, op, SIZES[:3])
    exact = [exchange_ps(sixteen(), chips, op, size) / PS_PER_S for size in SIZES[:3]]
    assert times.tolist() == exact


def test_between_domains_a_hop_is_exact_and_a_ring_is_its_rounds() -> None:
    four = cluster("trn2.48xlarge:4")
    pair = np.array([0, 16])
    sent = talk_s(four, pair, "send", BLOCKS[2])
    assert float(sent) == exchange_ps(four, pair, "send", BLOCKS[2]) / PS_PER_S
    ring, size = np.arange(4) * 16, 2**26
    exact = exchange_ps(four, ring, "all-gather", size) / PS_PER_S
    assert float(talk_s(four, ring, "all-gather", size)) == pytest.approx(exact, rel=0.02)


def test_over_and_within_domains_the_longer_part_counts() -> None:
    four = cluster("trn2.48xlarge:4")
    chips, size = np.arange(64).reshape(4, 16)[:, ::4].ravel(), 2**28
    for op in ("all-gather", "reduce-scatter", "all-reduce"):
        exact = exchange_ps(four, chips, op, size) / PS_PER_S
        assert float(talk_s(four, chips, op, size)) == pytest.approx(exact, rel=0.1)
    assert talk_s(four, np.array([5]), "all-reduce", [1, 2]).tolist() == [0.0, 0.0]


def test_on_nvidia_machines_times_are_those_of_the_simulator() -> None:
    h100 = cluster("dgx-h100:4")
    chips, sizes = np.arange(16) * 2, [2**20, 2**28]
    exact = [exchange_ps(h100, chips, "all-reduce", size) / PS_PER_S for size in sizes]
    assert talk_s(h100, chips, "all-reduce", sizes).tolist() == exact


def test_a_block_of_ops_is_followed_exactly() -> None:
    steps = [
        Step("a", "compute", ENGINE, 2.0),
        Step("b", "tp", CC, axis="tp", collective="all-gather"),
        Step("c", "compute", ENGINE, 1.0, after=NOTHING),
        Step("d", "compute", ENGINE, 1.0, after="b"),
    ]
    catalog = Catalog()
    found = span(catalog.ops(steps), catalog.steps, lambda step: 3.0)
    assert (found.total_s, found.busy_s) == (6.0, 4.0)


def pipes(stages: int, microbatches: int, *, gpipe: bool = False, hop_s: float = 0.0) -> Pipelines:
    """Pipelines of one plan with equal stages: 1 s forward, 2 s backward."""
    return Pipelines(
        stages=np.array([stages]),
        microbatches=np.array([microbatches]),
        gpipe=np.array([gpipe]),
        forward_s=np.ones((3, 1)),
        backward_s=2 * np.ones((3, 1)),
        hop_s=np.array([hop_s]),
        hops_s=np.array([(stages - 1) * hop_s]),
        waits=np.array([False]),
    )


@given(st.integers(1, 32), st.integers(1, 64), st.booleans())
def test_equal_stages_have_the_bubble_of_the_books(
    stages: int, microbatches: int, gpipe: bool
) -> None:
    found = float(pipeline_s(pipes(stages, microbatches, gpipe=gpipe))[0])
    ideal = 3.0 * microbatches
    assert found / ideal - 1 == pytest.approx(bubble_fraction(stages, microbatches), abs=1e-12)


def test_in_1f1b_long_transfers_slow_every_microbatch() -> None:
    few, many = (float(pipeline_s(pipes(4, m, hop_s=1.0))[0]) for m in (10, 11))
    assert many - few == pytest.approx((4 * 3.0 + 2 * 3.0) / 4)


@given(st.integers(1, 40), st.floats(0.1, 5), st.floats(0.1, 5))
def test_streams_beside_layers_end_as_two_machines_in_line(
    layers: int, work_s: float, talk: float
) -> None:
    ends = 0.0
    for layer in range(layers):
        ends = max(ends, (layer + 1) * work_s) + talk
    found = streamed_s(np.array([layers]), np.array([work_s]), np.array([talk]))
    assert float(found[0]) == pytest.approx(ends - layers * work_s)


PLANS: list[dict[str, Any]] = [
    {"dp": 16},
    {"tp": 8, "dp": 2, "sequence_parallel": False},
    {"tp": 4, "pp": 2, "dp": 2},
    {"tp": 2, "pp": 4, "dp": 2, "order": ("tp", "cp", "pp", "dp")},
    {"pp": 8, "dp": 2, "zero": 0},
    {"tp": 16, "recompute": "full"},
    {"tp": 2, "pp": 2, "dp": 4, "schedule": "gpipe", "microbatch": 2},
]


@pytest.mark.parametrize("overlap", ["none", "dp", "all"])
@pytest.mark.parametrize("machine", ["trn2.48xlarge", "dgx-h100:2"])
def test_estimates_are_near_the_simulation_and_in_its_order(machine: str, overlap: str) -> None:
    where, made = cluster(machine), []
    for changes in PLANS:
        one = plan(**{"overlap": overlap, **changes})
        batch = 8 * one.dp * one.microbatch
        made.append(replace(one, global_batch=batch, sequence_parallel=one.sp > 1))
    found = estimate(TOY, where, made).iteration_s
    simulated = [iteration(TOY, where, one, allow_oversized=True).iteration_s for one in made]
    told = agreement(list(zip(found.tolist(), simulated, strict=True)))
    assert told.worst_abs_error < 0.05
    assert told.kendall_tau == 1.0


def test_ranks_that_share_chips_and_domains_are_estimated_too() -> None:
    where = cluster("trn1.32xlarge:2")
    one = ParallelPlan(
        tp=8, dp=8, global_batch=64, seq=1024, ranks_per_chip=2, overlap="all", microbatch=2
    )
    found = estimate(TOY, where, [one]).iteration_s[0]
    assert found == pytest.approx(iteration(TOY, where, one).iteration_s, rel=0.05)


def test_the_search_finds_the_best_of_all_plans() -> None:
    stated = {"seq": 1024, "recompute": "selective", "order": "tp-cp-dp-pp", "zero": 1}
    every = candidates(TOY, sixteen(), 16, stated=stated).plans
    simulated = {one: iteration(TOY, sixteen(), one).iteration_s for one in every}
    found = search(TOY, sixteen(), 16, stated=stated, finalists=4)
    best = found.finalists[0]
    assert best.iteration_s == min(simulated.values())
    assert simulated[best.plan] == best.iteration_s
    assert (found.candidates, found.fitting) == (len(every), len(every))
    times = [one.iteration_s for one in found.finalists]
    assert times == sorted(times)
    assert found.next_estimate_s is not None
    assert found.next_estimate_s >= max(one.estimate_s for one in found.finalists)
    for one in found.finalists:
        assert sum(one.breakdown_s.values()) == pytest.approx(one.iteration_s, rel=1e-9)
        assert one.memory.total <= one.memory.capacity


def test_only_what_there_is_is_simulated_and_progress_is_told() -> None:
    seen: list[int] = []

    def watch(places: Any) -> Any:
        for place_ in places:
            seen.append(place_)
            yield place_

    stated = {**SHORT, "tp": 16, "microbatch": 1, "recompute": "full"}
    found = search(TOY, sixteen(), 8, stated=stated, finalists=50, watch=watch)
    assert seen == [0, 1] == list(range(found.fitting))
    assert found.next_estimate_s is None
    with pytest.raises(InputError, match="finalists is 0"):
        search(TOY, sixteen(), 8, finalists=0)


def test_agreement_of_one_plan_has_no_order() -> None:
    told = agreement([(1.1, 1.0)])
    assert told.kendall_tau is None
    assert told.worst_abs_error == pytest.approx(0.1)
    assert agreement([(1.0, 2.0), (2.0, 1.0)]).kendall_tau == -1.0
