"""Reserved units: when they are there, who uses them, what they cost, and wrong reservations."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.toy_fleet import FREE, SERVICE, check_conserved
from workloads.demand import constant
from workloads.economics import Economics
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.inputs.reservations import Block, blocks_from
from workloads.fleet.policies.rules import static
from workloads.fleet.results import holes, role_units
from workloads.fleet.simulation import FleetRun, simulate
from workloads.fleet.state.services import Failures, Fleet, Kind
from workloads.fleet.state.world import Ledger, Role

MINUTES = 600
BLOCK = Block("block", 3600.0, 18_000.0, 4)  # there from minute 60 on, gone by minute 330


def _run(
    *blocks: Block, load: float = 0.0, jobs: tuple[TrainingJob, ...] = (),
    failures: Failures | None = None, policy: Any = None,
) -> FleetRun:  # fmt: skip
    """Run eight units of one server, and reserved ones, whose demand needs ``load`` of them."""
    units = 8 + max((block.units for block in blocks), default=0)
    fleet = Fleet(units, costs=FREE, failures=failures, blocks=blocks)
    demand = constant(60 * 3.5 * load, minutes=MINUTES)
    kind = Kind("unit", (SERVICE,), fleet, jobs or (evaluation_job(units),))
    return simulate(demand, [kind], policy or static(load), rng=np.random.default_rng(3))


def _absent(run: FleetRun) -> np.ndarray[Any, Any]:
    return np.asarray(role_units(run)[:, Role.ABSENT])


def test_units_are_there_for_their_time_only():
    later = Block("later", 18_000.0 + 3600.0, 9000.0, 2)
    run = _run(BLOCK, later)
    absent = _absent(run)
    assert (absent[:60] == 4).all()
    assert (absent[60:329] == 0).all()
    assert (absent[330:360] == 4).all()
    assert (absent[360:479] == 2).all()
    assert (absent[480:] == 4).all()
    check_conserved(run)


def test_a_reservation_serves_what_the_fleet_cannot():
    seen: list[float] = []

    def policy(view: Any) -> float:
        seen.append(view.units - view.broken)
        return 11.0

    run = _run(BLOCK, load=11.0, policy=policy)
    serving = np.asarray(role_units(run)[:, Role.SERVING])
    assert (serving[:60] == 8).all()
    assert (serving[61:329] == 11).all()
    assert (serving[331:] == 8).all()
    assert (seen[10], seen[100], seen[400]) == (8, 12, 8)
    queue = run.queues[0]
    assert queue.arrivals.sum() == queue.served.sum() + queue.shed.sum() + queue.waiting


@pytest.mark.parametrize("reclaim", ["shrink", "pause"])
def test_a_gang_grows_into_a_reservation_and_leaves_it_in_time(reclaim):
    least = 2 if reclaim == "shrink" else 10
    job = TrainingJob("gang", 12, least, 2, ((1, 1e3),), 6e4, reclaim)
    run = _run(BLOCK, jobs=(job,))
    training = np.asarray(role_units(run)[:, Role.TRAINING])
    assert training[:60].max() == (8 if reclaim == "shrink" else 0)
    assert training[100:300].min() == 12
    assert training[331:].max() == (8 if reclaim == "shrink" else 0)
    (_, tally), *_ = run.jobs
    assert tally.lost_tokens <= (6e4 * 2 if reclaim == "shrink" else 0)
    check_conserved(run)


WORDS: dict[str, Any] = {
    "unit_rate": 5.0, "start_day": 2.0, "days": 3, "policy": "threshold", "failures": "off",
}  # fmt: skip


def test_a_block_is_paid_in_advance_and_its_hours_add_up():
    plain, reserved = (
        cs.run_fleet("trn2-ultraserver:24", capacity_block=text, **WORDS).summary
        for text in ((), "1d+1d=4")
    )
    (row,) = reserved["reservations"]
    assert (row["units"], row["begin_h"], row["end_h"]) == (4, 35.5, 59.0)
    assert row["cost_usd"] == pytest.approx(4 * 24 * 143.04, rel=1e-4)
    assert reserved["cost_usd"] == pytest.approx(plain["cost_usd"] + row["cost_usd"])
    hours = reserved["chip_hours"] - plain["chip_hours"]
    assert 4 * 64 * 23.1 < hours <= 4 * 64 * 23.5
    groups = ("inference", "training", "moving", "idle", "broken")
    assert sum(reserved[f"{group}_chip_hours"] for group in groups) == reserved["chip_hours"]
    lost = reserved["holes"]
    assert lost["share"] == pytest.approx(lost["chip_hours"] / reserved["chip_hours"])
    assert reserved["offered_tokens"] == plain["offered_tokens"]
    assert reserved["training_tokens"] > plain["training_tokens"]
    assert "reservations" not in plain


def test_a_machine_without_such_a_price_and_a_run_that_ends_first_are_noted():
    clusters = {"dgx-h100": cs.cluster("dgx-h100:9"), "p5": cs.cluster("p5.48xlarge:9")}
    demand = constant(1.0, minutes=6 * 1440)
    texts = ["1d+1d=dgx-h100:2", "1d+2d=p5:2", "4d+14d=p5:2"]
    blocks = blocks_from(texts, clusters, demand)
    (note,) = [block.note(6 * 86_400.0) for block in blocks["dgx-h100"]]
    assert note.endswith("not by Capacity Block.")
    first, last = blocks["p5"]
    assert first.note(6 * 86_400.0) == ""
    assert first.usd == pytest.approx(2 * 48 * 41.528)
    assert "paid in advance" in last.note(6 * 86_400.0)
    (both,) = [block.note(2 * 86_400.0) for block in blocks["dgx-h100"]]
    assert "paid in advance; the catalogue's price is" in both


@pytest.mark.parametrize(("texts", "message"), [
    (["8@2d"], "cannot be read; write 2d.3d=8: eight units from 11:30 UTC"),
    (["1d+3d=a:0"], "cannot be read"),
    (["1d09:00+3d=a:1"], "cannot be read"),
    (["1d+3d=1"], "names no kind of the fleet; end with =a:1, =b:1"),
    (["1d+3d=c:1"], "names no kind of the fleet"),
    (["1d+15d=a:1"], "1 to 14 days, or whole weeks up to 182 days, not 15; take 14"),
    (["1d+200d=a:1"], "not 200; take 182"),
    (["1d+0d=a:1"], "not 0; take 1"),
    (["1d+1d=a:17"], "68 instances; there are at most 64"),
    (["1d+1d=b:64", "3d+1d=b:64", "5d+1d=b:64", "7d+1d=b:64", "1d+1d=a:1"], "4 instances, 260"),
    (["1d+3d=a:2", "3d+1d=a:1"], "3d.1d=a:1 overlaps 1d.3d=a:2 of the same kind; join them"),
    (["3d+1d=a:1", "1d+3d=a:2"], "1d.3d=a:2 overlaps 3d.1d=a:1"),
    (["99d+1d=a:1"], "after the start of a run of 90 days"),
    (["60d+1d=a:1"], "begins 60.48 days after the run; a Capacity Block is bought at most 56"),
])  # fmt: skip
def test_a_wrong_reservation_is_one_line(texts, message):
    kinds = {"a": cs.cluster("trn2-ultraserver:20"), "b": cs.cluster("trn2.48xlarge:20")}
    with pytest.raises(cs.InputError, match=message) as refused:
        blocks_from(texts, kinds, constant(1.0, minutes=90 * 1440))
    assert not re.search(r"\n", str(refused.value))


def test_blocks_may_follow_each_other():
    kinds = {"a": cs.cluster("trn2-ultraserver:20")}
    blocks = blocks_from(["4d+7d=2", "1d+3d=1"], kinds, constant(1.0, minutes=30 * 1440))["a"]
    assert [block.units for block in blocks] == [1, 2]
    assert blocks[0].begin_s + blocks[0].length_s == blocks[1].begin_s


def test_holes_are_what_whole_units_lose():
    """A need of 2.2 units, nine quarters, takes three units; replicas may leave chips over."""
    parts = replace(SERVICE, replicas=4, replica_chips=12)
    fleet = Fleet(8, chips_per_unit=64, costs=FREE)
    demand = constant(60 * 3.5 * 2.2, minutes=120)
    kind = Kind("unit", (parts,), fleet, (evaluation_job(8),), economics=Economics(1.0, 1.0))
    run = simulate(demand, [kind], static(3.0))
    lost = holes(run)
    assert lost["rounding_chip_hours"] == pytest.approx(0.75 * 2 * 64)
    assert lost["unused_chip_hours"] == pytest.approx(3 * 2 * 16)
    assert lost["beside_lost_chip_hours"] == 0
    assert lost["chip_hours"] == lost["rounding_chip_hours"] + lost["unused_chip_hours"]
    assert lost["share"] == pytest.approx(lost["chip_hours"] / (8 * 64 * 2))
    assert lost["cost_usd"] is None


def test_a_lost_server_of_a_unit_that_is_not_there_is_not_there():
    ledger = Ledger(2, 1, servers=4)
    ledger.lose(1, 1000)
    ledger.put(np.array([1]), Role.ABSENT, 2000)
    ledger.advance(3000)
    spent_ms = ledger.spent_server_ms
    assert (spent_ms[Role.BROKEN], spent_ms[Role.ABSENT]) == (1000, 4000)
    assert spent_ms.sum() == 2 * 4 * 3000


def test_idle_servers_beside_a_lost_one_are_a_hole():
    ledger = Ledger(3, 1, servers=4)
    ledger.lose(1, 1000)
    ledger.lose(1, 2000)
    ledger.put(np.array([2]), Role.EVALUATION, 3000)
    ledger.lose(2, 3000)
    ledger.advance(4000)
    assert ledger.beside_lost_server_ms == 3 * 1000 + 2 * 2000
