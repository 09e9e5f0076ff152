"""Intervals of collectives, serving and kernels, by how far off the nearest measurements were.

A domain is a kind of prediction on one generation of chips, a tool, and a family. The tool of a
collective or kernel is the one that timed it, that of a replica its serving engine; the family of a
replica is its model's: dense or of experts, the kind of attention, the width of the weights.
Domains differ by more than the rows within one. So the quantile of a domain, over tables of equal
weight, is drawn towards that of its tool and family on other chips, and this one towards that of
all other tools and families, each of equal weight: what is known of one that nobody measured. With
n groups, the quantile is at (n + 1)/n of the level, as for n exchangeable groups (Dunn, Wasserman
and Ramdas 2022), and at most at ``HIGHEST``. No factor is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from topologies.catalogue.families import chip_family
from workloads.confidence.interval import LEVEL
from workloads.confidence.kinds import FAMILY, NAMES, Prediction
from workloads.confidence.quantile import weighted_quantile
from workloads.confidence.residuals import Residual, Residuals

LEAST = 0.03  # smallest half-width, in logarithms: runs of one configuration differ by so much
HIGHEST = 0.9  # highest quantile of few groups, beyond which single rows would decide
MANY = 5  # rows from which a group has its full weight
DOUBLED = 1.15
"""Widening for each doubling of the ranks of a collective beyond those measured: with numbers of
ranks left out, it covers more of them to 81 %."""
PREDICTIONS = 256  # predictions whose half-widths are remembered


class Pool(NamedTuple):
    """Measured rows from which a half-width comes."""

    half: float  # quantile of their scores, in logarithms
    rows: int
    groups: int
    evidence: float  # groups, of which those of few rows count in part

    def drawn(self, towards: float) -> float:
        """Return the half-width drawn towards another, which counts as one more group."""
        if not self.groups:
            return towards
        share = self.evidence / (self.evidence + 1)
        return math.exp(share * math.log(self.half) + (1 - share) * math.log(towards))


@lru_cache(PREDICTIONS)
def domain_half_width(
    prediction: Prediction, residuals: Residuals, level: float = LEVEL
) -> tuple[float, str]:
    """Return half of an interval's width, in logarithms, and the measurements behind it.

    Where no tool is stated, the interval is as wide as that of the least known one.
    """
    akin, near, every = _akin(prediction, residuals)
    same = [row for row in akin if _stack(row) == _stack(prediction)]
    domain_rows = [row for row in same if generation(row.chip) == generation(prediction.chip)]
    others = [row for row in akin if _stack(row) != _stack(prediction)]
    domain, stack = (_pool(rows, lambda row: row.table, level) for rows in (domain_rows, same))
    rest, of_runtime, of_all = (_pool(rows, _group, level) for rows in (others, near, every))
    least = of_runtime.drawn(of_all.half)
    unknown = rest.drawn(least)
    half = domain.drawn(stack.drawn(unknown)) if same else max(unknown, least)
    half *= _more_ranks(prediction, domain_rows or akin)
    here = [row for row in akin if generation(row.chip) == generation(prediction.chip)]
    tools = set() if prediction.tool else {row.tool for row in here} - {""}
    stated = [replace(prediction, tool=tool) for tool in tools]
    half = max([half, *(domain_half_width(each, residuals, level)[0] for each in stated)])
    shown = rest if rest.rows else of_all
    return half, _basis(prediction, domain, shown, open_tool=bool(tools))


def _akin(
    prediction: Prediction, residuals: Residuals
) -> tuple[Sequence[Residual], Sequence[Residual], Sequence[Residual]]:
    """Rows of the kind on chips of the same runtime, of all its family on these, and on any."""
    family = FAMILY[prediction.kind]
    every = [row for row in residuals.rows if FAMILY.get(row.kind) == family]
    near = [row for row in every if runtime(row.chip) == runtime(prediction.chip)]
    return [row for row in near if row.kind == prediction.kind], near, every


def _stack(row: Residual | Prediction) -> tuple[str, str, bool]:
    """Tool and family, and whether servers are crossed."""
    return row.tool, row.family, row.crosses


def _group(row: Residual) -> Hashable:
    """Group of rows that share most of their error."""
    return row.kind, *_stack(row), generation(row.chip)


def _pool(rows: Sequence[Residual], group: Callable[[Residual], Hashable], level: float) -> Pool:
    """Quantile of the scores of rows, with equal weight for each group of many rows."""
    if not rows:
        return Pool(math.log(2.0), 0, 0, 0.0)
    of_rows = [group(row) for row in rows]
    counts = {name: of_rows.count(name) for name in set(of_rows)}
    weights = np.array([1 / max(MANY, counts[name]) for name in of_rows])
    evidence = float(weights.sum())
    corrected = max(level, min(HIGHEST, level * (evidence + 1) / evidence))
    half = weighted_quantile(np.array([row.score for row in rows]), weights, corrected)
    return Pool(max(LEAST, half), len(rows), len(counts), evidence)


def _more_ranks(prediction: Prediction, rows: Sequence[Residual]) -> float:
    """Widening for a collective of more ranks than were measured."""
    if FAMILY[prediction.kind] != "collective" or not rows:
        return 1.0
    beyond = prediction.ranks / max(row.ranks for row in rows)
    return float(DOUBLED ** max(0.0, math.log2(beyond)))


def _basis(prediction: Prediction, domain: Pool, rest: Pool, *, open_tool: bool) -> str:
    """Sentence with the measurements behind a half-width."""
    serves = FAMILY[prediction.kind] in ("serving", "first_token")
    parts = [part for part in (prediction.tool, prediction.family) if part]
    what = f" of {' with '.join(parts)}" if parts else ""
    what += " between servers" * prediction.crosses + " on such chips"
    name = NAMES[prediction.kind]
    note = f" ({'engine' if serves else 'tool'} not stated)" if open_tool else ""
    if domain.rows:
        tables = f"{domain.groups} table{'s' * (domain.groups != 1)}"
        return f"{name}: {domain.rows:,} measured rows{what}, {tables}{note}"
    return (
        f"{name}: no measured row{what}{note}, so it is as sure as {rest.groups} others "
        f"({rest.rows:,} rows) were"
    )


@lru_cache(256)
def runtime(chip: str) -> str:
    """Return the collective runtime of a chip.

    >>> runtime("trn2"), runtime("h200")
    ('neuron', 'nccl')
    """
    return chip_family(chip).runtime


@lru_cache(256)
def generation(chip: str) -> str:
    """Return the family of a chip; a Neuron chip itself, as each has its own rates.

    >>> generation("h200"), generation("trn2")
    ('h100', 'trn2')
    """
    family = chip_family(chip)
    return chip if family.is_neuron else family.name
