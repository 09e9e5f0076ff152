"""Levels of detail: collectives in chunks, as flows on links, and their messages in turns."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, compose, whole
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.engine.faults import Faults
from cluster_sim.engine.repeats import simulate_calls
from cluster_sim.hardware.faults import parse_fault, with_standing
from cluster_sim.schedule.build import merge
from cluster_sim.schedule.repeats import calls_written_out
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    NO_RESOURCE,
    Edges,
    Flows,
    Resources,
    Schedule,
)
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.schedules import from_columns
from tests.support.toy_training import SPARSE, TOY, plan, sixteen, toy_program
from tests.support.written_rules import check_routines
from tools.shared_jobs import thin_cluster
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.support import memory_limit
from topologies.support.errors import InputError
from workloads.front import train
from workloads.models.model import Model
from workloads.training.execution.chunk_level import (
    LEAST,
    PACE,
    PARTS,
    Called,
    _taking_turns,
    as_flow,
    call_schedule,
    expand,
    held_adapters,
    link_time,
    project,
)
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.lower import lower
from workloads.training.execution.turns import PARTS as TURN_PARTS
from workloads.training.execution.turns import Turns, in_turns, ops_of, shortest_turns, turn_bytes
from workloads.training.iteration import iteration

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)
WIDE = Model("wide", 2, 2048, 16, 4, 128, 8192, 32_000)
APART = (
    ("trn2.48xlarge", {"tp": 16}),
    ("trn2.48xlarge", {"tp": 4, "dp": 4, "zero": 0, "sequence_parallel": False}),
    ("trn2.48xlarge", {"pp": 2, "dp": 8, "schedule": "gpipe"}),
    ("trn2.48xlarge:2", {"tp": 16, "dp": 2, "overlap": "dp"}),
    ("trn2.48xlarge", {"tp": 4, "cp": 4}),
)
"""Plans whose collectives at one time use links of their own."""


@pytest.mark.parametrize("level", ["chunk", "flow"])
@pytest.mark.parametrize(("machine", "stated"), APART, ids=str)
def test_where_nothing_contends_levels_are_equal(machine, stated, level):
    how, fabric = plan(**stated), cluster(machine)
    each, usual = (iteration(SHORT, fabric, how, level=one) for one in (level, "collective"))
    assert (each.level, usual.level) == (level, "collective")
    assert each.trace.total_ps == usual.trace.total_ps
    assert each.breakdown_s == pytest.approx(usual.breakdown_s, abs=1e-12)
    assert each.ops > len(each.trace) or level == "flow"
    assert not each.shares_memory


@pytest.mark.parametrize("folded", [True, False])
def test_groups_on_the_same_chips_share_them_as_their_time_alone_does(folded):
    """Of two servers one is half full, and each chip has a rank of four groups."""
    stated = {"tp": 8, "chips": 24, "ranks_per_chip": 4, "global_batch": 24, "seq": 256}
    same = {**stated, "overlap": "none", "folded": folded}
    flow, usual = (train(SHORT, "trn2.48xlarge:2", level=one, **same) for one in ("flow", "auto"))
    assert flow.trace.total_ps == usual.trace.total_ps


def test_jitter_is_that_of_whole_collectives():
    chunks, usual = (
        iteration(SHORT, sixteen(), plan(tp=4, dp=4), level=level, disturbed=Disturbance(0.05, 3))
        for level in ("chunk", "collective")
    )
    assert chunks.trace.total_ps == usual.trace.total_ps
    assert chunks.breakdown_s["straggler"] == pytest.approx(usual.breakdown_s["straggler"])


CONTENDING = (
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "dp": 4, "overlap": "all", "global_batch": 8}),
    ("trn2.48xlarge:2", {"tp": 8, "dp": 4, "overlap": "dp", "global_batch": 4, "seq": 256}),
    ("trn2.48xlarge", {"tp": 8, "dp": 8, "ranks_per_chip": 4, "global_batch": 8, "seq": 256}),
    ("trn2.48xlarge", {"pp": 4, "dp": 4, "global_batch": 8}),
)
"""Plans whose collectives share links, CC-Cores, adapters or memories."""


@pytest.mark.parametrize("as_flows", [False, True], ids=["chunk", "flow"])
@pytest.mark.parametrize(("machine", "stated"), CONTENDING, ids=str)
def test_calls_in_place_have_the_times_of_those_written_out(machine, stated, as_flows):
    """Both engines agree on collectives written once a group, or once a call."""
    fabric = cluster(machine)
    program = toy_program(plan(**stated), fabric, SHORT)
    expanded = expand(program, lower(program), fabric, as_flows=as_flows)
    assert (expanded.schedule.kind == FLOW).any() or not as_flows
    check_routines(expanded.schedule, expanded.routines)
    plain = run(calls_written_out(expanded.schedule, expanded.routines))
    reference = run(plain.schedule, engine="reference")
    assert (plain.times.end_ps == reference.times.end_ps).all()
    assert not violations(plain)
    times = simulate_calls(expanded.schedule, expanded.routines)
    for name in ("ready_ps", "start_ps", "end_ps", "status"):
        outside = getattr(plain.times, name)[: expanded.routines.outside]
        assert (getattr(times, name) == outside).all(), name
    projected = project(times, expanded)
    assert len(projected.schedule) == len(lower(program))
    assert projected.total_ps == plain.total_ps
    assert expanded.ops == len(plain) - len(expanded.routines.caller)


@pytest.mark.parametrize("level", ["chunk", "flow"])
def test_what_is_not_known_by_its_chunks_or_too_large_is_refused(level, monkeypatch):
    with pytest.raises(InputError, match="by the times that its library takes"):
        iteration(TOY, cluster("dgx-h100"), plan(dp=8), level=level)
    words = {"chunk": r"makes of the groups .* may use 10 kB\. Use",
             "flow": "shares of links, which groups of ranks take"}  # fmt: skip
    monkeypatch.setattr(memory_limit, "machine_bytes", lambda: 10_000)
    refused(words[level], iteration, TOY, sixteen(), plan(tp=4, dp=4), level=level)


def test_a_long_run_of_the_reference_is_refused():
    large = plan(tp=16, global_batch=128)
    with pytest.raises(InputError, match=r"at most 10,000,000 are run\..*, --engine fast without"):
        iteration(TOY, sixteen(), large, level="chunk", engine="reference")


SMALL, SMALL_SPARSE = replace(TOY, layers=4), replace(SPARSE, layers=4)
TORUS = """\
name: torus
chip: {like: trn2}
chips_per_server: 32
scale_up:
  shape: torus
  axes:
    - {name: X, size: 8, bandwidth: 64GB/s, latency: 0.5us}
    - {name: Y, size: 4, bandwidth: 64GB/s, latency: 0.5us}
domains: 1
"""


@pytest.fixture(scope="module")
def clos() -> Cluster:
    return thin_cluster()


SHARING = (
    ("trn2.48xlarge", TOY, {"pp": 8, "dp": 2}),
    ("trn2.48xlarge", SMALL_SPARSE, {"pp": 2, "cp": 2, "dp": 4, "ep": 2, "overlap": "all"}),
    ("trn1.32xlarge", SMALL_SPARSE, {"tp": 8, "dp": 2, "overlap": "dp", "global_batch": 2}),
    ("torus", SMALL_SPARSE, {"tp": 8, "dp": 4, "ep": 4, "overlap": "all", "global_batch": 8}),
    # Sends between calls of tp leave the mean load of every link below its capacity.
    ("torus", SMALL, {"tp": 8, "pp": 4, "global_batch": 2}),
    # Bursts of all groups of dp fill uplinks whose mean load is below their capacity.
    ("clos", TOY, {"tp": 8, "dp": 4, "zero": 3, "overlap": "dp", "seq": 512, "global_batch": 4}),
    # Calls of tp wait at adapters that sends of pp hold while these wait for uplinks.
    ("clos", WIDE, {"tp": 8, "pp": 2, "dp": 2, "zero": 0, "overlap": "none", "global_batch": 8}),
)
"""Plans whose tp, dp, ep and pp meet on the links of one torus, or on uplinks."""


@pytest.mark.parametrize(("machine", "model", "stated"), SHARING, ids=str)
def test_what_sharing_links_costs_is_found(machine, model, stated, tmp_path, clos):
    """At least 80 % of what a run of all messages takes longer than collectives alone."""
    (tmp_path / "torus.yaml").write_text(TORUS)
    name = str(tmp_path / "torus.yaml") if machine == "torus" else machine
    fabric = clos if machine == "clos" else cluster(name)
    usual, flows, chunks = (
        iteration(model, fabric, plan(**stated), level=level)
        for level in ("collective", "flow", "chunk")
    )
    cost_ps = chunks.trace.total_ps - usual.trace.total_ps
    assert cost_ps > 0
    assert 0.8 <= (flows.trace.total_ps - usual.trace.total_ps) / cost_ps <= 1.25
    assert flows.trace.total_ps == pytest.approx(chunks.trace.total_ps, rel=0.05)
    parts = flows.ranks.drop(columns="count")
    assert (parts.sum(axis=1) == flows.trace.total_ps).all()
    assert flows.ops < chunks.ops


@given(drawn=st.data())
@examples(15)
def test_folded_flows_take_the_times_of_all_ranks(clos, drawn):
    machine = drawn.draw(st.sampled_from(["trn2.48xlarge", "trn1.32xlarge:2", "clos"]))
    fabric = clos if machine == "clos" else cluster(machine)
    model = replace(drawn.draw(st.sampled_from([TOY, SPARSE])), layers=4)
    ranks = drawn.draw(st.sampled_from([1, 2]))
    choices = ("tp", [1, 2, 4, 8]), ("pp", [1, 2, 4]), ("cp", [1, 2])
    degrees = {name: drawn.draw(st.sampled_from(sizes)) for name, sizes in choices}
    dp, rest = divmod(fabric.chips * ranks, int(np.prod([*degrees.values()])))
    ep = drawn.draw(st.sampled_from([1, 2, 4])) if model.experts else 1
    assume(rest == 0 and dp > 0 and dp * degrees["cp"] % ep == 0)
    overlap = drawn.draw(st.sampled_from(["none", "dp", "all"]))
    how = plan(**degrees, dp=dp, ep=ep, ranks_per_chip=ranks, global_batch=2 * dp, overlap=overlap)
    engine = drawn.draw(st.sampled_from(["fast", "fast", "reference"]))
    try:
        whole = iteration(model, fabric, how, level="flow", folded=False)
    except InputError:
        assume(False)
    few = iteration(model, fabric, how, level="flow", engine=engine)
    assert few.trace.total_ps == whole.trace.total_ps
    assert few.breakdown_s == pytest.approx(whole.breakdown_s, abs=1e-12)
    assert few.ranks["count"].sum() == how.ranks
    rows = few.ranks.drop(columns="count")
    assert rows.equals(whole.ranks.drop(columns="count").loc[rows.index])


def test_adapters_are_held_while_their_messages_wait_for_an_uplink():
    """Two groups ask 1.4 times what an uplink has, so each holds its adapter 1.4 times as long."""
    kinds = [("tx", 2), ("ToR-up", 1), ("link", 1)]
    table = Resources.concat(
        [Resources.table(name, range(count), slots=0, capacity=1) for name, count in kinds]
    )
    link, flow = np.array([0, 2, 3, 1, 2, 0]), np.array([0, 0, 0, 1, 1, 2])
    parts = np.array([500, 700, 300, 1000, 700, 400])
    at_once = np.array([[0], [0], [0], [0], [0], [1]])
    held = held_adapters(table, link, at_once, flow, parts)
    assert held.tolist() == [700, 700, 300, 1400, 700, 400]
    apart = held_adapters(table, link, flow[:, None], flow, parts)
    assert apart.tolist() == parts.tolist()


def test_the_shares_are_those_of_the_links():
    """A ring of eight keeps every link of its direction busy all the time but for latencies."""
    ring = whole(cluster("ring:8", bandwidth="100GB/s", latency="0us"))
    chunks = compose(Call("all-reduce", ring, 2**26), "ring").schedule
    total_ps = run(chunks).total_ps
    assert set(link_time(chunks).busy_ps.ravel().tolist()) <= {0, total_ps}
    flow = as_flow(link_time(chunks), total_ps)
    assert run(flow).total_ps == total_ps
    assert set(flow.flows.weight.tolist()) == {PARTS}
    assert len(flow.resources) == int((link_time(chunks).busy_ps > 0).sum())
    twice = as_flow(link_time(chunks), 2 * total_ps)
    assert set(twice.flows.weight.tolist()) == {PARTS // 2}
    long_ps = 2 * PARTS // LEAST * total_ps
    barely = as_flow(link_time(chunks), long_ps)
    assert (len(barely.flows.op), run(barely).total_ps) == (0, long_ps)
    assert run(as_flow(link_time(chunks), 0)).total_ps == 0
    assert flow.flows.cap_bytes_per_s.tolist() == [PACE]


def bursts(link: int) -> Schedule:
    """Half of an uplink's time, as long on a link of one's own, and the other half."""
    link_alone = Resources.table("link", [link], slots=[1])
    whole_rate = Resources.table("ToR-up", [0], slots=[0], capacity=[PACE])
    return from_columns(
        kind=[FLOW, FIXED, FLOW],
        resource=[NO_RESOURCE, 0, NO_RESOURCE],
        duration_ps=[0, 3200, 0],
        size_bytes=[1600, 0, 1600],
        edges=Edges.from_pairs(3, [0, 1], [1, 2]),
        resources=Resources.concat([link_alone, whole_rate]),
        flows=Flows(
            np.array([0, 2], np.int32), np.full(2, PACE), np.arange(3),
            np.ones(2, np.int32), np.ones(2, np.int32),
        ),
    )  # fmt: skip


def test_a_phase_is_known_by_the_fullest_uplink_not_by_all_of_them():
    """One uplink is half full throughout, another during the first half: a phase for both."""
    uplinks = Resources.table("ToR-up", [0, 1], slots=[0, 0], capacity=[PACE, PACE])
    chunks = from_columns(
        kind=[FLOW] * 3,
        resource=[NO_RESOURCE] * 3,
        duration_ps=[0] * 3,
        size_bytes=[1600] * 3,
        edges=Edges.from_pairs(3, [0], [2]),
        resources=uplinks,
        flows=Flows(
            np.arange(3, dtype=np.int32), np.full(3, PACE // 2), np.arange(4),
            np.array([0, 1, 0], np.int32), np.ones(3, np.int32),
        ),
    )  # fmt: skip
    used = link_time(chunks)
    assert (used.phase_ps.tolist(), used.busy_ps.tolist()) == ([6400], [[3200, 1600]])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_phases_wait_on_an_uplink_that_is_full_in_one_of_them(engine):
    """Two collectives load it fully on the mean, and wait for each other as all messages do."""
    one, two = bursts(0), bursts(1)
    as_phases = [as_flow(link_time(each), 6400) for each in (one, two)]
    assert as_phases[0].size_bytes.tolist() == [3200, 3200]
    assert run(as_phases[0], engine=engine).total_ps == run(one, engine=engine).total_ps == 6400
    assert run(merge(*as_phases), engine=engine).total_ps == 3200 + 2 * 3200
    assert run(merge(one, two), engine=engine).total_ps == 3200 + 2 * 3200
    # Its own link counts with the mean of both phases, the uplink with what each of them takes.
    weights = [as_flow(link_time(one), *of).flows.weight.tolist() for of in ((6400,), (12800,))]
    assert weights == [[PARTS // 2, PARTS // 2, PARTS], [PARTS // 4, PARTS // 4, PARTS // 2]]
    assert as_flow(link_time(one), 6400, 2).flows.weight.tolist() == [PARTS // 2] * 3


@pytest.mark.parametrize("level", ["chunk", "flow"])
@pytest.mark.parametrize("machine", ["trn2.48xlarge", "trn1.32xlarge:2"])
def test_faults_from_the_start_are_slower_links_whose_calls_run_in_place(machine, level):
    """SimPy changes the speeds of resources at 0 s instead, of calls that are written out."""
    fabric = cluster(machine)
    how = plan(tp=4, pp=2, dp=fabric.chips // 8, global_batch=fabric.chips // 4, seq=256)
    faults = [parse_fault(f"{name}@0s:slow=1/3") for name in ("link:0-1", "engine:5", "hbm:2")]
    if fabric.scale_out is not None and fabric.domains > 1:
        faults.append(parse_fault("tx:16@0s:slow=2/7"))
    faults = faults if level == "chunk" and fabric.domains == 1 else [*faults[:2], *faults[3:]]
    fast, reference = (
        iteration(SHORT, fabric, how, level=level, faults=faults, engine=engine)
        for engine in ("fast", "reference")
    )
    assert (fast.trace.times.end_ps == reference.trace.times.end_ps).all()
    assert fast.iteration_s > fast.undisturbed_s


@pytest.mark.parametrize("kind", ["all-to-all", "all-reduce", "broadcast"])
def test_standing_faults_hold_back_edges_from_starts_and_flows(kind):
    chunks = compose(Call(kind, whole(TRN2), 2**22)).schedule
    rng = np.random.default_rng(len(kind))
    slow = rng.choice(len(chunks.resources), len(chunks.resources) // 3, replace=False)
    table = Faults.table(np.zeros(len(slow)), slow, rng.integers(1, 9, len(slow)), 9)
    times = run(chunks, faults=table).times, run(with_standing(chunks, table)).times
    assert (times[0].end_ps == times[1].end_ps).all()


def test_long_collectives_are_refused():
    chunks = compose(Call("all-reduce", whole(sixteen()), 2**20)).schedule
    refused(r"up to 9\.2 s; one here takes 10\.0 s", as_flow, link_time(chunks), 10**13)


MACHINES = ("trn2.48xlarge", "trn1.32xlarge", "trn2.48xlarge:2", "trn3-ultraserver")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
TRN2 = cluster("trn2.48xlarge")


def _collective(kind: str, chips: list[int], size_bytes: int) -> Schedule:
    return call_schedule(Group(TRN2, np.array(chips)), kind, size_bytes)


@given(drawn=st.data())
@examples(30)
def test_alone_a_collective_in_turns_takes_the_time_of_whole_messages(drawn):
    machine, kind = (drawn.draw(st.sampled_from(names)) for names in (MACHINES, KINDS))
    ranks = 2 if kind == "send" else drawn.draw(st.sampled_from([2, 4, 8]))
    fabric = cluster(machine)
    chips = drawn.draw(st.permutations(range(fabric.chips)))[:ranks]
    group = Group(fabric, np.array(sorted(chips)))
    whole = call_schedule(group, kind, drawn.draw(st.integers(0, 2**25)))
    longest = int(whole.size_bytes.max())
    cut = in_turns(
        whole, Turns(*(drawn.draw(st.integers(longest // 16 + 1, longest + 1)) for _ in "LA"))
    )
    times, engine = run(whole).times, drawn.draw(st.sampled_from(["fast", "reference"]))
    parts = run(cut, engine=engine).times
    assert parts.total_ps == times.total_ps
    assert set(times.end_ps.tolist()) <= set(parts.end_ps.tolist())
    assert cut.size_bytes.sum() == whole.size_bytes.sum()
    assert cut.duration_ps.sum() == whole.duration_ps.sum()


def test_a_short_message_waits_for_a_part_of_a_long_queue_and_not_for_all_of_it():
    """A pipeline's send begins in the middle of a gather, all of whose blocks are queued."""
    gather, send = _collective("all-gather", [0, 1], 2**26), _collective("send", [0, 1], 2**18)
    alone_ps, whole_ps = run(send).total_ps, run(gather).total_ps
    for turns, most in ((False, 1.01), (True, 0.05)):
        both = [in_turns(each, Turns(2**16, 2**16)) if turns else each for each in (gather, send)]
        ends = run(merge(*both)).times.end_ps[len(both[0]) :]
        waits_ps = int(ends.max()) - alone_ps
        assert 0 < waits_ps <= most * whole_ps
        assert turns or waits_ps > 0.9 * whole_ps


def test_parts_are_a_quarter_of_the_shortest_messages_and_no_less_than_a_packet():
    """Messages to the next server are cut into eighths, and no less than a packet of an adapter."""
    least = shortest_turns(TRN2.numbers)
    assert least == (2**16, 8928)
    for sizes, part in (
        ([[8], [2**21, 2**10], [2**24]], 2**21 // TURN_PARTS.links), ([[8]], least.links),
        ([[8], [2**21, 2**10], [2**24], [2**17]], least.links),
    ):  # fmt: skip
        exchanges = [[_collective("send", [0, 1], size) for size in each] for each in sizes]
        assert turn_bytes(exchanges, least) == (part, least.adapters)
    two, sizes = cluster("trn2.48xlarge:2"), (2**16, 2**20)
    for count, part in ((1, 2**20 // TURN_PARTS.adapters), (2, least.adapters)):
        group = Group(two, np.array([0, two.chips_per_domain]))
        out = [[call_schedule(group, "send", size)] for size in sizes[-count:]]
        turns = turn_bytes([*out, [_collective("send", [0, 1], 2**24)]], least)
        assert turns == (2**24 // TURN_PARTS.links, part)


def test_parts_at_adapters_get_longer_where_ops_would_be_too_many():
    two = cluster("trn2.48xlarge:2")
    group, least = Group(two, np.array([0, two.chips_per_domain])), Turns(2**16, 2**12)
    long, short = (call_schedule(group, "send", size) for size in (2**20, 2**14))
    calls = [[Called(each, np.arange(3))] for each in (long, short)]
    ops = {part: ops_of([(long, 3), (short, 3)], Turns(2**16, part)) for part in (2**12, 2**13)}
    assert ops[2**12] == 3 * sum(len(in_turns(each, least)) for each in (long, short))
    for most, part in ((ops[2**12], 2**12), (ops[2**12] - 1, 2**13), (1, 2**16)):
        cut = _taking_turns(calls, least, most)
        assert len(cut[0].pattern) == len(in_turns(long, Turns(2**16, part)))


def test_priorities_of_one_collective_are_none_against_another():
    """Late slices of stages come after early ones of their own, not after a ring's messages."""
    call = CollectiveCall("all-reduce", Group(TRN2, np.arange(16)), 2**22)
    staged = compose(call, "torus").schedule
    assert staged.priority.max() > 0
    ring = _collective("all-gather", [0, 4], 2**27)
    cut = [in_turns(each, Turns(2**16, 2**16)) for each in (ring, staged)]
    ends = run(merge(*cut)).times.end_ps
    assert ends[len(cut[0]) :].max() < 0.6 * ends[: len(cut[0])].max()
