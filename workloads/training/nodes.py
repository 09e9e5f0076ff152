"""Measured speeds of the nodes of a job, and what a step gains without those that stand apart.

A step waits for the slowest of all nodes, so that to replace the second slowest gains nothing while
the slowest stays. Nodes are therefore taken out one after another, the costliest first, and the
step is simulated after each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, excerpt
from topologies.support.files.table import read_table
from topologies.support.units import format_seconds
from workloads.training.detail import Detail
from workloads.training.execution.jitter import Disturbance, slowest_alone
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.placement import place
from workloads.training.program.groups import SharedParts

if TYPE_CHECKING:
    import pandas as pd

NAMED = re.compile(r"(node|server|host|hostname|instance)([ _]?(name|id))?", re.IGNORECASE)
"""Heading of the column that names the nodes."""
MEASURES = (
    ("within", r"(.*_)?within(_.*)?", True),
    ("between", r"(.*_)?between(_.*)?", True),
    ("kernels", r"speed|([tgp]?flops|(tokens|samples)_per_s)(_.*)?|(.*_)?[tgp]flops", True),
    ("kernels", r"time|seconds|(.*_)?(time|time_s|ms|us|ns|s)", False),
)  # fmt: skip
"""Things that are measured, by the heading of their column, and whether a larger value is a faster
node: kernels of its chips, or collectives of its chips within a scale-up domain or with others."""
UNCLEAR = re.compile(r"(.*_)?(bus_?bw|alg_?bw|bandwidth|gb_?s)(_.*)?", re.IGNORECASE)
APART = 3.0  # robust standard deviations above the median from which a node stands apart
TO_SIGMA = 1.4826  # standard deviation over the median absolute deviation, of normal values
END = NormalDist().inv_cdf(0.9)  # standard deviations from the middle to an end of 80 %
MOST = 8  # largest number of nodes that are taken out one after another
FEW = 4  # largest number of nodes of which two are half or more
LARGEST_FILE_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class Nodes:
    """Measured nodes in the order of their ranks, by how much slower than the median each is."""

    names: tuple[str, ...]
    # By what is measured, (nodes,): share by which it takes longer than on the median node
    slower: Mapping[str, FloatArray]
    # By what is measured: standard deviation of such a share, from repeated measurements of a node,
    # or else from the spread of most nodes
    sigma: Mapping[str, float]
    apart: Mapping[str, FloatArray]  # shares from which a node stands apart, likewise (1,)
    unread: tuple[str, ...]  # headings of columns that are not read

    @property
    def outliers(self) -> list[int]:
        """Numbers of the nodes that stand apart."""
        slow = [self.slower[kind] > self.apart[kind] for kind in self.slower]
        return [int(number) for number in np.flatnonzero(np.any(slow, axis=0))]


def read_nodes(path: Path) -> Nodes:
    """Read a CSV file with a row for each node, or for each of its measurements."""
    table = read_table(
        path, "nodes", remedy="name the CSV file", limit_bytes=LARGEST_FILE_BYTES, dtype=str
    )
    named = [column for column in table.columns if NAMED.fullmatch(str(column).strip())]
    if not named:
        raise InputError(
            f"nodes file {path} has no column of nodes: its columns are "
            f"{', '.join(map(excerpt, table.columns[:6]))}. Head the column of their names node."
        )
    measured = _measured(path, table, [each for each in table.columns if each != named[0]])
    node = table[named[0]].fillna("").str.strip()
    if (node == "").any():
        raise InputError(f"nodes file {path}: a row has no name in column {named[0]}. Add it.")
    names = tuple(dict.fromkeys(node))
    if len(names) < 3:
        raise InputError(
            f"nodes file {path} has {len(names)} node{'s' * (len(names) != 1)}; which of them is "
            "slow shows from 3 on. Add those that are usual."
        )
    slower: dict[str, FloatArray] = {}
    apart: dict[str, FloatArray] = {}
    sigma: dict[str, float] = {}
    for kind, (column, faster) in measured.items():
        values = _numbers(path, table, column, node)
        lasts = 1 / values if faster else values
        of_node = lasts.groupby(node.to_numpy(), sort=False).median()[list(names)]
        share = np.asarray(of_node / of_node.median() - 1, np.float64)
        spread = TO_SIGMA * float(np.median(np.abs(share)))
        repeats = lasts.to_numpy(float) / of_node[node].to_numpy(float) - 1
        more = len(lasts) - len(names)
        slower[kind], apart[kind] = share, np.array([APART * spread])
        within = float(np.sqrt((repeats**2).sum() / more)) if more else 0.0
        each = len(lasts) / len(names)
        sigma[kind] = within / float(np.sqrt(each)) if more else spread
    unread = set(table.columns) - {named[0], *(column for column, _ in measured.values())}
    return Nodes(names, slower, sigma, apart, tuple(sorted(map(str, unread))))


def _measured(
    path: Path, table: pd.DataFrame, columns: Sequence[str]
) -> dict[str, tuple[str, bool]]:
    """Return the column of each thing that is measured, and whether more of it is faster."""
    measures: dict[str, tuple[str, bool]] = {}
    for column in columns:
        heading = re.sub(r"[^a-z0-9]+", "_", str(column).strip().lower()).strip("_")
        for kind, form, faster in MEASURES:
            if not re.fullmatch(form, heading):
                continue
            if kind in measures:
                raise InputError(
                    f"nodes file {path}: columns {measures[kind][0]} and {column} both measure "
                    f"{kind}. Keep one of them."
                )
            measures[kind] = (column, faster)
            break
        else:
            if UNCLEAR.fullmatch(heading):
                raise InputError(
                    f"nodes file {path}: column {column} does not say which links it measures. "
                    "Head it within_gb_s for a test on the chips of one node, or between_gb_s for "
                    "one between nodes."
                )
    if not measures:
        raise InputError(
            f"nodes file {path} has no measured column: its columns are "
            f"{', '.join(map(excerpt, table.columns[:6]))}. Head it tflops, speed or time_s for "
            "kernels, within_gb_s or between_gb_s for collectives."
        )
    return measures


def _numbers(
    path: Path, table: pd.DataFrame, column: str, node: pd.Series[str]
) -> pd.Series[float]:
    """Return a column as numbers above 0."""
    import pandas as pd

    values = pd.to_numeric(table[column], errors="coerce")
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"nodes file {path}: {column} of {node.iloc[at]} is {excerpt(table[column].iloc[at])}; "
            "it must be a number above 0. Correct it, or leave a node that is down out."
        )
    return values.astype(float)


@dataclass(frozen=True)
class Replaced:
    """A step after a node was replaced by a usual one, beside all nodes above it."""

    node: str
    slower: dict[str, float]  # share by which each measured thing takes longer on it
    alone_s: float  # time by which it would lengthen the step if no other node stood apart [s]
    step_s: float  # step after it and all nodes before it are replaced [s]
    gain_s: float  # time by which the step is shorter than before [s]
    # gain_low_s, gain_high_s: ends of the gain by the scatter of the measurements (80 %) [s]
    gain_low_s: float
    gain_high_s: float


@dataclass(frozen=True)
class Drain:
    """Nodes in the order in which to take them out of a job, with the step after each."""

    nodes: Nodes
    usual_s: float  # step without all that stand apart [s]
    step_s: float  # step on the measured nodes [s]
    order: tuple[Replaced, ...]
    more: int  # nodes that stand apart, but were not simulated
    # Price of the whole job for a day with the ends of its range [USD]; empty if it is unknown
    usd_per_day: tuple[float, ...] = ()

    @property
    def verdict(self) -> str:
        """Return which node to take out first, in sentences."""
        count, kinds = len(self.nodes.names), " and ".join(map(str, self.nodes.slower))
        if not self.order:
            return (
                f"None of the {count:,} nodes stands apart: none is slower than the median by more "
                f"than {APART:g} robust standard deviations ({kinds}).{self._slowest()}"
            )
        best_s = min(each.step_s for each in self.order) + MARGIN * self.step_s
        last = next(number for number, each in enumerate(self.order, 1) if each.step_s <= best_s)
        share = 1 - self.order[last - 1].step_s / self.step_s
        names = [each.node for each in self.order]
        if share <= MARGIN:
            return (
                f"Drain none: {_listed(names)} stand{'s' * (len(names) == 1)} apart, but the step "
                f"would be no shorter by more than {MARGIN:.1%}."
            )
        rest, hidden = names[last:], ""
        if rest:
            one = len(rest) == 1
            stand, cost, are = (
                ("stands", "costs", "it is") if one else ("stand", "cost", "they are")
            )
            hidden = (
                f" {_listed(rest)} {stand} apart too, but {cost} nothing where {are}, as the step "
                "waits for others there."
            )
        usd = ""
        if self.usd_per_day:
            price, low, high = (f"{each * share:,.0f}" for each in self.usd_per_day)
            ends = f" ({low} to {high} by the range of the price)" if low != high else ""
            usd = f" or {price} USD{ends}"
        first = f"{_listed(names[:last])}{' together' * (last > 1)}"
        saved, regained = (format_seconds(time_s) for time_s in (86_400 * share, 600 / share))
        return (
            f"Drain {first}: the step is {share:.1%} shorter with usual nodes in place, which is "
            f"{saved}{usd} a day of the whole job. A restart of ten minutes is regained in "
            f"{regained}.{hidden}"
        )

    def _slowest(self) -> str:
        """Return how slow the slowest node is, and among few nodes why it may not stand apart."""
        worst = {kind: float(each.max()) for kind, each in self.nodes.slower.items()}
        kind = max(worst, key=worst.__getitem__)
        if worst[kind] <= MARGIN:
            return ""
        name = self.nodes.names[int(self.nodes.slower[kind].argmax())]
        few = ""
        if len(self.nodes.names) <= FEW:
            few = "; two slow ones among so few can hide each other, so measure more nodes"
        return f" The slowest, {name}, takes {worst[kind]:.1%} longer than the median{few}."

    @property
    def note(self) -> str:
        """Return the verdict, with what to know of the table that it belongs to."""
        notes = [
            self.verdict,
            "A drained node is replaced by a usual one.",
            "Intervals are those of the scatter of the measurements alone.",
        ]
        if {"within", "between"} & self.nodes.slower.keys():
            notes.append("Costs of links are upper bounds: all collectives wait for the slowest.")
        if self.more:
            notes.append(f"{self.more} further nodes stand apart and were not simulated.")
        if self.nodes.unread:
            notes.append(f"Not read: {', '.join(self.nodes.unread)}.")
        return " ".join(notes)

    def document(self) -> dict[str, Any]:
        """Return the entries of a document."""
        nodes = self.nodes
        return {
            "nodes": {
                "measured": list(nodes.slower),
                "count": len(nodes.names),
                "step_s": self.step_s,
                "usual_s": self.usual_s,
                "usd_per_day": list(self.usd_per_day),
                "drain": [vars(each) for each in self.order],
                "not_simulated": self.more,
                "unread": list(nodes.unread),
                "verdict": self.verdict,
            }
        }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


MARGIN = 0.001  # share of a step below which it makes no difference whether a node is replaced


def drained(step: Iteration, nodes: Nodes, detail: Detail) -> Drain:
    """Simulate a step on measured nodes, and again as those that stand apart are taken out."""
    cluster, plan = step.stated.clusters[0], step.plan
    placed = place(plan, cluster, detail.chips)
    server = placed.chip // cluster.chips_per_server
    used = int(server.max()) + 1
    if len(nodes.names) > used:
        raise InputError(
            f"--nodes has {len(nodes.names):,} nodes, and the job runs on {used:,} servers of "
            f"{cluster.name}. Leave those out that are spare, or name the larger cluster."
        )
    shared = SharedParts()

    def seconds(without: Sequence[int]) -> float:
        """Return the time of a step with some nodes replaced by usual ones [s]."""
        left = {kind: share.copy() for kind, share in nodes.slower.items()}
        for share in left.values():
            share[list(without)] = 0.0
        of_server = np.zeros(used)
        of_server[: len(nodes.names)] = left.get("kernels", 0.0)
        slower = slowest_alone(of_server[server], placed.stage)
        within, between = (
            float(max(0.0, left[kind].max())) if kind in left else 0.0
            for kind in ("within", "between")
        )
        how = Disturbance(uneven=slower, network=between, within=within)
        on_nodes = replace(detail, disturbed=how if how else None, trace=False)
        return iteration(step.model, cluster, plan, on_nodes, shared=shared).iteration_s

    # The costliest outliers by what they would cost at most; of these the order is simulated, as a
    # slow node may hide behind a pipeline stage that has more work.
    weight_s = weights_s(step)
    most_s = np.zeros(len(nodes.names))
    for kind, share in nodes.slower.items():
        most_s += np.maximum(0.0, share) * weight_s[kind]
    slowest = sorted(nodes.outliers, key=lambda number: -most_s[number])
    few = slowest[:MOST]
    usual_s = seconds([*slowest]) if slowest else step.iteration_s
    alone_s = {one: seconds([each for each in slowest if each != one]) - usual_s for one in few}
    few.sort(key=lambda number: -alone_s[number])
    before_s = whole_s = seconds(()) if slowest else step.iteration_s
    # A gain is that of the difference of two measured nodes.
    sigma_s = float(np.sqrt(2 * sum((nodes.sigma[k] * weight_s[k]) ** 2 for k in nodes.slower)))
    order: list[Replaced] = []
    for count, number in enumerate(few, 1):
        after_s = seconds(few[:count])
        gain_s = before_s - after_s
        low_s, high_s = (max(0.0, gain_s + side * END * sigma_s) for side in (-1, 1))
        slower = {kind: float(share[number]) for kind, share in nodes.slower.items()}
        times_s = (alone_s[number], after_s, gain_s, low_s, high_s)
        order.append(Replaced(nodes.names[number], slower, *times_s))
        before_s = after_s
    usd = step.cost.cost_usd
    days = 86_400 / step.iteration_s
    per_day = tuple(usd * days * end for end in (1.0, *step.cost.price_ends)) if usd else ()
    return Drain(nodes, usual_s, whole_s, tuple(order), len(slowest) - len(few), per_day)


def weights_s(step: Iteration) -> dict[str, float]:
    """Return the time of a step that grows with each thing that is measured [s]."""
    parts = step.breakdown_s
    exposed_s = sum(seconds for part, seconds in parts.items() if part.startswith("exposed"))
    inside_s = parts["exposed_tp"] if step.cluster.domains > 1 else exposed_s
    own_s = step.iteration_s - exposed_s - parts["bubble"] - parts["straggler"]
    return {"kernels": own_s, "within": inside_s, "between": exposed_s - inside_s}
