"""Fields of a plan that change nothing are named, and those that change the step are not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from experiments.reports.training import document
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ORDER, PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules.registry import schedule_names
from workloads.training.plan.stages import DEFAULTS, idle_fields, idle_fields_in_all
from workloads.training.usual_plan import complete

NO_EXPERTS = "the model has no experts"
OF_1F1B = "1f1b with vpp 1 has the same passes"
NO_ORDER = "an axis of one rank has no order"
EACH: list[tuple[Model, dict[str, Any], dict[str, Any], str]] = [
    (TOY, {"dp": 8, "tp": 2}, {"etp": 1}, NO_EXPERTS),
    (SPARSE, {"dp": 8, "tp": 2, "ep": 4}, {"etp": 2}, "tp is 2 as well"),
    (TOY, {"dp": 16}, {"routing_skew": 1.5}, NO_EXPERTS),
    (SPARSE, {"dp": 16}, {"routing_skew": 1.5}, "ep is 1"),
    (
        *(SPARSE, {"dp": 16, "ep": 2, "capacity_factor": 2.0}, {"routing_skew": 1.5}),
        "the capacity factor sets the load of experts",
    ),
    (TOY, {"dp": 16}, {"cp_exchange": "all-gather"}, "cp is 1"),
    (TOY, {"dp": 16}, {"recompute": "none"}, "attention is fused"),
    (TOY, {"dp": 16}, {"recompute_every": 2}, "recompute is selective"),
    (TOY, {"dp": 16}, {"reshard": False}, "zero is 1"),
    (TOY, {"dp": 16, "reshard": False}, {"zero": 2}, "without resharding it acts as ZeRO-1"),
    (TOY, {"dp": 16}, {"schedule": "interleaved"}, OF_1F1B),
    (TOY, {"dp": 8, "pp": 2}, {"schedule": "interleaved"}, OF_1F1B),
    (TOY, {"dp": 16}, {"stage_layers": (8,)}, "pp is 1"),
    (TOY, {"dp": 8, "pp": 2}, {"stage_layers": (4, 4)}, "layers are divided so by default"),
    (TOY, {"dp": 16}, {"sequence_parallel": False}, "tp is 1"),
    (TOY, {"dp": 16}, {"sample_tokens": 1024}, "a sample fills its sequence"),
    (TOY, {"dp": 16}, {"order": ("pp", "tp", "cp", "dp")}, NO_ORDER),
    (
        *(TOY, {"dp": 8, "tp": 2}, {"order": ("pp", "tp", "dp", "cp")}),
        f"tp and dp keep their order, and {NO_ORDER}",
    ),
    (TOY, {"dp": 16, "overlap": "dp"}, {"overlap": "all"}, "tp, pp and ep are 1"),
    (TOY, {"dp": 16}, {"bucket_bytes": 10**6}, "overlap is none"),
    (
        *(TOY, {"dp": 16, "zero": 3, "overlap": "dp"}, {"bucket_bytes": 10**6}),
        "under ZeRO-3 each layer is a bucket",
    ),
    (TOY, {"tp": 4, "pp": 4, "overlap": "dp"}, {"bucket_bytes": 10**6}, "dp and cp are 1"),
]
WITH_EFFECT: list[tuple[Model, dict[str, Any], dict[str, Any]]] = [
    (SPARSE, {"dp": 8, "tp": 2, "ep": 4}, {"etp": 1}),
    (SPARSE, {"dp": 16, "ep": 4}, {"routing_skew": 1.5}),
    (TOY, {"dp": 8, "cp": 2}, {"cp_exchange": "all-gather"}),
    (TOY, {"dp": 16, "attention": "unfused"}, {"recompute": "none"}),
    (TOY, {"dp": 16, "recompute": "full"}, {"recompute_every": 2}),
    (TOY, {"dp": 16, "zero": 3}, {"reshard": False}),
    (TOY, {"dp": 16, "reshard": False}, {"zero": 3}),
    (TOY, {"dp": 16}, {"schedule": "gpipe"}),
    (TOY, {"dp": 16}, {"schedule": "zero-bubble"}),
    (TOY, {"dp": 8, "pp": 2}, {"schedule": "zero-bubble"}),
    (TOY, {"dp": 8, "pp": 2}, {"stage_layers": (5, 3)}),
    (TOY, {"dp": 8, "tp": 2}, {"sequence_parallel": False}),
    (TOY, {"dp": 16}, {"sample_tokens": 256}),
    (TOY, {"tp": 2, "cp": 2, "dp": 2, "pp": 2}, {"order": ("pp", "cp", "dp", "tp")}),
    (TOY, {"dp": 8, "tp": 2, "overlap": "dp"}, {"overlap": "all"}),
    (TOY, {"dp": 16, "overlap": "dp"}, {"overlap": "none"}),
    (TOY, {"dp": 16, "overlap": "dp"}, {"bucket_bytes": 10**6}),
]
MEASURED = ("build_s", "simulate_s", "peak_rss_bytes")
VARIED: dict[str, tuple[Any, ...]] = {
    "vpp": (1, 2),
    "microbatch": (1, 2),
    "zero": (0, 1, 2, 3),
    "reshard": (True, False),
    "sequence_parallel": (True, False),
    "schedule": schedule_names(),
    "recompute": ("none", "selective", "full"),
    "recompute_every": (1, 2, 3),
    "precision": ("bf16", "fp8"),
    "overlap": ("none", "dp", "all"),
    "attention": ("fused", "unfused"),
    "order": (ORDER, ("pp", "tp", "cp", "dp"), ("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp")),
    "cp_exchange": ("ring", "all-gather"),
    "routing_skew": (1.0, 1.5),
    "capacity_factor": (0.0, 1.25),
    "bucket_bytes": (0, 10**6, 10**8),
    "lora_rank": (0, 8),
    "train_only": ("", "attention", "mlp"),
    "etp": (0, 1, 2),
}
"""Values of the fields of random plans."""
RANDOM_PLANS = 50


def results(model: Model, how: ParallelPlan) -> dict[str, Any]:
    """Results of a step on sixteen chips, without its inputs and what was measured of the run."""
    step = iteration(model, sixteen(), how, allow_oversized=True)
    # A remark on a faster neighbour names the fields in which that plan differs.
    left_out = ("plan", "without_effect", "remarks", *MEASURED)
    return {name: value for name, value in document(step, "fast").items() if name not in left_out}


@pytest.mark.parametrize(("model", "base", "idle", "reason"), EACH)
def test_a_field_that_changes_nothing_is_named_with_the_reason(
    model: Model, base: dict[str, Any], idle: dict[str, Any], reason: str
) -> None:
    before, after = plan(**base), plan(**{**base, **idle})
    (name,) = idle
    assert idle_fields(after, model)[name] == reason
    assert name not in idle_fields(before, model)
    assert results(model, after) == results(model, before)


@pytest.mark.parametrize(("model", "base", "change"), WITH_EFFECT)
def test_a_field_that_changes_the_step_is_not_named(
    model: Model, base: dict[str, Any], change: dict[str, Any]
) -> None:
    before, after = plan(**base), plan(**{**base, **change})
    assert not change.keys() & idle_fields(after, model)
    assert results(model, after) != results(model, before)


def test_every_field_of_a_plan_has_a_case() -> None:
    """All others always change the step, or are refused where they cannot."""
    always = {
        *("tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "global_batch", "seq"),
        *("precision", "fp8_recipe", "attention", "ranks_per_chip", "capacity_factor"),
        *("routed_nodes", "fp8_exchange", "lora_rank", "lora_on", "train_only", "runtime"),
        "framework",  # tested by itself, as what it changes depends on the chip
        "optimizer",
    }
    named = {name for _, _, idle, _ in EACH for name in idle}
    assert named == {name for _, _, change in WITH_EFFECT for name in change}
    assert named | always == set(PLAN_FIELDS)
    assert not named & always


def test_what_a_framework_gives_is_not_named() -> None:
    """Fields that nobody stated are no options, whatever they would change."""
    assert complete({"framework": "torchtitan"}, TOY, sixteen()).reshard
    piped = complete({"framework": "torchtitan", "pp": 2, "zero": 1}, TOY, sixteen())
    assert not piped.reshard
    assert idle_fields(piped, TOY) == {}
    assert "reshard" in idle_fields(replace(piped, assumed=()), TOY)


@pytest.mark.slow
def test_no_random_plan_names_a_field_that_changes_it() -> None:
    rng, named = random.Random(0), 0
    for model, how in _random_plans(rng):
        for name in idle_fields(how, model):
            try:
                usual = results(model, replace(how, **{name: getattr(DEFAULTS, name)}))
            except InputError:  # the default contradicts another field
                continue
            named += 1
            assert results(model, how) == usual, (name, how)
    assert named > RANDOM_PLANS


def _random_plans(rng: random.Random) -> list[tuple[Model, ParallelPlan]]:
    """Plans of sixteen ranks that can be simulated."""
    drawn: list[tuple[Model, ParallelPlan]] = []
    while len(drawn) < RANDOM_PLANS:
        model = rng.choice((TOY, SPARSE))
        tp, cp, pp = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
        ep, dp = rng.choice((1, 2, 4)) if model is SPARSE else 1, 16 // (tp * cp * pp)
        changes = {
            name: rng.choice(values) for name, values in VARIED.items() if rng.random() < 0.35
        }
        try:
            how = plan(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, **changes)
            results(model, how)
        except InputError:
            continue
        drawn.append((model, how))
    return drawn


def test_a_field_is_idle_in_a_search_if_it_is_in_every_plan() -> None:
    fused = ParallelPlan(recompute="none", cp_exchange="all-gather")
    unfused = replace(fused, attention="unfused")
    assert set(idle_fields_in_all([fused, fused], TOY)) == {"cp_exchange", "recompute"}
    assert set(idle_fields_in_all([unfused, fused], TOY)) == {"cp_exchange"}
