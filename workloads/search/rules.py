"""Rules that leave out plans which cannot be the best, each with its reason.

A rule judges the values of a field. It is not applied if the user stated that field, or if it would
leave out all plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.duration.nccl import reduces_in_switch
from topologies.arrays import BoolArray, IntArray
from topologies.clusters.cluster import Cluster
from workloads.kernels.times import step_overhead_s
from workloads.models.model import Model
from workloads.search.grid import Columns, kept
from workloads.training.plan.plan import ParallelPlan

LEAST_TOKENS = 4096  # fewest tokens of a sequence on a rank for which context parallelism is tried
MOST_TOKENS = 32768
"""Most tokens of a microbatch of several sequences; larger products are no faster."""
MOST_UNEVEN = 1.25  # largest ratio of the layers of the longest stage to the mean of all stages


@dataclass(frozen=True)
class Frame:
    """Facts that all plans share and rules use besides the columns."""

    model: Model
    cluster: Cluster
    base: ParallelPlan


@dataclass(frozen=True)
class Rule:
    """A reason to leave out plans, and the plans that it applies to."""

    reason: str  # reason in words, as the output lists it
    judges: str  # field whose values the rule judges
    # Function that returns the plans to leave out, bool (rows,)
    leaves_out: Callable[[Columns, Frame], BoolArray]


def _far_tp(c: Columns, frame: Frame) -> BoolArray:
    return c["tp"] > frame.cluster.chips_per_domain * frame.base.ranks_per_chip


def _short_parts(c: Columns, frame: Frame) -> BoolArray:
    return (c["cp"] > 1) & (frame.base.seq // c["cp"] < LEAST_TOKENS)


def _large_microbatches(c: Columns, frame: Frame) -> BoolArray:
    return (c["microbatch"] > 1) & (c["microbatch"] * frame.base.seq // c["cp"] > MOST_TOKENS)


def _microbatches(c: Columns, frame: Frame) -> IntArray:
    return frame.base.global_batch // (c["dp"] * c["microbatch"])


def _mostly_bubble(c: Columns, frame: Frame) -> BoolArray:
    out: BoolArray = c["pp"] - 1 > c["vpp"] * _microbatches(c, frame)
    return out


def _nothing_to_interleave(c: Columns, frame: Frame) -> BoolArray:
    return (c["vpp"] > 1) & (_microbatches(c, frame) < c["pp"])


def _uneven(c: Columns, frame: Frame) -> BoolArray:
    longest = -(-frame.model.layers // (c["pp"] * c["vpp"])) * c["vpp"]
    out: BoolArray = longest * c["pp"] > MOST_UNEVEN * frame.model.layers
    return out


def _norms_again(c: Columns, frame: Frame) -> BoolArray:
    halves_as_fast = not reduces_in_switch(frame.cluster)
    could = halves_as_fast & (c["tp"] > 1) & (c["divides_sequence"] == 1)
    out: BoolArray = could & (c["sequence_parallel"] == 0)
    return out


def _all_reduced(c: Columns, frame: Frame) -> BoolArray:
    # On some stacks a sharded optimizer takes seconds that a plain one does not.
    machine, per_chip = frame.cluster, frame.base.ranks_per_chip
    end_s = step_overhead_s(machine.chip, machine.chips * per_chip, catalogue=machine.catalogue)
    shards_at_once = end_s == 0
    out: BoolArray = shards_at_once & (c["zero"] == 0) & (c["dp"] * c["cp"] > 1)
    return out


def _cut_experts(c: Columns, frame: Frame) -> BoolArray:
    count = frame.model.experts.count if frame.model.experts else 1
    parts = np.where(c["etp"] == 0, c["tp"], c["etp"])
    out: BoolArray = (parts > 1) & (count % (c["ep"] * parts) == 0) & (count > 1)
    return out


RULES = (
    Rule("tensor parallel groups wider than a scale-up domain", "tp", _far_tp),
    Rule(f"sequences cut below {LEAST_TOKENS:,} tokens a rank", "cp", _short_parts),
    Rule(
        f"several sequences at once of over {MOST_TOKENS:,} tokens a rank",
        "microbatch",
        _large_microbatches,
    ),
    Rule("a bubble longer than the work", "pp", _mostly_bubble),
    Rule("interleaving of fewer microbatches than stages", "vpp", _nothing_to_interleave),
    Rule("a stage a quarter longer than the mean", "pp", _uneven),
    Rule(
        "tensor without sequence parallelism: the same bytes sent, norms repeated",
        "sequence_parallel",
        _norms_again,
    ),
    Rule("experts cut in parts where whole ones could be spread as far", "etp", _cut_experts),
    Rule("ZeRO 0: more bytes to send and to hold than ZeRO 1", "zero", _all_reduced),
)


def sieve(
    columns: Columns, frame: Frame, settled: Collection[str]
) -> tuple[Columns, dict[str, int]]:
    """Apply the rules one after the other."""
    pruned: dict[str, int] = {}
    for rule in RULES:
        out = rule.leaves_out(columns, frame)
        if rule.judges in settled or out.all() or not out.any():
            continue
        pruned[rule.reason] = int(out.sum())
        columns = kept(columns, ~out)
    return columns, pruned
