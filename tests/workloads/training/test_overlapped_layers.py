"""Products in pieces that hide what tensor-parallel ranks exchange."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_training import SPARSE, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.chip_share import Timing
from workloads.training.iteration import iteration
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import NOTHING, PREVIOUS, RankShapes
from workloads.training.program.stage import as_tried


class Undisturbed(RankShapes):
    """RankShapes whose products lose nothing to what runs beside them."""

    def beside(self, timing: Timing) -> Timing:
        return timing


@pytest.mark.parametrize("moe", [False, True])
def test_overlapped_products_do_the_same_work_in_pieces(moe: bool) -> None:
    """Bytes of communication and steps but for the pieces are those of the plan without overlap."""
    model = SPARSE if moe else TOY
    apart, beside = (
        RankShapes(model, plan(tp=4, overlap=kind, seq=16_384), "trn2", shipped_catalogue())
        for kind in ("dp", "all")
    )
    for way in (forward, backward):
        sent = [
            sum(step.size_bytes for step in way(one, moe=moe) if step.axis == "tp")
            for one in (apart, beside)
        ]
        assert sent[0] == sent[1]
        names = [[step.name for step in way(one, moe=moe)] for one in (apart, beside)]
        whole = {re.sub(r"\.[234]$", "", name) for name in names[1]}
        assert whole == set(names[0])
        issued = [sum(step.issued for step in way(one, moe=moe)) for one in (apart, beside)]
        assert issued[1] == issued[0] >= len(names[0])


def test_pieces_of_a_product_wait_for_their_own_piece_only() -> None:
    shapes = RankShapes(TOY, plan(tp=4, overlap="all", seq=16_384), "trn2", shipped_catalogue())
    steps = {step.name: step for step in forward(shapes)}
    assert steps["mlp.up"].after == "mlp.gather"
    assert steps["mlp.up.3"].after == "mlp.gather.3"
    assert steps["mlp.gather.3"].after == NOTHING
    assert steps["mlp.down.3"].after == NOTHING
    assert steps["mlp.scatter.3"].after == PREVIOUS
    short = RankShapes(TOY, plan(tp=4, overlap="all"), "trn2", shipped_catalogue())
    assert all(step.issued for step in forward(short))


@pytest.mark.parametrize("machine", ["trn2.48xlarge", "dgx-h100:2"])
def test_pieces_hide_the_gathering_of_long_sequences(machine: str) -> None:
    wide = replace(TOY, layers=2, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28_672)
    how, where = plan(tp=8, dp=2, seq=8192, global_batch=2), cluster(machine)
    steps = [iteration(wide, where, replace(how, overlap=kind)) for kind in ("dp", "all")]
    assert steps[1].breakdown_s["exposed_tp"] < 0.6 * steps[0].breakdown_s["exposed_tp"]
    assert steps[1].iteration_s < steps[0].iteration_s


@examples(15)
@given(st.data())
def test_overlap_of_all_slows_no_step(data: st.DataObject) -> None:
    """Whatever the widths, the chips, tp and the tokens of a microbatch, ``all`` is no slower."""
    where = cluster(
        data.draw(st.sampled_from(("dgx-b200", "dgx-h100", "dgx-a100", "trn2.48xlarge")))
    )
    width, head_dim = 2 ** data.draw(st.integers(9, 13)), data.draw(st.sampled_from((64, 128)))
    heads = width // head_dim
    model = replace(
        *(TOY,), layers=2, hidden=width, heads=heads, kv_heads=min(8, heads), head_dim=head_dim,
        ffn=data.draw(st.integers(2, 4)) * width,
    )  # fmt: skip
    tp = data.draw(st.sampled_from([tp for tp in (2, 4, 8) if heads % tp == 0]))
    seq, microbatch = 2 ** data.draw(st.integers(9, 13)), data.draw(st.sampled_from((1, 2)))
    dp = where.chips // tp
    how = plan(tp=tp, dp=dp, seq=seq, microbatch=microbatch, global_batch=dp * microbatch)
    times_s = [
        iteration(model, where, replace(how, overlap=kind), allow_oversized=True).iteration_s
        for kind in ("dp", "all")
    ]
    # Layers are timed by themselves when their overlap is tried.
    assert times_s[1] <= times_s[0] * 1.005


@pytest.mark.parametrize(("a_byte_s", "beside"), [(1e-16, False), (1e-11, True)])
def test_products_run_beside_communication_where_that_is_faster(
    a_byte_s: float, beside: bool
) -> None:
    """Pieces of products take longer than a whole, which communication must make good."""
    how = plan(tp=4, overlap="all", seq=16_384)
    shapes = RankShapes(TOY, how, "h100", shipped_catalogue())
    tried = as_tried(shapes, lambda step: a_byte_s * step.size_bytes)
    assert tried.beside_tp == beside
    whole = RankShapes(TOY, replace(how, overlap="dp"), "h100", shipped_catalogue())
    assert (forward(tried) == forward(whole)) == (backward(tried) == backward(whole)) != beside


@pytest.mark.parametrize(
    ("chip", "share"), [("h100", 132 / 112), ("a100-80gb", 108 / 88), ("trn2", 1)]
)
def test_a_product_beside_a_reduction_gives_processors_up(chip: str, share: float) -> None:
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    shapes = RankShapes(TOY, how, chip, shipped_catalogue())
    product = shapes.gemm(4096, 4096, 4096)
    assert shapes.beside(product).seconds == pytest.approx(share * product.seconds)


def test_only_reductions_take_processors_from_products() -> None:
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    slowed, undisturbed = (
        kind(TOY, how, "h100", shipped_catalogue()) for kind in (RankShapes, Undisturbed)
    )
    longer = [
        one.name
        for one, other in zip(backward(slowed), backward(undisturbed), strict=True)
        if one.seconds > other.seconds
    ]
    assert longer == ["mlp.up.weight", "attention.qkv.weight"]


def test_batches_first_copy_what_is_gathered_and_scattered() -> None:
    """Each communication of the sequence has a copy beside it, unless products run beside it."""
    variants = {"training.sequence_copies": "concatenated", "training.input_gathers": "kept"}
    chosen = shipped_catalogue().with_variants(variants)
    how = plan(tp=4, sequence_parallel=True)
    for overlap, count in (("dp", 4), ("all", 0)):
        shapes = RankShapes(TOY, replace(how, overlap=overlap), "h100", chosen)
        steps = forward(shapes)
        copies = [step for step in steps if step.name.endswith(".copy")]
        assert len(copies) == count
        assert all(step.size_bytes == 2 * shapes.wide_bytes for step in copies)
    gathers = {
        catalogue: sum(".gather" in step.name and step.axis == "tp" for step in backward(shapes))
        for catalogue in (shipped_catalogue(), chosen)
        for shapes in [RankShapes(TOY, how, "h100", catalogue)]
    }
    assert gathers == {shipped_catalogue(): 4, chosen: 2}
