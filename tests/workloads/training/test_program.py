"""Programs: placement, order of passes, what is folded and shared, and their events."""

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives.duration import duration
from cluster_sim.collectives.duration.duration import geometries
from cluster_sim.schedule.table import JOIN
from cluster_sim.trace.trace import run
from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.toy_training import LATENT, SPARSE, TOY, exchange_ps, plan, sixteen, toy_program
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Axis, Torus
from topologies.shapes.scale_out import ScaleOut
from topologies.support.arrays import MULTIPLIER, distinct_rows
from workloads.training.execution.lower import lower
from workloads.training.layers import layer as layer_module
from workloads.training.layers.steps import CC_DP, ENGINE, RankShapes, stream_kinds
from workloads.training.plan import placement
from workloads.training.plan.placement import place
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.registry import pipeline_schedule
from workloads.training.plan.stages import check_model, edge_share, layer_share
from workloads.training.program import fold as fold_module
from workloads.training.program import stage as stage_module
from workloads.training.program.breakdown import breakdown
from workloads.training.program.fold import _refined, equal_ranks, fold
from workloads.training.program.groups import GroupCosts, SharedParts
from workloads.training.program.program import program


def ends(trace, rank):
    """Ends of a rank's own ops in program order."""
    frame = trace.frame(ranks=rank)
    return frame.loc[frame["kind"] != "join", "end_ps"].tolist()


@examples(100)
@given(
    st.integers(1, 8),
    st.integers(1, 20),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]),
    st.data(),
)
def test_every_microbatch_goes_forward_then_back(pp, m, name, data):
    stage = data.draw(st.integers(0, pp - 1))
    vpp = data.draw(st.integers(1, 4)) if name == "interleaved" else 1
    order = passes(pipeline_schedule(name), pp, stage, m, vpp)
    phases = 3 if name == "zero-bubble" else 2
    at = np.lexsort((order.phase, order.chunk, order.microbatch))
    assert order.phase[at].tolist() == [*range(phases)] * m * vpp
    assert order.microbatch[at].tolist() == np.repeat(range(m), phases * vpp).tolist()
    assert (np.diff(at.reshape(-1, phases)) > 0).all()
    if vpp == 1:
        held = np.cumsum(np.select([order.phase == 0, order.phase == phases - 1], [1, -1])).max()
        assert held <= (m if name == "gpipe" else min(m, pp - (phases == 2) * stage))


def test_tensor_parallel_groups_are_blocks_of_the_torus():
    placed = place(plan(tp=32, dp=2, global_batch=2), cluster("trn2-ultraserver"))
    first, kind = geometries(placed.joined.clusters[0], placed.chip[placed.groups("tp")])
    assert placed.groups("tp").tolist() == [list(range(32)), list(range(32, 64))]
    assert (len(first), kind.tolist()) == (1, [0, 0])


def test_the_rank_order_is_an_input():
    how = plan(tp=4, dp=4, global_batch=4)
    assert place(how, sixteen()).groups("dp")[0].tolist() == [0, 4, 8, 12]
    turned = replace(how, order=("dp", "cp", "tp", "pp"))
    assert place(turned, sixteen()).groups("tp")[0].tolist() == [0, 4, 8, 12]
    shuffled = place(how, sixteen(), [*range(15, -1, -1)])
    assert shuffled.chip[shuffled.groups("tp")[0]].tolist() == [15, 14, 13, 12]

    for chips, message in (
        ([0] * 16, "names a chip twice"),
        ([*range(15)], "names 15 chips, the plan has 16"),
        ([*range(1, 17)], "names chip 16; .* chips 0 to 15"),
    ):
        refused(message, place, how, sixteen(), chips)


CASES = [
    ("trn2.48xlarge", {"tp": 4, "pp": 2, "dp": 2}),
    ("trn2.48xlarge", {"tp": 2, "pp": 4, "dp": 2, "overlap": "all", "schedule": "gpipe"}),
    ("trn2.48xlarge", {"tp": 8, "dp": 2, "overlap": "dp", "recompute": "full"}),
    ("dgx-h100:2", {"pp": 2, "dp": 8, "zero": 0, "overlap": "all", "attention": "unfused"}),
    ("dgx-a100:2", {"tp": 4, "pp": 4, "sequence_parallel": False, "overlap": "all"}),
    ("trn1.32xlarge", {"tp": 8, "pp": 2, "dp": 2, "ranks_per_chip": 2, "overlap": "dp"}),
    ("trn2.48xlarge", {"dp": 16, "zero": 3, "overlap": "dp"}),
    ("dgx-h100:2", {"tp": 2, "dp": 8, "zero": 2, "overlap": "none"}),
    ("dgx-h100:2", {"tp": 2, "pp": 2, "dp": 4, "zero": 3, "overlap": "all", "recompute": "full"}),
    ("trn2.48xlarge", {"tp": 4, "pp": 4, "vpp": 2, "overlap": "dp"}),
    ("trn2.48xlarge", {"pp": 4, "dp": 4, "vpp": 2, "zero": 3, "overlap": "dp"}),
    ("dgx-h100:2", {"pp": 4, "dp": 4, "schedule": "zero-bubble", "zero": 2, "overlap": "dp"}),
    ("dgx-h100:2", {"pp": 2, "dp": 8, "vpp": 3, "schedule": "interleaved", "overlap": "all"}),
    ("dgx-a100:2", {"tp": 2, "pp": 4, "dp": 2, "schedule": "zero-bubble", "overlap": "all"}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "cp": 4, "overlap": "dp"}),
    ("dgx-h100:2", {"cp": 4, "dp": 4, "cp_exchange": "all-gather", "zero": 3, "overlap": "dp"}),
]
SPARSE_CASES = [
    ("dgx-h100:2", {"dp": 16, "ep": 8, "zero": 3, "overlap": "dp"}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "overlap": "all"}),
    ("dgx-h100:2", {"tp": 4, "dp": 4, "ep": 8, "etp": 1, "overlap": "dp", "routing_skew": 1.5}),
    ("dgx-h100:2", {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "ep": 2, "sequence_parallel": False}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "ep": 8, "etp": 1, "zero": 2}),
]


@pytest.mark.parametrize(("machine", "changes", "model", "shuffled"), [
    *((*case, replace(TOY, tied_embeddings=True), False) for case in CASES),
    *((*case, replace(TOY, tied_embeddings=True), True) for case in CASES[::3]),
    *((*case, SPARSE, True) for case in SPARSE_CASES),
    *((*case, LATENT, False) for case in SPARSE_CASES),
])  # fmt: skip
def test_folded_is_unfolded_to_the_picosecond(machine, changes, model, shuffled):
    check_model(plan(**changes), model)
    chips = np.random.default_rng(1).permutation(16) if shuffled else None
    whole = toy_program(plan(**changes), cluster(machine), model, chips)
    few = fold(whole)
    assert few.count.sum() == len(whole)
    assert shuffled or len(few) == changes.get("pp", 1)
    folded, unfolded = run(lower(few)), run(lower(whole))
    assert folded.total_ps == unfolded.total_ps
    for rank in few.rank.tolist():
        assert ends(folded, rank) == ends(unfolded, rank)
    parts = breakdown(folded).frame().drop(columns="count")
    assert (parts.sum(axis=1) == folded.total_ps).all()
    assert violations(folded) == []
    assert folded.frame()["count"].max() == few.count.max()


@pytest.mark.parametrize("changes", [{"vpp": 5, "pp": 2, "dp": 8}, {"pp": 10}])
def test_first_and_last_chunk_may_hold_the_embedding_and_the_output_alone(changes):
    """Eight layers in ten chunks: 0, 1, …, 1, 0."""
    how = plan(**changes, overlap="dp")
    check_model(how, TOY)
    refused("pp 11 × vpp 1 = 11 stages, but toy has 8 layers", check_model, plan(pp=11), TOY)
    table = lower(fold(toy_program(how, cluster("dgx-h100:2"))))
    fast, slow = run(table), run(table, engine="reference")
    assert fast.times.end_ps.tolist() == slow.times.end_ps.tolist()
    assert violations(slow) == []


def test_streams_keep_program_order_and_gradients_are_awaited():
    whole = fold(toy_program(plan(tp=4, dp=4, overlap="all"), sixteen()))
    frame = run(lower(whole)).frame()
    ops = frame[frame["kind"] != "join"]
    assert (ops.groupby("resource", observed=True)["start_ps"].diff().dropna() >= 0).all()
    optimizer = ops[ops["what"] == "optimizer"].start_ps.iloc[0]
    reduced = ops[ops["name"].astype(str).str.startswith("gradients")]
    gathered = ops[ops["name"].astype(str).str.startswith("parameters")]
    assert optimizer >= reduced.end_ps.max()
    for layer, end in zip(gathered["layer"], gathered["end_ps"], strict=True):
        used = ops[(ops["layer"] == layer) & (ops["microbatch"] == 0) & (ops["what"] != "dp")]
        assert used.start_ps.min() >= end


def test_communication_is_timed_on_the_chips_that_do_it():
    machine = cluster("trn2.48xlarge:2")
    for near, far, op, size in (
        ([0, 1, 2, 3], [0, 1, 16, 17], "all-reduce", 2**24), ([0, 1], [0, 16], "send", 2**20),
    ):  # fmt: skip
        near_ps, far_ps = (exchange_ps(machine, np.array(chips), op, size) for chips in (near, far))
        assert near_ps < far_ps
    inside = exchange_ps(machine, np.array([3, 3]), "all-reduce", 2**20)
    assert inside == pytest.approx(5_000_000 + 2**20 / 37.8e9 * 1e12, rel=0.05)
    ring = cluster("ring:4", bandwidth="100GB/s", latency="1us")  # a transfer is a permute of two
    assert exchange_ps(ring, np.array([0, 1]), "send", 10**8) == 10**9 + 10**6
    # Ranks of one GPU write what they exchange and read it: no copy within a chip is stated.
    rate = shipped_catalogue().value("h100", "hbm_bandwidth")
    for size in (2**20, 2**30):
        taken_ps = exchange_ps(cluster("dgx-h100"), np.array([3, 3]), "all-reduce", size)
        assert taken_ps == pytest.approx(2 * size / rate * 1e12, abs=1)


def test_resources_are_those_of_the_chips():
    program = toy_program(plan(tp=8, dp=4, ranks_per_chip=2), cluster("trn1.32xlarge"))
    names = lower(program).resources.names()
    assert len(set(names)) == len(names) == 32 * len(stream_kinds(program.steps))
    assert {"engine:15", "engine:15.1", "cc:0", "cc:0.1", "send:3"} <= set(names)
    assert (ENGINE, CC_DP) == (0, 2)


FOLDED = (
    {"tp": 4, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "pp": 4, "dp": 2, "zero": 1},
    {"tp": 2, "cp": 2, "dp": 4},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1},
)


def model_of(stated):
    return SPARSE if "ep" in stated else TOY


def numbered(kinds):
    """Kinds by order of first appearance."""
    seen = {}
    return [seen.setdefault(kind, len(seen)) for kind in kinds]


def told_plainly(program):
    """Refine stages by what each rank takes part in until nothing is split any more."""
    classes = numbered(program.stage.tolist())
    while True:
        parts = [[one] for one in classes]
        for number, one in enumerate(program.exchanges):
            for members, kind in zip(one.members.tolist(), one.kind.tolist(), strict=True):
                cost = one.duration_ps[kind].tobytes(), one.draws.size_bytes[kind].tobytes()
                taking = list(zip(one.role.tolist(), members, strict=True))
                met = frozenset((role, classes[member]) for role, member in taking)
                for role, member in taking:
                    parts[member].append((number, role, cost, met))
        finer = numbered([tuple(one) for one in parts])
        if max(finer) == max(classes):
            return classes
        classes = finer


@pytest.mark.parametrize("stated", FOLDED, ids=str)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_equal_ranks(stated, shuffled):
    for seed in range(3 if shuffled else 1):
        chips = np.random.default_rng(seed).permutation(16) if shuffled else None
        program = toy_program(plan(**stated), sixteen(), model_of(stated), chips=chips)
        classes = equal_ranks(program)
        assert classes.tolist() == told_plainly(program)
        folded = fold(program)
        assert folded.rank.tolist() == np.unique(classes, return_index=True)[1].tolist()
        assert folded.count.tolist() == np.bincount(classes).tolist()


def test_pipelines_that_cross_switches_anywhere_take_few_rounds(monkeypatch):
    servers = cluster("trn2.48xlarge:64")
    order = np.random.default_rng(0).permutation(63)
    chips = np.add.outer(16 * order, np.arange(16)).ravel()
    stated = plan(tp=16, pp=7, dp=9, order=("tp", "cp", "pp", "dp"))
    program = toy_program(stated, servers, chips=chips)
    rows = []

    def counted(classes, *more):
        rows.append(len(classes))
        return _refined(classes, *more)

    monkeypatch.setattr(fold_module, "_refined", counted)
    classes = equal_ranks(program)
    assert classes.tolist() == told_plainly(program)
    assert 14 <= classes.max() + 1 < len(program)
    assert len(rows) <= 5 * len(program.exchanges)


@pytest.mark.parametrize("stated", FOLDED, ids=str)
def test_a_group_of_one_row_needs_no_joins(stated):
    """Groups of which the one row is named twice have joins, and the same times."""
    folded, twice = fold(toy_program(plan(**stated), sixteen(), model_of(stated))), [0, 0]
    named_twice = tuple(
        replace(one, members=one.members[:, twice], role=one.role[twice])
        if one.members.shape[1] == 1 else one
        for one in folded.exchanges
    )  # fmt: skip
    few, more = run(lower(folded)), run(lower(replace(folded, exchanges=named_twice)))
    ops = int((few.schedule.kind != JOIN).sum())
    assert ops == (more.schedule.kind != JOIN).sum()
    assert len(few) < len(more)
    for name in ("ready_ps", "start_ps", "end_ps"):
        assert (getattr(few.times, name)[:ops] == getattr(more.times, name)[:ops]).all()
    assert breakdown(few).mean_s() == breakdown(more).mean_s()


def test_distinct_rows():
    rows = np.random.default_rng(0).integers(0, 3, (50, 2))
    for sample in (rows, rows[:1], np.tile(rows[:1], (5, 1)), rows[:0]):
        first, which = distinct_rows(sample)
        np.testing.assert_array_equal(sample[first][which], sample)
        assert [*map(tuple, sample[first])] == [*dict.fromkeys(map(tuple, sample))]
    with_equal_polynomials = np.array([[MULTIPLIER, 0], [0, 1], [MULTIPLIER, 0], [0, 3]])
    first, which = distinct_rows(with_equal_polynomials)
    assert (first.tolist(), which.tolist()) == ([0, 1, 3], [0, 1, 0, 2])


OTHER_AXES = ("tp", "cp", "pp", "dp")
SHARING = (
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "order": OTHER_AXES},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "global_batch": 24},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "global_batch": 2},
    {"tp": 2, "pp": 2, "dp": 2, "schedule": "zero-bubble", "overlap": "all"},
    {"pp": 4, "vpp": 2, "schedule": "interleaved", "dp": 2, "zero": 2},
    {"tp": 2, "cp": 2, "dp": 4, "zero": 3},
    {"tp": 4, "pp": 2, "dp": 4, "ranks_per_chip": 2},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1, "recompute": "full"},
)


def built(how, shared=None):
    where = sixteen()
    model = SPARSE if how.ep > 1 else TOY
    shapes = RankShapes(model, how, where.chip, shipped_catalogue())
    return program(shapes, place(how, where), shared=shared)


def test_programs_that_share_parts_are_the_same():
    shared = SharedParts()
    for changes in (*SHARING, *SHARING):
        alone, sharing = built(plan(**changes)), built(plan(**changes), shared)
        assert alone.steps == sharing.steps
        for pair in zip(alone.streams, sharing.streams, strict=True):
            for column in ("step", "back", "layer", "microbatch"):
                np.testing.assert_equal(*(getattr(stream.ops, column) for stream in pair))
            for column in ("src", "dst", "contends"):
                np.testing.assert_equal(*(getattr(stream, column) for stream in pair))
        for one, other in zip(alone.exchanges, sharing.exchanges, strict=True):
            for field in fields(one):
                np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.parametrize(("degrees", "count"), [({"pp": 2}, 6), ({"pp": 4}, 9), ({"pp": 8}, 9)])
def test_passes_are_laid_out_once_for_stages_that_differ_in_layers(degrees, count, monkeypatch):
    laid_out = []
    lay_out = stage_module.StagePasses._ops

    def counted(self, *parts, **steps):
        laid_out.append(steps)
        return lay_out(self, *parts, **steps)

    monkeypatch.setattr(stage_module.StagePasses, "_ops", counted)
    built(plan(tp=2, overlap="dp", **degrees))
    # Forward and backward passes of the first stage, the last and those between, and the last
    # backward passes, whose gradients leave.
    assert len(laid_out) == count


@pytest.mark.parametrize("model", [TOY, SPARSE], ids=["dense", "sparse"])
def test_steps_of_a_layer_depend_on_the_fields_that_they_are_remembered_by(model):
    """Any field but those of the key changes nothing, so that one layer stands for all."""
    alone = {
        "global_batch": 32, "zero": 2, "reshard": False, "schedule": "zero-bubble",
        "order": OTHER_AXES, "bucket_bytes": 10**6, "recompute_every": 2, "runtime": "eager",
        "framework": "axlearn", "optimizer": "muon",
    }  # fmt: skip
    changes = {
        **{name: {name: value} for name, value in alone.items()},
        "pp": {"pp": 2, "global_batch": 64}, "dp": {"dp": 16, "global_batch": 64},
        "vpp": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
        "stage_layers": {"pp": 2, "stage_layers": (3, 5)},
    }  # fmt: skip
    assert set(PLAN_FIELDS) == {*layer_module.LAYER_FIELDS, *changes}
    apart = {"ep": 4, "etp": 1} if model.experts else {}
    for usual in ({}, {"recompute": "full"}, {"overlap": "all"}):
        base = {"tp": 2, "dp": 8, "global_batch": 16, **apart, **usual}
        steps = remembered_by_nothing(model, plan(**base))
        for change in changes.values():
            assert remembered_by_nothing(model, plan(**{**base, **change})) == steps


def remembered_by_nothing(model, how):
    """Steps of layers forward and backward, made anew."""
    layer_module._forward.cache_clear()
    layer_module._backward.cache_clear()
    shapes = RankShapes(model, how, "trn2", shipped_catalogue())
    moe = model.experts is not None
    return [layer_module.forward(shapes, moe=moe), layer_module.backward(shapes, moe=moe)]


@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("dp", "pp", "tp", "cp")])
def test_groups_cost_as_much_as_if_each_were_timed_alone(order, monkeypatch):
    """Servers of four chips, of which three are under a switch: groups differ by their switches."""
    shape = Torus((Axis("Y", 2, 64 * 10**9, 300_000), Axis("X", 2, 128 * 10**9, 300_000)))
    fabric = ScaleOut("efa", 25 * 10**9, 15 * 10**6, 4, 10**11, Fraction(3), (0, 10**6, 10**7))
    where = Cluster("small racks", shape, "trn2", 8, fabric, 4, catalogue=shipped_catalogue())
    how = plan(tp=4, pp=4, dp=2, order=order)
    shapes, placed = RankShapes(TOY, how, "trn2", shipped_catalogue()), place(how, where)
    shared = program(shapes, placed).exchanges
    monkeypatch.setattr(placement, "geometries", lambda _, chips: (np.arange(len(chips)),) * 2)
    monkeypatch.setattr(GroupCosts, "place_key", lambda self, chips: chips.tobytes())
    monkeypatch.setattr(duration, "places", lambda cluster, chips: chips)
    kinds = []
    for one, alone in zip(shared, program(shapes, placed).exchanges, strict=True):
        np.testing.assert_equal(one.duration_ps[one.kind], alone.duration_ps[alone.kind])
        np.testing.assert_equal(one.draws.size_bytes[one.kind], alone.draws.size_bytes[alone.kind])
        kinds.append((len(one.duration_ps), len(alone.duration_ps)))
    assert any(1 < few < many for few, many in kinds), kinds


WORK = 10**9


def idle_and_work(**changes):
    """Idle time and work of the longest stage when only attention's output product takes time.

    Forward and both halves of the backward pass then take one unit a layer, transfers a picosecond.
    """
    folded = fold(toy_program(plan(**changes), sixteen()))
    names = np.array([step.name for step in folded.steps]).astype(str)
    units = np.char.startswith(names, "attention.out") * WORK
    talks = [replace(one, duration_ps=np.ones_like(one.duration_ps)) for one in folded.exchanges]
    folded = replace(folded, step_ps=np.maximum(units, 1), exchanges=tuple(talks))
    busy = max(int(folded.step_ps[stream.ops.step].sum()) for stream in folded.streams)
    return run(lower(folded)).total_ps - busy, busy


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize(("schedule", "pp", "vpp", "microbatches"), [
    ("gpipe", 4, 1, 8), ("1f1b", 2, 1, 4), ("1f1b", 8, 1, 8), ("interleaved", 2, 2, 4),
    ("interleaved", 4, 2, 8), ("interleaved", 2, 4, 6),
])  # fmt: skip
def test_bubbles_are_the_closed_form(schedule, pp, vpp, microbatches, overlap):
    """Stages of equal work leave (p − 1) / (v m) of the work idle."""
    idle, busy = idle_and_work(
        schedule=schedule, pp=pp, vpp=vpp, global_batch=microbatches, overlap=overlap
    )
    assert idle / busy == pytest.approx(bubble_fraction(pp, microbatches, vpp), abs=1e-4)


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (8, 8)])
def test_the_zero_bubble(pp, microbatches):
    how = {"pp": pp, "global_batch": microbatches, "schedule": "zero-bubble", "overlap": "all"}
    layers = TOY.layers // pp * WORK
    idle, busy = idle_and_work(**how)
    assert idle / busy == pytest.approx(zero_bubble_s(pp, layers, layers, layers) / busy, abs=1e-4)
    usual = idle_and_work(**{**how, "schedule": "1f1b"})
    assert idle < usual[0] / 2.9


def test_fully_sharded_parameters_are_gathered_beside_the_layer_before():
    folded = fold(toy_program(plan(dp=16, zero=3, overlap="dp"), sixteen()))
    frame = run(lower(folded)).frame()
    ops = frame[(frame["kind"] != "join") & (frame["microbatch"] == 2)]
    names = ops["name"].astype(str)
    gathers = ops[names == "parameters.bucket"]
    assert len(gathers) == 2 * TOY.layers
    compute = ops[(ops["what"] == "compute") & (ops["layer"] >= 0)]
    starts = compute.groupby("layer", observed=True)["start_ps"]
    for _, one in gathers.iterrows():
        used = compute[
            (compute["layer"] == one["layer"]) & (compute["start_ps"] >= one["start_ps"])
        ]
        assert used["start_ps"].min() >= one["end_ps"]
    forward = gathers.head(TOY.layers).set_index("layer")["start_ps"]
    assert forward[5] >= starts.min()[3]
    assert len(ops[names == "gradients.bucket"]) == TOY.layers + 1


def passes_ps(how, machine):
    """Time of the kernels of each layer of a microbatch, forward and backward [ps]."""
    program = toy_program(how, cluster(machine))
    ops = program.streams[0].ops
    inside = (ops.layer >= 0) & (program.stream_of[ops.step] == ENGINE) & (ops.microbatch == 2)
    return np.bincount(ops.layer[inside], program.step_ps[ops.step[inside]])


def exchanged_ps(how, machine, chips):
    """Time of two gatherings and a reduction of each layer but one, among these chips [ps]."""
    weights = 2 * layer_share(TOY, how).total
    calls = (("all-gather", 2, weights), ("reduce-scatter", 1, 2 * weights))
    each = [n * exchange_ps(cluster(machine), chips, op, size) for op, n, size in calls]
    return (TOY.layers - 1) * sum(each)


@pytest.mark.parametrize(("machine", "tp", "share"), [
    ("dgx-h100:2", 1, Fraction(16, 132)), ("dgx-a100:2", 1, Fraction(16, 108)),
    ("p4d.24xlarge:2", 1, Fraction(8, 108)), ("tpu-v5p-pod", 1, 0), ("trn2.48xlarge", 1, 0),
    # A group with one rank in each server has one adapter there, and an eighth of the blocks.
    ("dgx-h100:4", 8, Fraction(2, 132)),
])  # fmt: skip
def test_kernels_lose_the_multiprocessors_of_exchanges_beside_them(machine, tp, share):
    """Two of a chip for each of a server's adapters, while all but the first and last run."""
    chips = np.arange(4) * 8 if tp > 1 else np.arange(16)
    how = plan(tp=tp, dp=len(chips), zero=3, seq=16384)
    alone, beside = (
        passes_ps(replace(how, overlap=overlap), machine) for overlap in ("none", "dp")
    )
    lost = share * exchanged_ps(how, machine, chips)
    assert (beside - alone).sum() == pytest.approx(float(lost), rel=1e-3)


@pytest.mark.parametrize("pipeline", [
    {},
    {"pp": 4},
    {"pp": 2, "vpp": 2},
    *({"pp": 4, "schedule": s} for s in ("zero-bubble", "gpipe")),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_of_replicas_are_those_of_the_zero_paper(zero, pipeline):
    """Ψ gradients and Ψ parameters an iteration; ZeRO-3 gathers parameters twice a microbatch."""
    how, model = plan(dp=4, zero=zero, overlap="dp", **pipeline), replace(TOY, vocab=4)
    program = toy_program(how, sixteen(), model)
    sent = {"gradients": 0, "parameters": 0}
    for number in np.concatenate([stream.ops.step for stream in program.streams]).tolist():
        kind = program.steps[number].name.split(".")[0]
        if kind in sent:
            sent[kind] += program.steps[number].size_bytes
    layers = TOY.layers * layer_share(model, how).total
    edges = sum(edge_share(model, how, stage) for stage in {0, how.pp - 1})
    assert sent["gradients"] == 4 * (8 if zero >= 2 else 1) * (layers + edges)
    gathered = 8 * (2 * layers + edges) if zero == 3 else layers + edges
    assert sent["parameters"] == 2 * gathered * (zero > 0)


@pytest.mark.parametrize("zero", [0, 1])
def test_gradients_leave_in_buckets_of_whole_layers(zero):
    """Two buckets of three leave two of eight layers, and the edges."""
    how = plan(dp=16, zero=zero, overlap="dp", global_batch=32)
    each, edges = layer_share(TOY, how).total, edge_share(TOY, how, 0)
    program = toy_program(replace(how, bucket_bytes=4 * 3 * each - 3), sixteen())
    ops = program.streams[0].ops
    names = np.array([step.name for step in program.steps])[ops.step]
    sizes = np.array([step.size_bytes for step in program.steps])[ops.step]
    reduced = names == "gradients.bucket"
    assert sizes[reduced].tolist() == [4 * (3 * each), 4 * (3 * each), 4 * (2 * each + edges)]
    gathered = names == "parameters.bucket"
    assert ops.layer[gathered].tolist() == [0, 3, 6] * zero
    assert sizes[gathered].tolist() == [2 * 3 * each, 2 * 3 * each, 2 * 2 * each] * zero
    before = [ops.layer[:at].max(initial=-1) for at in np.flatnonzero(reduced)]
    last = [ops.layer[:at][ops.layer[:at] >= 0][-1] for at in np.flatnonzero(reduced)]
    assert before == [7] * 3
    assert last == [5, 2, 0]
