"""Result of a simulated job: shares of time, tokens, cost and energy, with their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies import display
from workloads.confidence.interval import Interval
from workloads.economics import Economics
from workloads.job.closed_form import daly_interval_s
from workloads.job.intervals import Curve
from workloads.job.job import PARTS, Job
from workloads.job.outcome import Outcome
from workloads.job.state import State
from workloads.training.iteration import Iteration

if TYPE_CHECKING:
    import pandas as pd

DAY_S = 86400.0
LOW, HIGH = 0.1, 0.9
"""Quantiles of the runs between which 80 % of them lie."""


@dataclass(frozen=True, eq=False)
class JobResult:
    """A simulated job of weeks.

    Attributes
    ----------
    step : Iteration
        One optimizer step of the job.
    job : Job
        Inputs of the simulation.
    state : State
        Checkpoint of the job.
    unit_chips : int
        Chips of a unit that a spare replaces.
    outcomes : tuple of Outcome
        Runs at the stated failure rates, one for each seed.
    varied : tuple of Outcome
        Runs whose failure rates were drawn from their published range.
    curve : Curve or None
        Goodput at several checkpoint intervals; None where nothing fails.
    goal : int, optional
        Tokens that determined the length of the run; None for a run of a stated length.
    note : str
        Remark on a length that did not converge to the tokens; empty if it did.
    """

    step: Iteration
    job: Job
    state: State
    unit_chips: int
    outcomes: tuple[Outcome, ...]
    varied: tuple[Outcome, ...] = field(repr=False)
    curve: Curve | None = field(repr=False)
    goal: int | None = None
    note: str = ""

    @property
    def chips(self) -> int:
        """Chips that compute and chips that wait as spares."""
        return self.step.chips + self.job.spares * self.unit_chips

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Share of time of each part, as the mean over the runs; the shares sum to 1."""
        total = sum(outcome.span_ms for outcome in self.outcomes)
        return {
            part: sum(outcome.parts_ms[part] for outcome in self.outcomes) / total for part in PARTS
        }

    @property
    def goodput(self) -> float:
        """Useful share of time, as the mean over the runs."""
        return self.breakdown["useful"]

    @property
    def failures_by_cause(self) -> dict[str, float]:
        """Failures by cause, as the mean over the runs."""
        causes = self.outcomes[0].failures
        return {
            name: float(np.mean([outcome.failures[name] for outcome in self.outcomes]))
            for name in causes
        }

    @property
    def interval(self) -> Interval:
        """Interval of the goodput, from runs of all seeds and at rates drawn from their range."""
        seen = np.array([outcome.goodput for outcome in (*self.outcomes, *self.varied)])
        low, high = np.quantile(seen, (LOW, HIGH))
        rates = self.job.rates
        ranged = (
            f"failure rates × {rates.low:.2g} to {rates.high:.2g}, as published clusters differ"
            if rates.high > rates.low
            else "failure rates as stated"
        )
        basis = f"{len(seen)} runs of different seeds; {ranged}"
        return Interval(min(float(low), self.goodput), max(float(high), self.goodput), basis=basis)

    @property
    def tokens(self) -> float:
        """Tokens that the job trains on."""
        return self.goodput * self.job.span_s * self.step.tokens_per_s

    @property
    def tokens_interval(self) -> Interval:
        """Interval of the tokens, from those of the goodput and of the step time."""
        ends, speed = self.interval, self.step.interval
        if not ends.low > 0:
            return Interval(0.0, self.tokens * speed.factor, basis="step time; goodput may be 0")
        # Errors of the step and of goodput are independent, so their logarithms add as squares.
        down = [math.log(speed.factor), math.log(max(self.goodput / ends.low, 1.0))]
        up = [math.log(speed.factor), math.log(max(ends.high / self.goodput, 1.0))]
        return Interval(
            self.tokens * math.exp(-math.hypot(*down)),
            self.tokens * math.exp(math.hypot(*up)),
            basis=f"goodput: {ends.basis}; step time: {speed.basis}",
        )

    @property
    def cost_usd(self) -> float | None:
        """Price of all chips, spares included, for the whole run; None without a known price."""
        usd_per_chip_s = Economics.of(self.step.cluster).usd_per_chip_s
        return self.chips * self.job.span_s * usd_per_chip_s if usd_per_chip_s else None

    @property
    def energy_joules(self) -> float | None:
        """Energy drawn from the grid [J]; spares, and all chips outside of steps, are idle."""
        economics = Economics.of(self.step.cluster)
        step_j = self.step.cost.energy_joules
        if step_j is None:
            return None
        working = sum(self.breakdown[part] for part in ("useful", "lost_work", "stragglers"))
        step_w = step_j / self.step.iteration_s
        idle_w = economics.pue * economics.idle_w
        spares = self.job.spares * self.unit_chips * idle_w
        waiting = self.step.chips * idle_w
        return self.job.span_s * (working * step_w + (1 - working) * waiting + spares)

    def document(self) -> dict[str, Any]:
        """All results under the keys of the command line."""
        job, usd = self.job, self.cost_usd
        mtbf_s, curve = job.rates.mtbf_s, self.curve
        failed = self.failures_by_cause
        return {
            "model": self.step.model.name,
            "cluster": self.step.cluster.name,
            "chips": self.step.chips,
            "days": job.span_s / DAY_S,
            "goodput": self.goodput,
            "breakdown": self.breakdown,
            "failures": sum(failed.values()),
            "failures_by_cause": failed,
            "mtbf_s": None if math.isinf(mtbf_s) else mtbf_s,
            "checkpoint_interval_s": job.interval_s,
            "best_checkpoint_interval_s": curve.best_s if curve else None,
            "young_daly_interval_s": daly_interval_s(mtbf_s, job.stall_s) if curve else None,
            "checkpoint_bytes": self.state.checkpoint_bytes,
            "checkpoint_stall_s": job.stall_s,
            "checkpoint_write_s": self.state.write_s,
            "restart_s": job.recovery.restart_s,
            "detection_s": job.recovery.detection_s,
            "repair_s": job.recovery.repair_s,
            "spares": job.spares,
            "spare_chips": job.spares * self.unit_chips,
            "most_spares_used": max(outcome.spares_used for outcome in self.outcomes),
            **self._peer_document(),
            "iteration_s": self.step.iteration_s,
            "tokens": self.tokens,
            "steps": self.tokens / self.step.plan.tokens,
            "tokens_per_s": self.tokens / job.span_s,
            "cost_usd": usd,
            "usd_per_million_tokens": usd * 1e6 / self.tokens if usd and self.tokens else None,
            "energy_joules": self.energy_joules,
            "runs": len(self.outcomes) + len(self.varied),
            "interval": self._interval_document(),
            "curve": self.curve_rows(),
            **({"notes": [self.note]} if self.note else {}),
        }

    def _interval_document(self) -> dict[str, Any]:
        """Intervals of goodput, step time, tokens and the price of a token.

        A run of a stated length has a certain price, so the price of a token is inverse to the
        tokens. A run of stated tokens has intervals of its length, price and energy instead, which
        are in proportion to each other.
        """
        tokens, step, usd = self.tokens_interval, self.step.interval, self.cost_usd
        document = {
            **self.interval.document(),
            "tokens": {"low": tokens.low, "high": tokens.high, "basis": tokens.basis},
            "iteration_s": {"low": step.low, "high": step.high, "basis": step.basis},
        }
        if usd and tokens.low > 0:
            ends = {"low": usd * 1e6 / tokens.high, "high": usd * 1e6 / tokens.low}
            document["usd_per_million_tokens"] = ends
        if self.goal is not None and tokens.low > 0:
            least, most = self.tokens / tokens.high, self.tokens / tokens.low
            amounts = {"days": self.job.span_s / DAY_S, "cost_usd": usd}
            amounts["energy_joules"] = self.energy_joules
            for name, value in amounts.items():
                if value is not None:
                    document[name] = {"low": value * least, "high": value * most}
        return document

    def _peer_document(self) -> dict[str, Any]:
        """Copies in host memory, and the restart with warm spares; empty without either."""
        peers, saved_s = self.job.peers, self.job.recovery.warm_saves_s
        document: dict[str, Any] = {}
        if peers is not None:
            document = {
                "peer_copy_interval_s": peers.every_s,
                "peer_copy_s": peers.copy_s,
                "peer_bytes_per_server": peers.bytes_per_server,
                "host_bytes_per_server": peers.host_bytes,
                "peer_restart_s": peers.restart_s,
                "peer_pairs_lost": float(
                    np.mean([outcome.pairs_lost for outcome in self.outcomes])
                ),
            }
        if saved_s:
            document["warm_restart_s"] = (peers or self.job.recovery).restart_s - saved_s
        return document

    def curve_rows(self) -> list[dict[str, float]]:
        """Simulated goodput at each checkpoint interval of the search."""
        if self.curve is None:
            return []
        pairs = zip(self.curve.interval_s, self.curve.goodput, strict=True)
        return [{"checkpoint_interval_s": s, "goodput": share} for s, share in pairs]

    def frame(self) -> pd.DataFrame:
        """Return a table with one row a run: share of each part, failures, checkpoints, spares.

        ``varied`` marks the runs whose failure rates were drawn.
        """
        import pandas as pd

        rows = [(False, outcome) for outcome in self.outcomes] + [
            (True, outcome) for outcome in self.varied
        ]
        return pd.DataFrame(
            {
                "varied": varied,
                **outcome.shares,
                "failures": sum(outcome.failures.values()),
                "checkpoints": outcome.checkpoints,
                "replaced": outcome.replaced,
                "spares_used": outcome.spares_used,
            }
            for varied, outcome in rows
        )

    def timeline(self) -> pd.DataFrame:
        """Return the first run in slices of time, one row a slice.

        ``day`` is the end of the slice; the other columns are the share of each part. Work counts
        in the slice in which a checkpoint saves it or a failure loses it.
        """
        import pandas as pd

        rows, previous_ms = [], dict.fromkeys(PARTS, 0)
        for at_ms, parts_ms in self.outcomes[0].slices:
            spent = {part: parts_ms[part] - previous_ms[part] for part in PARTS}
            total = sum(spent.values())
            if total:
                shares = {part: spent[part] / total for part in PARTS}
                rows.append({"day": at_ms / 1000 / DAY_S, **shares})
                previous_ms = dict(parts_ms)
        return pd.DataFrame(rows)

    @property
    def _facts(self) -> dict[str, object]:
        ends = self.interval
        return {
            "model": self.step.model.name,
            "chips": f"{self.step.chips:,} and {self.job.spares * self.unit_chips:,} spare",
            "days": f"{self.job.span_s / DAY_S:g}",
            "goodput": f"{self.goodput:.1%} (80 %: {ends.low:.1%} – {ends.high:.1%})",
            "failures": f"{sum(self.failures_by_cause.values()):,.1f}",
            "tokens": f"{self.tokens:.4g}",
        }

    def __repr__(self) -> str:
        return display.line("JobResult", self._facts)

    def _repr_html_(self) -> str:
        return display.table("Training job", self._facts)
