"""Small schedules with many ties to test engines, drawn by hypothesis."""

from dataclasses import fields

import numpy as np
from hypothesis import strategies as st

from cluster_sim.engine import Faults, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, JOIN, Edges, Flows, Resources, Schedule

COLUMNS = tuple(column.name for column in fields(OpColumns))


def from_columns(**values: object) -> Schedule:
    """A schedule of columns and tables by name."""
    columns = OpColumns(**{name: values.pop(name) for name in COLUMNS if name in values})
    return schedule(columns, **values)


BYTES_PER_PS = 10**12
"""One byte a picosecond [B/s], so that flows last about as long as fixed ops."""


@st.composite
def resource_tables(draw: st.DrawFn) -> Resources:
    """A few resources with slots, capacity or both; the first has a slot, the second capacity."""
    count = draw(st.integers(2, 5))
    unit = draw(st.sampled_from([1, 7, BYTES_PER_PS]))
    slots = [draw(st.integers(0, 3)) for _ in range(count)]
    capacity = [unit * draw(st.integers(0, 6)) for _ in range(count)]
    slots[0], capacity[1] = max(1, slots[0]), max(unit, capacity[1])
    owners = np.arange(count)
    return Resources.table("engine", owners, slots=slots, capacity=capacity)


@st.composite
def flow_tables(draw: st.DrawFn, ops: list[int], resources: Resources) -> Flows:
    """Paths over shared resources; few distinct ones, so that some flows are equal."""
    shared = np.flatnonzero(resources.capacity).tolist()
    path = st.lists(st.sampled_from(shared), min_size=1, max_size=3, unique=True)
    paths = draw(st.lists(path, min_size=1, max_size=3))
    unit = int(resources.capacity[1])
    caps = [draw(st.integers(1, 3)) * unit // draw(st.integers(1, 2)) or 1 for _ in paths]
    weights = [[draw(st.integers(1, 3)) for _ in path] for path in paths]
    picks = [draw(st.integers(0, len(paths) - 1)) for _ in ops]
    return Flows(
        op=np.array(ops, np.int32),
        cap_bytes_per_s=np.array([caps[pick] for pick in picks], np.int64),
        ptr=np.concatenate([[0], np.cumsum([len(paths[pick]) for pick in picks])]).astype(np.int64),
        resource=np.array([r for pick in picks for r in paths[pick]], np.int32),
        weight=np.array([w for pick in picks for w in weights[pick]], np.int32),
    )


@st.composite
def schedules(
    draw: st.DrawFn, *, most_ops: int = 14, flows: bool = True, blocked: bool = True
) -> Schedule:
    """Contention, slots, priorities, lags from starts and ends, joins, flows and equal times."""
    ops = draw(st.integers(1, most_ops))
    resources = draw(resource_tables())
    with_slots = np.flatnonzero(resources.slots).tolist()
    kinds = [FIXED, FIXED, FIXED, JOIN] + ([FLOW] if flows else [])
    kind = [draw(st.sampled_from(kinds)) for _ in range(ops)]
    holder = st.sampled_from([*with_slots, *with_slots, -1])
    resource = [-1 if k == JOIN else draw(holder) for k in kind]
    duration = [draw(st.integers(1, 6)) if k == FIXED else 0 for k in kind]
    return schedule(
        OpColumns(
            kind=kind, resource=resource, duration_ps=duration,
            size_bytes=[draw(st.integers(1, 12)) for _ in kind],
            priority=[draw(st.integers(-1, 1)) for _ in kind],
        ),
        edges=draw(edge_tables(kind, duration, blocked=blocked)),
        resources=resources,
        flows=draw(flow_tables([op for op in range(ops) if kind[op] == FLOW], resources)),
    )  # fmt: skip


@st.composite
def edge_tables(draw: st.DrawFn, kind: list[int], duration: list[int], *, blocked: bool) -> Edges:
    """Edges along a random order of the ops; now and then one that may close a circle."""
    ops = len(kind)
    order = draw(st.permutations(range(ops)))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, ops - 1)] * 2), max_size=2 * ops))
    forward = [(order[min(pair)], order[max(pair)]) for pair in pairs if pair[0] != pair[1]]
    if blocked and draw(st.integers(0, 9)) == 0:
        forward.append((order[-1], order[0]))
    lag, from_start = [], []
    for src, dst in forward:
        cuts_through = kind[src] == FIXED and kind[dst] != JOIN and draw(st.booleans())
        least = max(1, duration[src] - duration[dst]) if cuts_through else 0
        lag.append(least + draw(st.integers(0, 4)))
        from_start.append(cuts_through)
    src, dst = [pair[0] for pair in forward], [pair[1] for pair in forward]
    if not forward:
        return Edges.from_pairs(ops, np.empty(0, np.int64), np.empty(0, np.int32))
    return Edges.from_pairs(ops, src, dst, lag, from_start)


@st.composite
def fault_tables(draw: st.DrawFn, schedule: Schedule) -> Faults:
    """A few changes of speed within the first instants; often deaths and revivals."""
    places = st.tuples(st.integers(0, 20), st.integers(0, len(schedule.resources) - 1))
    speeds = st.tuples(st.sampled_from([0, 0, 1, 1, 2]), st.integers(2, 3), st.booleans())
    changes = draw(st.dictionaries(places, speeds, max_size=6))
    rows = [(*place, *speed) for place, speed in changes.items()]
    *numbers, fails = ([row[column] for row in rows] for column in range(5))
    return Faults.table(*numbers, fails=fails)


def outcome(times: Times) -> dict[str, object]:
    """All columns of a run as lists, to be compared."""
    names = ("ready_ps", "start_ps", "end_ps", "status", "dead")
    columns = {name: getattr(times, name).tolist() for name in names}
    lost = [getattr(times.attempts, name).tolist() for name in ("op", "start_ps", "end_ps")]
    return {**columns, "attempts": lost, "stopped": times.stopped_ps}
