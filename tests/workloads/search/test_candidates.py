"""Candidates of a search: every plan that divides, refusals, and the memory that they need."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.toy_training import TOY, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import named
from workloads.models.model import layer_flops, output_flops
from workloads.search.candidates import candidates, divisors, light_end
from workloads.search.fit import NEEDLESS, fit, least_bytes
from workloads.training.frameworks.framework import framework_of
from workloads.training.memory.memory import likely, worst
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import check_model, check_ranks
from workloads.training.usual_plan import describe

SHORT = {"seq": 1024}


@given(st.integers(1, 5000))
def test_divisors_are_all_that_divide(size):
    assert divisors(size) == [part for part in range(1, size + 1) if size % part == 0]


def test_every_candidate_is_a_plan_of_the_trainer_and_stands_once():
    """Fields without effect are not varied; what divides stays, or is left out for a reason."""
    possible = candidates(TOY, sixteen(), 32, stated=SHORT)
    for one in possible.plans:
        check_model(one, TOY)
        check_ranks(one, 16)
        assert (one.global_batch, one.overlap, one.ep, one.etp) == (32, "dp", 1, 0)
        assert one.tp > 1 or not one.sequence_parallel
        assert one.dp > 1 or one.zero == 1
        assert (one.pp > 1 and one.dp > 1) or one.order == ("tp", "cp", "dp", "pp")
        assert one.recompute != "none"
        assert one.pp > 1 or (one.schedule, one.vpp) == ("1f1b", 1)
        assert (one.schedule == "interleaved") == (one.vpp > 1)
    assert len(set(possible.plans)) == len(possible) > 100
    assert possible.considered == len(possible) + sum(possible.pruned.values())
    assert all(count > 0 for count in possible.pruned.values())
    unfused = candidates(TOY, sixteen(), 32, stated={**SHORT, "attention": "unfused"})
    assert {one.recompute for one in unfused.plans} == {"none", "selective", "full"}
    spared = candidates(TOY, sixteen(), 32, stated=SHORT, spared=("zero",))
    assert {one.zero for one in spared.plans} == {0, 1}  # no more by NxD
    wide = {**SHORT, "framework": "axlearn"}
    spared = candidates(TOY, sixteen(), 32, stated=wide, spared=("zero",))
    assert {one.zero for one in spared.plans} == {0, 1, 2, 3}


def test_every_way_to_divide_is_tried():
    plans = candidates(TOY, sixteen(), 32, stated={"seq": 16384}).plans
    assert {one.cp for one in plans} == {1, 2, 4}
    assert {one.zero for one in plans} == {1}
    assert {one.schedule for one in plans} == {"1f1b", "interleaved"}
    assert {one.vpp for one in plans} >= {1, 2}
    assert {bool(one.stage_layers) for one in plans} == {True, False}
    mixed = candidates(named("mixtral-8x7b"), sixteen(), 32).plans
    assert {one.ep for one in mixed} == {1, 2, 4, 8}
    assert {one.etp for one in mixed} == {0, 1}


@pytest.mark.parametrize(("machine", "without_sharding", "without_sequence_parallel"), [
    ("trn2.48xlarge", False, False),
    ("trn1.32xlarge", False, False),
    ("trn1.32xlarge:2", True, False),  # a sharded optimizer ends a step with time of its own
    ("dgx-h100:2", False, True),  # switches sum, so an all-reduce is faster than its halves
    ("dgx-a100:2", False, False),
])  # fmt: skip
def test_rules_spare_machines_without_reason(machine, without_sharding, without_sequence_parallel):
    plans = candidates(TOY, cluster(machine), 32, stated=SHORT).plans
    assert without_sharding == any(one.zero == 0 and one.replicas > 1 for one in plans)
    plain = any(one.tp > 1 and not one.sequence_parallel for one in plans)
    assert plain == without_sequence_parallel


def test_chunks_that_differ_may_make_even_stages():
    """Six chunks of eight layers have two, two and four times one, of which each stage has four."""
    plans = candidates(TOY, sixteen(), 32, stated=SHORT).plans
    assert 3 in {one.vpp for one in plans if one.pp == 2}


def test_no_field_that_can_be_stated_is_left_out():
    """A field that the search did not hand on would be read and change nothing."""
    values = {
        "tp": 2, "pp": 2, "dp": 2, "cp": 2, "ep": 2, "etp": 2, "microbatch": 2, "vpp": 2, "zero": 1,
        "seq": 2048, "precision": "fp8", "fp8_recipe": "rowwise", "recompute": "full",
        "overlap": "all", "sequence_parallel": False, "schedule": "interleaved",
        "order": ("tp", "cp", "pp", "dp"), "attention": "unfused", "ranks_per_chip": 2,
        "cp_exchange": "all-gather", "routing_skew": 1.5, "capacity_factor": 1.25,
        "bucket_bytes": 10**8, "reshard": True, "routed_nodes": 2, "fp8_exchange": True,
        "lora_rank": 16, "lora_on": "attention", "train_only": "mlp", "runtime": "eager",
        "framework": "axlearn",
        "optimizer": "muon", "sample_tokens": 256,
    }  # fmt: skip
    servers, kept = cluster("trn2.48xlarge:4"), {"global_batch", "recompute_every", "stage_layers"}
    assert set(PLAN_FIELDS) == {*values, *kept}
    needed = {
        "etp": {"ep": 8}, "vpp": {"pp": 2, "schedule": "interleaved"},
        "schedule": {"pp": 2, "vpp": 2}, "fp8_recipe": {"precision": "fp8"},
        "sequence_parallel": {"tp": 2}, "lora_on": {"lora_rank": 16},
        "routed_nodes": {"ep": 8, "tp": 4}, "fp8_exchange": {"ep": 8}, "cp_exchange": {"cp": 2},
        "reshard": {"zero": 3, "pp": 1},
    }  # fmt: skip
    for name, value in values.items():
        few = {"seq": 1024, "microbatch": 1, "recompute": "selective", "order": "tp-cp-dp-pp"}
        stated = {**few, **needed.get(name, {}), name: value}
        plans = candidates(named("mixtral-8x7b"), servers, 64, stated=stated).plans
        assert plans, name
        assert {getattr(each, name) for each in plans} == {value}, name


def test_a_lighter_last_stage_makes_room_for_the_output_layer():
    wide = named("llama-3.1-8b")
    assert sum(light_end(wide, 4, 4096)) == wide.layers
    output = output_flops(wide) / layer_flops(wide, 4096, moe=False)
    for pp in (2, 4, 8):
        *others, last = light_end(wide, pp, 4096)
        assert abs(last + output - max(others)) <= 1
    assert light_end(wide, 1, 4096) == ()


@pytest.mark.parametrize("chunks", [2, 4, 5, 6, 16])
def test_a_stated_number_of_chunks_is_kept_whether_it_is_tried_by_default_or_not(chunks):
    deep = replace(TOY, layers=32)
    plans = candidates(deep, sixteen(), 32, stated={**SHORT, "vpp": chunks}).plans
    assert {(each.vpp, each.schedule) for each in plans} == {(chunks, "interleaved")}


REFUSED = [
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
    (32, {"vpp": 5}, "vpp 5 cannot divide the 8 layers of toy .* Use vpp 4 or less"),
    (32, {"tp": 16, "seq": 1000, "sequence_parallel": True}, "1,000 tokens"),
]


@pytest.mark.parametrize(("batch", "stated", "message"), REFUSED)
def test_an_impossible_search_is_refused_in_one_line(batch, stated, message):
    refused(message, candidates, TOY, sixteen(), batch, stated={**SHORT, **stated})
    with pytest.raises(InputError, match="ring:8 is a plain shape"):
        candidates(TOY, cluster("ring:8", bandwidth="1GB/s", latency="1us"), 8)


def test_memory_is_that_of_the_trainer():
    possible = candidates(TOY, sixteen(), 32, stated={"seq": 524288})
    memory_fit = fit(possible, ("zero", "recompute"))
    sizes = [likely(TOY, one, shipped_catalogue(), "trn2") for one in possible.plans]
    pairs = zip(memory_fit.total_bytes.tolist(), sizes, strict=True)
    # What cannot fit for its parameters alone is not weighed further.
    assert all(total == one.total or one.capacity < total <= one.total for total, one in pairs)
    assert memory_fit.fits.tolist() == [one.total <= one.capacity for one in sizes]
    assert (memory_fit.oversized, memory_fit.pruned) == (len(possible) - memory_fit.fits.sum(), {})
    assert 0 < memory_fit.fits.sum() < len(possible)


def test_nothing_is_saved_that_need_not_be():
    long = {"seq": 524288, "framework": "axlearn"}
    possible = candidates(TOY, sixteen(), 32, stated=long, spared=("zero",))
    memory_fit = fit(possible)
    fitting = {one for one, fits in zip(possible.plans, memory_fit.fits, strict=True) if fits}
    assert len(possible) == len(fitting) + memory_fit.oversized + sum(memory_fit.pruned.values())
    assert set(memory_fit.pruned) == set(NEEDLESS.values())
    for one in fitting:
        assert one.recompute == "selective" or replace(one, recompute="selective") not in fitting
        assert one.zero <= 1 or replace(one, zero=one.zero - 1) not in fitting


@given(st.sampled_from([4, 8, 16]), st.sampled_from(["1f1b", "zero-bubble"]), st.integers(1, 3))
def test_parameters_alone_weigh_no_more_than_all(pp, schedule, zero):
    one = ParallelPlan(tp=4, pp=pp, dp=2, zero=zero, schedule=schedule, global_batch=64)
    model = named("llama-3.1-8b")
    for frozen in ({}, {"lora_rank": 16}, {"train_only": "mlp"}):
        some = replace(one, **frozen)
        assert least_bytes(model, some) <= worst(model, some, shipped_catalogue(), "trn2").total


def test_parameters_gradients_and_states_are_divided_as_zero_says():
    base = ParallelPlan(dp=4, global_batch=16)
    sizes = [least_bytes(TOY, replace(base, zero=zero)) for zero in range(4)]
    assert sizes == sorted({*sizes}, reverse=True)
    assert sizes[3] == pytest.approx(sizes[0] / 4)
    usual, sharded = (
        least_bytes(TOY, replace(base, zero=zero, lora_rank=16)) for zero in (base.zero, 3)
    )
    assert sharded == pytest.approx(usual / 4)


def test_when_nothing_fits_the_nearest_plan_is_named_with_the_bytes_missing():
    big = named("llama-3.1-405b")
    possible = candidates(big, sixteen(), 8, stated=SHORT)
    needs = {one: likely(big, one, shipped_catalogue(), "trn2") for one in possible.plans}
    over = {one: need.total - need.capacity for one, need in needs.items()}
    nearest = min(over, key=over.get)
    with pytest.raises(InputError) as caught:
        fit(possible)
    text = str(caught.value)
    assert f"none of {len(possible)} plans for llama-3.1-405b fits on trn2.48xlarge" in text
    assert describe(nearest) in text
    assert f"{over[nearest] / 1e9:.1f} GB more than its" in text
    assert "\n" not in text


def test_where_no_plan_is_likely_to_fit_tight_ones_are_taken():
    """The published plan of Llama 3 405B, which the trainer takes as tight too."""
    model, where = named("llama-3.1-405b"), cluster("dgx-h100:256")
    stated = {"tp": 8, "pp": 16, "cp": 1, "zero": 1, "microbatch": 1, "seq": 8192}
    stated |= {"recompute": "none", "schedule": "1f1b"}
    possible = candidates(model, where, 256, stated=stated)
    taken = fit(possible)
    needs = [worst(model, one, shipped_catalogue(), "h100") for one in possible.plans]
    assert not any(need.total <= need.capacity for need in needs)
    assert taken.fits.tolist() == [need.fits for need in needs]
    assert taken.total_bytes.tolist() == [need.least for need in needs]
    assert taken.fits.any()


def test_plans_are_of_a_framework_that_runs_them() -> None:
    """72 chips and 64 sequences need a stage count of nine, which Transformers has not."""
    model, rack = named("llama-3.1-70b"), cluster("gb200-nvl72")
    stated = {"lora_rank": 16, "seq": 4096}
    possible = candidates(model, rack, 64, stated=stated)
    assert {plan.framework for plan in possible.plans} == {"megatron-core"}
    assert not possible.plans[0].names_framework
    assert not any([*framework_of(plan, rack).lacks(plan)] for plan in possible.plans)
    with pytest.raises(InputError, match=r"transformers cannot run pp 9, only 1\. .* can\."):
        candidates(model, rack, 64, stated={**stated, "framework": "transformers"})
    # A stage count that is compared is no reason to draw what cannot run.
    servers = cluster("dgx-h100")
    compared = candidates(model, servers, 64, stated=stated, spared=("pp",))
    assert {(plan.framework, plan.pp) for plan in compared.plans} == {("transformers", 1)}
