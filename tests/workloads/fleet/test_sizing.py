"""Demand is absolute, is scaled only on request, and is compared with the fleet."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.clusters.names import cluster
from workloads.demand import Demand, azure_code, constant
from workloads.fleet.policies.rules import threshold
from workloads.fleet.results import summary
from workloads.fleet.scenario import Scenario, run, scenario, what_ifs
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions

FLEET = cluster("trn2-ultraserver:50")


def _scenario(demand: Demand, period: DemandInputs | None = None) -> Scenario:
    return scenario(
        FLEET,
        demand,
        FleetOptions(FleetInputs(unit_rate=2.0, failures="off"), period or DemandInputs()),
        seed=3,
    )


def test_counts_stand_as_they_are_and_twice_the_demand_needs_twice_the_units() -> None:
    one, two = (_scenario(constant(600.0 * k, minutes=1440)).sizing for k in (1, 2))
    assert one.demand_scale == two.demand_scale == 1.0
    assert one.demand_peak_requests_per_s == 10.0
    assert (one.units_needed_peak, two.units_needed_peak) == (5.0, 10.0)
    assert one.capacity_requests_per_s == two.capacity_requests_per_s == 100.0
    assert one.unit_capacity_tokens_per_s == 2.0 * 1100.0


def test_shapes_are_scaled_to_nine_tenths_and_say_so() -> None:
    code = _scenario(azure_code())
    assert code.sizing.units_needed_peak == pytest.approx(45.0)
    assert "90% of the fleet" in code.scaling
    half = _scenario(azure_code(), DemandInputs(scale_to_peak=0.5))
    assert half.sizing.units_needed_peak == pytest.approx(25.0)
    assert _scenario(constant(1.0, minutes=60)).scaling == ""


@pytest.mark.slow
def test_what_ifs_act_after_scaling() -> None:
    """More demand never lends more, and a failover lends less, whatever the shape's scale was."""
    base = _scenario(azure_code(), DemandInputs(days=2.0))
    texts = ["growth=30%", "failover@0d12:00+12h", "spike@1d02:00x3/30min"]
    rows = what_ifs(base, texts)
    assert [name for name, _ in rows] == ["base", *texts]
    peaks = [each.sizing.units_needed_peak for _, each in rows]
    assert peaks[1] == pytest.approx(1.3 * peaks[0])
    assert {each.sizing.demand_scale for _, each in rows} == {base.sizing.demand_scale}
    lent = [summary(run(each, threshold()))["training_chip_hours"] for _, each in rows]
    assert max(lent[1], lent[2]) < lent[0]
    assert lent[3] <= lent[0]


def test_the_noise_of_a_what_if_is_the_base_s() -> None:
    base = _scenario(constant(600.0, minutes=600), DemandInputs(noise="0.1"))
    grown = what_ifs(base, ["growth=1e-9"])[1][1]
    assert np.array_equal(base.demand.requests, grown.demand.requests)


def test_a_week_repeats_for_whole_weeks() -> None:
    twelve = _scenario(azure_code(), DemandInputs(days=84.0))
    assert twelve.demand.minutes == 84 * 1440
    assert np.array_equal(twelve.demand.requests[0, :10080], twelve.demand.requests[0, -10080:])
