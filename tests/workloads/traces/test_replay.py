"""Replay of Chakra and GOAL traces: ranks meet, strangers' traces are refused."""

import gzip
import json

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from tests.fuzz.structure import LEFT_OUT, places, replaced
from tests.support.kineto_profiles import exchange
from tests.support.refusals import refused
from tests.support.small_traces import GOAL, RING, et, job, node, profile, step
from tests.support.toy_training import TOY
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.traces import chakra_schema as schema
from workloads.traces.chakra import read_chakra, training_recording, write_chakra
from workloads.traces.goal import read_goal
from workloads.traces.json_stream import read_events
from workloads.traces.kineto import read_kineto
from workloads.traces.recording import COMPUTE, LARGEST, Columns, Node
from workloads.traces.replay import read_traces, replay, replay_document
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan


def taken_ps(operation: str, size_bytes: int, ranks: int = 4) -> int:
    """Time of a collective of the first ranks [ps]."""
    return duration_ps(CollectiveCall(operation, Group(RING, np.arange(ranks)), size_bytes))


def test_ranks_meet_in_a_collective_that_takes_what_the_command_says(tmp_path):
    job(tmp_path)
    played = replay([tmp_path], RING)
    assert played.trace.total_ps == 13 * 10**6 + taken_ps("all-reduce", 10**6) + 5 * 10**6
    document = replay_document(played, "fast")
    assert (document["ranks"], document["nodes"], document["unmapped"]) == (4, 12, {})
    assert sum(document["breakdown_s"].values()) == pytest.approx(document["iteration_s"])
    assert document["interval"]["low"] < document["iteration_s"] < document["interval"]["high"]
    assert document["breakdown_s"]["waiting"] == pytest.approx(1.5e-6)


def test_a_message_arrives_before_its_receive_ends(tmp_path):
    facts = {"comm_size": 5 * 10**6, "comm_src": 0, "comm_dst": 1, "comm_tag": 7}
    first = node(1, schema.COMPUTE, us=3), node(2, schema.SEND, after=[1], **facts)
    second = node(1, schema.RECEIVE, **facts), node(2, schema.COMPUTE, us=2, after=[1])
    for rank, nodes in enumerate((first, second)):
        et(tmp_path / f"m.{rank}.et", *nodes)
    total_ps = 3 * 10**6 + taken_ps("permute", 5 * 10**6, ranks=2) + 2 * 10**6
    assert replay([tmp_path], RING).trace.total_ps == total_ps


def test_operations_without_a_duration_are_timed_by_the_roofline(tmp_path):
    path = et(tmp_path / "one.et", node(1, schema.COMPUTE, num_ops=10**15, tensor_size=8))
    assert replay([path], cluster("dgx-h100")).iteration_s == pytest.approx(1e15 / 989.4e12)
    refused(r"node 1 .* no duration, and the cluster has no chip", replay, [path], RING)


def test_all_gathers_count_the_whole_result(tmp_path):
    for rank in range(4):
        et(tmp_path / f"g.{rank}.et", node(1, schema.COLLECTIVE, comm_type=2, comm_size=10**6))
    assert replay([tmp_path], RING).trace.total_ps == taken_ps("all-gather", 4 * 10**6)


def test_groups_are_those_that_name_themselves(tmp_path):
    for rank in range(4):
        facts = {"comm_type": 0, "comm_size": 10**6, "pg_name": str(max(1, rank))}
        et(tmp_path / f"g.{rank}.et", node(1, schema.COLLECTIVE, **facts))
    assert len(read_traces([tmp_path]).groups) == 3
    assert replay([tmp_path], RING).trace.total_ps == taken_ps("all-reduce", 10**6, ranks=2)


WRONG = {
    "cycle": [
        node(1, schema.COMPUTE, us=1, after=[2]), node(2, schema.COMPUTE, us=1, after=[1]),
    ],
    "unknown": [node(1, schema.COMPUTE, us=1, after=[99])],
    "twice": [node(1, schema.COMPUTE, us=1), node(1, schema.COMPUTE, us=1)],
    "type": [node(1, 42)],
    "fewer": step(1)[:1],
    "other": [node(2, schema.COLLECTIVE, comm_type=2, comm_size=10**6)],
    "unsent": [*step(1), node(9, schema.RECEIVE, comm_src=0, comm_size=8)],
    "unread": [*step(1), node(9, schema.SEND, comm_dst=0, comm_size=8)],
    "negative": [node(1, schema.COMPUTE, us=2**63 // 10)],
}  # fmt: skip
"""Nodes of the second rank of a job, with one thing wrong."""
DAMAGED = {
    "cut": lambda content: content[:-3],
    "garbage": lambda content: b"\x05hello\x03abc",
    "gzip": lambda content: gzip.compress(content)[:-9],
    "empty": lambda content: b"",
}
"""Bytes of its file."""


@pytest.mark.parametrize(("change", "message"), [
    ("missing", r"rank 2 of 4 missing; there are 3 files"),
    ("cycle", r"job.1.et: node \d .* waits for itself: a cycle of nodes"),
    ("unknown", r"job.1.et: node 1 waits for node 99, which is unknown"),
    ("twice", r"job.1.et: node 1 is there twice"),
    ("type", r"job.1.et: node 1 .* has the type 42, which is unknown"),
    ("fewer", r"job.0.et: node 2 .* waits for rank 1, which calls 0 collectives"),
    ("other", r"job.1.et: node 2 .* is all-gather where rank 0 calls all-reduce"),
    ("unsent", r"job.1.et: node 9 .* receives from rank 0 .* nothing of that is sent"),
    ("unread", r"job.1.et: node 9 .* sends to rank 0 .* nothing of that is received"),
    ("negative", r"job.1.et: node 1 .* a negative or impossible time"),
    ("cut", r"job.1.et: broken protobuf at message 3"),
    ("garbage", r"job.1.et: "),
    ("gzip", r"job.1.et: the gzip is truncated or corrupt"),
    ("empty", r"job.1.et is empty"),
])  # fmt: skip
def test_a_bad_trace_is_refused_by_file_and_node(tmp_path, change, message):
    paths = job(tmp_path)
    if change == "missing":
        paths[2].unlink()
    elif change in WRONG:
        et(paths[1], *WRONG[change])
    else:
        paths[1].write_bytes(DAMAGED[change](paths[1].read_bytes()))
    refused(message, replay, [tmp_path], RING)


def test_deadlocks_across_ranks_are_cycles(tmp_path):
    first, second = ({"comm_type": 0, "comm_size": 8, "pg_name": name} for name in "ab")
    et(tmp_path / "d.0.et", node(1, schema.COLLECTIVE, **first),
       node(2, schema.COLLECTIVE, after=[1], **second))  # fmt: skip
    et(tmp_path / "d.1.et", node(1, schema.COLLECTIVE, **second),
       node(2, schema.COLLECTIVE, after=[1], **first))  # fmt: skip
    refused("waits for itself: a cycle of nodes of ranks 0, 1", replay, [tmp_path], RING)


def test_more_ranks_or_nodes_than_there_may_be_are_refused(tmp_path, monkeypatch):
    paths = job(tmp_path, 5)
    refused("of 5 ranks, but ring:4 has 4 chips", replay, paths, RING)
    # Nothing can be scaled from the chip of the recording.
    with pytest.raises(InputError, match=r"--recorded-on trn1 .* and ring:4 has none"):
        replay(paths[:4], RING, recorded_on="trn1")
    monkeypatch.setattr("workloads.traces.recording.MOST_NODES", 10)
    refused("more than 10 nodes, the most that are read", read_chakra, paths[:4])


def test_a_bomb_is_inflated_no_further_than_the_bound(tmp_path):
    (path := tmp_path / "bomb.json.gz").write_bytes(gzip.compress(bytes(2**20)) * 300)
    refused("over 256 MiB before its traceEvents", read_traces, [path])


def test_a_training_step_goes_out_and_comes_back(tmp_path):
    """ASTRA-sim reads each name of a group with ``std::stoi``, and takes 0 for all ranks."""
    machine = cluster("trn2.48xlarge")
    plan = ParallelPlan(tp=2, pp=2, dp=4, global_batch=16, seq=512)
    done = iteration(TOY, machine, plan, folded=False)
    write_chakra(training_recording(done), tmp_path / "out")
    played = replay([tmp_path / "out"], machine)
    assert len(played.recording.ranks) == 16
    assert played.iteration_s == pytest.approx(done.iteration_s, rel=0.05)
    members = json.loads((tmp_path / "out" / "comm_group.json").read_text())
    assert sorted(map(int, members)) == list(range(1, len(members) + 1))
    again = read_traces([tmp_path / "out"])
    assert {group.name: list(group.ranks) for group in again.groups}.items() <= members.items()
    write_chakra(again, tmp_path / "twice")
    assert json.loads((tmp_path / "twice" / "comm_group.json").read_text()) == members
    assert replay([tmp_path / "twice"], machine).iteration_s == played.iteration_s
    refused("holds traces already", write_chakra, again, tmp_path / "twice")
    refused("--unfolded", training_recording, iteration(TOY, machine, plan))


def test_a_summary_of_neuron_profile_keeps_its_total(tmp_path):
    summary = {"total_time": 2e-3, "tensor_engine_active_time": 1e-3, "dma_active_time": 1.5e-3}
    (path := tmp_path / "summary.json").write_text(json.dumps({"n1234": summary}))
    assert replay([path], cluster("trn2.48xlarge")).iteration_s == pytest.approx(2e-3)
    path.write_text(json.dumps({"n1234": {**summary, "tensor_engine_active_time": 5}}))
    with pytest.raises(InputError, match="tensor_engine_active_time is 5 s of a total_time of"):
        replay([path], cluster("trn2.48xlarge"))
    path.write_text(json.dumps({"n1234": summary}))
    faster = replay([path], cluster("trn2.48xlarge"), recorded_on="trn1")
    assert faster.how == "scaled"
    assert faster.iteration_s < 2e-3


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none.et", "no such file"),
        ("empty", "holds no traces"),
        ("a.txt", "unknown kind of trace"),
    ):
        refused(message, replay, [tmp_path / name], RING)


def test_goal_is_replayed_and_other_lines_are_refused(tmp_path):
    (path := tmp_path / "ring.goal").write_text(GOAL, encoding="utf-8-sig")
    message_ps = taken_ps("permute", 5 * 10**6, ranks=2)
    assert replay([path], RING).trace.total_ps == 10**6 + message_ps + 500_000
    for text, message in (
        (GOAL.replace("calc 500", "think 500"), "line 9: 'l2: think 500' is no GOAL"),
        (GOAL[:-3], "ring.goal ends within rank 1, before its brace"),
        (GOAL.replace("}\nrank 1", "rank 1"), r"line 6: 'rank 1 \{' is no GOAL"),
    ):
        path.write_text(text)
        refused(message, replay, [path], RING)


SERVER = cluster("dgx-h100")

REPLACED = {"null": None, "-1": -1, "10^30": 10**30, "text": "x", "list": [1, 2]}


@pytest.mark.parametrize(
    "value",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in REPLACED.values()), LEFT_OUT],
    ids=[*REPLACED, "left-out"],
)
@pytest.mark.parametrize("document", [profile(), exchange(0).document()], ids=["sum", "messages"])
def test_any_value_of_a_profile_is_read_or_refused(document, value, tmp_path):
    path = tmp_path / "profile.json"
    refused = 0
    for place in places(document):
        path.write_text(json.dumps(replaced(document, place, value)))
        try:
            replay([path], SERVER)
        except InputError:
            refused += 1
    assert refused  # at least the whole document is no profile


@pytest.mark.parametrize("digits", [str(2**63), "9" * 5000], ids=["2^63", "5000"])
@pytest.mark.parametrize(("line", "old", "new"), [
    (1, "num_ranks 2", "num_ranks {}"),
    (2, "rank 0 {", "rank {} {{"),
    (3, "calc 1000", "calc {}"),
    (4, "5000000b to", "{}b to"),
    (4, "to 1", "to {}"),
    (4, "tag 3", "tag {}"),
])  # fmt: skip
def test_numbers_of_a_goal_schedule_that_nothing_has(digits, line, old, new, tmp_path):
    (path := tmp_path / "huge.goal").write_text(GOAL.replace(old, new.format(digits), 1))
    refused(f"huge.goal, line {line}: .* number of over 17 digits", read_goal, [path])


def test_ranks_of_a_goal_schedule_take_memory_only_where_they_work(tmp_path):
    path = tmp_path / "wide.goal"
    path.write_text(GOAL.replace("num_ranks 2", "num_ranks 99999999999"))
    recording = read_goal([path])
    assert recording.files == {0: str(path), 1: str(path)}
    refused("is of 99,999,999,999 ranks, but ring:4 has 4 chips", replay, [path], RING)


def test_missing_ranks_are_counted_without_a_list_of_them(tmp_path):
    first, _ = job(tmp_path, 2)
    last = first.rename(tmp_path / "job.99999999999.et")
    with pytest.raises(InputError, match="ranks 0, 2, 3, 4, 5, 6, 7, 8 … of 100000000000 missing"):
        read_chakra([tmp_path / "job.1.et", last])


def test_too_many_kernels_are_refused_as_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.traces.kineto.MOST_KERNELS", 2)
    monkeypatch.setattr("workloads.traces.kineto._read", lambda *_: pytest.fail("read"))
    (path := tmp_path / "profile.json").write_text(json.dumps(profile()))
    refused(r"profile.json: the profiles have more than 2 kernels", read_kineto, [path])


@pytest.mark.parametrize("piece", [1, 7, 64, 10**6])
@pytest.mark.parametrize("form", ["object", "list", "gzip"])
def test_a_profile_is_the_same_in_pieces_of_any_length(piece, form, tmp_path, monkeypatch):
    document = profile()
    useless = {"ph": "X", "cat": "cpu_op", "name": 'a "traceEvents": [ }', "ts": 1, "args": {}}
    events = [useless, *document["traceEvents"], None, 7]
    document |= {"note": 'no "traceEvents": [1]', "traceEvents": events, "later": {"a": [1]}}
    text = "\n" + json.dumps(events if form == "list" else document, indent=2)
    (path := tmp_path / "rank0.json").write_bytes(
        gzip.compress(text.encode()) if form == "gzip" else text.encode()
    )
    whole = read_events(path, lambda event: event)
    monkeypatch.setattr("workloads.traces.json_stream.PIECE", piece)
    assert read_events(path, lambda event: event) == whole
    assert whole["traceEvents"] == [event for event in events if isinstance(event, dict)]
    if form != "list":
        assert whole == document | {"traceEvents": whole["traceEvents"]}
    monkeypatch.setattr("workloads.traces.json_stream.LONGEST_EVENT", 400)
    for cut in (len(text) // 2, len(text) - 3):
        path.write_text(text[:cut])
        refused(r"rank0\.json is not JSON \(", read_events, path, lambda event: event)
    path.write_text('{"traceEvents": [{"name": "' + "x" * 10**4)
    refused(r"rank0\.json is not JSON \(Unterminated", read_events, path, lambda event: event)


def test_profiles_beyond_their_bounds_are_refused(tmp_path, monkeypatch):
    (path := tmp_path / "rank0.json").write_text(json.dumps(profile()))
    for bound, how in (("MOST_CHARACTERS", "MiB once"), ("LARGEST_REST", "MiB before its trace")):
        with monkeypatch.context() as patch:
            patch.setattr(f"workloads.traces.json_stream.{bound}", 20)
            patch.setattr("workloads.traces.json_stream.PIECE", 8)
            refused(how, read_kineto, [path])


def test_a_number_that_no_column_holds_is_refused_by_node():
    with pytest.raises(InputError, match=r"node 7 \(gemm\) of rank 3 has the number 46116860184"):
        Columns().add(3, 0, Node(COMPUTE, "gemm", 7, flops=LARGEST))


def test_ranks_may_come_in_any_order():
    columns = Columns()
    for rank in (2, 0, 1):
        first = columns.add(rank, 0, Node(COMPUTE, "a", 0, duration_ps=10 * rank))
        columns.link(first, columns.add(rank, 0, Node(COMPUTE, "b", 1, duration_ps=1)))
    recording = columns.finish({}, {})
    assert recording.rank.tolist() == [0, 0, 1, 1, 2, 2]
    assert recording.duration_ps.tolist() == [0, 1, 10, 1, 20, 1]
    np.testing.assert_array_equal(np.sort(recording.src), [0, 2, 4])
    np.testing.assert_array_equal(recording.dst, recording.src + 1)


def test_a_group_without_its_caller_is_refused(tmp_path):
    path, text = tmp_path / "profile.json", json.dumps(profile())
    assert text.count('"[0, 1]"') == 1
    path.write_text(text.replace('"[0, 1]"', '"[4, 5]"'))
    refused("in which rank 0 is not", replay, [path], SERVER)


def test_the_number_of_a_node_has_a_bound(tmp_path):
    path = et(tmp_path / "a.0.et", node(2**63 + 5, schema.COMPUTE, us=3))
    refused(r"a\.0\.et: node 9223372036854775813; numbers of nodes", read_chakra, [path])
