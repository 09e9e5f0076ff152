"""Groups of classes: small components together, the classes of large ones apart."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import Faults, simulate
from cluster_sim.engine.fast import new_run
from cluster_sim.engine.fast.columns import STREAMS
from cluster_sim.engine.fast.loop import play
from cluster_sim.engine.shared_rates import tables
from cluster_sim.engine.shared_rates.tables import NO_GROUP, Groups, group_classes
from cluster_sim.schedule.build import OpColumns
from cluster_sim.schedule.build import schedule as build_schedule
from cluster_sim.schedule.table import FLOW, JOIN, Edges, Flows, Resources, Schedule

paths_of_classes = st.lists(st.lists(st.integers(0, 11), max_size=3, unique=True), max_size=20)


def grouped(paths: list[list[int]]) -> tuple[list[list[int]], Groups]:
    """Paths in the order of the groups, and the groups."""
    ptr = np.cumsum([0, *map(len, paths)])
    crossed = np.array([resource for path in paths for resource in path], np.int32)
    order, result = group_classes(ptr, crossed, 12)
    return [paths[number] for number in order], result


@given(paths_of_classes, st.integers(1, 5))
def test_a_group_is_a_small_component_or_one_class(paths: list[list[int]], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "FEW_CLASSES", few)
        paths, result = grouped(paths)
    graph = nx.Graph((("class", c), r) for c, path in enumerate(paths) for r in path)
    graph.add_nodes_from(("class", c) for c in range(len(paths)))
    seen = []
    for group, small in enumerate(result.small):
        classes = list(range(result.first[group], result.first[group + 1]))
        seen += classes
        assert (result.of_class[classes] == group).all()
        component = nx.node_connected_component(graph, ("class", classes[0]))
        members = sorted(node[1] for node in component if isinstance(node, tuple))
        resources = sorted(node for node in component if not isinstance(node, tuple))
        assert small == (len(members) <= few)
        listed = result.resource[result.ptr[group] : result.ptr[group + 1]].tolist()
        assert classes == members if small else len(classes) == 1
        assert listed == (resources if small else [])
        assert (result.of_resource[resources] == (group if small else NO_GROUP)).all()
    assert seen == list(range(len(paths)))


def stars(flows: int) -> Schedule:
    """Flows of two caps over each of three links, each of another size."""
    link = np.arange(flows, dtype=np.int32) % 3
    return build_schedule(
        OpColumns(kind=[JOIN] + [FLOW] * flows, size_bytes=np.r_[0, 1000 + np.arange(flows)]),
        edges=Edges.from_pairs(
            flows + 1, np.zeros(flows, np.int64), np.arange(flows) + 1, np.arange(flows)
        ),
        resources=Resources.table("link", np.arange(3), slots=0, capacity=1000),
        flows=Flows(
            op=np.arange(1, flows + 1, dtype=np.int32),
            cap_bytes_per_s=np.array([800, 900])[np.arange(flows) // 3 % 2],
            ptr=np.arange(flows + 1),
            resource=link,
            weight=np.ones(flows, np.int32),
        ),
    )


def test_one_end_stands_for_a_small_component() -> None:
    """Of 60 flows in flight over three links, the heap of ends holds one item a link."""
    schedule = stars(60)
    run = new_run(schedule, Faults.none(), ())
    play(run, 10**6)
    assert run.streams.vacant[1] == 60
    assert len(run.streams.groups.small) == 3
    assert run.state.notes[STREAMS] == 3
    expected = simulate(schedule, engine="reference").end_ps
    assert simulate(schedule).end_ps.tolist() == expected.tolist()


def test_flows_of_a_class_that_come_out_of_order_end_in_order() -> None:
    """Later flows of one class that have less to move end first; equal ones end together."""
    flows = 9
    size = np.array([90, 50, 70, 50, 10, 90, 20, 50, 60])
    schedule = build_schedule(
        OpColumns(kind=[JOIN] + [FLOW] * flows, size_bytes=np.r_[0, size]),
        edges=Edges.from_pairs(
            flows + 1, np.zeros(flows, np.int64), np.arange(flows) + 1, np.zeros(flows, np.int64)
        ),
        resources=Resources.table("link", [0], slots=0, capacity=1000),
        flows=Flows(
            op=np.arange(1, flows + 1, dtype=np.int32),
            cap_bytes_per_s=np.full(flows, 10**6),
            ptr=np.arange(flows + 1),
            resource=np.zeros(flows, np.int32),
            weight=np.ones(flows, np.int32),
        ),
    )
    end = simulate(schedule).end_ps[1:]
    assert end.tolist() == simulate(schedule, engine="reference").end_ps[1:].tolist()
    assert (np.argsort(size, kind="stable") == np.argsort(end, kind="stable")).all()
