"""Outcome of the prediction of one row: numbers, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "unsupported", "infeasible"]


@dataclass(frozen=True)
class Outcome:
    """Prediction of one row.

    ``predicted``: by the name of the published column, such as ``iteration_s``, in SI units.
    ``status``: ``ok``; ``unsupported``, the model does not cover the row; ``infeasible``, the
        machine could not run it by the model, as when it does not fit in memory.
    ``provenance``: by input: measured, interpolated, extrapolated, assumed.
    ``ends``: least and greatest time [s] that the tool may have shown, with what it adds itself, or
        that fields of a plan without a stated value leave open; None where there is only one.
    """

    predicted: Mapping[str, float] = field(default_factory=dict)
    status: Status = "ok"
    why: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[float, float] | None = None


def unsupported(why: str) -> Outcome:
    """Outcome of a row that the model does not cover."""
    return Outcome(status="unsupported", why=" ".join(why.split()))


def infeasible(why: str, predicted: Mapping[str, float] | None = None) -> Outcome:
    """Outcome of a row that could not run by the model."""
    return Outcome(predicted or {}, "infeasible", " ".join(why.split()))
