"""Length, price and energy of a training job, as ``run-job``, ``train`` and ``plan`` print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.cli.output.printing import print_table
from experiments.reports.formatting import number

if TYPE_CHECKING:
    import pandas as pd


def print_whole_job(document: Mapping[str, Any]) -> None:
    """Print length, price and energy of the job that a step belongs to; nothing without one."""
    job = document.get("job")
    if job is None:
        return
    rows = [
        ("length", amount(job, "days", "days")),
        *spent(job),
        ("goodput", f"{job['goodput']:.1%} of the time; {job['failures']:,.1f} failures"),
        ("spares", f"{job['spare_chips']:,} chips, in price and energy"),
    ]
    print_table("", [f"job of {number(job['tokens'])} tokens", "value"], rows, left=2)


def spent(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of the price and the energy of a run."""
    rows = _price_rows(document)
    if document["energy_joules"] is not None:
        rows.append(("energy", amount(document, "energy_joules", "MWh", 3.6e9)))
    return rows


def amount(document: Mapping[str, Any], name: str, symbol: str, unit: float = 1.0) -> str:
    """Text of an amount in a unit, with its interval where it has one."""
    ends = document["interval"].get(name)
    text = f"{number(document[name] / unit)} {symbol}".strip()
    if ends is None:
        return text
    return f"{text} (80 %: {number(ends['low'] / unit)} – {number(ends['high'] / unit)})"


def interval_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return every result that has an interval, one row a result."""
    import pandas as pd

    ends = document["interval"]
    rows = [(name, ends[name]["low"], document[name], ends[name]["high"]) for name in ends
            if isinstance(ends[name], Mapping) and name in document]  # fmt: skip
    return pd.DataFrame(rows, columns=["result", "low", "value", "high"])


def _price_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows with the price of the run; none if the catalogue has no price."""
    if document["cost_usd"] is None:
        return []
    rows = [("price", amount(document, "cost_usd", "USD"))]
    each, ends = (part.get("usd_per_million_tokens") for part in (document, document["interval"]))
    if each is not None:
        sure = f" (80 %: {ends['low']:,.3g} – {ends['high']:,.3g})" if ends else ""
        rows.append(("  a million tokens", f"{each:,.3g} USD{sure}"))
    return rows
