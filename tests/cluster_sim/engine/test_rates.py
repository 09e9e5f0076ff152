"""Max-min fair rates (rule 7) equal hand-made cases, and no flow could have more."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import max_min_rates
from cluster_sim.engine.shared_rates.tables import UNLIMITED, classify, share_tables
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, Edges, Flows, Resources

GB = 10**9


class Case(NamedTuple):
    capacity: list[int]
    paths: list[list[int]]
    weights: list[list[int]]
    caps: list[int]

    def rates(self, order: list[int] | None = None) -> list[int]:
        """Solve with the flows in another order, and give the rates back in their own."""
        picks = list(range(len(self.paths))) if order is None else order
        solved = max_min_rates(
            self.capacity,
            np.cumsum([0, *(len(self.paths[pick]) for pick in picks)]),
            [number for pick in picks for number in self.paths[pick]],
            weight=[weight for pick in picks for weight in self.weights[pick]],
            cap_bytes_per_s=[self.caps[pick] for pick in picks],
        )
        back = dict(zip(picks, solved.tolist(), strict=True))
        return [back[flow] for flow in range(len(self.paths))]


@st.composite
def cases(draw: st.DrawFn, unit: int = 1) -> Case:
    resources = draw(st.integers(1, 5))
    paths = draw(
        st.lists(
            st.lists(st.integers(0, resources - 1), min_size=1, max_size=3, unique=True),
            min_size=1,
            max_size=7,
        )
    )
    return Case(
        [unit * draw(st.integers(1, 60)) for _ in range(resources)],
        paths,
        [[draw(st.integers(1, 3)) for _ in path] for path in paths],
        [draw(st.just(UNLIMITED) | st.integers(1, 40).map(lambda x: x * unit)) for _ in paths],
    )


LEAF_UP, LEAF_DOWN = 32, 33
CROSSING = [[chip, LEAF_UP, LEAF_DOWN, 24 + chip] for chip in range(8)]
STAYING = [[8 + chip, 16 + chip] for chip in range(8)]


@pytest.mark.parametrize(("capacity", "paths", "rates"), [
    # Incast: 12.5 each, rounded down.
    ([100] * 9, [[sender, 8] for sender in range(8)], [12] * 8),
    # One flow over three links, one more on each: the narrowest link sets the long flow.
    ([100, 60, 90], [[0, 1, 2], [0], [1], [2]], [30, 70, 30, 60]),
    # Two leaves of 8 chips at 100 GB/s, up-links of 800 / 4 GB/s. 8 flows cross, 8 stay.
    ([100 * GB] * 32 + [200 * GB] * 2, CROSSING + STAYING, [25 * GB] * 8 + [100 * GB] * 8),
    # Both are full at 2 (5 // 2): the flow of one must not give the other's a bit more.
    ([4, 5], [[0, 1], [0], [1]], [2, 2, 2]),
])  # fmt: skip
def test_rates_by_hand(capacity, paths, rates):
    case = Case(capacity, paths, [[1] * len(path) for path in paths], [UNLIMITED] * len(paths))
    assert case.rates() == rates


def test_caps_and_weights_by_hand():
    # An idle cap leaves the rest to others; a flow over nothing runs at its cap.
    assert Case([100], [[0]] * 3, [[1]] * 3, [10, UNLIMITED, 50]).rates() == [10, 45, 45]
    assert max_min_rates([7], [0, 0, 1], [0], cap_bytes_per_s=[3, 9]).tolist() == [3, 7]
    # Equal rates x with 3x + x = 100: fair is the rate, not what it takes.
    assert Case([100], [[0]] * 2, [[3], [1]], [UNLIMITED] * 2).rates() == [25, 25]
    assert max_min_rates([7], [0], np.empty(0, np.int32)).tolist() == []


@pytest.mark.parametrize(("columns", "message"), [
    ({"ptr": [0, 2]}, "ptr does not cut 1 shares into 1 flows"),
    ({"ptr": [0, 2, 1]}, "ptr does not cut 1 shares into 2 flows"),
    ({"resource": [1]}, "resource reaches from 1 to 1, outside 0 … 0"),
    ({"resource": [-1]}, "resource reaches from -1 to -1, outside 0 … 0"),
    ({"weight": 0}, "weight reaches from 0 to 0"),
    ({"cap_bytes_per_s": -1}, "cap_bytes_per_s reaches from -1 to -1"),
    ({"capacity_bytes_per_s": [-5]}, "capacity_bytes_per_s reaches from -5 to -5"),
    ({"count": 0}, "count reaches from 0 to 0"),
    ({"count": 2**62, "weight": 2}, "count reaches from 4611686018427387904"),
])  # fmt: skip
def test_columns_that_make_no_sense_are_refused(columns, message):
    common = {"capacity_bytes_per_s": [7], "ptr": [0, 1], "resource": [0]}
    with pytest.raises(ValueError, match=message):
        max_min_rates(**{**common, **columns})


@given(cases(), st.randoms(use_true_random=False))
def test_order_changes_no_bit(case, random):
    order = list(range(len(case.paths)))
    random.shuffle(order)
    assert case.rates(order) == case.rates()


@given(cases(), st.data())
def test_counting_equal_flows_together_changes_no_bit(case, data):
    count = [data.draw(st.integers(1, 4)) for _ in case.paths]
    repeated = Case(
        case.capacity,
        *([x for x, n in zip(c, count, strict=True) for _ in range(n)] for c in case[1:]),
    )
    counted = max_min_rates(
        case.capacity, np.cumsum([0, *map(len, case.paths)]), np.concatenate(case.paths),
        weight=np.concatenate(case.weights), cap_bytes_per_s=case.caps, count=count,
    )  # fmt: skip
    assert np.repeat(counted, count).tolist() == repeated.rates()


@given(cases())
def test_rates_are_feasible_and_no_flow_could_have_more(case):
    """Each flow is at its cap, or on a resource that is full for it, where none is faster."""
    rates = case.rates()
    for resource, capacity in enumerate(case.capacity):
        assert sum(w * rates[f] for f, w in on(case, resource)) <= capacity
    for flow, path in enumerate(case.paths):
        assert rates[flow] <= case.caps[flow]
        if rates[flow] < case.caps[flow]:
            assert any(is_bottleneck(case, rates, flow, resource) for resource in path)


def on(case: Case, resource: int) -> list[tuple[int, int]]:
    rows = enumerate(zip(case.paths, case.weights, strict=True))
    pairs = ((flow, *pair) for flow, row in rows for pair in zip(*row, strict=True))
    return [(flow, weight) for flow, number, weight in pairs if number == resource]


def is_bottleneck(case: Case, rates: list[int], flow: int, resource: int) -> bool:
    """Return whether a level one higher, for all flows as fast as this one, would not fit."""
    higher = sum(w * min(rates[f], rates[flow] + 1) for f, w in on(case, resource))
    as_fast = sum(w for f, w in on(case, resource) if rates[f] == rates[flow])
    none_faster = all(rates[f] <= rates[flow] for f, _ in on(case, resource))
    return none_faster and higher + as_fast > case.capacity[resource]


def test_equal_flows_are_one_class_and_different_ones_are_not():
    flows = Flows(
        op=np.arange(6, dtype=np.int32),
        cap_bytes_per_s=np.array([5, 5, 5, 6, 5, 5]),
        ptr=np.array([0, 2, 4, 6, 8, 9, 11]),
        resource=np.array([0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1], np.int32),
        weight=np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2], np.int32),
    )
    number, example = classify(flows, np.zeros(6, np.int32))
    assert number[0] == number[1]
    assert len(set(number.tolist())) == len(example) == 5
    apart, _ = classify(flows, np.array([0, 1, 0, 0, 0, 0]))
    assert apart[0] != apart[1]


def test_a_schedule_without_flows_has_no_table_of_capacities():
    columns = OpColumns(kind=[FIXED], resource=[0], duration_ps=[5])
    plain = schedule(
        columns, edges=Edges.from_pairs(1, [], []), resources=Resources.table("link", [0], [1])
    )
    number, slot, paths, _ = share_tables(plain, np.empty(0, np.int64))
    assert [len(column) for column in (number, slot, paths.capacity, paths.taken)] == [0] * 4
