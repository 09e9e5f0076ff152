"""Memory of candidates: that of the trainer, and what is saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toy_training import TOY, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.search.candidates import candidates
from workloads.search.fit import NEEDLESS, fit, least_bytes
from workloads.training.memory.memory import likely, worst
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import describe

SHORT = {"seq": 1024}


def test_memory_is_that_of_the_trainer() -> None:
    possible = candidates(TOY, sixteen(), 32, stated={"seq": 524288})
    memory_fit = fit(possible, ("zero", "recompute"))
    sizes = [likely(TOY, one, shipped_catalogue(), "trn2") for one in possible.plans]
    pairs = zip(memory_fit.total_bytes.tolist(), sizes, strict=True)
    # What cannot fit for its parameters alone is not weighed further.
    assert all(total == one.total or one.capacity < total <= one.total for total, one in pairs)
    assert memory_fit.fits.tolist() == [one.total <= one.capacity for one in sizes]
    assert (memory_fit.oversized, memory_fit.pruned) == (len(possible) - memory_fit.fits.sum(), {})
    assert 0 < memory_fit.fits.sum() < len(possible)


def test_nothing_is_saved_that_need_not_be() -> None:
    possible = candidates(TOY, sixteen(), 32, stated={"seq": 524288}, spared=("zero",))
    memory_fit = fit(possible)
    fitting = {one for one, fits in zip(possible.plans, memory_fit.fits, strict=True) if fits}
    assert len(possible) == len(fitting) + memory_fit.oversized + sum(memory_fit.pruned.values())
    assert set(memory_fit.pruned) == set(NEEDLESS.values())
    for one in fitting:
        assert one.recompute == "selective" or replace(one, recompute="selective") not in fitting
        assert one.zero <= 1 or replace(one, zero=one.zero - 1) not in fitting


@given(st.sampled_from([4, 8, 16]), st.sampled_from(["1f1b", "zero-bubble"]), st.integers(1, 3))
def test_parameters_alone_weigh_no_more_than_all(pp: int, schedule: Any, zero: int) -> None:
    one = ParallelPlan(tp=4, pp=pp, dp=2, zero=zero, schedule=schedule, global_batch=64)
    model = named("llama-3.1-8b")
    for frozen in ({}, {"lora_rank": 16}, {"train_only": "mlp"}):
        some = replace(one, **frozen)
        assert least_bytes(model, some) <= worst(model, some, shipped_catalogue(), "trn2").total


def test_parameters_gradients_and_states_are_divided_as_zero_says() -> None:
    base = ParallelPlan(dp=4, global_batch=16)
    whole, states, gradients, all_three = (
        least_bytes(TOY, replace(base, zero=zero)) for zero in range(4)
    )
    assert whole > states > gradients > all_three
    assert all_three == pytest.approx(whole / 4)
    assert least_bytes(TOY, replace(base, zero=3, lora_rank=16)) == pytest.approx(
        least_bytes(TOY, replace(base, lora_rank=16)) / 4
    )


def test_when_nothing_fits_the_nearest_plan_is_named_with_the_bytes_missing() -> None:
    big, where = named("llama-3.1-405b"), sixteen()
    possible = candidates(big, where, 8, stated=SHORT)
    over = {
        one: need.total - need.capacity
        for one in possible.plans
        for need in [likely(big, one, shipped_catalogue(), "trn2")]
    }
    nearest = min(over, key=lambda one: over[one])
    with pytest.raises(InputError) as caught:
        fit(possible)
    text = str(caught.value)
    assert f"none of {len(possible)} plans for llama-3.1-405b fits on trn2.48xlarge" in text
    assert describe(nearest) in text
    assert f"{over[nearest] / 1e9:.1f} GB more than its" in text
    assert "\n" not in text


def test_where_no_plan_is_likely_to_fit_tight_ones_are_taken() -> None:
    """The published plan of Llama 3 405B, which the trainer takes as tight too."""
    model, where = named("llama-3.1-405b"), cluster("dgx-h100:256")
    stated = {
        "tp": 8,
        "pp": 16,
        "seq": 8192,
        "recompute": "none",
        "schedule": "1f1b",
        "zero": 1,
        "cp": 1,
    }
    possible = candidates(model, where, 256, stated={**stated, "microbatch": 1})
    taken = fit(possible)
    needs = [worst(model, one, shipped_catalogue(), "h100") for one in possible.plans]
    assert not any(need.total <= need.capacity for need in needs)
    assert taken.fits.tolist() == [need.fits for need in needs]
    assert taken.total_bytes.tolist() == [need.least for need in needs]
    assert taken.fits.any()
