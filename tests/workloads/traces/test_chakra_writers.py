"""Chakra traces as other tools write them: PyTorch's converter, generators, nodes in any order."""

import json

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from tests.support.refusals import refused
from topologies.clusters.names import cluster
from workloads.traces import chakra_schema as schema
from workloads.traces.chakra import VERSION, write_messages
from workloads.traces.recording import COLLECTIVE, HOST
from workloads.traces.replay import read_traces, replay

RING = cluster("ring:4", bandwidth="50GB/s", latency="1us")


def node(number, kind, *, us=0, after=(), **values):
    """A node whose attributes have these fields and values."""
    message = schema.messages()["Node"](
        id=number, name=f"node{number}", type=kind, duration_micros=us
    )
    message.data_deps.extend(after)
    for name, (field, value) in values.items():
        attribute = message.attr.add(name=name)
        if field.endswith("_list"):
            getattr(attribute, field).values.extend(value)
        else:
            setattr(attribute, field, value)
    return message


def et(path, *nodes, **metadata):
    """Write a file of these nodes; its metadata are its version unless others are given."""
    header = schema.messages()["GlobalMetadata"](version="" if metadata else VERSION)
    for name, value in metadata.items():
        header.attr.add(name=name, string_val=value)
    write_messages(path, [header, *nodes])
    return path


def all_reduce(number, size_bytes, field="int64_val", **facts):
    """An all-reduce, of all ranks unless its facts tell otherwise."""
    stated = {"comm_type": (field, 0), "comm_size": (field, size_bytes)}
    return node(number, schema.COLLECTIVE, **stated, **facts)


def all_reduce_ps(*sizes, ranks=range(4)):
    """Time of all-reduces one after the other [ps]."""
    group = Group(RING, np.array(ranks))
    return sum(duration_ps(CollectiveCall("all-reduce", group, size)) for size in sizes)


@pytest.mark.parametrize(
    "field", ["int32_val", "int64_val", "uint32_val", "uint64_val", "sint64_val", "double_val"]
)
def test_sizes_may_have_any_type_of_number(field, tmp_path):
    for rank in range(4):
        et(tmp_path / f"job.{rank}.et", all_reduce(1, 10**6, field=field))
    assert replay([tmp_path], RING).trace.total_ps == all_reduce_ps(10**6)


def test_nodes_may_stand_in_any_order(tmp_path):
    compute = node(2, schema.COMPUTE, us=3, after=[1])
    nodes = [all_reduce(1, 10**6), compute, all_reduce(3, 10**7, after=[2])]
    for rank in range(4):
        et(tmp_path / f"job.{rank}.et", *(nodes if rank else reversed(nodes)))
    assert replay([tmp_path], RING).trace.total_ps == all_reduce_ps(10**6, 10**7) + 3 * 10**6
    assert read_traces([tmp_path]).number[:3].tolist() == [1, 2, 3]


def process_groups(*listed):
    """The node in which PyTorch lists its groups."""
    message = schema.messages()["Node"](id=1, name="## process_group:init ##", type=schema.METADATA)
    message.inputs.values = str([json.dumps(listed)])
    return message


def test_groups_are_those_that_pytorch_lists(tmp_path):
    groups = process_groups(
        {"pg_name": "0", "ranks": [], "group_size": 4}, {"pg_name": "1", "ranks": [2, 3]}
    )
    collective = all_reduce(2, 10**6, us=40, pg_name=("string_val", "1"))
    path = et(tmp_path / "chakra.3.et", groups, collective, schema="1.1.1-chakra.0.0.4")
    recording = read_traces([path])
    assert (recording.ranks.tolist(), recording.groups[0].ranks) == ([3], (2, 3))
    assert replay([path], RING).trace.total_ps == all_reduce_ps(10**6, ranks=(2, 3))


def test_communication_without_a_peer_or_a_size_keeps_its_time(tmp_path):
    send = node(1, schema.SEND, us=30, comm_size=("int64_val", 10**6))
    collective = node(2, schema.COLLECTIVE, us=50, after=[1], comm_type=("int64_val", 0))
    played = replay([et(tmp_path / "one.et", send, collective)], RING)
    assert played.trace.total_ps == 80 * 10**6
    assert played.unmapped == {"node1": 1, "node2": 1}
    called = node(1, schema.COLLECTIVE, us=20, is_cpu_op=("bool_val", True))
    read = read_traces([et(tmp_path / "called.et", called, collective)])
    assert read.kind.tolist() == [HOST, COLLECTIVE]  # the host's call has a node of its own


SIZE, SHORT = ("int64_val", 10**6), ("int64_val", 10**3)
SOME_AXES = all_reduce(1, 10**6, involved_dim=("bool_list", [True, False]))
SENT = node(1, schema.SEND, comm_size=SIZE, comm_dst=("int32_val", 1))
TOO_SHORT = node(1, schema.RECEIVE, comm_size=SHORT, comm_src=("int32_val", 0))
COMPUTED = node(1, schema.COMPUTE, us=1)


@pytest.mark.parametrize(("nodes", "groups", "message"), [
    (([SOME_AXES], [SOME_AXES]), "", r"job\.0\.et: node 1 \(node1\) involves some dimensions"
     ".*Name its ranks"),
    (([node(1, schema.SEND, comm_size=SIZE)], []), "",
     r"job\.0\.et: node 1 \(node1\) has neither comm_dst nor a duration"),
    (([SENT], [TOO_SHORT]), "",
     r"job\.1\.et: node 1 .* room for 1,000 bytes of a message of 1,000,000"),
    (([COMPUTED], []), '{"0": [0, 1],', r"comm_group\.json is no JSON of process groups"),
    (([COMPUTED], []), "[]", r"comm_group\.json is no object of process groups by name"),
    (([COMPUTED], []), "{}" + " " * 2**24, "is no JSON of process groups"),
    (([], []), "", r"job\.0\.et holds no nodes"),
], ids=["axes", "peer", "room", "groups", "no names", "long", "no nodes"])  # fmt: skip
def test_what_cannot_be_timed_is_refused_by_node(nodes, groups, message, tmp_path):
    for rank, rank_nodes in enumerate(nodes):
        et(tmp_path / f"job.{rank}.et", *rank_nodes)
    if groups:
        (tmp_path / "comm_group.json").write_text(groups)
    refused(message, replay, [tmp_path], RING)
