"""Iterations: breakdown, efficiencies, launches, what was not stated, and mistakes of a user."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim import train
from cluster_sim.hardware.faults import parse_fault
from cluster_sim.trace.trace import run as simulate
from tests.support.refusals import refused
from tests.support.toy_training import TOY, plan, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.kernels.chip_share import rank_of
from workloads.models.huggingface import named
from workloads.models.model import training_flops
from workloads.remarks import assumed_document, assumed_sentences
from workloads.training.execution.jitter import Disturbance
from workloads.training.explain import input_table, step_table
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import Iteration, iteration
from workloads.training.layers import layer
from workloads.training.layers.replicas import host_s
from workloads.training.layers.steps import RankShapes
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import layer_kinds
from workloads.training.program.breakdown import breakdown
from workloads.training.usual_plan import Alternative, common_frameworks, complete, hull


def test_one_chip_only_computes():
    run = iteration(TOY, sixteen(), plan(), partial=True)
    busy = {part for part, value in run.breakdown_s.items() if value}
    assert busy == {"compute", "optimizer"}
    total = sum(row["total_s"] for row in step_table(run))
    assert total == pytest.approx(run.iteration_s, rel=1e-12)


def test_efficiencies():
    run = iteration(TOY, sixteen(), plan(tp=4, dp=4))
    needed = training_flops(TOY, run.plan.seq, run.plan.tokens)
    assert run.mfu == pytest.approx(needed / run.iteration_s / 16 / 667e12)
    assert run.hfu == run.mfu
    assert (run.overlapped_s, run.breakdown_s["bubble"]) == (0, 0)
    assert run.tokens_per_s * run.iteration_s == pytest.approx(run.plan.global_batch * 1024)
    full = iteration(TOY, sixteen(), plan(tp=4, dp=4, recompute="full"))
    assert 1.2 < full.hfu / full.mfu < 4 / 3
    assert full.iteration_s > run.iteration_s


def test_every_other_layer_computed_again_costs_half():
    """Forward passes of half of the layers: half way between none and all of them, to a few ps."""
    none, half, full = (
        iteration(TOY, sixteen(), plan(tp=4, dp=4, recompute=kind, recompute_every=every))
        for kind, every in (("none", 1), ("full", 2), ("full", 1))
    )
    assert TOY.layers % 2 == 0
    assert half.iteration_s == pytest.approx((none.iteration_s + full.iteration_s) / 2, rel=1e-6)
    assert half.hfu / half.mfu > 1.1


def test_waiting_beyond_the_usual_is_a_stragglers_fault():
    """Rank 0 of four computes twice as long: the others wait, and no longer than that."""
    undisturbed = iteration(TOY, sixteen(), plan(tp=4), folded=False, partial=True).trace
    schedule = undisturbed.schedule
    slow = (schedule.labels["rank"] == 0) & (schedule.resource >= 0)
    late = simulate(replace(schedule, duration_ps=schedule.duration_ps * (1 + slow)))
    shares = breakdown(late, undisturbed).frame()
    assert shares["straggler_ps"].clip(-1, 1).tolist() == [0, 1, 1, 1]
    assert (shares.drop(columns="count").sum(axis=1) == late.total_ps).all()


@pytest.mark.parametrize(
    "disturbed", [Disturbance(0.05, seed=2), Disturbance(0.02, 1, ((3, 1.3),))]
)
@pytest.mark.parametrize("stated", [{"tp": 4, "dp": 4}, {"tp": 2, "pp": 4, "dp": 2}], ids=str)
def test_the_undisturbed_run_beside_jitter_is_folded_and_shows_the_same_waiting(stated, disturbed):
    how = plan(**stated, overlap="all")
    noisy = iteration(TOY, sixteen(), how, disturbed=disturbed)
    calm = iteration(TOY, sixteen(), how, folded=False)
    assert len(noisy.undisturbed) < len(calm.trace) == len(noisy.trace)
    assert noisy.undisturbed_s == calm.iteration_s
    expected = breakdown(noisy.trace, calm.trace).frame()
    assert noisy.ranks.equals(expected)
    assert expected["straggler_ps"].sum() > 0


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize("stragglers", [((5, 1.5),), ((0, 1.2), (9, 3.0), (12, 1.0))], ids=str)
def test_a_straggler_folded_is_the_straggler_unfolded(stragglers, overlap):
    how = plan(tp=4, pp=2, dp=2, overlap=overlap)
    slow = Disturbance(stragglers=stragglers)
    few, whole = (
        iteration(TOY, sixteen(), how, disturbed=slow, folded=folded) for folded in (True, False)
    )
    assert len(few.program) < len(whole.program) == 16
    assert {rank for rank, _ in stragglers} <= {*few.program.rank.tolist()}
    assert few.trace.total_s == whole.trace.total_s
    assert few.undisturbed_s == whole.undisturbed_s
    assert few.breakdown_s == pytest.approx(whole.breakdown_s, rel=1e-12)
    assert few.breakdown_s["straggler"] > 0


def test_the_rank_vector_and_jitter_follow_every_rank():
    how = plan(tp=4, pp=2, dp=2)
    slow = Disturbance(stragglers=((5, 1.5),))
    vector = iteration(TOY, sixteen(), how, disturbed=slow, level="rank-vector")
    jittered = iteration(TOY, sixteen(), how, disturbed=replace(slow, jitter=0.01))
    assert len(vector.program) == len(jittered.program) == 16
    assert vector.undisturbed_s == jittered.undisturbed_s
    with pytest.raises(InputError, match="straggler 99 is no rank of the plan: ranks are 0 to 15"):
        iteration(TOY, sixteen(), how, disturbed=Disturbance(stragglers=((99, 2.0),)))


def test_every_number_has_a_source():
    run = iteration(TOY, sixteen(), plan(tp=4, pp=2, dp=2))
    numbers = pd.DataFrame(input_table(run))
    assert (numbers[["grade", "source"]] != "").all(axis=None)
    assert {"trn2", "kernels.trainium", "efa-v3", "training"} <= set(numbers["part"])
    assert set(run.provenance) == {"gemm", "attention", "elementwise", "optimizer", "collectives"}


SLOW = [parse_fault("engine:0@1us:slow=1/2")]


@pytest.mark.parametrize(("machine", "how", "detail", "message"), [
    ("ring:8", {"dp": 8}, {}, "is a plain shape without chips"),
    ("trn2.48xlarge", {"tp": 8}, {}, "= 8 ranks, but the cluster has 16 chips"),
    ("trn2.48xlarge", {"tp": 4, "dp": 4}, {"faults": SLOW, "level": "rank-vector"},
     r"follows no faults\. Use --level collective, or chunk"),
    ("dgx-h100", {"tp": 8, "runtime": "eager"}, {}, "'eager' .* dgx-h100 has h100. Leave"),
    ("dgx-h100", {"tp": 8, "runtime": "xla"}, {}, "runtime 'xla' .* dgx-h100 has h100. Leave"),
    ("dgx-a100:2", {"dp": 16, "precision": "fp8"}, {},
     r"cannot train in fp8 on a100-80gb; it .* bf16\. Use"),
])  # fmt: skip
def test_mistakes_are_one_line(machine, how, detail, message):
    links = {"bandwidth": "1GB/s", "latency": "1us"} if machine.startswith("ring") else {}
    refused(message, iteration, TOY, cluster(machine, **links), plan(**how), **detail)


def test_what_does_not_fit_runs_when_that_is_allowed():
    big = named("llama-3.1-70b")
    refused("GB a rank", iteration, big, sixteen(), plan(dp=16))
    assert iteration(big, sixteen(), plan(dp=16), allow_oversized=True).memory.total > 2**36


MACHINE, SHARDED = "dgx-h100:2", {"zero": 3, "dp": 8, "global_batch": 8}


def test_each_unstated_field_is_varied_alone():
    stated = {"framework": "megatron-core", "tp": 8, "global_batch": 16}
    step, full = (
        train("llama-3.1-8b", MACHINE, **stated, **m) for m in ({}, {"recompute": "full"})
    )
    fields = {other.field for other in step.alternatives}
    assert fields == {"recompute", "overlap", "zero", "sequence_parallel", "microbatch"}
    other = next(other for other in step.alternatives if other.value == "full")
    assert other.ratio == pytest.approx(full.time_s / step.time_s)


def test_another_framework_takes_as_long_as_if_it_were_named():
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


@pytest.mark.parametrize(("stated", "looked_at"), [
    ({}, [1.75]), ({"routing_skew": 1.0}, []), ({"capacity_factor": 1.25}, []),
])  # fmt: skip
def test_a_router_that_nobody_said_is_balanced_may_be_left_to_itself(stated, looked_at):
    plan = {"tp": 2, "pp": 2, "ep": 8, "global_batch": 64, **stated}
    step = train("mixtral-8x7b", "dgx-h100:4", **plan)
    others = [other for other in step.alternatives if other.field == "routing_skew"]
    assert [other.value for other in others] == looked_at
    for other in others:
        skewed = train("mixtral-8x7b", "dgx-h100:4", **{**plan, "routing_skew": other.value})
        assert 1 < other.ratio == pytest.approx(skewed.time_s / step.time_s)
        assert "routing skew 1.0 (1.75 would be" in " ".join(assumed_sentences(step))


def test_exchanges_that_nobody_named_may_be_of_another_kind():
    """The answer says what an all-to-all would take; who names an exchange has it."""
    plan = {"tp": 2, "pp": 2, "ep": 8, "global_batch": 64}
    step = train("mixtral-8x7b", "dgx-h100:4", **plan)
    ratios = {other.value: other.ratio for other in step.alternatives}
    as_named = train("mixtral-8x7b", "dgx-h100:4", framework=":alltoall", **plan)
    assert ratios["megatron-core:alltoall"] == pytest.approx(as_named.time_s / step.time_s)
    assert ratios["megatron-core:alltoall"] > 1.05
    assert "megatron-core:alltoall" not in {other.value for other in as_named.alternatives}
    named = train("mixtral-8x7b", "dgx-h100:4", framework="megatron-core", **plan)
    of_named = {x.value: x.ratio for x in named.alternatives if x.field == "framework"}
    assert of_named == {"megatron-core:alltoall": ratios["megatron-core:alltoall"]}
    assert named.interval.high > step.time_s * ratios["megatron-core:alltoall"]
    sentence = assumed_sentences(named)[0]
    assert sentence.startswith("Settings of the framework not stated: megatron-core:alltoall")


def test_plans_that_do_not_fit_are_not_plausible():
    """70 G parameters on eight chips fit with ZeRO-3 alone."""
    step = train("llama-3.1-70b", "dgx-h100:8", recompute="full", zero=3, global_batch=64)
    assert not [other for other in step.alternatives if other.field == "zero"]
    open_ = train("llama-3.1-8b", "dgx-h100:8", global_batch=64)
    assert 3 in [other.value for other in open_.alternatives if other.field == "zero"]


def test_who_shards_parameters_takes_the_largest_microbatch_that_fits():
    """Gathers for each of sixteen microbatches are nobody's plan, unless the size is stated."""
    fields = {"tp": 8, "global_batch": 32, "recompute": "none", "overlap": "dp"}
    in_torchtitan_s = []
    for size in ({}, {"microbatch": 1}):
        step = train("llama-3.1-8b", MACHINE, **fields, **size)
        ratio = next(other.ratio for other in step.alternatives if other.value == "torchtitan")
        in_torchtitan_s.append(ratio * step.time_s)
    stated = {**fields, "microbatch": 16, "framework": "torchtitan", "zero": 3}
    largest = train("llama-3.1-8b", MACHINE, **stated)
    assert in_torchtitan_s[0] == pytest.approx(largest.time_s)
    assert in_torchtitan_s[1] > 2 * in_torchtitan_s[0]


def _both(*ratios: float) -> float:
    """Ratio of fields that are independent: squares of logarithms add."""
    return math.exp(math.hypot(*map(math.log, ratios)))


def test_squares_of_the_effects_of_fields_add():
    others = [Alternative("recompute", "full", 1.3), Alternative("overlap", "all", 0.9)]
    assert hull(others) == pytest.approx((0.9, 1.3))
    with_framework = [*others, Alternative("framework", "fsdp", 1.1)]
    assert hull(with_framework) == pytest.approx((0.9, _both(1.3, 1.1)))
    assert hull([]) == (1.0, 1.0)
    # A framework that shards parameters and sharded parameters are one effect, not two.
    sharding = Alternative("framework", "fsdp", 1.6, frozenset({"framework", "zero"}))
    sharded = Alternative("zero", 3, 1.5, frozenset({"zero"}))
    assert hull([*others, sharding, sharded]) == pytest.approx((0.9, _both(1.6, 1.3)))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.5, 2.0)), max_size=8))
def test_a_hull_reaches_each_alternative_and_no_further_than_their_product(pairs):
    others = [Alternative(field, place, ratio) for place, (field, ratio) in enumerate(pairs)]
    low, high = hull(others)
    assert low <= min([1.0, *(ratio for _, ratio in pairs)]) * (1 + 1e-9)
    assert high >= max([1.0, *(ratio for _, ratio in pairs)]) * (1 - 1e-9)
    most = math.prod(max([1.0, *(r for f, r in pairs if f == field)]) for field in "abc")
    assert high <= most * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "fields", "expected"), [
    ("dgx-h100", {"tp": 8}, ("megatron-core", "torchtitan")),
    ("dgx-h100", SHARDED, ("fsdp", "megatron-core", "torchtitan")),
    ("dgx-h100", {}, ("megatron-core", "torchtitan", "transformers")),
    ("dgx-a100", {"attention": "unfused"}, ("megatron-deepspeed", "megatron-lm")),
    ("trn2.48xlarge", {"tp": 8}, ("axlearn", "neuronx")),
    ("trn2.48xlarge", {"tp": 4, "ranks_per_chip": 4}, ("axlearn", "neuronx", "torchneuron")),
    ("trn2.48xlarge", {"tp": 8, "pp": 2}, ("neuronx",)),
    ("tpu-v6e-pod", SHARDED, ("axlearn", "maxtext")),
])  # fmt: skip
def test_frameworks_in_use_depend_on_chip_and_plan(machine, fields, expected):
    assert common_frameworks(ParallelPlan(**fields), cluster(machine)) == expected


def test_an_answer_says_what_was_assumed():
    step = train("llama-3.1-8b", "dgx-h100:8", global_batch=64)
    framework, others = assumed_sentences(step)
    assert framework.startswith("Framework not stated: predicted as megatron-core; fsdp would")
    assert "recompute selective (full would be" in others
    document = assumed_document(step)
    assert document["framework"] == "megatron-core"
    others = document["assumed"]["framework"]["alternatives"]
    assert "fsdp" in {entry["value"] for entry in others}
    whole = {
        "tp": 8, "global_batch": 16, "microbatch": 1, "recompute": "none", "overlap": "dp",
        "zero": 1, "sequence_parallel": True, "framework": "torchtitan",
    }  # fmt: skip
    assert assumed_sentences(train(named("llama-3.1-8b"), MACHINE, **whole)) == []
    *_, batch = assumed_sentences(train("llama-3.1-8b", "dgx-h100:8"))
    assert batch == "Global batch not stated: 1,024 sequences, 16 microbatches for each replica."


BLOCKING = {"training.issued_ahead": "blocking"}
WIDE = replace(TOY, hidden=8192, ffn=32768, heads=64, kv_heads=64, head_dim=128, layers=2)
"""Model whose kernels take longer than the host needs to issue them."""


def _step(machine: str, how: ParallelPlan, *, blocked: bool, **options: object) -> Iteration:
    numbers = shipped_catalogue().with_variants(BLOCKING if blocked else {})
    return iteration(WIDE, cluster(machine, catalogue=numbers), how, **options)


def test_the_time_of_all_launches_is_added_to_that_of_the_kernels():
    how = plan(tp=8, recompute="full", seq=4096)
    usual, blocked = (_step("dgx-h100", how, blocked=blocks) for blocks in (False, True))
    shapes = RankShapes(WIDE, how, "h100", shipped_catalogue())
    layers = [*layer.forward(shapes), *layer.backward(shapes)] * WIDE.layers
    ends = layer.embedding, layer.output, layer.output_backward, layer.embedding_backward
    steps = [*layers, *(step for part in ends for step in part(shapes))]
    launched_s = shipped_catalogue().value("kernels.h100", "host_dispatch") * how.microbatches
    added_s = launched_s * sum(step.issued for step in steps)
    assert blocked.iteration_s - usual.iteration_s == pytest.approx(added_s, rel=1e-6)
    assert usual.breakdown_s["host"] == 0
    assert blocked.breakdown_s["host"] == pytest.approx(added_s, rel=1e-6)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_a_neuron_chip_waits_for_the_starts_of_pytorchs_own_backend(recompute, passes):
    """1.9 ms for a layer of each pass, and 7.1 ms for its update, beside equal kernels."""
    how = plan(dp=4, global_batch=8, ranks_per_chip=4, recompute=recompute, overlap="none")
    whole = iteration(TOY, cluster("trn2.3xlarge"), replace(how, framework="neuronx"))
    by_layer = iteration(TOY, cluster("trn2.3xlarge"), replace(how, framework="torchneuron"))
    waited_s = TOY.layers * (how.microbatches * passes * 1.9e-3 + 7.1e-3)
    assert whole.breakdown_s["host"] == 0
    assert by_layer.breakdown_s["host"] == pytest.approx(waited_s, rel=1e-9)
    assert by_layer.iteration_s == pytest.approx(whole.iteration_s + waited_s, rel=1e-9)


def test_one_trainium_chip_is_pytorchs_own_unless_its_runtime_is_stated():
    one, server = cluster("trn2.3xlarge"), cluster("trn2.48xlarge")
    for machine, stated, name in (
        (one, {}, "torchneuron"),
        (server, {}, "neuronx"),
        (one, {"runtime": "compiled"}, "neuronx"),
        (one, {"runtime": "xla"}, "torch-neuronx"),
    ):
        assert framework_of(complete(stated, TOY, machine), machine).name == name
    assert not complete({}, TOY, one).names_framework


@pytest.mark.parametrize(("seq", "chunks"), [(1, 1), (64, 1), (65, 2), (2048, 32)])
def test_a_host_dispatches_the_rows_and_chunks_of_gated_delta_layers(seq: int, chunks: int):
    """PyTorch counts 7,473 operations of both passes over such a layer for 2,048 tokens."""
    model, plan = named("qwen3.5-4b"), ParallelPlan(seq=seq, runtime="eager", ranks_per_chip=4)
    rank = rank_of("trn2", "bf16", 4, shipped_catalogue())
    layer_pass_s = rank.constant("host_layer_pass")
    shapes = RankShapes(model, plan, "trn2", shipped_catalogue())
    kinds = layer_kinds(model, np.arange(model.layers))
    operations = 8 * 149 + 24 * (1224 + 78.5 * chunks)
    pass_s = host_s(shapes, plan, 0.0, kinds)
    assert pass_s == pytest.approx(layer_pass_s * operations / 149, rel=1e-12)
    if seq == 2048:
        delta = (pass_s / layer_pass_s * 149 - 8 * 149) / 24
        assert 2 * delta == pytest.approx(7473, rel=1e-3)


def test_a_host_traces_kept_layers_once_and_the_others_again():
    """Four of eight layers take three passes, the others two, where the host is the slower."""
    how = ParallelPlan(tp=4, ranks_per_chip=4, global_batch=1, seq=64, runtime="xla")
    model, one = replace(TOY, layers=8), cluster("trn2.3xlarge")
    kept, half, full = (
        iteration(model, one, replace(how, recompute=kind, recompute_every=every)).iteration_s
        for kind, every in (("none", 1), ("full", 2), ("full", 1))
    )
    assert (half - kept) == pytest.approx((full - kept) / 2, rel=0.02)
    rank = rank_of("trn2", "bf16", 4, shipped_catalogue())
    traced_s = 8 * rank.constant("host_layer_pass") * (8 / 32) ** rank.constant("host_trace_growth")
    assert full - kept == pytest.approx(traced_s, rel=0.02)
