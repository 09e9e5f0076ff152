"""Small examples of the functions of workloads, each with its result."""

from __future__ import annotations

from topologies.catalogue.catalogue import shipped_catalogue
from workloads.economics import one_kind_of_price


def test_one_kind_of_price() -> None:
    changed, why = one_kind_of_price(shipped_catalogue(), ["trn2.48xlarge", "p5.48xlarge"])
    assert (changed.entry("p5.48xlarge", "price").written, why[:36]) == (
        "41.528 USD/h",
        "All prices are by Capacity Block: tr",
    )
