"""Night question in one call: from cluster and history to the units that can be lent tonight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from topologies import display
from topologies.arguments import checked
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.errors import InputError, shown
from topologies.files.reading import read_text
from topologies.options import described
from topologies.units import parse_seconds
from workloads.confidence.interval import Interval
from workloads.demand import Demand
from workloads.fleet.from_options import (
    check_question,
    fleet_options,
    read_demand,
    read_models,
    read_options,
    scenario_on,
)
from workloads.fleet.lending.answer import Loan, Night
from workloads.fleet.lending.on_cluster import lend_on, lent_interval, lent_intervals
from workloads.fleet.scenario import Scenario
from workloads.models.huggingface import MODEL_REMEDY
from workloads.models.model import Model
from workloads.options.fleet import (
    FleetInputs,
    FleetOptions,
    HistoryInputs,
    LimitInputs,
    NightInputs,
    PolicyInputs,
)
from workloads.serving import parse_share, parse_slo

USUAL_SHARE = 0.999
"""Default share of a night's minutes in which demand stays within the kept units."""
LIMIT_NAMES = ("ttft", "tpot")


def night_from(inputs: NightInputs, slo: str) -> Night:
    """Return the night question from the options of a night."""
    window_s = parse_seconds(inputs.window, "--window")
    if window_s % 60 or window_s < 60:
        raise InputError(
            f"--window {inputs.window} is not a whole number of minutes; write 30min or 1h."
        )
    level = inputs.confidence
    return Night(
        until=inputs.until,
        begin=inputs.begin or "",
        share=parse_slo(slo, share=USUAL_SHARE).share,
        confidence=None if level is None else parse_share(level, "--confidence"),
        window_minutes=int(window_s // 60),
        holidays=() if inputs.holidays is None else read_calendar(inputs.holidays),
    )


MOST_BYTES = 10**6
"""Largest file of a calendar [B]."""


def read_calendar(file: Path) -> tuple[str, ...]:
    """Read the dates of a calendar, one a line."""
    dates = []
    for number, line in enumerate(read_text(file, limit_bytes=MOST_BYTES).split(), 1):
        try:
            dates.append(date.fromisoformat(line).isoformat())
        except ValueError:
            raise InputError(
                f"calendar {file}, date {number}: {shown(repr(line))} is no date; write 2024-12-25."
            ) from None
    if not dates:
        raise InputError(f"calendar {file} has no date; write one a line, such as 2024-12-25.")
    return tuple(dates)


def for_lending(options: FleetOptions) -> FleetOptions:
    """Return options with all days of a history, and an SLO without its share.

    The share counts minutes of the night, not requests of the fleet.
    """
    parts = options.fleet.slo.split(",")
    limits = [part for part in parts if part.partition("=")[0].strip() in LIMIT_NAMES]
    days = math.inf if options.demand.days is None else options.demand.days
    return replace(
        options,
        policy=PolicyInputs(policy="static"),  # not used: lending asks no policy
        fleet=replace(options.fleet, slo=",".join(limits) or FleetInputs.slo),
        demand=replace(options.demand, days=days),
    )


GROUPS = (FleetInputs, HistoryInputs, LimitInputs, NightInputs)
"""Options of lending that are keywords."""


@display.by_facts("Lend")
@dataclass(frozen=True, eq=False)
class LendResult:
    """Answer to the night question, with its inputs.

    Attributes
    ----------
    scenario : Scenario
        The fleet, and the history as its demand.
    loan : Loan
        Units that can be lent, and the backtest of the same method on earlier nights.
    """

    scenario: Scenario
    loan: Loan

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim lend --json``."""
        return {**self.scenario.sizing.document(), **self.loan.summary()}

    @property
    def interval(self) -> Interval:
        """Interval of the lent unit-hours, from that of a unit's capacity."""
        return lent_interval(self.loan, self.scenario)

    @cached_property
    def intervals(self) -> dict[str, Any]:
        """Intervals of what the loan trains, see :func:`lent_intervals` of this room."""
        return lent_intervals(self.loan, self.scenario)

    def frame(self) -> pd.DataFrame:
        """Return every night of the history, one row a night."""
        return self.loan.frame()

    @property
    def _facts(self) -> dict[str, object]:
        tested = self.summary["backtest"]
        return {
            "lent tonight": f"{self.loan.unit_hours:,.0f} unit-hours",
            "confidence": f"{self.loan.confidence:.4g}",
            "nights answered": tested["nights"],
            "of them exceeded": tested["violated"],
            "time to reclaim": f"{self.loan.terms.reclaim_s:,.0f} s",
        }


@checked(model=MODEL_REMEDY, cluster=CLUSTER_REMEDY)
def lend(
    cluster: Cluster | str,
    history: Demand | str | Sequence[str],
    *,
    night: Night | None = None,
    model: Model | str | None = None,
    days: float | None = None,
    scale_to_peak: float | None = None,
    **keywords: Any,
) -> LendResult:
    """Return how many units can be lent tonight, at a stated confidence.

    Parameters
    ----------
    cluster : Cluster or str
        A cluster or its name; its scale-up domains are the units that are lent.
    history : Demand, str or sequence of str
        A bundled demand by name, or a CSV file; its end is taken for the present.
    night : Night, optional
        End, service level and confidence; by default until 06:00 UTC, with demand within the units
        kept for serving in 99.9 % of the minutes on 95 % of nights, or on as many as the history
        bears out. The keywords ``until``,
        ``begin`` (``--from``), ``confidence``, ``window`` and the share in ``slo`` say the same.
    model : Model or str, optional
        The model that is served; by default Llama-3.1-405B.
    days : float, optional
        Length of the history [days]; by default all of it.
    scale_to_peak : float, optional
        As for :func:`cluster_sim.run_fleet`.
    **keywords
        Other options of ``cluster-sim lend`` by their names, such as ``until="07:00"``,
        ``reserve=10`` or ``disaggregate="1:3"``.

    Returns
    -------
    LendResult
        ``summary`` with the loans, their value and the backtest, ``frame()`` night by night.

    Raises
    ------
    InputError
        For a history with too few nights for the confidence, and as :func:`cluster_sim.run_fleet`.

    Examples
    --------
    >>> tonight = lend("trn2-ultraserver:40", "burstgpt", unit_rate=10.0, confidence="90%")
    >>> tonight.summary["units"], tonight.summary["confidence"]
    (40, 0.9)
    """
    of_night = {k: keywords[k] for k in described(NightInputs) if keywords.get(k) is not None}
    if night is not None and of_night:
        raise InputError(f"a night and {', '.join(of_night)}; give one or the other.")
    every = fleet_options(lend, GROUPS, keywords, days=days, scale_to_peak=scale_to_peak)
    question = night or night_from(read_options(NightInputs, of_night), every.fleet.slo)
    options = for_lending(every)
    check_question(options)
    demand = read_demand(history, options)
    built = scenario_on(as_cluster(cluster), demand, read_models(model), options, 0)
    return LendResult(built, lend_on(built, question))
