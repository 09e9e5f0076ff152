"""Small random schedules and hand-made traces for property tests."""

import numpy as np
from hypothesis import strategies as st

from cluster_sim.engine.times import DONE, Attempts, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, JOIN, Codes, Edges, Resources, Schedule
from cluster_sim.trace.trace import Trace

WHATS = ("compute", "tp", "dp")


@st.composite
def schedules(draw: st.DrawFn, most_ops: int = 14, most_resources: int = 3) -> Schedule:
    """Fixed ops and joins on a few resources; edges lead to later ops, so all of it runs."""
    ops = draw(st.integers(1, most_ops))
    held = draw(st.integers(1, most_resources))

    def column(values: st.SearchStrategy[int], count: int = ops) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), np.int64)

    pairs = [(i, j) for i in range(ops) for j in range(i + 1, ops)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * ops, unique=True)) if pairs else []
    kind = column(st.sampled_from([FIXED, FIXED, FIXED, JOIN]))
    fixed = kind == FIXED
    return schedule(
        OpColumns(
            kind=kind, resource=np.where(fixed, column(st.integers(0, held - 1)), -1),
            duration_ps=np.where(fixed, column(st.integers(1, 9)), 0),
            size_bytes=column(st.integers(0, 100)), priority=column(st.integers(0, 2)),
        ),
        edges=Edges.from_pairs(
            ops, [i for i, _ in edges], [j for _, j in edges], column(st.integers(0, 3), len(edges))
        ),
        resources=Resources.table(
            "link", np.arange(held), np.arange(held) + 1, slots=column(st.integers(1, 2), held)
        ),
        labels={
            "rank": column(st.integers(0, 2)),
            "what": Codes(column(st.integers(0, len(WHATS) - 1)), WHATS),
        },
        facts={"collective": "none", "size_bytes": 7, "ideal": True, "share": 0.5},
    )  # fmt: skip


def ended(start_ps: np.ndarray, end_ps: np.ndarray, ready_ps: np.ndarray | None = None) -> Times:
    """Times of ops that all ended."""
    start = np.asarray(start_ps, np.int64)
    return Times(
        ready_ps=start if ready_ps is None else np.asarray(ready_ps, np.int64), start_ps=start,
        end_ps=np.asarray(end_ps, np.int64), status=np.full(len(start), DONE, np.uint8),
        attempts=Attempts.none(), dead=np.empty(0, np.int32),
    )  # fmt: skip


def spans(rank: list[int], what: list[str], start: list[int], end: list[int]) -> Trace:
    """A trace of ops with given times, each on a resource of its own, without edges."""
    ops = len(rank)
    length = np.array(end, np.int64) - np.array(start, np.int64)
    op_table = schedule(
        OpColumns(kind=np.full(ops, FIXED), resource=np.arange(ops), duration_ps=length),
        edges=Edges.from_pairs(ops, [], []),
        resources=Resources.table("engine", np.arange(ops)),
        labels={
            "rank": np.array(rank),
            "what": Codes(np.array([WHATS.index(name) for name in what]), WHATS),
        },
    )
    return Trace(op_table, ended(np.array(start), np.array(end)))


def on_one_link(count: int, duration_ps: int = 5) -> Schedule:
    """Ops one after the other on one link."""
    return schedule(
        OpColumns(kind=np.full(count, FIXED), resource=0, duration_ps=duration_ps, size_bytes=10),
        edges=Edges.from_pairs(count, np.arange(count - 1), np.arange(1, count)),
        resources=Resources.table("link", [0], [1]),
        labels={"rank": np.arange(count) % 2},
    )
