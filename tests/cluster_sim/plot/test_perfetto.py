"""The Perfetto protobuf, read back by Perfetto's own schema."""

import gzip
from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from cluster_sim.collectives import CollectiveCall, compose, whole
from cluster_sim.engine.times import DONE, RUNNING, Attempts, Times
from cluster_sim.plot.perfetto import MOST_POINTS, counter, varint, write_timeline
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, Codes, Edges, Resources
from cluster_sim.trace.trace import Trace, run
from tests.support.examples import examples
from tests.support.random_schedules import on_one_link, schedules, spans
from topologies.clusters.names import cluster
from workloads.front import train

schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BEGIN, END, COUNTER = 1, 2, 4


def read(trace, folder, **options):
    path = folder / "timeline.pftrace.gz"
    write_timeline(trace, path, **options)
    document = schema.Trace()
    document.ParseFromString(gzip.decompress(path.read_bytes()))
    return document


def events(document, kind):
    return [one for one in document.packet if one.track_event.type == kind]


def tracks(document):
    described = [packet for packet in document.packet if packet.HasField("track_descriptor")]
    return {packet.track_descriptor.uuid: packet.track_descriptor for packet in described}


@pytest.fixture(scope="module")
def ring():
    four = whole(cluster("trn2.48xlarge"))
    return run(compose(CollectiveCall("all-reduce", four, 2**20), "ring").schedule)


def test_every_op_that_takes_time_is_a_slice_once(ring, tmp_path):
    document = read(ring, tmp_path)
    notes = [
        {note.name_iid: note.uint_value for note in one.track_event.debug_annotations}
        for one in events(document, BEGIN)
    ]
    lasts = np.flatnonzero(ring.times.end_ps > ring.times.start_ps)
    assert sorted(note[1] for note in notes) == lasts.tolist()
    assert all(note[4] == ring.times.start_ps[note[1]] for note in notes)
    assert len(events(document, END)) == len(notes)
    depth = Counter()  # slices of a track follow each other
    packets = [one for one in document.packet if one.track_event.type in (BEGIN, END)]
    for one in sorted(packets, key=lambda packet: packet.timestamp):
        depth[one.track_event.track_uuid] += 1 if one.track_event.type == BEGIN else -1
        assert 0 <= depth[one.track_event.track_uuid] <= 1
    assert not any(depth.values())
    assert read(ring, tmp_path) == document
    assert 0 < len(events(read(ring, tmp_path, ranks=[0, 1]), BEGIN)) < len(notes)
    assert events(read(ring, tmp_path, ranks=99), BEGIN) == []


def test_chips_own_engines_and_each_link_stands_once(ring, tmp_path):
    by_number = tracks(read(ring, tmp_path))
    names = Counter(one.name for one in by_number.values())
    assert {count for name, count in names.items() if name.startswith("link:")} == {1}
    below = (one for one in by_number.values() if one.parent_uuid)
    parents = {one.name: by_number[one.parent_uuid].name for one in below}
    assert {parents[name] for name in parents if name.startswith("link:")} == {"links"}
    assert {parent for name, parent in parents.items() if name.startswith("cc:3")} == {"chip 3"}
    span = np.array([0]), np.array([5_000_000])
    mine = counter("memory in use, rank 3", "B", *span, np.array([7e9]), chip=300)
    by_number = tracks(read(ring, tmp_path, more=[mine]))
    (track,) = (one for one in by_number.values() if one.name == mine.name)
    assert by_number[track.parent_uuid].name == "chip 300"


def test_arrows_lead_from_one_track_to_another(ring, tmp_path):
    begun = events(read(ring, tmp_path), BEGIN)
    sent = {flow: one for one in begun for flow in one.track_event.flow_ids}
    taken = {flow: one for one in begun for flow in one.track_event.terminating_flow_ids}
    assert set(sent) == set(taken) != set()
    for flow, leaves in sent.items():
        assert leaves.track_event.track_uuid != taken[flow].track_event.track_uuid
        assert leaves.timestamp <= taken[flow].timestamp
    plain = events(read(ring, tmp_path, arrows=False), BEGIN)
    assert not any(one.track_event.flow_ids for one in plain)


def test_counters_are_tracks_with_units(ring, tmp_path):
    document = read(ring, tmp_path)
    by_number = tracks(document)
    counted = {one.uuid: one for one in by_number.values() if one.HasField("counter")}
    units = {one.name: one.counter.unit_name for one in counted.values()}
    assert units == {"links busy": "links", "links, load": "B/s"}
    for track in counted:
        points = (one.track_event for one in events(document, COUNTER))
        values = [point.double_counter_value for point in points if point.track_uuid == track]
        assert (values[-1], max(values) > 1) == (0, True)


def test_a_thinned_counter_keeps_its_integral():
    rng = np.random.default_rng(0)
    start = np.sort(rng.integers(0, 10**9, 20_000))
    end = start + rng.integers(1, 10**6, len(start))
    by = rng.random(len(start))
    thin = counter("load", "B/s", start, end, by)
    assert len(thin.value) == MOST_POINTS
    few = counter("load", "B/s", start[:9], end[:9], by[:9])
    for counted, rows in ((thin, len(start)), (few, 9)):
        whole = float(((end - start) * by)[:rows].sum())
        integral = float((np.diff(counted.at_ps) * counted.value[:-1]).sum())
        assert integral == pytest.approx(whole, rel=1e-9)


def test_a_send_points_to_its_receive_and_memories_have_rates(tmp_path):
    document = read(train("gpt2", "trn2.48xlarge", pp=2, global_batch=16).trace, tmp_path)
    by_number = tracks(document)
    rates = [one for one in by_number.values() if one.name == "memory rate"]
    assert {by_number[one.parent_uuid].name for one in rates} == {"chip 0", "chip 8"}
    assert {one.counter.unit_name for one in rates} == {"B/s"}
    names = {one.iid: one.name for one in document.packet[0].interned_data.event_names}
    sent, taken = (
        {flow: names[one.track_event.name_iid] for one in events(document, BEGIN)
         for flow in getattr(one.track_event, field)}
        for field in ("flow_ids", "terminating_flow_ids")
    )  # fmt: skip
    pairs = Counter((sent[flow], taken[flow]) for flow in sent)
    assert set(sent) == set(taken)
    both = {(f"{way}.send", f"{way}.receive") for way in ("forward", "backward")}
    received = {pair: count for pair, count in pairs.items() if "receive" in pair[1]}
    assert received == dict.fromkeys(both, 2)  # microbatches


def test_names_and_categories_are_those_of_the_trace(tmp_path):
    ops = schedule(
        OpColumns([FIXED] * 2, resource=[0, 1], duration_ps=5_000_000, size_bytes=7),
        edges=Edges.from_pairs(2, [0], [1]), resources=Resources.table("engine", [0, 1]),
        labels={
            "rank": np.array([0, 1]),
            "what": Codes(np.array([0, 1]), ("compute", "tp")),
            "name": Codes(np.array([1, 0]), ("mlp.reduce", "attention.qkv")),
        },
    )  # fmt: skip
    document = read(run(ops), tmp_path)
    interned = document.packet[0].interned_data
    names = {one.iid: one.name for one in interned.event_names}
    categories = {one.iid: one.name for one in interned.event_categories}
    shown = [
        (names[one.track_event.name_iid], categories[one.track_event.category_iids[0]],
         one.timestamp)
        for one in events(document, BEGIN)
    ]  # fmt: skip
    assert shown == [("attention.qkv", "compute", 0), ("mlp.reduce", "tp", 5000)]


def _shown(document):
    """Op, category and start of every slice, in nanoseconds."""
    categories = {one.iid: one.name for one in document.packet[0].interned_data.event_categories}
    return [
        (one.track_event.debug_annotations[0].uint_value,
         categories[one.track_event.category_iids[0]], one.timestamp)
        for one in events(document, BEGIN)
    ]  # fmt: skip


def test_lost_attempts_and_ops_cut_short_are_shown(tmp_path):
    times = Times(
        *(np.array(c, np.int64) * 1000 for c in ([0, 14], [9, 14], [14, -1])),
        status=np.array([DONE, RUNNING], np.uint8),
        attempts=Attempts(np.array([0]), np.array([0]), np.array([3000])),
        dead=np.empty(0, np.int32),
        stopped_ps=16_000,
    )
    times.end_ps[1] = -1
    document = read(Trace(on_one_link(2), times), tmp_path)
    assert _shown(document) == [(0, "lost", 0), (0, "link", 9), (1, "link", 14)]
    assert sorted(one.timestamp for one in events(document, END)) == [3, 14, 16]


def test_too_many_ops_are_cut_by_whole_ranks_and_reported(tmp_path):
    trace = spans([0, 1, 1, 2], ["tp"] * 4, [0] * 4, [5] * 4)
    document = read(trace, tmp_path, most_ops=3)
    assert {op for op, _, _ in _shown(document)} == {0, 1, 2}
    assert "3 ops of ranks below 2, of 4" in {one.name for one in tracks(document).values()}
    first = read(spans([0] * 3, ["tp"] * 3, [9, 0, 4], [10] * 3), tmp_path, most_ops=2)
    assert {op for op, _, _ in _shown(first)} == {1, 2}
    assert not any(" of " in one.name for one in tracks(read(trace, tmp_path)).values())


@given(schedule=schedules())
@examples(30)
def test_every_op_of_any_schedule_that_takes_time_is_there_once(schedule, tmp_path_factory):
    document = read(run(schedule), tmp_path_factory.mktemp("perfetto"))
    shown = sorted(op for op, _, _ in _shown(document))
    assert shown == np.flatnonzero(schedule.duration_ps > 0).tolist()


def test_numbers_of_a_column_are_equally_wide_and_read_back():
    values = [0, 1, 127, 128, 300, 2**40, 2**62]
    records = varint(1, np.array(values))
    assert records.shape == (len(values), 1 + 9)  # the key, and nine groups of seven bits
    packets = [schema.TracePacket.FromString(b"\x40" + row[1:].tobytes()) for row in records]
    assert [packet.timestamp for packet in packets] == values
