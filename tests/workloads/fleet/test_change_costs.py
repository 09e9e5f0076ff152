"""Each cost of a change of role moves the time of each kind of change as its closed form says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_fleet import simulate
from workloads.demand import constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import role_server_ms
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.services import Service
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate

WEIGHTS_BYTES, STATE_BYTES, MORE_S = 3e12, 2e13, 7.0
UNITS, GANG, MINUTES = 10, 8, 90
COSTS = replace(ChangeCosts.from_catalogue(4), checkpoint_stall_s=0.0, snooze_s=0.0)
START = {"mode_switch_s", "runtime_start_s", "compile_hit_s", "warm_up_s", "load"}
BACK = {
    "pause": START | {"pause_s"},
    "preempt": START,
    "shrink": START,
    "checkpoint": START | {"save"},
    "evaluation": {"drain_s"},
    "spare": START,
}
"""Costs that a unit waits for on its way to serving, by what it did before."""
FORTH = {"drain_s", "mode_switch_s", "runtime_start_s", "restart_s"}
"""Costs between serving and the first step of a gang that starts."""
DURATIONS = (
    "drain_s", "mode_switch_s", "runtime_start_s", "compile_hit_s", "warm_up_s", "pause_s",
    "restore_s", "resize_s", "restart_s", "compile_miss_s",
)  # fmt: skip


def _run(costs: ChangeCosts, before: int, after: int, jobs: list[TrainingJob]) -> FleetRun:
    """Let ``before`` units serve in the first minute and ``after`` units from then on."""
    return simulate(
        constant(1.0, minutes=MINUTES),
        [Service("chat", fixed_rate(10.0), WEIGHTS_BYTES)],
        Fleet(UNITS, costs=costs),
        lambda view: float(before if view.minute == 0 else after),
        jobs=jobs,
    )


def _jobs(kind: str) -> list[TrainingJob]:
    if kind == "spare":
        return []
    if kind == "evaluation":
        return [evaluation_job(GANG)]
    least = 1 if kind == "shrink" else GANG
    return [TrainingJob("job", GANG, least, reclaim=kind, state_bytes=STATE_BYTES)]


def _back_s(costs: ChangeCosts, kind: str) -> float:
    """Time from the order until a unit that did other work serves [s]."""
    (change,) = _run(costs, UNITS - GANG, UNITS - GANG + 1, _jobs(kind)).changes
    assert change.arrived == 1
    return (change.ready_ms - change.ordered_ms) / 1000.0


def _back_closed_s(costs: ChangeCosts, kind: str) -> float:
    rate = min(costs.store_client_bytes_per_s, costs.store_bytes_per_s / GANG)
    values = {
        "load": WEIGHTS_BYTES / costs.load_bytes_per_s,
        "save": STATE_BYTES / GANG / rate,
    }
    return sum(values[name] if name in values else getattr(costs, name) for name in BACK[kind])


@pytest.mark.parametrize("kind", BACK)
def test_a_change_to_serving_takes_the_sum_of_its_costs(kind: str) -> None:
    base = _back_s(COSTS, kind)
    assert base == pytest.approx(_back_closed_s(COSTS, kind), abs=0.01)
    for name in DURATIONS:
        longer = replace(COSTS, **{name: getattr(COSTS, name) + MORE_S})
        moved = _back_s(longer, kind) - base
        assert moved == pytest.approx(MORE_S * (name in BACK[kind]), abs=0.002), name
    for name in ("load_bytes_per_s", "store_bytes_per_s", "store_client_bytes_per_s"):
        for factor in (0.5, 2.0):
            other = replace(COSTS, **{name: getattr(COSTS, name) * factor})
            expected = _back_closed_s(other, kind) - _back_closed_s(COSTS, kind)
            assert _back_s(other, kind) - base == pytest.approx(expected, abs=0.01), name
    # What policies and ``lend`` are told is the way of a paused job.
    if kind == "pause":
        assert COSTS.to_serving_s(WEIGHTS_BYTES) == pytest.approx(base, abs=0.01)


def test_a_gang_computes_when_its_units_have_changed_and_it_has_started() -> None:
    job = TrainingJob("job", GANG, GANG, reclaim="pause", checkpoint_every_s=1e9)

    def trained_s(costs: ChangeCosts) -> float:
        run = _run(costs, UNITS, UNITS - GANG, [job])
        return float(role_server_ms(run.kinds[0])[-1, Role.TRAINING]) / 1000.0

    base, run_s = trained_s(COSTS), (MINUTES - 1) * 60.0
    assert base == pytest.approx(GANG * (run_s - COSTS.to_training_s), abs=0.1)
    assert sum(getattr(COSTS, name) for name in FORTH) == pytest.approx(COSTS.to_training_s)
    for name in DURATIONS:
        longer = replace(COSTS, **{name: getattr(COSTS, name) + MORE_S})
        expected = -GANG * MORE_S * (name in FORTH)
        assert trained_s(longer) - base == pytest.approx(expected, abs=0.1), name


def test_units_that_load_from_the_store_together_share_it() -> None:
    costs = replace(ChangeCosts.from_catalogue(4, source="store"), store_bytes_per_s=5e10)
    runs = [_run(costs, UNITS - GANG, UNITS - GANG + count, _jobs("spare")) for count in (1, 4, 8)]
    took = [
        max((change.ready_ms - change.ordered_ms) / 1000.0 for change in run.changes)
        for run in runs
    ]
    fixed = costs.to_serving_s(0.0) - costs.pause_s
    expected = [fixed + costs.load_s(WEIGHTS_BYTES, count) for count in (1, 4, 8)]
    assert took == pytest.approx(expected, abs=0.1)
    assert np.all(np.diff(took) > 0)
