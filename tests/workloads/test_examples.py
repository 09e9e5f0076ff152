"""Small examples of the functions of workloads, each with its result."""

from __future__ import annotations

import math

import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.economics import one_kind_of_price, with_prices


def test_one_kind_of_price() -> None:
    changed, why = one_kind_of_price(shipped_catalogue(), ["trn2.48xlarge", "p5.48xlarge"])
    assert (changed.entry("p5.48xlarge", "price").written, why[:36]) == (
        "41.528 USD/h",
        "All prices are by Capacity Block: tr",
    )


def test_a_machine_of_ones_own_costs_capital_staff_and_electricity() -> None:
    """By hand: 54 kW of 15 USD/W over five years at 8 % and 6 %, and 70 USD/MWh."""
    catalogue = shipped_catalogue()
    owned = with_prices(catalogue, "owned", ["trn2-ultraserver"]).entry("trn2-ultraserver", "price")
    kilowatts, years, hours = 48 * 1.125, 1826 / 365.25, 8766
    annuity = 0.08 / (1 - 1.08**-years)
    capital, upkeep = (54_000 * 15 * share / hours for share in (annuity, 0.06))
    assert owned.value * 3600 == pytest.approx(capital + upkeep + kilowatts * 0.07)
    assert owned.low is not None
    assert owned.high is not None
    assert owned.low < owned.value < owned.high
    # The range is that of no number alone, and less than that of all together.
    assert owned.low * 3600 <= (capital + upkeep) * 10 / 15 + kilowatts * 0.07
    most = 54_000 * 1.15 / 1.125 * (20 * (0.12 / (1 - 1.12**-4) + 0.1) / hours + 110e-6)
    assert owned.high * 3600 < most * 1.01
    assert math.isfinite(owned.exact)


@pytest.mark.parametrize("kind", ["on-demand", "capacity-block", "reserved", "spot", "owned"])
def test_prices_of_one_kind_or_a_refusal(kind: str) -> None:
    catalogue = shipped_catalogue()
    for machine in (name for name in catalogue.parts() if catalogue.has(name, "price_basis")):
        try:
            row = with_prices(catalogue, kind, [machine]).entry(machine, "price")
        except InputError:
            assert kind not in {row.variant for row in catalogue.variants(machine, "price")}
            assert kind != catalogue.name(machine, "price_basis")
            continue
        assert row.value > 0
        assert row.variant == ("" if kind == catalogue.name(machine, "price_basis") else kind)
