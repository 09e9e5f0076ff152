"""Estimates of plans beside their measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.layout import canvas, dress, logarithmic
from experiments.validation.predictions.training import filled, question
from experiments.validation.reading import rows as shipped
from workloads.search.estimate import estimate
from workloads.search.search import agreement

SAME = ("cluster", "chips", "layers", "hidden", "ffn", "heads", "seq", "global_batch")
"""Columns that are equal for all rows of a group."""


def plan_ranking(
    table: str = "nanotron_h100", least: int = 5, watch: Watch = unwatched
) -> pd.DataFrame:
    """Rank the measured plans of each group by their estimates.

    Rows of a table of measured steps are grouped by model, chips and batch. In each group the plan
    that is estimated fastest is compared with the one that was measured fastest, and with one at
    random.

    ``table``: shipped validation table of training steps. ``least``: smallest number of plans for
    which a group is ranked; with fewer a rank correlation means little.

    Returns one row a group: ``chips``, ``parameters``, ``global_batch``, ``plans``,
    ``kendall_tau``, ``regret`` (measured time of the plan estimated fastest over that of the
    fastest, less 1) and ``random_regret`` (the mean of the same ratio over all plans).
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in shipped.table(table).rows().rows:
        whole = filled(row.values).values  # noqa: PD011
        groups.setdefault(tuple(whole[name] for name in SAME), []).append(whole)
    ranked = [rows for rows in groups.values() if len(rows) >= least]
    return pd.DataFrame([_ranked(rows) for rows in watch(ranked, "groups")])


def _ranked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    model, machine, _ = question(first)
    estimated = estimate(model, machine, [question(row)[2] for row in rows])
    measured = np.array([row["iteration_s"] for row in rows])
    best = measured.min()
    agreed = agreement(list(zip(estimated.tolist(), measured.tolist(), strict=True)))
    return {
        "chips": first["chips"],
        "parameters": model.parameters,
        "global_batch": first["global_batch"],
        "plans": len(rows),
        "kendall_tau": agreed.kendall_tau,
        "regret": float(measured[np.argmin(estimated)] / best - 1),
        "random_regret": float(measured.mean() / best - 1),
    }


def draw_plan_ranking(frame: pd.DataFrame) -> Figure:
    """Draw the rank correlation of each group, and the distribution of the regret."""
    figure, (left, right) = canvas(11, 4.2, 1, 2)
    left.scatter(frame["plans"], frame["kendall_tau"], s=18, color="#4477AA")
    left.axhline(0, color="grey", lw=1)
    tau = "Kendall's tau (1: order as measured, 0: no relation)"
    dress(left, "plans of a group (same model, chips and batch)", tau)
    middle = frame.median(numeric_only=True)
    left.set_title(
        f"Of two plans the faster one is named in {(1 + middle['kendall_tau']) / 2:.0%} of pairs\n"
        f"(Kendall's tau {middle['kendall_tau']:.2f} in the median group)",
        loc="left",
        fontsize=10,
    )
    share = np.arange(1, len(frame) + 1) / len(frame)
    for name, label, color in (
        ("regret", "the plan estimated fastest", "#4477AA"),
        ("random_regret", "a plan at random, mean", "#BBBBBB"),
    ):
        right.step(1 + np.sort(frame[name]), share, where="post", color=color, label=label)
    times = "measured time relative to the fastest plan of the group"
    dress(right, times, "share of groups at or below that time")
    logarithmic(right, "x", "{:g} x".format)
    right.set_ylim(0, 1.02)
    right.set_title(
        f"What the choice costs: {middle['regret']:.1%} in the median group, "
        f"{1 + middle['random_regret']:.1f} x at random",
        loc="left",
        fontsize=10,
    )
    right.legend(frameon=False, fontsize=9, loc="lower right")
    return figure
