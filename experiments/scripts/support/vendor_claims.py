"""Vendors' claims about generations of chips, beside the ratios of our best steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Claim:
    """A vendor's claim about two chips.

    ``quantity``: column that is compared.
    ``new, old``: catalogue parts of the two chips.
    ``low, high``: ends of the claimed ratio, new over old.
    ``precision``: precision of the claim; empty for the faster one of each chip.
    ``source``: document that states the claim.
    ``apart``: reason for which our ratio differs.
    """

    text: str
    quantity: str
    new: str
    old: str
    low: float
    high: float
    precision: str
    source: str
    apart: str


CLAIMS = (
    Claim(
        "trn2 over h200, tokens a dollar", "tokens_per_usd", "trn2", "h200", 1.30, 1.40, "",
        "AWS's page of EC2 Trn2, 30-40% better price performance than P5e and P5en, as quoted in "
        "public notes on its availability (December 2024)",
        "prices: ours are Capacity Blocks of October 2026 (2.24 and 7.90 USD a chip-hour); no "
        "on-demand price of Trn2 is published",
    ),
    Claim(
        "trn3 over trn2, tokens a joule (servers)", "tokens_per_joule", "trn3", "trn2", 4.0, 4.0,
        "",
        "AWS's measurements of UltraServers, as reported by AIwire at buzzbytech.com/?p=9439",
        "the claim is of serving; fp8 peaks a watt are equal (2.52 and 2.60 TFLOP/s at 1,000 and "
        "500 W), and the limit of 1,000 W is an analyst's",
    ),
    Claim(
        "trn3 over trn2, tokens a joule (chips)", "tokens_per_joule", "trn3", "trn2", 1.4, 1.4,
        "",
        "AWS at re:Invent 2025, 40 % more energy-efficient, as reported at "
        "sipoch.com/en/article/300330021948361",
        "power: the limit of 1,000 W, twice that of Trn2, is an analyst's; at 700 W, another "
        "estimate, ours would be 1.4 times as high. Products in bf16, such as attention, are no "
        "faster than on Trn2 (0.671 and 0.667 PFLOP/s)",
    ),
    Claim(
        "trn2 over trn1, tokens a second", "tokens_per_s_per_chip", "trn2", "trn1", 4.0, 4.0,
        "bf16",
        "AWS, four times the compute of Trainium1, as reported at aiwiki.ai/wiki/aws_trainium2",
        "Trn1 needs tensor and pipeline parallelism for its 32 GB",
    ),
    Claim(
        "b200 over h100, tokens a second", "tokens_per_s_per_chip", "b200", "h100", 3.0, 3.0, "",
        "NVIDIA, up to three times the training of DGX H100, as reported at uvation.com, DGX B200 "
        "against DGX H100",
        "the claim is 'up to' and of larger models with experts; an 8B model at a batch of 256 "
        "leaves a B200 little work between exchanges",
    ),
)  # fmt: skip
"""Vendors' claims."""
NEAR = 0.15
"""Relative distance within which a claim and our ratio agree."""


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare vendors' claims with our ratios, in the faster precision of each chip.

    Returns one row a claim: ``claim``, ``claimed_low``, ``claimed_high``, ``ours``, ``verdict``
    (``agrees``, ``ours is lower``, ``ours is higher``, ``not known``), ``faster`` (ratio of tokens
    a second) and ``dearer`` (ratio of watts or dollars of a chip), whose quotient is ``ours``,
    ``apart`` (reason of the difference) and ``source``.
    """
    rows = []
    for claim in CLAIMS:
        kept = frame[frame.precision == claim.precision if claim.precision else frame.best]
        one_each = kept.drop_duplicates("chip")
        ours = _ratio(one_each, claim.quantity, claim)
        faster = _ratio(one_each, "tokens_per_s_per_chip", claim)
        judged = verdict(ours, claim.low, claim.high)
        rows.append(
            {
                "claim": claim.text,
                "claimed_low": claim.low,
                "claimed_high": claim.high,
                "ours": ours,
                "verdict": judged,
                "faster": faster,
                "dearer": faster / ours,
                "apart": claim.apart if judged.startswith("ours") else "",
                "source": claim.source,
            }
        )
    return pd.DataFrame(rows)


def _ratio(one_each: pd.DataFrame, column: str, claim: Claim) -> float:
    """Ratio of a column's values for the new and the old chip of a claim; NaN if unknown."""
    value = dict(zip(one_each.chip, one_each[column].astype(float), strict=True))
    return float(value.get(claim.new, float("nan")) / value.get(claim.old, float("nan")))


def verdict(ours: float, low: float, high: float) -> str:
    """Verdict on a claimed ratio, of which both ends are given."""
    if ours != ours:
        return "not known"
    if ours < low * (1 - NEAR):
        return "ours is lower"
    return "ours is higher" if ours > high * (1 + NEAR) else "agrees"


def verdicts(frame: pd.DataFrame) -> list[str]:
    """Lines with the verdict on each claim that can be judged."""
    return [
        f"{row['claim']}: claimed {row['claimed_low']:g}"
        + (f" to {row['claimed_high']:g}" if row["claimed_high"] > row["claimed_low"] else "")
        + f", here {row['ours']:.2f}{_shares(row)}: {row['verdict']}"
        for row in claims(frame).to_dict("records")
        if row["verdict"] != "not known"
    ]


def _shares(row: Mapping[Any, Any]) -> str:
    """Text that divides a ratio into the speed and the power or price of a chip."""
    units = {"joule": "power", "dollar": "price"}
    per = next((name for word, name in units.items() if f"a {word}" in row["claim"]), "")
    return f" ({row['faster']:.2f} x the speed at {row['dearer']:.2f} x the {per})" if per else ""
