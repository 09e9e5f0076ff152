"""Adapters, parts that are trained alone, the host's tracing and the unexplained time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.toy_training import TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.layers.adapters import layer_adapters, trained_share, with_adapters
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.replicas import host_s, traced_update_s
from workloads.training.layers.steps import RankShapes, kernel
from workloads.training.memory.memory import memory
from workloads.training.plan.plan import ParallelPlan, Recompute
from workloads.training.plan.stages import layer_share

EIGHT = named("llama-3.1-8b")
LORA = ParallelPlan(
    tp=4, ranks_per_chip=4, global_batch=8, seq=2048, lora_rank=16, zero=0, runtime="xla"
)


def test_adapters_are_counted_as_published() -> None:
    """Seven adapted products of Llama-3.1-8B at rank 16 are 41.9 million parameters."""
    one = replace(LORA, tp=1, ranks_per_chip=1)
    assert EIGHT.layers * layer_adapters(EIGHT, one) == pytest.approx(41.9e6, rel=0.01)
    assert trained_share(EIGHT, one, 0).total == EIGHT.layers * layer_adapters(EIGHT, one)


def test_frozen_weights_are_kept_in_the_precision_of_their_products() -> None:
    model, catalogue = named("llama-2-70b"), shipped_catalogue()
    one = ParallelPlan(global_batch=1, seq=2048, lora_rank=16, zero=0, recompute="full")
    held = {
        precision: memory(model, replace(one, precision=precision), 0, catalogue, "b200").weights
        for precision in ("bf16", "fp8", "mxfp8")
    }
    ends = model.embedding_parameters + model.vocab * model.hidden + model.norm_parameters
    layers = model.parameters - ends
    assert held["bf16"] - held["fp8"] == layers
    assert held["mxfp8"] - held["fp8"] == layers // 32
    whole = memory(model, replace(one, lora_rank=0, precision="fp8"), 0, catalogue, "b200")
    assert whole.weights == 2 * model.parameters
    # It fits one B200, as MLPerf ran it.
    run = memory(model, replace(one, precision="fp8", seq=8192), 0, catalogue, "b200")
    assert run.total < run.capacity


@pytest.mark.parametrize(("seq", "measured_s"), [(2048, 4.583), (4096, 4.503)])
def test_fine_tuning_on_one_chip_takes_what_was_measured(seq: int, measured_s: float) -> None:
    """A host that traces is as slow for a sequence as for one twice as long."""
    how = replace(LORA, seq=seq, recompute="full")
    step = iteration(EIGHT, cluster("trn2.3xlarge"), how, allow_oversized=True)
    assert step.iteration_s == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize(("chip", "per_chip"), [("trn1", 2), ("h100", 1)])
def test_adapter_in_a_compiled_graph_is_a_wider_product(chip: str, per_chip: int) -> None:
    """On Trainium it costs as many more columns and rows, elsewhere two products of its own."""
    plan = replace(LORA, tp=per_chip, ranks_per_chip=per_chip)
    shapes = RankShapes(EIGHT, plan, chip, shipped_catalogue())
    tokens, rank, inner = shapes.tokens, plan.lora_rank, EIGHT.ffn // plan.tp
    product = shapes.gemm(tokens, EIGHT.hidden, inner)
    _, adapter = with_adapters(shapes, [kernel("mlp.down", product)])
    alone = [shapes.gemm(tokens, rank, inner), shapes.gemm(tokens, EIGHT.hidden, rank)]
    wider = [
        shapes.gemm(tokens, EIGHT.hidden + rank, inner),
        shapes.gemm(tokens, EIGHT.hidden, inner + rank),
    ]
    apart_s = sum(timing.seconds for timing in alone)
    together_s = sum(timing.seconds for timing in wider) - 2 * product.seconds
    assert adapter.seconds == pytest.approx(together_s if chip == "trn1" else apart_s)
    assert 0 < together_s < apart_s


def test_pytorch_adds_what_adapters_give_in_kernels_of_their_own() -> None:
    """Forward an element of each result, backward one of each input: 6 bytes, 10 if scaled."""
    plan = ParallelPlan(global_batch=2, seq=2048, lora_rank=16, zero=0)
    columns_out = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    columns_in = 4096 + 4096 + 4096 + 14336
    moved = []
    for variant in ("", "eager", "scaled"):
        numbers = shipped_catalogue().with_variants({"training.adapter_bytes": variant})
        shapes = RankShapes(EIGHT, plan, "h100", numbers)
        steps = (*forward(shapes), *backward(shapes))
        moved.append(sum(step.size_bytes for step in steps if ".adapter" in step.name))
    least, eager, scaled = moved
    assert eager - least == 6 * 2048 * (columns_out + columns_in)
    assert scaled - least == 10 * 2048 * (columns_out + columns_in)


def test_wrapped_adapters_start_a_gathering_each() -> None:
    """Seven adapters of a layer are fourteen units of FSDP; the backward pass starts each twice.

    The frozen layer around them is gathered too, but has no gradients to start or to copy.
    """
    plan = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, lora_rank=16)
    taken_s = []
    for variant in ("", "wrapped"):
        numbers = shipped_catalogue().with_variants(
            {"training.adapter_units": variant, "training.sharded_start": "eager"}
        )
        shapes = RankShapes(EIGHT, plan, "h100", numbers)
        taken_s.append(
            [sum(step.seconds for step in steps) for steps in (forward(shapes), backward(shapes))]
        )
    along, wrapped = taken_s
    longer_s = [passed - before for passed, before in zip(wrapped, along, strict=True)]
    assert longer_s == pytest.approx([14 * 0.75e-3, (2 * 14 - 1) * 0.75e-3])


def test_adapters_on_attention_alone_are_fewer_and_faster() -> None:
    """Rank 16 on q, k, v and o of Llama-3.1-8B: 16 x (8192 + 2 x 5120 + 8192) a layer."""
    plan = ParallelPlan(dp=8, global_batch=8, seq=2048, lora_rank=16)
    some = replace(plan, lora_on="attention")
    assert layer_adapters(EIGHT, some) == 16 * (8192 + 2 * 5120 + 8192)
    assert trained_share(EIGHT, some, 0).total < trained_share(EIGHT, plan, 0).total
    everywhere, fewer = (iteration(EIGHT, cluster("dgx-h100"), one) for one in (plan, some))
    assert fewer.iteration_s < everywhere.iteration_s
    names = set(fewer.trace.frame().name)
    assert "attention.qkv.adapter" in names
    assert not any(name.startswith("mlp") and "adapter" in name for name in names)


def test_the_host_traces_a_plain_layer_faster_than_a_gated_one() -> None:
    """BERT-Large on 32 cores of Trn1 by torch-xla: 68 s for 512 microbatches of 1,024 tokens."""
    heads = {"heads": 16, "kv_heads": 16, "head_dim": 64}
    gated = Model("gated", layers=24, hidden=1024, ffn=4096, vocab=30522, **heads)
    plan = ParallelPlan(
        dp=32, ranks_per_chip=2, global_batch=32768, microbatch=2, seq=512, recompute="none"
    )
    machine = cluster("trn1.32xlarge")
    traced, compiled = (
        {
            model.gated_mlp: iteration(
                model, machine, replace(plan, zero=0, runtime=runtime), allow_oversized=True
            ).iteration_s
            for model in (gated, replace(gated, gated_mlp=False))
        }
        for runtime in ("xla", "compiled")
    )
    assert traced[False] == pytest.approx(68.4, rel=0.1)
    share = shipped_catalogue().value("kernels.trainium", "host_plain_layer")
    assert traced[False] / traced[True] == pytest.approx(share, rel=0.05)
    assert compiled[False] < traced[False]


def test_the_host_traces_a_layer_of_a_deeper_model_more_slowly() -> None:
    """A layer of twice the depth takes the power of two that the catalogue has; 3.62 ms at 32."""
    catalogue, how = shipped_catalogue(), plan(runtime="xla")
    usual_s, deep_s = (
        host_s(RankShapes(replace(TOY, layers=layers), how, "trn2", catalogue), how, 0.0, 16, 2)
        for layers in (32, 64)
    )
    assert usual_s == pytest.approx(16 * 2 * 3.62e-3)
    growth = catalogue.value("kernels.trainium", "host_trace_growth")
    assert deep_s / usual_s == pytest.approx(2**growth)
    assert growth > 0


def test_the_host_traces_an_update_tensor_by_tensor() -> None:
    """BERT-Large in two microbatches on 512 cores of Trn1 by torch-xla takes 0.64 s a step."""
    heads = {"heads": 16, "kv_heads": 16, "head_dim": 64}
    bert = Model("bert", layers=24, hidden=1024, ffn=4096, vocab=30522, gated_mlp=False, **heads)
    how = ParallelPlan(
        dp=512, ranks_per_chip=2, global_batch=16384, microbatch=16, seq=128, recompute="none"
    )
    traced = replace(how, zero=0, runtime="xla", attention="unfused")
    catalogue = shipped_catalogue()
    shapes = RankShapes(bert, traced, "trn1", catalogue)
    tensor_s = 0.087 * 4.25e-3
    assert traced_update_s(shapes, traced, 24) == pytest.approx(24 * 16 * tensor_s)
    gated = RankShapes(replace(bert, gated_mlp=True), traced, "trn1", catalogue)
    assert traced_update_s(gated, traced, 24) == pytest.approx(24 * 9 * tensor_s)
    assert traced_update_s(shapes, replace(traced, runtime="compiled"), 24) == 0.0
    step = iteration(bert, cluster("trn1.32xlarge:16"), traced, allow_oversized=True)
    assert step.iteration_s == pytest.approx(0.64, rel=0.3)


def test_what_is_unexplained_has_a_part_of_its_own_over_several_chips() -> None:
    plan = ParallelPlan(tp=4, dp=16, ranks_per_chip=4, global_batch=16, seq=4096, zero=3)
    step = iteration(EIGHT, cluster("trn2.48xlarge"), plan)
    parts = step.breakdown_s
    assert parts["scheduling"] == pytest.approx(0.33 * parts["compute"], rel=0.1)
    layers = EIGHT.parameters - EIGHT.embedding_parameters - EIGHT.head_parameters
    exchanged = 15 / 16 * (2 + 2 + 4) * layers / 97e9
    assert parts["exposed_dp"] == pytest.approx(exchanged, rel=0.1)
    assert sum(parts.values()) == pytest.approx(step.iteration_s)
    alone = iteration(EIGHT, cluster("trn2.3xlarge"), replace(LORA, seq=8192))
    assert alone.breakdown_s["scheduling"] == 0


@pytest.mark.parametrize(("rank", "packed"), [(0, 3), (16, 2)])
def test_frozen_weights_have_no_gradients_to_copy(rank: int, packed: int) -> None:
    """A layer is copied out of both gatherings; into a reduction only where it is trained."""
    how = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, lora_rank=rank, recompute="none")
    numbers = shipped_catalogue().with_variants({"training.sharded_copy_bytes": "fsdp2"})
    shapes = RankShapes(EIGHT, how, "h100", numbers)
    steps = [*forward(shapes), *backward(shapes)]
    copied = sum(step.size_bytes for step in steps if step.name.startswith("layer."))
    assert copied == packed * 5 * layer_share(EIGHT, how).total


@pytest.mark.parametrize(("recompute", "fetched"), [("none", 3), ("full", 4)])
def test_hooks_fetch_each_weight(recompute: Recompute, fetched: int) -> None:
    """Forward, again, backward and to reduce: seven weights of a layer, six plain kernels each."""
    how = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, recompute=recompute)
    variants = {"training.gathered_weights": "seven", "training.fetch_issued": "hooks"}
    numbers = shipped_catalogue().with_variants({**variants, "training.sharded_start": "eager"})
    shapes = RankShapes(EIGHT, how, "h100", numbers)
    steps = [*forward(shapes), *backward(shapes, again=recompute == "full")]
    issued = sum(step.issued for step in steps if step.name.endswith("shard"))
    assert issued == fetched * 7 * 6


def test_adapters_in_fp32_are_cast_and_take_the_host_longer() -> None:
    """PEFT casts an adapter's input to fp32 and back, 12 bytes an element and pass."""
    how = ParallelPlan(global_batch=1, seq=2048, lora_rank=16, zero=0)
    variants = {"training.adapter_input_bytes": "fp32", "training.adapter_issued": "peft"}
    plain, cast = (
        RankShapes(EIGHT, how, "h100", catalogue)
        for catalogue in (shipped_catalogue(), shipped_catalogue().with_variants(variants))
    )
    for direction in (forward, backward):
        before, after = (
            {step.name: step for step in direction(shapes) if ".adapter" in step.name}
            for shapes in (plain, cast)
        )
        name = next(name for name in before if name.startswith("mlp.up"))
        assert after[name].size_bytes - before[name].size_bytes == 12 * 2048 * EIGHT.hidden
        assert (before[name].issued, after[name].issued) == (1.0, 2.5)
