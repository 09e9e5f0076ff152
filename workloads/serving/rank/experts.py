"""Times of one layer of experts on one rank: fetched in decode, run by blocks for prompts."""

from __future__ import annotations

import functools
import math

import numpy as np

from topologies.arrays import FloatArray
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import Experts, expert_parameters
from workloads.serving.rank.products import mlp_s
from workloads.serving.rank.share import RankShare

EXPERT_BLOCK = 512
"""Routed tokens of a block of Neuron's grouped products for prompts: the default of NxD."""
BLOCK_PASSES = 3
"""Passes of a block's tokens through memory: gathering them, reading and writing their sums."""


def experts_s(rank: RankShare, tokens: FloatArray, *, prompts: bool = False) -> FloatArray:
    """Return the time of one layer's routed experts and shared expert [s].

    Neuron's programs run prompts by blocks, unless they fill less than one block.
    """
    some = rank.model.experts
    if some is None:
        return np.zeros_like(tokens)
    routed = _fetched_experts_s(rank, tokens, some)
    if prompts and rank.overhead("expert_block"):
        whole = tokens * some.per_token >= EXPERT_BLOCK
        routed = np.where(whole, expert_blocks(rank, tokens) * block_s(rank), routed)
    shared = mlp_s(rank, tokens, some.shared_ffn) if some.shared_ffn else np.zeros_like(tokens)
    return np.asarray(routed + shared)


def _fetched_experts_s(rank: RankShare, tokens: FloatArray, some: Experts) -> FloatArray:
    """Time of the grouped products of the experts that tokens are routed to [s].

    A grouped kernel takes the longer of streaming the weights of every such expert once, and of
    computing all rows as fast as one product of that many rows. Where groups of ranks divide the
    experts, all groups wait for the busiest one. Neuron's programs of decode loop over the tokens
    and fetch the experts of each, until all experts are fetched. Fetching takes a start and some
    time for each row of an expert's matrices, however few columns of it a rank holds.
    """
    groups = 1 if rank.overhead("expert_block") else rank.ep
    touched, rows_of_experts = busiest_group(some, tokens, groups)
    element = ELEMENT_BYTES[rank.precision]
    weights = touched * expert_parameters(rank.model) * groups / rank.ranks * element
    streamed = rank.pass_s(weights)
    computed = mlp_s(rank, rows_of_experts, some.ffn * groups)
    routed = np.maximum(streamed, computed) + rank.overhead("expert_layer")
    looped = np.minimum(tokens, some.count / some.per_token)
    rows = some.per_token * rank.model.hidden
    fetched_s = rank.overhead("expert_token") + rank.overhead("expert_row") * rows
    return np.asarray(routed + fetched_s * np.maximum(0.0, looped - 1))


def busiest_group(some: Experts, tokens: FloatArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """Return the experts in use and the routed rows of the busiest group of ranks.

    Routing is balanced and random, so both numbers vary about their means as sums of independent
    choices do. The busiest of G groups exceeds the mean by as much as the largest of G normal
    variates is expected to. With one group the numbers are the means. Returns ``touched``: experts
    that any token is routed to, in the shape of ``tokens``. ``rows``: rows that the group's experts
    compute, in the shape of ``tokens``.
    """
    held = some.count / groups
    chance = 1 - (1 - some.per_token / some.count) ** tokens
    above = expected_largest(groups)
    touched = held * chance + above * np.sqrt(held * chance * (1 - chance))
    mean = tokens * some.per_token / groups
    rows = mean + above * np.sqrt(mean * (1 - 1 / groups))
    return np.minimum(touched, held), np.minimum(rows, tokens * min(some.per_token, held))


@functools.cache
def expected_largest(count: int) -> float:
    """Return the expected largest one of ``count`` independent standard normal variates.

    >>> [round(expected_largest(count), 3) for count in (1, 2, 4, 8)]
    [0.0, 0.564, 1.029, 1.424]
    """
    at = np.linspace(-8.0, 8.0, 16_001)
    density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in at])
    return float(np.trapezoid(count * at * density * below ** (count - 1), at))


def expert_blocks(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the blocks of one layer that each rank runs for a prompt's tokens, (sizes,).

    Tokens are sorted by expert into blocks of ``EXPERT_BLOCK``, and programs are compiled for
    the worst routing: ``ceil((T k - (E - 1)) / B) + E - 1`` blocks for the E experts of a rank
    (``forward_blockwise`` of NxD 2.28; Neuron's guide to mixtures of experts). Every rank
    holds a part of all experts unless ``ep`` divides them, so that more chips leave it as many
    blocks.
    """
    some = rank.model.experts
    if some is None:
        return np.zeros_like(tokens)
    others = max(1, round(some.count / rank.ep)) - 1
    routed = tokens * some.per_token
    full = np.ceil(np.maximum(0.0, routed - others) / EXPERT_BLOCK)
    return np.asarray(np.minimum(routed, full + others))


def block_s(rank: RankShare) -> float:
    """Return the time of one block: its start, its products, and the traffic of its tokens [s].

    Every rank gathers the block's tokens, and reads and writes their sums, over the whole hidden
    width.
    """
    some = rank.model.experts
    if some is None:
        return 0.0
    rows = np.array([float(EXPERT_BLOCK)])
    products = float(mlp_s(rank, rows, some.ffn * rank.ep)[0])
    moved = BLOCK_PASSES * 2.0 * EXPERT_BLOCK * rank.model.hidden
    return rank.overhead("expert_block") + products + moved / rank.overhead("expert_block_rate")
