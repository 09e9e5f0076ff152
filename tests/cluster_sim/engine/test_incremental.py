"""Rates solved only where they change equal those of SimPy, which solves whole components."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rates import flows_over_clos
from cluster_sim.engine import Faults, simulate
from cluster_sim.engine.fast import new_run
from cluster_sim.engine.fast.loop import Run, play
from cluster_sim.engine.shared_rates.tables import VISITED
from cluster_sim.engine.times import HorizonError
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, Edges, Flows, Resources, Schedule
from tests.support.examples import examples
from tests.support.schedules import fault_tables, outcome, schedules

few = examples(150)
thousands = settings(few, max_examples=5000)
UNITS = [1, 1, 3, 1000, 10**9, 10**12]
"""Small units make ties, and rates of zero."""


def played(table: Schedule) -> Run:
    """Run a schedule, and return the tables of the run when it is over."""
    run = new_run(table, Faults.none(), ())
    play(run, HORIZON_PS)
    return run


def random_flows(seed: int) -> Schedule:
    """Flows that start at random instants, over random paths, weights, caps and capacities."""
    rng = np.random.default_rng(seed)
    flows, resources = int(rng.integers(2, 60)), int(rng.integers(1, 20))
    most, unit = int(rng.choice([6, 30, 1000])), int(rng.choice(UNITS))
    paths = [
        rng.choice(resources, rng.integers(1, min(resources, 4) + 1), replace=False)
        for _ in range(int(rng.integers(1, flows + 1)))
    ]
    caps = np.where(rng.random(len(paths)) < 0.5, rng.integers(1, most, len(paths)), 2**20) * unit
    pick = rng.integers(0, len(paths), flows)
    crossed = np.concatenate([paths[row] for row in pick])
    start = rng.integers(0, rng.choice([2, 40]), flows) * rng.choice([1, 10**12 // unit + 1])
    return schedule(
        OpColumns(kind=[JOIN] + [FLOW] * flows, size_bytes=np.r_[0, rng.integers(1, 60, flows)]),
        edges=Edges.from_pairs(
            flows + 1, np.zeros(flows, np.int64), np.arange(1, flows + 1), start
        ),
        resources=Resources.table(
            "link",
            np.arange(resources),
            capacity=rng.integers(1, most, resources) * unit + seed % 2,
        ),
        flows=Flows(
            op=np.arange(1, flows + 1, dtype=np.int32),
            cap_bytes_per_s=caps[pick],
            ptr=np.cumsum([0, *(len(paths[row]) for row in pick)]),
            resource=crossed.astype(np.int32),
            weight=rng.integers(1, rng.choice([2, 4]), len(crossed)).astype(np.int32),
        ),
    )


def check_same(table: Schedule, faults: Faults | None = None) -> None:
    """Both engines give every instant alike, or both refuse to pass the horizon."""
    try:
        expected = simulate(table, faults=faults, engine="reference")
    except HorizonError:
        with pytest.raises(HorizonError):
            simulate(table, faults=faults)
        return
    times = simulate(table, faults=faults)
    assert outcome(times) == outcome(expected)


def check_seed(seed: int) -> None:
    check_same(random_flows(seed))


def check_faults(data: st.DataObject) -> None:
    """The same for flows among other ops, under faults."""
    table = data.draw(schedules(most_ops=20))
    check_same(table, faults=data.draw(st.none() | fault_tables(table)))


test_random_flows = few(given(st.integers(0, 2**32))(check_seed))
test_random_flows_long = pytest.mark.slow(thousands(given(st.integers(0, 2**32))(check_seed)))
test_flows_under_faults = few(given(st.data())(check_faults))
test_flows_under_faults_long = pytest.mark.slow(thousands(given(st.data())(check_faults)))


@pytest.mark.parametrize("oversubscription", [1, 4])
def test_random_flows_over_a_clos(oversubscription):
    """Many flows in one component."""
    check_same(flows_over_clos(160, 64, 16, oversubscription))


def test_a_solve_looks_at_what_changes():
    """Of 2,000 flows over one Clos, each end looks at a small part of those still in flight."""
    run = played(flows_over_clos(2000, 512, 32, 2, spines=8))
    whole = sum(range(len(run.streams.op))) * 4  # about four resources a flow
    assert 0 < run.streams.solver.sizes[VISITED] < whole // 4
