"""Alternatives of fields that nobody stated: which are tried, and what an answer says of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim import train
from experiments.reports.remarks import assumed_document, assumed_sentences
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import Alternative, common_frameworks, hull

MACHINE = "dgx-h100:2"
STATED = {
    "tp": 8, "global_batch": 16, "microbatch": 1, "recompute": "none", "overlap": "dp", "zero": 1,
}  # fmt: skip


def test_a_plan_that_states_all_has_no_alternatives() -> None:
    step = train("llama-3.1-8b", MACHINE, ParallelPlan(tp=8, dp=2, global_batch=16))
    assert step.alternatives == ()


def test_each_unstated_field_is_varied_alone() -> None:
    named_fields = {"framework": "megatron-core", "tp": 8, "global_batch": 16}
    step = train("llama-3.1-8b", MACHINE, **named_fields)
    fields = {other.field for other in step.alternatives}
    assert fields == {"recompute", "overlap", "zero", "sequence_parallel", "microbatch"}
    full = next(other for other in step.alternatives if other.value == "full")
    stated = train(
        "llama-3.1-8b", MACHINE, framework="megatron-core", tp=8, global_batch=16, recompute="full"
    )
    assert full.ratio == pytest.approx(stated.time_s / step.time_s)


def test_another_framework_takes_as_long_as_if_it_were_named() -> None:
    """Its own numbers count, not those of the framework that was taken for the answer."""
    sharded = {"zero": 3, "global_batch": 64}
    step = train("llama-3.1-8b", MACHINE, **sharded)
    ratios = {other.value: other.ratio for other in step.alternatives if other.field == "framework"}
    assert step.framework.name == "fsdp"
    assert ratios.keys() >= {"torchtitan", "megatron-core"}
    for name in ("torchtitan", "megatron-core"):
        as_named = train("llama-3.1-8b", MACHINE, framework=name, **sharded)
        assert ratios[name] == pytest.approx(as_named.time_s / step.time_s)
        assert ratios[name] < 0.9


def test_exchanges_that_nobody_named_may_be_of_another_kind() -> None:
    """The answer says what an all-to-all would take; who names an exchange has it."""
    plan = {"tp": 2, "pp": 2, "ep": 8, "global_batch": 64}
    step = train("mixtral-8x7b", "dgx-h100:4", **plan)
    ratios = {other.value: other.ratio for other in step.alternatives}
    as_named = train("mixtral-8x7b", "dgx-h100:4", framework=":alltoall", **plan)
    assert ratios["megatron-core:alltoall"] == pytest.approx(as_named.time_s / step.time_s)
    assert ratios["megatron-core:alltoall"] > 1.05
    assert "megatron-core:alltoall" not in {other.value for other in as_named.alternatives}


def test_less_stated_is_less_sure() -> None:
    fields = {**STATED, "sequence_parallel": True}
    widths = [
        step.interval.high / step.interval.low
        for step in (
            train("llama-3.1-8b", MACHINE, framework="megatron-core", **fields),
            train("llama-3.1-8b", MACHINE, **fields),
            train("llama-3.1-8b", MACHINE, tp=8, global_batch=16),
        )
    ]
    assert widths == sorted(widths)


def test_plans_that_do_not_fit_are_not_plausible() -> None:
    """70 G parameters on eight chips fit with ZeRO-3 alone."""
    step = train("llama-3.1-70b", "dgx-h100:8", recompute="full", zero=3, global_batch=64)
    assert not [other for other in step.alternatives if other.field == "zero"]
    open_ = train("llama-3.1-8b", "dgx-h100:8", global_batch=64)
    assert 3 in [other.value for other in open_.alternatives if other.field == "zero"]


def test_who_shards_parameters_takes_the_largest_microbatch_that_fits() -> None:
    """Gathers for each of sixteen microbatches are nobody's plan, unless the size is stated."""
    named_fields = {"tp": 8, "global_batch": 32, "recompute": "none", "overlap": "dp"}
    open_size = train("llama-3.1-8b", MACHINE, **named_fields)
    stated = train("llama-3.1-8b", MACHINE, microbatch=1, **named_fields)
    ratios = [
        next(other.ratio for other in step.alternatives if other.value == "torchtitan")
        for step in (open_size, stated)
    ]
    largest = train(
        "llama-3.1-8b", MACHINE, microbatch=16, framework="torchtitan", zero=3, **named_fields
    )
    assert ratios[0] == pytest.approx(largest.time_s / open_size.time_s)
    assert ratios[1] * stated.time_s > 2 * ratios[0] * open_size.time_s


def _both(*ratios: float) -> float:
    """Ratio of fields that are independent: squares of logarithms add."""
    return math.exp(math.hypot(*map(math.log, ratios)))


def test_squares_of_the_effects_of_fields_add() -> None:
    others = [Alternative("recompute", "full", 1.3), Alternative("overlap", "all", 0.9)]
    assert hull(others) == pytest.approx((0.9, 1.3))
    with_framework = [*others, Alternative("framework", "fsdp", 1.1)]
    assert hull(with_framework) == pytest.approx((0.9, _both(1.3, 1.1)))
    assert hull([]) == (1.0, 1.0)
    # A framework that shards parameters and sharded parameters are one effect, not two.
    sharding = Alternative("framework", "fsdp", 1.6, frozenset({"framework", "zero"}))
    assert hull([*others, sharding, Alternative("zero", 3, 1.5, frozenset({"zero"}))]) == (
        pytest.approx((0.9, _both(1.6, 1.3)))
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.5, 2.0)), max_size=8))
def test_a_hull_reaches_each_alternative_and_no_further_than_their_product(pairs) -> None:
    others = [Alternative(field, place, ratio) for place, (field, ratio) in enumerate(pairs)]
    low, high = hull(others)
    assert low <= min([1.0, *(ratio for _, ratio in pairs)]) * (1 + 1e-9)
    assert high >= max([1.0, *(ratio for _, ratio in pairs)]) * (1 - 1e-9)
    most = math.prod(max([1.0, *(r for f, r in pairs if f == field)]) for field in "abc")
    assert high <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("machine", "fields", "expected"),
    [
        ("dgx-h100", {"tp": 8}, ("megatron-core", "torchtitan")),
        (
            "dgx-h100",
            {"zero": 3, "dp": 8, "global_batch": 8},
            ("fsdp", "megatron-core", "torchtitan"),
        ),
        ("dgx-h100", {}, ("megatron-core", "torchtitan", "transformers")),
        ("dgx-a100", {"attention": "unfused"}, ("megatron-deepspeed", "megatron-lm")),
        ("trn2.48xlarge", {"tp": 8}, ("axlearn", "neuronx")),
        ("trn2.48xlarge", {"tp": 8, "pp": 2}, ("neuronx",)),
        ("tpu-v6e-pod", {"zero": 3, "dp": 8, "global_batch": 8}, ("axlearn", "maxtext")),
    ],
)
def test_frameworks_in_use_depend_on_chip_and_plan(machine, fields, expected) -> None:
    assert common_frameworks(ParallelPlan(**fields), cluster(machine)) == expected


def test_an_answer_says_what_was_assumed() -> None:
    step = train("llama-3.1-8b", "dgx-h100:8", global_batch=64)
    framework, others = assumed_sentences(step)
    assert framework.startswith("Framework not stated: predicted as megatron-core; fsdp would")
    assert "recompute selective (full would be" in others
    document = assumed_document(step)
    assert document["framework"] == "megatron-core"
    assert {entry["value"] for entry in document["assumed"]["framework"]["alternatives"]} >= {
        "fsdp"
    }
    named_step = train(
        named("llama-3.1-8b"), MACHINE, framework="torchtitan", **STATED, sequence_parallel=True
    )
    assert assumed_sentences(named_step) == []
