"""Traces from strangers: replaced values, and sizes too large for memory, are refused."""

import json

import numpy as np
import pytest

from tests.fuzz.structure import LEFT_OUT, places, replaced
from tests.support.kineto_profiles import exchange
from tests.support.small_traces import GOAL, RING, et, job, node, profile
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.traces import chakra_schema as schema
from workloads.traces.chakra import read_chakra
from workloads.traces.goal import read_goal
from workloads.traces.kineto import read_kineto
from workloads.traces.recording import COMPUTE, LARGEST, Columns, Node
from workloads.traces.replay import replay

SERVER = cluster("dgx-h100")


WRONG = {"null": None, "-1": -1, "10^30": 10**30, "text": "x", "list": [1, 2]}


@pytest.mark.parametrize(
    "value",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in WRONG.values()), LEFT_OUT],
    ids=[*WRONG, "left-out"],
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
@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (1, "num_ranks 2", "num_ranks {}"),
        (2, "rank 0 {", "rank {} {{"),
        (3, "calc 1000", "calc {}"),
        (4, "5000000b to", "{}b to"),
        (4, "to 1", "to {}"),
        (4, "tag 3", "tag {}"),
    ],
)
def test_numbers_of_a_goal_schedule_that_nothing_has(digits, line, old, new, tmp_path):
    path = tmp_path / "huge.goal"
    path.write_text(GOAL.replace(old, new.format(digits), 1))
    with pytest.raises(InputError, match=f"huge.goal, line {line}: .* number of over 17 digits"):
        read_goal([path])


def test_ranks_of_a_goal_schedule_take_memory_only_where_they_work(tmp_path):
    path = tmp_path / "wide.goal"
    path.write_text(GOAL.replace("num_ranks 2", "num_ranks 99999999999"))
    recording = read_goal([path])
    assert recording.files == {0: str(path), 1: str(path)}
    with pytest.raises(InputError, match="is of 99,999,999,999 ranks, but ring:4 has 4 chips"):
        replay([path], RING)


def test_missing_ranks_are_counted_without_a_list_of_them(tmp_path):
    first, _ = job(tmp_path, 2)
    last = first.rename(tmp_path / "job.99999999999.et")
    with pytest.raises(InputError, match="ranks 0, 2, 3, 4, 5, 6, 7, 8 … of 100000000000 missing"):
        read_chakra([tmp_path / "job.1.et", last])


def test_too_many_kernels_are_refused_before_they_are_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.traces.kineto.MOST_KERNELS", 2)
    monkeypatch.setattr("workloads.traces.kineto.json.loads", lambda _: pytest.fail("parsed"))
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile()))
    with pytest.raises(InputError, match=r"profile.json: the profiles have more than 2 kernels"):
        read_kineto([path])


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
    with pytest.raises(InputError, match="in which rank 0 is not"):
        replay([path], SERVER)


def test_the_number_of_a_node_has_a_bound(tmp_path):
    path = et(tmp_path / "a.0.et", node(2**63 + 5, schema.COMPUTE, us=3))
    with pytest.raises(InputError, match=r"a\.0\.et: node 9223372036854775813; numbers of nodes"):
        read_chakra([path])
