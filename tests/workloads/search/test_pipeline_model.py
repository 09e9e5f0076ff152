"""The model of a pipeline and its exchanges, against closed forms and the trainer."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives.duration.duration import Geometry
from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.pipeline_lines import line
from tests.support.toy_training import exchange_ps, plan, sixteen
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.units import PS_PER_S
from workloads.search.estimate import Communication, span, unlike_groups
from workloads.search.pipeline_model import EACH, ONCE, walk_s
from workloads.training.layers.steps import CC, ENGINE, NOTHING, LayerOp, collective
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import group_of
from workloads.training.program.ops import Catalog


def test_a_block_of_ops_is_followed_exactly():
    steps = [
        LayerOp("a", "compute", ENGINE, 2.0),
        LayerOp("b", "tp", CC, axis="tp", collective="all-gather"),
        LayerOp("c", "compute", ENGINE, 1.0, after=NOTHING),
        LayerOp("d", "compute", ENGINE, 1.0, after="b"),
    ]
    catalog = Catalog()
    assert span(catalog.ops(steps), catalog.steps, lambda step: 3.0) == 6.0


@given(st.integers(1, 12), st.integers(1, 24), st.sampled_from(["gpipe", "1f1b"]))
def test_equal_stages_have_the_bubble_of_the_books(stages, microbatches, schedule):
    time_s = walk_s(line(stages, microbatches, schedule))
    ideal = 3.0 * microbatches
    assert time_s / ideal - 1 == pytest.approx(bubble_fraction(stages, microbatches), abs=1e-12)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_interleaving_divides_the_bubble(stages, rounds, vpp):
    microbatches = stages * rounds
    time_s = walk_s(line(stages, microbatches, "interleaved", vpp=vpp))
    bubble = bubble_fraction(stages, microbatches, vpp)
    assert time_s / (3.0 * vpp * microbatches) - 1 == pytest.approx(bubble, abs=1e-12)


@given(st.integers(2, 8), st.integers(0, 24))
def test_going_there_and_back_leaves_one_pass_a_stage(stages, more):
    """DualPipe where passes of a pair take as long as one after the other."""
    microbatches = 2 * stages + more
    time_s = walk_s(line(stages, microbatches, "dualpipe", vpp=2))
    assert time_s == 6.0 * microbatches + stages - 1


@given(st.integers(2, 8), st.integers(8, 24))
def test_weights_fill_the_bubble(stages, microbatches):
    time_s = walk_s(line(stages, microbatches, "zero-bubble"))
    assert time_s - 3.0 * microbatches == pytest.approx(zero_bubble_s(stages, 1.0, 1.0, 1.0))


def test_in_1f1b_long_transfers_slow_every_microbatch():
    few, many = (walk_s(line(4, m, hop_s=np.ones(4))) for m in (20, 40))
    assert (many - few) / 20 > 3.0
    assert walk_s(line(4, 20, hop_s=np.zeros(4))) == pytest.approx(3.0 * 23)


def test_a_longer_stage_sets_the_pace():
    uneven = line(2, 10, first=np.array([0, 1, 3]), kind=np.zeros(3, np.int64),
                  gather_s=np.zeros(3), reduce_s=np.zeros(3))  # fmt: skip
    assert walk_s(uneven) == pytest.approx(10 * 6.0 + 3.0)


def test_a_stage_that_waits_for_what_it_sends_is_slower():
    hop_s = np.full(2, 0.5)
    beside, waits = (line(2, 8, "gpipe", sends_beside=b, hop_s=hop_s) for b in (True, False))
    assert walk_s(waits) == pytest.approx(walk_s(beside) + 2 * 7 * 0.5)


@given(st.integers(1, 40), st.floats(0.1, 5))
def test_gradients_beside_layers_end_as_two_machines_in_line(layers, talk):
    ends = float(layers)  # the forward pass
    for layer in range(layers):
        ends = max(ends, layers + 2.0 * (layer + 1)) + talk
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64),
               gather_s=np.zeros(layers), reduce_s=np.full(layers, talk), reduces=ONCE)  # fmt: skip
    assert walk_s(one) == pytest.approx(ends)
    assert walk_s(one._replace(dp_beside=False)) == pytest.approx(layers * (3.0 + talk))


@given(st.integers(1, 20), st.floats(0.1, 3))
def test_parameters_are_gathered_one_layer_ahead(layers, talk):
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64),
               gather_s=np.full(layers, talk), reduce_s=np.zeros(layers), gathers=EACH)  # fmt: skip
    forward = talk + (layers - 1) * max(1.0, talk) + 1.0
    backward = talk + (layers - 1) * max(2.0, talk) + 2.0
    assert walk_s(one) == pytest.approx(forward + backward)


@given(st.integers(1, 20), st.floats(0.1, 3), st.floats(0, 3))
def test_updated_parameters_are_gathered_once_before_the_first_pass(layers, talk, rest):
    """Each stage begins with what is outside layers, at the start of the iteration."""
    one = line(1, 2, first=np.array([0, layers]), kind=np.zeros(layers, np.int64), gathers=ONCE,
               gather_s=np.full(layers, talk), reduce_s=np.zeros(layers),
               gather_rest_s=np.array([rest]))  # fmt: skip
    first = rest + talk + (layers - 1) * max(1.0, talk) + 1.0
    assert walk_s(one) == pytest.approx(first + 5.0 * layers)
    two = line(2, 1, gathers=ONCE, gather_s=np.array([0, talk]), gather_rest_s=np.array([0, rest]))
    assert walk_s(two) == pytest.approx(max(1.0, rest + talk) + 5.0)


AXES = ("tp", "cp", "dp", "pp", "etp", "ep", "edp", "norm")


def assert_all_geometries(one: ParallelPlan, axis: str, machine: Cluster) -> None:
    """Check that there is one group of each geometry that groups of the placement have."""
    placed, unlike = place(one, machine), unlike_groups(one, axis, machine)
    every = placed.chip[placed.groups(axis)]
    assert {*map(tuple, unlike.tolist())} <= {*map(tuple, every.tolist())}
    some, whole = (
        {Geometry(group_of(machine, chips)) for chips in groups} for groups in (unlike, every)
    )
    assert some == whole


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("pp", "dp", "tp", "cp")])
def test_each_geometry_of_the_placement_has_a_group(axis, order):
    for per_chip in (1, 2):
        degrees = {"tp": 2, "cp": 2, "pp": 2, "dp": 2 * per_chip, "ep": 4, "etp": 1}
        one = plan(**degrees, order=order, ranks_per_chip=per_chip)
        for machine in (sixteen(), cluster("gb200-nvl72:2")):
            assert_all_geometries(one, axis, machine)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("machine", "degrees"),
    [
        ("gb200-nvl72:2", {"pp": 2, "dp": 64, "ep": 32}),
        ("gb200-nvl72:4", {"tp": 16, "pp": 9, "dp": 2}),
        ("trn2-ultraserver:6", {"tp": 32, "pp": 3, "dp": 4, "order": ("tp", "cp", "pp", "dp")}),
        ("trn2.48xlarge:48", {"tp": 4, "cp": 2, "pp": 3, "dp": 32}),
        ("dgx-h100:9", {"pp": 3, "dp": 24, "ep": 4, "order": ("tp", "cp", "pp", "dp")}),
    ],
)
def test_groups_that_straddle_domains_are_told_apart(axis, machine, degrees):
    assert_all_geometries(plan(**degrees), axis, cluster(machine))


def test_replicas_in_alternate_halves_of_domains_are_timed_as_a_ring():
    """Three stages of 32 chips leave every replica in another half of its UltraServer."""
    machine = cluster("trn2-ultraserver:24")
    beside = plan(tp=32, pp=3, dp=16, order=("tp", "cp", "pp", "dp"))
    apart = plan(tp=32, pp=3, dp=16, order=("tp", "cp", "dp", "pp"))
    communication, step = Communication(machine, 1), collective("sum", "dp", "all-reduce", 2**28)
    for one in (beside, apart):
        placed = place(one, machine)
        chips = placed.chip[placed.groups("dp")][0]
        exact_s = exchange_ps(machine, chips, "all-reduce", 2**28) / PS_PER_S
        assert communication.times(one)(step) == pytest.approx(exact_s, rel=1e-3)


@pytest.mark.parametrize("machine", ["trn2.48xlarge:4", "dgx-h100:8", "trn1.32xlarge:4"])
@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce"])
def test_times_are_those_of_the_slowest_group_to_the_picosecond(machine, op):
    where, one = cluster(machine), plan(tp=4, cp=2, pp=2, dp=4)
    placed = place(one, where)
    for axis in ("tp", "cp", "dp"):
        step = collective("step", axis, op, 2**24)
        groups = placed.chip[placed.groups(axis)]
        slowest_ps = max(exchange_ps(where, chips, op, 2**24) for chips in groups)
        assert Communication(where, 1).times(one)(step) == slowest_ps / PS_PER_S


def test_a_hop_of_a_stage_takes_the_time_of_its_slowest_pair():
    racks = cluster("gb200-nvl72:4")
    one = plan(tp=16, pp=9, dp=2)
    pipes = place(one, racks).chip[place(one, racks).groups("pp")]
    hops_s = Communication(racks, 1).hops_s(one, 2**24)
    for stage in range(one.pp):
        pairs = pipes[:, [stage, (stage + 1) % one.pp]]
        every_ps = [exchange_ps(racks, pair, "send", 2**24) for pair in np.unique(pairs, axis=0)]
        assert hops_s[stage] == max(every_ps) / PS_PER_S


def test_tied_embeddings_are_exchanged_between_first_and_last_stage():
    where, one = cluster("trn2.48xlarge:4"), plan(tp=4, pp=4, dp=4)
    pipes = place(one, where).chip[place(one, where).groups("pp")]
    ends, communication = pipes[:, [0, -1]], Communication(where, 1)
    assert set(map(tuple, communication.groups(one, "tie"))) <= set(map(tuple, ends))
    every_ps = [exchange_ps(where, pair, "all-reduce", 2**24) for pair in ends]
    step = collective("tied", "tie", "all-reduce", 2**24)
    assert communication.times(one)(step) == max(every_ps) / PS_PER_S


def test_switches_tell_groups_apart_where_they_are_oversubscribed():
    wide = cluster("trn2.48xlarge:48")
    narrow = replace(wide, scale_out=replace(wide.scale_out, oversubscription=Fraction(2)))
    one = plan(tp=16, dp=3, pp=16)  # three servers lie under one switch of four, or under two
    assert_all_geometries(one, "dp", narrow)
    assert len(unlike_groups(one, "dp", wide)) == 1
    assert len(unlike_groups(one, "dp", narrow)) > 1
