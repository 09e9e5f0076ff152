"""Options of a fleet's money: electricity, carbon and the price of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topologies.options import option
from workloads.options.bounds import MOST


@dataclass(frozen=True)
class MoneyInputs:
    """Prices of electricity and the carbon of the grid."""

    price: Path | None = field(
        default=None,
        metadata=option(
            "Prices of electricity: columns hour or time, and usd_per_mwh", metavar="FILE.csv"
        ),
    )
    price_cap: float | None = field(
        default=None,
        metadata=option("Price above which nothing trains", unit="USD/MWh", most=MOST),
    )
    token_price: float = field(
        default=0.0,
        metadata=option(
            "Price at which served tokens are sold; 0 for none",
            unit="USD per million",
            least=0,
            most=MOST,
        ),
    )
    batch_discount: float | None = field(
        default=None,
        metadata=option(
            "Discount of batch requests, as a share of the price",
            least=0,
            most=1,
            default="the catalogue's, 0.5",
        ),
    )
    carbon: float = field(
        default=0.0,
        metadata=option(
            "Carbon intensity of the grid; 0 for none", unit="g/kWh", least=0, most=MOST
        ),
    )
