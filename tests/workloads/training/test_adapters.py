"""What a rank trains: adapters, parts trained alone, its update and the exchanges around it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, exchange_ps, plan, toy_program
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.times import gemm, host_dispatch_s, step_overhead_s
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.layers import replicas
from workloads.training.layers.adapters import layer_adapters, trained_share, with_adapters
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import RankShapes, kernel
from workloads.training.memory.memory import memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import Share, layer_share

EIGHT = named("llama-3.1-8b")
LORA = ParallelPlan(
    tp=4, ranks_per_chip=4, global_batch=8, seq=2048, lora_rank=16, zero=0, runtime="xla"
)


def test_adapters_are_counted_as_published():
    """Seven adapted products of Llama-3.1-8B at rank 16 are 41.9 million parameters."""
    one = replace(LORA, tp=1, ranks_per_chip=1)
    assert EIGHT.layers * layer_adapters(EIGHT, one) == pytest.approx(41.9e6, rel=0.01)
    assert trained_share(EIGHT, one, 0).total == EIGHT.layers * layer_adapters(EIGHT, one)
    alone = replace(one, lora_rank=0, train_only="output", tp=2)
    assert trained_share(EIGHT, alone, 0).total == EIGHT.head_parameters / 2
    attention = replace(alone, train_only="attention")
    assert trained_share(EIGHT, attention, 0).total == 32 * 4096 * (4096 + 1024)


@pytest.mark.parametrize(("machine", "stated"), [
    ("trn2.48xlarge", {"lora_rank": 16}), ("dgx-h100", {"train_only": "output"}),
])  # fmt: skip
def test_no_rank_gathers_frozen_weights_ahead(machine, stated):
    """Overlap takes no time where little is trained: one bucket, without the frozen edges."""
    on = cluster(machine)
    how = ParallelPlan(dp=on.chips, global_batch=on.chips, seq=2048, zero=1, **stated)
    serial_s, overlapped_s = (
        iteration(EIGHT, on, replace(how, overlap=overlap)).iteration_s
        for overlap in ("none", "dp")
    )
    assert 0.99 * serial_s < overlapped_s <= serial_s


def test_frozen_weights_are_kept_in_the_precision_of_their_products():
    model, catalogue = named("llama-2-70b"), shipped_catalogue()
    one = ParallelPlan(global_batch=1, seq=2048, lora_rank=16, zero=0, recompute="full")

    def held(**changes):
        return memory(model, replace(one, **changes), 0, catalogue, "b200")

    wide, narrow, scaled = (held(precision=name).weights for name in ("bf16", "fp8", "mxfp8"))
    ends = model.embedding_parameters + model.vocab * model.hidden + model.norm_parameters
    layers = model.parameters - ends
    assert (wide - narrow, scaled - narrow) == (layers, layers // 32)
    assert held(lora_rank=0, precision="fp8").weights == 2 * model.parameters
    run = held(precision="fp8", seq=8192)
    assert run.total < run.capacity  # it fits one B200, as MLPerf ran it


@pytest.mark.parametrize(
    ("framework", "runs"), [("neuronx", True), ("axlearn", True), ("torch-neuronx", False)]
)
def test_recomputation_saves_memory_and_takes_time_unless_merged(framework: str, runs: bool):
    """Time and HFU are those of a run without it where a compiler merges it; memory never is."""
    how = replace(LORA, framework=framework, runtime="compiled", seq=4096)
    kept, again = (
        iteration(EIGHT, cluster("trn2.3xlarge"), replace(how, recompute=kind))
        for kind in ("none", "full")
    )
    assert (again.iteration_s > 1.2 * kept.iteration_s) == runs
    assert again.memory.activations < kept.memory.activations / 4
    assert (again.hfu > 1.2 * again.mfu) == runs
    if not runs:
        assert (again.iteration_s, again.hfu) == (kept.iteration_s, again.mfu)


@pytest.mark.parametrize(("chip", "per_chip"), [("trn1", 2), ("h100", 1)])
def test_adapter_in_a_compiled_graph_is_a_wider_product(chip, per_chip):
    """On Trainium it costs as many more columns and rows, elsewhere two products of its own."""
    plan = replace(LORA, tp=per_chip, ranks_per_chip=per_chip)
    shapes = RankShapes(EIGHT, plan, chip, shipped_catalogue())
    rank, inner, wide = plan.lora_rank, EIGHT.ffn // plan.tp, EIGHT.hidden

    def product_s(columns, depth):
        return shapes.gemm(shapes.tokens, columns, depth).seconds

    product = shapes.gemm(shapes.tokens, wide, inner)
    _, adapter = with_adapters(shapes, [kernel("mlp.down", product)])
    apart_s = product_s(rank, inner) + product_s(wide, rank)
    wider_s = product_s(wide + rank, inner) + product_s(wide, inner + rank)
    together_s = wider_s - 2 * product.seconds
    assert adapter.seconds == pytest.approx(together_s if chip == "trn1" else apart_s)
    assert 0 < together_s < apart_s


def test_adapters_of_weights_in_fp8_stay_in_bf16():
    """Transformer Engine leaves plain linear layers alone: no product in fp8 and no cast for it."""
    plan = ParallelPlan(global_batch=2, seq=2048, lora_rank=16, zero=0)
    took = []
    for precision in ("bf16", "fp8"):
        shapes = RankShapes(EIGHT, replace(plan, precision=precision), "b200", shipped_catalogue())
        steps = (*forward(shapes), *backward(shapes))
        took.append([step.seconds for step in steps if ".adapter" in step.name])
    in_bf16, in_fp8 = took
    assert in_bf16
    assert in_bf16 == in_fp8


def test_pytorch_adds_what_adapters_give_in_kernels_of_their_own():
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


def test_wrapped_adapters_start_a_gathering_each():
    """Seven adapters of a layer are fourteen units of FSDP; the backward pass starts each twice.

    The frozen layer around them is gathered too, but has no gradients to start or to copy.
    """
    plan = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, lora_rank=16)
    taken_s = []
    for variant in ("", "wrapped"):
        variants = {"training.adapter_units": variant, "training.sharded_start": "eager"}
        shapes = RankShapes(EIGHT, plan, "h100", shipped_catalogue().with_variants(variants))
        passes = forward(shapes), backward(shapes)
        taken_s.append(np.array([sum(step.seconds for step in steps) for steps in passes]))
    along_s, wrapped_s = taken_s
    assert wrapped_s - along_s == pytest.approx([14 * 0.75e-3, (2 * 14 - 1) * 0.75e-3])


@pytest.mark.parametrize("name", ["nemotron-3-nano-30b-a3b", "qwen3.5-4b", "deepseek-v2-lite"])
def test_both_passes_of_each_kind_of_layer_have_the_same_adapters(name):
    """A layer of states alone has none on attention, one of experts none on a dense part."""
    model, plan = named(name), ParallelPlan(tp=2, global_batch=2, seq=512, lora_rank=8)
    shapes, counted = RankShapes(model, plan, "h100", shipped_catalogue()), []
    for kind in model.kinds:
        both = (step(shapes.of_kind(kind), moe=kind.experts) for step in (forward, backward))
        there, back = ([one.name for one in steps if ".adapter" in one.name] for steps in both)
        assert sorted(back) == sorted(f"{name}.weight" for name in there)
        parameters = layer_adapters(model.of_kind(kind), plan)
        assert bool(parameters) == bool(there)
        counted += [parameters * model.each_layer.count(kind)]
    assert trained_share(model, plan, 0).total == sum(counted)


def test_the_host_traces_a_layer_of_a_deeper_model_more_slowly():
    """A layer of twice the depth takes the power of two that the catalogue has; 3.62 ms at 32."""
    catalogue, how, kinds = shipped_catalogue(), plan(runtime="xla"), np.zeros(16 * 2, int)
    usual_s, deep_s, plain_s = (
        replicas.host_s(RankShapes(replace(TOY, **shape), how, "trn2", catalogue), how, 0.0, kinds)
        for shape in ({"layers": 32}, {"layers": 64}, {"layers": 32, "gated_mlp": False})
    )
    plain = catalogue.value("kernels.trainium", "host_plain_layer")
    growth = catalogue.value("kernels.trainium", "host_trace_growth")
    assert usual_s == pytest.approx(16 * 2 * 3.62e-3)
    assert plain_s / usual_s == pytest.approx(plain)
    assert deep_s / usual_s == pytest.approx(2**growth)
    assert growth > 0


def test_the_host_traces_an_update_tensor_by_tensor():
    """BERT-Large in two microbatches on 512 cores of Trn1 by torch-xla takes 0.64 s a step."""
    heads = {"heads": 16, "kv_heads": 16, "head_dim": 64}
    bert = Model("bert", layers=24, hidden=1024, ffn=4096, vocab=30522, gated_mlp=False, **heads)
    how = {"dp": 512, "ranks_per_chip": 2, "global_batch": 16384, "microbatch": 16, "seq": 128}
    how |= {"recompute": "none", "zero": 0, "runtime": "xla", "attention": "unfused"}
    traced, tensor_s = ParallelPlan(**how), 0.087 * 4.25e-3
    shapes = RankShapes(bert, traced, "trn1", shipped_catalogue())
    gated = replace(shapes, model=replace(bert, gated_mlp=True))
    assert replicas.traced_update_s(shapes, traced, 24) == pytest.approx(24 * 16 * tensor_s)
    assert replicas.traced_update_s(gated, traced, 24) == pytest.approx(24 * 9 * tensor_s)
    assert replicas.traced_update_s(shapes, replace(traced, runtime="compiled"), 24) == 0.0
    step = iteration(bert, cluster("trn1.32xlarge:16"), traced, allow_oversized=True)
    assert step.iteration_s == pytest.approx(0.64, rel=0.3)


def test_what_is_unexplained_has_a_part_of_its_own_over_several_chips():
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
def test_frozen_weights_have_no_gradients_to_copy(rank, packed):
    """A layer is copied out of both gatherings; into a reduction only where it is trained."""
    how = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, lora_rank=rank, recompute="none")
    numbers = shipped_catalogue().with_variants({"training.sharded_copy_bytes": "fsdp2"})
    shapes = RankShapes(EIGHT, how, "h100", numbers)
    steps = [*forward(shapes), *backward(shapes)]
    copied = sum(step.size_bytes for step in steps if step.name.startswith("layer."))
    assert copied == packed * 5 * layer_share(EIGHT, how).total


@pytest.mark.parametrize(("recompute", "fetched"), [("none", 3), ("full", 4)])
def test_hooks_fetch_each_weight(recompute, fetched):
    """Forward, again, backward and to reduce: seven weights of a layer, six plain kernels each."""
    how = ParallelPlan(dp=8, zero=3, global_batch=8, seq=2048, recompute=recompute)
    variants = {"training.gathered_weights": "seven", "training.fetch_issued": "hooks"}
    numbers = shipped_catalogue().with_variants({**variants, "training.sharded_start": "eager"})
    shapes = RankShapes(EIGHT, how, "h100", numbers)
    steps = [*forward(shapes), *backward(shapes, again=recompute == "full")]
    issued = sum(step.issued for step in steps if step.name.endswith("shard"))
    assert issued == fetched * 7 * 6


def test_adapters_in_fp32_are_cast_and_take_the_host_longer():
    """PEFT casts an adapter's input to fp32 and back, 12 bytes an element and pass."""
    how = ParallelPlan(global_batch=1, seq=2048, lora_rank=16, zero=0)
    variants = {"training.adapter_input_bytes": "fp32", "training.adapter_issued": "peft"}
    plain = RankShapes(EIGHT, how, "h100", shipped_catalogue())
    cast = replace(plain, catalogue=shipped_catalogue().with_variants(variants))
    for direction in (forward, backward):
        before, after = (
            next(s for s in direction(shapes) if s.name.startswith("mlp.up.adapter"))
            for shapes in (plain, cast)
        )
        assert after.size_bytes - before.size_bytes == 12 * 2048 * EIGHT.hidden
        assert (before.issued, after.issued) == (1.0, 2.5)


SHIPPED = shipped_catalogue()


def with_optimizer(optimizer: str, chip: str = "trn2", **changes: int) -> RankShapes:
    return RankShapes(TOY, replace(plan(**changes), optimizer=optimizer), chip, SHIPPED)


def test_states_take_their_bytes_an_element():
    owned, edges = Share(1000, 0), Share(400, 0)
    for name, moved in (("adamw", 30), ("sgd", 22), ("adafactor", 14), ("muon", 25.2)):
        assert replicas.update(with_optimizer(name, dp=1), owned, edges).size_bytes == 1000 * moved


def test_muon_takes_five_newton_schulz_steps_of_three_products():
    """The matrices of TOY are as 1024 × 4096; ranks that shard them divide the work."""
    sides = [(1024, 1024, 4096), (1024, 1024, 1024), (1024, 4096, 1024)]
    matrix_s = 5 * sum(gemm("trn2", *side, "bf16", catalogue=SHIPPED).seconds for side in sides)
    matrices = Share(8 * 1024 * 4096 + 77, 0)
    (step,) = replicas.orthogonalized(with_optimizer("muon", zero=0), matrices, Share(77, 0))
    assert step.seconds == pytest.approx(8 * matrix_s)
    (part,) = replicas.orthogonalized(with_optimizer("muon", dp=4, zero=1), matrices, Share(77, 0))
    assert part.seconds == pytest.approx(2 * matrix_s, rel=1e-4)
    assert replicas.orthogonalized(with_optimizer("adamw"), matrices, Share(77, 0)) == []


def test_the_host_of_a_gpu_issues_each_newton_schulz_step_of_a_matrix():
    """TOY's layers have six matrices each, whose products are shorter than their launches."""
    layer = layer_share(TOY, plan()).total
    shapes = with_optimizer("muon", "h100", zero=0)
    (step,) = replicas.orthogonalized(shapes, Share(3 * layer, 0), Share(0, 0))
    per_layer = 7 if TOY.gated_mlp else 6
    assert step.seconds == pytest.approx(3 * per_layer * 5 * host_dispatch_s("h100"))


def test_tensor_parallel_ranks_exchange_their_parts_before_and_after():
    shapes = with_optimizer("muon", tp=4, dp=2, zero=1)
    steps = replicas.orthogonalized(shapes, Share(8000, 0), Share(0, 0))
    assert [step.collective for step in steps] == ["all-to-all", "", "all-to-all"]
    assert {step.size_bytes for step in steps if step.collective} == {2 * 4000}


def test_a_sharded_update_on_trn1_takes_its_graphs_besides():
    sharded = RankShapes(TOY, plan(dp=256, zero=1), "trn1", shipped_catalogue())
    replicated = replace(sharded, plan=plan(dp=256, zero=0))
    overhead_s = step_overhead_s("trn1", 256)
    assert overhead_s == pytest.approx(3 * 0.66)
    assert {step_overhead_s(chip, 4096) for chip in ("trn2", "trn3-gen2", "h100")} == {0}
    owned = replicas.ReplicaExchange(sharded, 0, sharded.plan).owned
    kernel_s = replicas.update(sharded, owned).seconds - overhead_s
    assert 0 < kernel_s < replicas.update(replicated, owned).seconds < overhead_s


NARROW = {"optimizer_bytes": "bf16", "gradient_bytes": "bf16"}


@pytest.mark.parametrize(("chip", "variants", "moved"), [
    ("a100-80gb", {}, 30),
    # Casts, unscaling and clipping of Megatron-LM: in 2021, and with a search in 2020.
    ("a100-80gb", {"update_copies_bytes": "fp16"}, 56),
    ("a100-80gb", {"update_copies_bytes": "fp16-2020"}, 66),
    # Without a master copy a parameter is read and written, and two bytes each of its state.
    ("h100", NARROW, 14),
    ("h100", {**NARROW, "update_copies_bytes": "clipped"}, 18),
])  # fmt: skip
def test_an_update_moves_the_bytes_of_its_stack(chip, variants, moved):
    chosen = {f"training.{quantity}": variant for quantity, variant in variants.items()}
    shapes = RankShapes(TOY, plan(dp=1), chip, shipped_catalogue().with_variants(chosen))
    owned = replicas.ReplicaExchange(shapes, 0, shapes.plan).owned
    assert replicas.update(shapes, owned).size_bytes == moved * owned.total


def test_kernels_wait_only_for_shards_that_others_hold():
    """A replica alone waits for nothing; of r replicas each holds 1 / r of the shards itself."""
    waited = {}
    for dp in (1, 2, 4):
        how = plan(dp=dp, tp=8, pp=2, zero=3, ranks_per_chip=4)
        shapes = RankShapes(TOY, how, "trn2", shipped_catalogue())
        exchange = replicas.ReplicaExchange(shapes, 0, how)
        steps = exchange.waits(np.arange(4), gathers=True, reduces=True)
        waited[dp] = sum(step.seconds for step in steps)
    assert waited[1] == 0
    assert waited[4] / waited[2] == pytest.approx(0.75 / 0.5)
    sparse = RankShapes(SPARSE, plan(dp=8, tp=2, ep=4, etp=1, zero=3), "trn2", shipped_catalogue())
    others = replicas.ReplicaExchange(sparse, 0, sparse.plan)._from_others(Share(800, 400))
    assert others == 800 * 7 / 8 + 400 * 3 / 4  # four ranks hold the same experts


@pytest.mark.parametrize(("overlap", "waits"), [("none", True), ("dp", False), ("all", False)])
def test_the_next_pass_waits_for_a_reduction_that_nothing_overlaps(overlap, waits):
    shapes = RankShapes(TOY, plan(dp=8, overlap=overlap), "h100", SHIPPED)
    exchange = replicas.ReplicaExchange(shapes, 0, shapes.plan)
    *_, last = exchange.reduced(Share(800, 0), edges=False)
    assert (last.name == "gradients.wait") is waits
    assert exchange.reduced(Share(0, 0), edges=False) == []


def test_deepspeed_gathers_the_weights_of_a_layer_one_by_one():
    """Large weights are reduced so too; embeddings and layers that a bucket holds come at once."""
    chosen = shipped_catalogue().with_variants({"training.gathered_weights": "four"})
    for zero, catalogue, count in ((3, chosen, 4), (3, shipped_catalogue(), 1), (1, chosen, 1)):
        shapes = RankShapes(TOY, plan(dp=8, zero=zero), "a100-80gb", catalogue)
        small, large = Share(4000, 0), Share(8 * 10**8, 0)
        gathers = replicas.gather_parameters(shapes, "bucket", small)
        assert [step.size_bytes for step in gathers] == count * [2 * 4000 // count]
        assert len(replicas.gather_parameters(shapes, "rest", small)) == 1
        for share, steps in ((small, 1), (large, count)):
            assert len(replicas.reduce_gradients(shapes, "bucket", share)) == steps


@pytest.mark.parametrize(
    ("changes", "each"),
    [({}, 2), ({"precision": "fp8"}, 1), ({"precision": "fp8", "fp8_recipe": "rowwise"}, 2)],
)
def test_torchtitan_gathers_layers_in_fp8_where_one_scale_holds(changes, each):
    how = plan(dp=8, zero=3, **changes)
    cast = shipped_catalogue().with_variants({"training.sharded_cast": "fsdp2"})
    for parts, gathered in ((cast, each), (shipped_catalogue(), 2)):
        shapes = RankShapes(TOY, how, "h100", parts)
        (layer,) = replicas.gather_parameters(shapes, "bucket", Share(800, 0))
        (rest,) = replicas.gather_parameters(shapes, "rest", Share(800, 0))
        assert (layer.size_bytes, rest.size_bytes) == (gathered * 800, 2 * 800)


@pytest.mark.parametrize(("changes", "ranks", "what"), [
    ({"tp": 2, "pp": 2, "dp": 4, "zero": 0}, 4, "pp"),
    ({"tp": 2, "dp": 8, "zero": 0}, 2, "tp"),
    ({"tp": 2, "cp": 2, "pp": 2, "dp": 2}, 16, "dp"),
    ({"tp": 2, "pp": 2, "dp": 4, "ep": 4, "zero": 0}, 16, "dp"),
])  # fmt: skip
def test_the_norm_is_summed_over_all_different_gradients(changes, ranks, what):
    """Without sharding replicas hold the same ones; experts lie across replicas."""
    machine, how = cluster("trn2.48xlarge"), plan(**changes)
    program = toy_program(how, machine, SPARSE if how.ep > 1 else TOY)
    (exchange,) = (one for one in program.exchanges if one.axis == "norm")
    assert exchange.members.shape == (16 // ranks, ranks)
    assert sorted(exchange.members.ravel().tolist()) == list(range(16))
    for role in program.roles(exchange):
        assert (program.stage[exchange.members[:, role.places]] == role.stage).all()
        (step,) = (program.steps[program.streams[role.stage].ops.step[op]] for op in role.ops)
        assert (step.name, step.what, step.size_bytes) == ("norm.sum", what, 4)
    lasts = exchange_ps(machine, program.chip[exchange.members[0]], "all-reduce", 4)
    assert exchange.duration_ps[exchange.kind[0]].tolist() == [lasts]


def test_nobody_updates_before_the_norm_is_known():
    step = iteration(TOY, cluster("trn2.48xlarge"), plan(tp=2, pp=2, dp=4), folded=False)
    frame = step.trace.frame()
    known_ps = frame[frame["name"] == "norm.sum"].end_ps.tolist()
    assert len(known_ps) == 16
    assert len({*known_ps}) == 1
    assert frame[frame["name"] == "optimizer.step"].start_ps.tolist() == known_ps
