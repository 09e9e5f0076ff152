"""Small examples of the functions of workloads, each with its result."""

import math
from pathlib import Path

import numpy as np
import pytest

from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.clusters.names import machine
from topologies.support.errors import InputError
from workloads.economics import kind_of_price, one_kind_of_price, with_prices
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.intervals import fewer
from workloads.fleet.lending.answer import (
    Night,
    Terms,
    Window,
    largest_return,
    lend,
    whole_loans,
    without_short_loans,
)
from workloads.fleet.lending.front import with_shared_return
from workloads.fleet.policies.forecast import days_back
from workloads.fleet.setup.night_work import gang_mtbf_s
from workloads.fleet.state.services import Domain, Failures
from workloads.job.checkpoints import PeerCopies


def test_one_kind_of_price():
    changed, why = one_kind_of_price(shipped_catalogue(), ["trn2.48xlarge", "p5.48xlarge"])
    assert changed.entry("p5.48xlarge", "price").written == "41.528 USD/h"
    assert why.startswith("All prices are by Capacity Block: tr")


def test_a_machine_of_ones_own_costs_capital_staff_and_electricity():
    """By hand: 54 kW of 15 USD/W over five years at 8 % and 6 %, and 70 USD/MWh."""
    catalogue = shipped_catalogue()
    owned = with_prices(catalogue, "owned", [machine("trn2-ultraserver")]).entry(
        "trn2-ultraserver", "price"
    )
    kilowatts, years, hours = 48 * 1.125, 1826 / 365.25, 8766
    annuity = 0.08 / (1 - 1.08**-years)
    capital, upkeep = (54_000 * 15 * share / hours for share in (annuity, 0.06))
    assert owned.value * 3600 == pytest.approx(capital + upkeep + kilowatts * 0.07)
    assert owned.low < owned.value < owned.high
    # The range is that of no number alone, and less than that of all together.
    assert owned.low * 3600 <= (capital + upkeep) * 10 / 15 + kilowatts * 0.07
    most = 54_000 * 1.15 / 1.125 * (20 * (0.12 / (1 - 1.12**-4) + 0.1) / hours + 110e-6)
    assert owned.high * 3600 < most * 1.01
    assert math.isfinite(owned.exact)


@pytest.mark.parametrize("kind", ["on-demand", "capacity-block", "reserved", "spot", "owned"])
def test_prices_of_one_kind_or_a_refusal(kind):
    catalogue = shipped_catalogue()
    for name in (name for name in catalogue.parts() if catalogue.has(name, "price_basis")):
        try:
            row = with_prices(catalogue, kind, [machine(name)]).entry(name, "price")
        except InputError:
            assert kind not in {row.variant for row in catalogue.variants(name, "price")}
            assert kind != catalogue.name(name, "price_basis")
            continue
        assert row.value > 0
        assert row.variant == ("" if kind == catalogue.name(name, "price_basis") else kind)


def test_a_pod_of_ones_own_has_a_price_of_owning():
    pod = machine(str(Path(__file__).parents[1] / "golden/cluster.yaml"))
    owned = with_prices(shipped_catalogue(), "owned", [pod]).entry("my-pod", "price")
    whole = machine("trn2-ultraserver")
    like = with_prices(shipped_catalogue(), "owned", [whole]).entry("trn2-ultraserver", "price")
    # The price is for a watt: that of 32 chips of 500 W alone, and of 64 with all of 48 kW.
    assert owned.value / like.value == pytest.approx(32 * 500 / 48e3)
    assert "full power of the chips alone, with the PUE of Rainier (1.125)" in owned.note
    assert (owned.grade, like.grade) == ("assumed", "assumed")


def test_a_price_of_ones_own_is_not_paid_as_the_shipped_one(tmp_path):
    rows = tmp_path / "rows.csv"
    for kind in ("", "p5.48xlarge,price_basis,reserved,name,stated,A\n"):
        price = "p5.48xlarge,price,30,USD/h,stated,A\n"
        rows.write_text(f"part,quantity,value,unit,grade,source\n{price}{kind}")
        changed = choose((), rows)
        assert kind_of_price(changed, "p5.48xlarge") == ("reserved" if kind else "")
        assert kind_of_price(changed, "p4de.24xlarge") == "on-demand"


def test_small_cases_of_a_fleet():
    """Small cases by hand: loans, gangs, days to look back on, parts under repair, copies."""
    loans = whole_loans([0, 60, 120, 180], [2, 5, 3])
    assert loans == [Window(0, 180, 2), Window(60, 180, 1), Window(60, 120, 2)]
    assert largest_return(loans) == 3
    assert without_short_loans([0, 60, 120, 180], np.array([2, 5, 3]), 90).tolist() == [2, 3, 3]
    four = [TrainingJob(name, units=40, min_units=4) for name in "abcd"]
    smaller = [[(job.units, job.min_units) for job in fewer(four, by)] for by in (0.5, 0.125)]
    assert smaller == [[(40, 4), (40, 4)], [(20, 2)]]
    # A load from a Friday on: Friday has no reference, Sunday's is Saturday, Monday's is Friday.
    assert days_back(np.arange(9) * 1440, 4).tolist() == [0, 0, 1, 3, 1, 1, 1, 7, 7]
    parts = Domain("rack", 1e3, 1.0, units=3), Domain("sled", 500, 1.0, 0, servers=2)
    assert Failures(100.0, 1.0, servers=4, domains=parts).units_out(12) == {1: 0.054, 3: 0.004}
    assert gang_mtbf_s(Failures(1000.0, 60.0), 10, 50) == 100.0
    # With a copy every ten seconds that takes four, that begun at 20 s is complete at 24 s.
    assert [PeerCopies(10.0, 4.0, 60.0, 1e9).lost_s(after) for after in (3, 23, 24)] == [3, 13, 4]


def test_all_units_return_in_the_time_that_is_left():
    """Of 100 units 70 are free for seven hours and 29 more for two; 99 come late from 1.5 min."""
    day = np.repeat([30.0, 0.0, 100.0], [300, 120, 1020])
    loan = lend(np.tile(day, 14), "2024-01-01T00:00", Night("07:00"), Terms(100))
    for each_s, units, reclaim_s in ((60.0, [70, 99], 5940.0), (90.0, [70], 6300.0)):
        shared = with_shared_return(loan, lambda count, each_s=each_s: count * each_s)
        assert [window.units for window in shared.windows] == units
        assert shared.terms.reclaim_s == reclaim_s
