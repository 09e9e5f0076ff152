"""Maintenance windows and rolling upgrades: what is out when, what it costs, wrong windows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from experiments.cli.commands.fleet import _notes_of_run
from tests.support.refusals import refused
from tests.support.toy_fleet import FREE, SERVICE, check_conserved
from workloads.demand import constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import RECLAIMS, TrainingJob, evaluation_job
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Window, windows_from
from workloads.fleet.results import role_units
from workloads.fleet.simulation import FleetRun, simulate
from workloads.fleet.state.services import Failures, Fleet, Kind
from workloads.fleet.state.world import Role

MINUTES = 600


def _run(
    *windows: Window, units: int = 12, load: float = 0.0, jobs: tuple[TrainingJob, ...] = (),
    policy: Any = None, costs: ChangeCosts = FREE, failures: Failures | None = None,
) -> FleetRun:  # fmt: skip
    """Run a fleet of units of one server whose demand needs ``load`` of them."""
    fleet = Fleet(units, costs=costs, failures=failures, maintenance=windows)
    demand = constant(60 * 3.5 * load, minutes=MINUTES)
    kind = Kind("unit", (SERVICE,), fleet, jobs or (evaluation_job(units),))
    return simulate(demand, [kind], policy or static(load), rng=np.random.default_rng(3))


def _units(run: FleetRun, role: Role) -> np.ndarray[Any, Any]:
    return np.asarray(role_units(run)[:, role])


OUT = Window("out", 3600.0, 7200.0, 4)
ROLL = Window("roll", 3600.0, 1800.0, 5, rolling=True)


@pytest.mark.parametrize(("window", "out"), [
    (OUT, [4] * 120),
    (ROLL, [5] * 60 + [2] * 30),  # a rolling upgrade takes every unit out once
])  # fmt: skip
def test_a_window_takes_its_units_out_for_its_length(window, out):
    run = _run(window)
    expected = [0] * 60 + out + [0] * (MINUTES - 60 - len(out))
    assert _units(run, Role.MAINTENANCE).tolist() == expected
    assert run.kinds[0].maintained == (12 if window.rolling else 4)
    check_conserved(run)


def test_a_window_waits_until_the_one_before_has_ended():
    """Three groups of a roll take half an hour each, and as units come first, two minutes more."""
    roll = replace(ROLL, units=4, begin_s=0.0)
    after = replace(OUT, begin_s=5400.0)
    run = _run(roll, after, load=12.0, costs=ChangeCosts.fixed(60.0))
    assert run.kinds[0].maintenance_late_ms == 3 * 120_000
    out = _units(run, Role.MAINTENANCE)
    assert out.max() == 4
    assert out.sum() == pytest.approx(12 * 30 + 4 * 120)
    alone = _run(roll, replace(after, begin_s=6000.0), load=12.0, costs=ChangeCosts.fixed(60.0))
    assert alone.kinds[0].maintenance_late_ms == 0


def test_people_are_told_of_a_window_that_never_begins():
    windows = ["roll@0d00:00+30min=1", "out@0d02:00+2min=1"]
    words: dict[str, Any] = {"unit_rate": 5.0, "days": 121 / 1440, "policy": "static"}
    words |= {"scale_to_peak": 0.99, "failures": "off"}
    fleet = cs.run_fleet("trn2-ultraserver:4", maintenance=windows, **words)
    (note,) = [note for note in _notes_of_run(fleet) if "maintenance" in note]
    assert note.startswith("1 maintenance windows never began")
    assert fleet.summary["maintenance_late_s"] == 60.0


def test_idle_units_go_first_and_those_that_serve_are_replaced_before_they_leave():
    idle = _run(OUT, load=8.0, units=12)
    assert (_units(idle, Role.SERVING) == 8).all()
    rolled = _run(replace(ROLL, units=4), load=8.0, units=12, costs=ChangeCosts.fixed(120.0))
    assert (_units(rolled, Role.SERVING) >= 8 - 1e-9).all()
    assert (rolled.kinds[0].maintained, rolled.queues[0].backlog.max()) == (12, 0)


@pytest.mark.parametrize("reclaim", [each for each in RECLAIMS if each != "drain"])
@pytest.mark.parametrize("window", [OUT, ROLL])
def test_a_gang_saves_its_work_as_when_it_is_reclaimed(reclaim, window):
    elastic = reclaim == "shrink"
    least, step = (2, 2) if elastic else (10, 1)
    job = TrainingJob("gang", 10, least, step, ((1, 1e3),), 6e4, reclaim)
    run = _run(window, jobs=(job,))
    (_, tally), *_ = run.jobs
    assert run.kinds[0].maintained == (12 if window.rolling else 4)
    assert tally.reclaims >= 1
    lost = {"preempt": 1e3 * 10 * 1800, "shrink": 6e4 * 3}.get(reclaim, 0.0)
    assert tally.lost_tokens <= lost
    assert _units(run, Role.TRAINING)[-1] == 10  # it has its units back
    check_conserved(run)


@pytest.mark.parametrize(("texts", "message"), [
    (["out@2h=3"], "cannot be read; write out@1d02:00\\+4h=2 for once, or roll"),
    (["out@0d02:00+4h"], "cannot be read"),
    (["stop@0d02:00+4h=3"], "cannot be read"),
    (["out@0d02:00=3"], "cannot be read"),
    (["out@0d02:00+4h=3"], "has several kinds of units; end with =a:3, =b:3"),
    (["out@0d02:00+4h=c:3"], "has no kind 'c'; end with =a:3, =b:3"),
    (["out@0d02:00+4h=a:11"], "11 units at a time, and there are 10"),
    (["out@3d02:00+4h=a:3"], "after the start of a run of 1 days"),
    (["out/1d+4h=a:3"], "first begins after the run"),
    (["out/30min+1min=a:3"], "more than once an hour"),
    (["roll/2h+1h=a:3"], "overlaps the next one: it takes 4 h, in 4 turns"),
    (["out@0d02:00+4h=a:3", "out@0d05:00+1h=a:2"],
     "=a:2 overlaps out@0d02:00\\+4h=a:3, which ends 6 h after the start"),
    (["out@0d06:00+1h=a:2", "roll@0d02:00+1h=a:2"],
     "a:2 overlaps roll@0d02:00\\+1h=a:2, which ends 7 h"),
])  # fmt: skip
def test_a_wrong_window_is_one_line(texts, message):
    refused(message, windows_from, texts, {"a": 10, "b": 5}, constant(1.0, minutes=1440))


def test_windows_of_different_kinds_may_overlap_and_follow_each_other():
    texts = ["out@0d02:00+4h=a:3", "roll@0d03:00+1h=b:5", "out@0d06:00+1h=a:2"]
    windows = windows_from(texts, {"a": 10, "b": 5}, constant(1.0, minutes=1440))
    of_a = [(each.begin_s, each.length_s, each.units) for each in windows["a"]]
    assert of_a == [(7200.0, 14_400.0, 3), (21_600.0, 3600.0, 2)]
    assert windows["b"][0].rolling
    # A period begins after its first time, as in jobs.
    often = windows_from(["out/6h+1h=a:2"], {"a": 10}, constant(1.0, minutes=1440))["a"]
    assert [each.begin_s / 3600 for each in often] == [6.0, 12.0, 18.0]
