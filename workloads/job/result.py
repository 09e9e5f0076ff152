"""Answer of a training job of weeks: goodput, tokens, price and energy, with their ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from topologies.support import display
from topologies.support.arrays import FloatArray
from workloads.confidence.interval import Interval
from workloads.confidence.sensitivity import (
    Uncertain,
    each_of,
    ends_of,
    finite_ends,
    lattice,
    price_of,
    sampled,
)
from workloads.economics import TOKENS, Economics
from workloads.job.checkpoints import State
from workloads.job.goodput import Curve, daly_interval_s
from workloads.job.job import Job, Outcome
from workloads.job.replan import Replan
from workloads.training.iteration import Iteration

if TYPE_CHECKING:
    import pandas as pd

DAY_S = 86400.0
Share = TypeVar("Share", float, FloatArray)
LOW, HIGH = 0.1, 0.9  # quantiles of the runs between which 80 % of them lie
WORKING = ("useful", "lost_work", "stragglers", "fewer_replicas")  # parts in which chips compute
OF_FAILURES = ("lost_work", "detection", "restart", "waiting_for_spares", "fewer_replicas")


@display.by_facts("Training job")
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
        Tokens that determined the length of the run; None for a run of another length.
    budget_usd : int, optional
        Price that determined the length of the run [USD]; None where nothing or less was stated.
    notes : tuple of str
        Remarks: a length that did not converge to the tokens, and what ``elastic`` would give.
    replans : tuple of Replan
        Plans by which it goes on without one unit, two and so on where no spare is left.
    """

    step: Iteration
    job: Job
    state: State
    unit_chips: int
    outcomes: tuple[Outcome, ...]
    varied: tuple[Outcome, ...] = field(repr=False)
    curve: Curve | None = field(repr=False)
    goal: int | None = None
    budget_usd: int | None = None
    notes: tuple[str, ...] = ()
    replans: tuple[Replan, ...] = ()

    @property
    def chips(self) -> int:
        """Chips that compute and chips that wait as spares."""
        return self.step.chips + self.job.spares * self.unit_chips

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Share of time of each part, as the mean over the runs; the shares sum to 1."""
        total = sum(outcome.span_ms for outcome in self.outcomes)
        return {
            part: sum(outcome.parts_ms[part] for outcome in self.outcomes) / total
            for part in self.job.parts
        }

    @property
    def failure_cost_s(self) -> Interval | None:
        """Time that one failure costs on average, by the runs that had any [s]; None for none."""

        def cost_s(runs: Iterable[Outcome]) -> float:
            lost_ms: float = sum(run.parts_ms[part] for run in runs for part in OF_FAILURES)
            return lost_ms / 1000 / sum(sum(run.failures.values()) for run in runs)

        if not any(any(run.failures.values()) for run in self.outcomes):
            return None
        mean_s = cost_s(self.outcomes)
        failed = [run for run in (*self.outcomes, *self.varied) if any(run.failures.values())]
        low, high = np.quantile([cost_s([run]) for run in failed], (LOW, HIGH))
        ends = min(float(low), mean_s), max(float(high), mean_s)
        return Interval(*ends, basis=self.interval.basis, value=mean_s)

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
        low, high = min(float(low), self.goodput), max(float(high), self.goodput)
        return Interval(low, high, basis=basis, value=self.goodput)

    @property
    def tokens(self) -> float:
        """Tokens that the job trains on."""
        return self.goodput * self.job.span_s * self.step.tokens_per_s

    @property
    def _basis(self) -> str:
        return f"goodput: {self.interval.basis}; step time: {self.step.interval.basis}"

    @cached_property
    def _drawn(self) -> dict[str, FloatArray]:
        """Amounts of all inputs together, by their keys in the document; (points,) for each."""
        # A run of stated tokens is as long, and as dear, as these ask for.
        _, _, steps, failures, price = lattice()
        runs = (*self.outcomes, *self.varied)
        goodput = np.clip(sampled([each.goodput for each in runs], failures), 0.0, 1.0)
        working = sampled([sum(each.shares[part] for part in WORKING) for each in runs], failures)
        slower = Uncertain.of(self.step.interval).factors(steps)
        tokens = goodput * self.job.span_s * self.step.tokens_per_s / slower
        longer, usd, watts = np.ones(len(tokens)), self.cost_usd, self._power_w(working)
        if self.goal is not None:
            longer = each_of(self.tokens, tokens)
        elif self.budget_usd is not None:  # a dearer chip buys fewer days
            longer = 1 / self._price.factors(price)
        bought = tokens * (1.0 if self.goal is not None else longer)
        drawn = {"tokens": bought, "days": self.job.span_s / DAY_S * longer}
        if self.goal is None:
            drawn["steps"] = bought / self.step.plan.tokens
        if usd is not None:
            cost = usd * self._price.factors(price)
            drawn["cost_usd"] = cost * longer
            drawn["usd_per_million_tokens"] = each_of(cost * TOKENS, tokens)
        if watts is not None:
            drawn["energy_joules"] = self.job.span_s * longer * watts
        return drawn

    @property
    def _price(self) -> Uncertain:
        """Factor on the price of a chip."""
        return price_of([(1.0, Economics.of(self.step.cluster))])

    @property
    def cost_usd(self) -> float | None:
        """Price of all chips, spares included, for the whole run; None without a known price."""
        usd_per_chip_s = Economics.of(self.step.cluster).usd_per_chip_s
        return self.chips * self.job.span_s * usd_per_chip_s if usd_per_chip_s else None

    @property
    def energy_joules(self) -> float | None:
        """Energy drawn from the grid [J]; spares, and all chips outside of steps, are idle."""
        watts = self._power_w(sum(self.breakdown[part] for part in WORKING))
        return None if watts is None else self.job.span_s * watts

    def _power_w(self, working: Share) -> Share | None:
        """Mean power where chips compute for a share of the time; None if it is not known."""
        economics = Economics.of(self.step.cluster)
        step_j = self.step.cost.energy_joules
        if step_j is None:
            return None
        idle_w = economics.pue * economics.idle_w
        spares = self.job.spares * self.unit_chips * idle_w
        waiting = self.step.chips * idle_w
        return working * (step_j / self.step.iteration_s) + (1 - working) * waiting + spares

    def document(self) -> dict[str, Any]:
        """All results under the keys of the command line."""
        return {**self._document, "interval": self._interval_document()}

    @cached_property
    def _document(self) -> dict[str, Any]:
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
            "failure_cost_s": lost.value if (lost := self.failure_cost_s) else None,
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
            "elastic": job.replicas is not None,
            **self._planned_document(),
            "iteration_s": self.step.iteration_s,
            "tokens": self.tokens,
            "steps": self.tokens / self.step.plan.tokens,
            "tokens_per_s": self.tokens / job.span_s,
            "cost_usd": usd,
            "usd_per_million_tokens": usd * 1e6 / self.tokens if usd and self.tokens else None,
            **({"price_basis": self.step.cost.price_basis} if usd else {}),
            "energy_joules": self.energy_joules,
            "runs": len(self.outcomes) + len(self.varied),
            "curve": self.curve_rows(),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def _interval_document(self) -> dict[str, Any]:
        """Intervals of goodput, step time, and the amounts that follow from both."""
        step, document, lost = self.step.interval, self._document, self.failure_cost_s
        ends = finite_ends(self._drawn, document)
        ends = {name: each for name, each in ends.items() if each["low"] < each["high"]}
        return {
            **self.interval.document(),
            **ends,
            **({"failure_cost_s": lost.document()} if lost else {}),
            "tokens": {**ends_of(self._drawn["tokens"], self.tokens), "basis": self._basis},
            **({} if self._price.is_point else {"price": self._price.document()}),
            "iteration_s": {"low": step.low, "high": step.high, "basis": step.basis},
        }

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

    def _planned_document(self) -> dict[str, Any]:
        """Planned downtime, and plans without some units; empty without either."""
        windows = [window.text for window in self.job.windows]
        plans = [
            {"units": each.units, "plan": each.degrees, "iteration_s": each.iteration_s}
            for each in self.replans
        ]
        return {
            **({"maintenance": windows} if windows else {}),
            **({"plans_without_units": plans} if plans else {}),
        }

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

        rows, previous_ms = [], dict.fromkeys(self.job.parts, 0)
        for at_ms, parts_ms in self.outcomes[0].slices:
            spent = {part: ms - previous_ms[part] for part, ms in parts_ms.items()}
            total = sum(spent.values())
            if total:
                shares = {part: ms / total for part, ms in spent.items()}
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
