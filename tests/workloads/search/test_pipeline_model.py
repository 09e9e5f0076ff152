"""The model of a pipeline, on unlike chips too, against closed forms and the trainer."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from cluster_sim.collectives.duration.duration import Geometry
from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.examples import examples
from tests.support.pipeline_lines import line
from tests.support.refusals import refused
from tests.support.toy_training import SPARSE, TOY, exchange_ps, plan, sixteen
from topologies.clusters.names import cluster
from topologies.support.units import PS_PER_S
from workloads.search.estimate import Communication, span, unlike_groups
from workloads.search.pipeline_model import EACH, ONCE, walk_s
from workloads.search.unlike import Question, divided
from workloads.training.detail import Detail
from workloads.training.iteration import iteration
from workloads.training.layers.steps import CC, ENGINE, NOTHING, LayerOp, collective
from workloads.training.plan.placement import Joined, place
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


@given(st.integers(1, 12), st.floats(0.1, 4), st.floats(0, 9))
def test_a_pass_takes_the_longer_of_chip_and_host(layers, host_s, late):
    """The host issues while the chip waits for parameters, so both times do not add up."""
    layer_s = np.array([[[1.0] * 2, [2.0] * 2, [0.0] * 2], [[host_s] * 2, [host_s] * 2, [0.0] * 2]])
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64), gathers=ONCE,
               gather_s=np.eye(layers)[0] * late, reduce_s=np.zeros(layers),
               layer_s=layer_s)  # fmt: skip
    forward, backward = max(late + layers, layers * host_s), layers * max(2.0, host_s)
    assert walk_s(one) == pytest.approx(forward + backward)


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


@given(st.integers(2, 20), st.floats(0.01, 1.9), st.floats(0.05, 0.4))
def test_layers_lose_the_processors_of_exchanges_beside_them(layers, talk, occupied):
    """The last reduction has no layer beside it, and none loses more than the share."""
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64),
               gather_s=np.zeros(layers), reduce_s=np.full((layers, 2), [talk, occupied * talk]),
               reduces=ONCE)  # fmt: skip
    lost = min((layers - 1) * occupied * talk, 2.0 * layers * occupied / (1 - occupied))
    assert walk_s(one) == pytest.approx(3.0 * layers + lost + talk)


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


def assert_all_geometries(one, axis, machine):
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
@pytest.mark.parametrize(("machine", "degrees"), [
    ("gb200-nvl72:2", {"pp": 2, "dp": 64, "ep": 32}),
    ("gb200-nvl72:4", {"tp": 16, "pp": 9, "dp": 2}),
    ("trn2-ultraserver:6", {"tp": 32, "pp": 3, "dp": 4, "order": ("tp", "cp", "pp", "dp")}),
    ("trn2.48xlarge:48", {"tp": 4, "cp": 2, "pp": 3, "dp": 32}),
    ("dgx-h100:9", {"pp": 3, "dp": 24, "ep": 4, "order": ("tp", "cp", "pp", "dp")}),
])  # fmt: skip
def test_groups_that_straddle_domains_are_told_apart(axis, machine, degrees):
    assert_all_geometries(plan(**degrees), axis, cluster(machine))


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


FAST, SLOW = "trn3-gen2:1", "trn2.48xlarge"


def step(how, *names, model=TOY, **detail):
    """A step whose stages are shared out equally over clusters."""
    clusters = tuple(cluster(name) for name in names)
    joined = Joined(clusters, (how.pp // len(names),) * len(names))
    return iteration(model, clusters[0], how, Detail(joined=joined, partial=True, **detail))


@pytest.mark.parametrize(
    ("first", "second", "layers"), [(FAST, SLOW, (4, 4)), (SLOW, FAST, (1, 7))]
)
def test_two_stages_of_which_the_second_is_slower(first, second, layers):
    """Forward on the first, a send, m times both passes on the second, a send and back."""
    run = step(plan(pp=2, global_batch=6, stage_layers=layers), first, second)
    ops = run.trace.frame()
    ops["lasts_ps"] = ops.end_ps - ops.start_ps
    sends = ops[ops.name.str.endswith(".send") & (ops.lasts_ps > 0)]
    assert sends.lasts_ps.nunique() == 1
    hop_ps = int(sends.lasts_ps.iloc[0])
    kernels = ops[(ops.what != "pp") & (ops.microbatch >= 0)]
    of_stage = kernels.groupby(["stage", "microbatch"]).lasts_ps.sum()
    assert of_stage[1, 0] > of_stage[0, 0]
    first_sent_ps = int(sends[(sends.stage == 0) & (sends.microbatch == 0)].start_ps.iloc[0])
    last = ops[(ops.stage == 0) & ops.name.eq("backward.receive")].end_ps.max()
    back_ps = kernels[(kernels.stage == 0) & (kernels.start_ps >= last)].lasts_ps.sum()
    after_ps = run.trace.total_ps - kernels.end_ps.max()
    expected = first_sent_ps + of_stage[1].sum() + 2 * hop_ps + back_ps + after_ps
    assert run.trace.total_ps == expected


@pytest.mark.parametrize(("how", "model"), [
    ({"tp": 4, "pp": 4, "dp": 2, "overlap": "all"}, TOY),
    ({"pp": 4, "vpp": 2, "schedule": "interleaved", "dp": 2, "overlap": "dp"}, TOY),
    ({"tp": 2, "pp": 2, "dp": 2, "ep": 2, "overlap": "all"}, SPARSE),
])  # fmt: skip
def test_both_engines_and_all_ranks_give_the_same_time(how, model):
    fast, simpy, every = (
        step(plan(**how), SLOW, FAST, model=model, **detail)
        for detail in ({}, {"engine": "reference"}, {"folded": False})
    )
    assert np.array_equal(fast.trace.times.end_ps, simpy.trace.times.end_ps)
    assert fast.trace.total_ps == every.trace.total_ps
    assert sum(fast.breakdown_s.values()) == pytest.approx(fast.iteration_s, rel=1e-12)
    bubbles = [fast.parts_of_stages(range(s, s + 1))["bubble"] for s in range(fast.plan.pp)]
    assert np.mean(bubbles) == pytest.approx(fast.breakdown_s["bubble"])


def test_a_transfer_costs_what_the_slower_side_needs():
    """And never less than between domains of either cluster; a thinner network takes longer."""
    joined = Joined((cluster(SLOW), cluster(FAST)), (1, 1))

    def sent_ps(where, **detail):
        run = iteration(TOY, where, plan(pp=2), Detail(partial=True, **detail))
        return next(e.duration_ps.max() for e in run.program.exchanges if e.axis == "forward")

    times = [
        int(sent_ps(joined.clusters[0], joined=replace(joined, oversubscription=thinned)))
        for thinned in (1.0, 2.0, 4.0)
    ]
    # Each further copy of the bytes takes as long as the one before.
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=1e-3)
    for name in (SLOW, FAST):
        there = replace(cluster(name), domains=2)
        assert times[0] > sent_ps(there, chips=np.array([0, there.chips_per_domain]))


def every_division(layers, chunks, least):
    """All ways to divide layers among chunks."""
    for cuts in combinations(range(layers + chunks - 1), chunks - 1):
        counts = np.diff([-1, *cuts, layers + chunks - 1]) - 1
        if all(count >= low for count, low in zip(counts, least, strict=True)):
            yield tuple(int(count) for count in counts)


@examples(60)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.integers(0, 8),
)
def test_no_division_has_a_faster_slowest_chunk(layers, speeds, end):
    sums = np.concatenate([[0], np.cumsum(layers)])
    times = np.array([slow * (sums - sums[:, None]) for slow in speeds], np.float64)
    times[-1] += end
    least = [0, *[1] * (len(speeds) - 2), 0]
    ways = list(every_division(len(layers), len(speeds), least))
    most = [len(layers)] * len(speeds)
    if not ways:
        refused("layers", divided, times, most, least)
        return

    def cost(counts):
        """Time of the slowest chunk, and of all."""
        cuts = np.cumsum([0, *counts])
        each = [times[k, low, high] for k, (low, high) in enumerate(pairwise(cuts))]
        return max(each), sum(each)

    chosen = divided(times, most, least)
    assert chosen in ways
    assert cost(chosen) == min(map(cost, ways))


def test_of_equally_long_divisions_the_most_even_is_taken():
    """A layer of the first chunk takes as long as four of the others, of a microsecond each."""
    count = np.arange(6) - np.arange(6)[:, None]
    times_s = np.array([4e-6, 1e-6, 1e-6])[:, None, None] * count
    assert divided(times_s, [5] * 3, [1] * 3) == (1, 2, 2)


HOPPER, BLACKWELL = "p5.48xlarge", "dgx-b200"
PAIR = {"tp": 4, "dp": 2, "global_batch": 32, "seq": 2048}


def test_layers_follow_speed_and_no_other_division_is_faster():
    run = cs.train("llama-3.1-8b", HOPPER, later_stages=BLACKWELL, **PAIR)
    first, second = run.plan.stage_layers
    assert run.plan.pp == 2
    assert first < 16 < second
    divisions = [
        replace(run.plan, stage_layers=(first + moved, second - moved)) for moved in range(-4, 5)
    ]
    detail = Detail(joined=run.joined, partial=True)
    times_s = [iteration(run.model, run.cluster, one, detail).iteration_s for one in divisions]
    assert run.iteration_s == min(times_s)
    equal, hopper, blackwell = run.unlike.beside
    assert run.iteration_s < equal.step_s < hopper.step_s
    assert blackwell.step_s < hopper.step_s
    assert run.unlike.slowest_network_s > run.iteration_s
    assert (run.chips, run.unlike.idle_chips) == (16, (0, 0))
    assert run.interval.low < run.iteration_s < run.interval.high
    alone = [cs.train("llama-3.1-8b", name, **PAIR).cost.cost_usd for name in (HOPPER, BLACKWELL)]
    assert (run.cost.cost_usd is None) == (None in alone)


def test_memory_bounds_the_layers_of_a_stage():
    """Trainium1 has a third of the memory and would be given more layers by its speed alone."""
    how = {"tp": 8, "dp": 2, "global_batch": 16, "seq": 4096, "lora_rank": 0}
    run = cs.train("llama-2-13b", "trn1.32xlarge", later_stages="trn2.48xlarge", **how)
    for number, each in enumerate(run.joined.clusters):
        assert each.chips >= len(run.joined.held(number)) * 16 // run.plan.ranks_per_chip
    assert run.memory.fits
    assert sum(run.plan.stage_layers) == run.model.layers


RING = cluster("ring:8", bandwidth="100GB/s", latency="1us")


@pytest.mark.parametrize(("model", "changes", "message"), [
    ("8b", {"pp": 3}, "room for 1 \\+ 1 = 2 stages. Use pp 2"),
    ("8b", {"dp": 4}, "on one cluster, and there is room for 8 ranks on p5.48xlarge"),
    ("8b", {"dp": 4, "later_stages": f"{BLACKWELL}:2"}, "8 ranks on p5.48xlarge and 16 ranks on"),
    ("8b", {"level": "flow"}, "stages on unlike chips cannot take --level flow"),
    ("8b", {"chips": 8}, "chips is for a single cluster"),
    ("8b", {"jitter": "typical"}, "causes of --jitter"),
    ("8b", {"framework": "neuronx"}, "neuronx does not train on h100"),
    ("8b", {"later_stages": "ring:8"}, "bandwidth"),
    ("8b", {"later_stages": [RING]}, "ring:8 has no scale-out fabric"),
    ("8b", {"later_stages": SLOW}, "megatron-core on p5.48xlarge and neuronx on trn2.48xlarge"),
    ("8b", {"later_stages": 3}, "later_stages"),
    ("8b", {"stage_layers": (1, 2)}, "stage_layers sum to 3"),
    ("8b", {"later_stages": HOPPER, "tp": 3, "dp": None}, "leave 2 of 8 ranks on"),
    ("405b", {}, "memory has room for"),
])  # fmt: skip
def test_what_is_refused(model, changes, message):
    stated = {"later_stages": BLACKWELL, **PAIR, **changes}
    how = {name: value for name, value in stated.items() if value is not None}
    refused(message, cs.train, f"llama-3.1-{model}", HOPPER, **how)


def test_a_stated_batch_is_kept_where_degrees_are_open():
    run = cs.train("llama-3.1-8b", HOPPER, later_stages=BLACKWELL, global_batch=32, seq=2048)
    assert run.plan.global_batch == 32


def test_degrees_that_are_tried_leave_few_chips_of_any_cluster_idle():
    pair = cluster("trn2.48xlarge"), cluster("dgx-h100:3")  # 16 and 24 chips
    tried = list(Question(TOY, pair, {}, Detail(), None, 1, 1.0).degrees())
    assert {each["tp"] * each["dp"] for each in tried} == {1, 2, 4, 8}
    assert all(each["pp"] == 40 // (each["tp"] * each["dp"]) for each in tried)


def test_domains_of_a_later_cluster_are_counted_from_its_first_chip():
    """Switches repeat after four domains of 144 chips, of which two lie behind 24 other chips."""
    before, behind = cluster("dgx-h100:3"), cluster("trn3-gen2:2")
    chips = np.arange(before.chips, before.chips + behind.chips)
    domains = Joined((before, behind), (1, 1)).domain(chips)
    assert domains.tolist() == [0] * 144 + [1] * 144
