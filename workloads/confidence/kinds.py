"""Kinds of prediction with similar errors, and the features of a prediction of each kind.

Kinds follow what dominates the error: kernels and pipelines in tensor-parallel training, the host
and separate kernels before fused attention, the framework in sharded training, small products and
exchanges with experts, start-up in small collectives, links in large ones, waiting in first tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from topologies.catalogue.catalogue import shipped_catalogue
from workloads.confidence.interval import LEVEL

# Times on clusters of mixed quality, where some runs wait for a slow node in every microbatch.
# A run takes its usual time or, with a probability that grows with its nodes, that time and a
# delay. A point between the two would be the time of no run, so the probability enters the
# interval: its ends are quantiles of the mixture of both.

NODE_CHIPS = 8  # chips of a node
HALVINGS = 60  # bisections in the search for a quantile, enough for the precision of a double
NORMAL = NormalDist()


class Slowing(NamedTuple):
    """Share of runs that slow nodes lengthen, and the time that they add."""

    share: float = 0.0  # probability that a run has one slow node or more
    seconds: float = 0.0  # time by which such a run is longer [s]


NEVER = Slowing()  # no slow nodes


def slowing(chips: int, microbatches: int, *, pipelined: bool) -> Slowing:
    """Return the delay of a run by slow nodes of a cluster of mixed quality, and its share."""
    catalogue = shipped_catalogue()
    name = "slow_node_share_pipelined" if pipelined else "slow_node_share"
    each = catalogue.value("training", name)
    nodes = -(-chips // NODE_CHIPS)
    added_s = microbatches * catalogue.value("training", "slow_node_wait")
    return Slowing(1.0 - (1.0 - each) ** nodes, added_s)


def mixture_ends(value: float, slow: Slowing, half_width: float) -> tuple[float, float]:
    """Ends of the interval of a time that slow nodes may lengthen, in the unit of ``value``."""
    # Usual and slowed times are log-normal about ``value`` and ``value + slow.seconds``, each with
    # the same half-width, in logarithms, at ``LEVEL``; both tails have the same share of the
    # others.
    tail = (1 - LEVEL) / 2
    spread = half_width / NORMAL.inv_cdf(1 - tail)
    usual, slowed = math.log(value), math.log(value + slow.seconds)

    def distribution(log_time: float) -> float:
        usual_share = NORMAL.cdf((log_time - usual) / spread)
        return usual_share + slow.share * (NORMAL.cdf((log_time - slowed) / spread) - usual_share)

    def quantile(share: float) -> float:
        """Factor below which a share of machines lies, by halving."""
        low, high = usual - half_width, slowed + half_width
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if distribution(middle) < share else (low, middle)
        return math.exp(high)

    return quantile(tail), quantile(1 - tail)


KIB, MIB = 2**10, 2**20

FRAMEWORK, PLAN, BARE = "framework", "plan", "bare"
"""Levels of what was told of a training step: its plan and framework; its plan; the degrees,
batch, sequence and precision alone. Empty where conditions of the run were told as well."""

TENSOR = "training.tensor"
UNFUSED = "training.unfused"
SHARDED = "training.sharded"
EXPERTS = "training.experts"
ADAPTERS = "training.adapters"
RESEARCH = "training.research"
COLLECTIVES = ("collective.small", "collective.medium", "collective.large")
EXCHANGE = "collective.exchange"
SERVING = "serving.dense"
SERVING_EXPERTS = "serving.experts"
FIRST_TOKEN = "first_token.dense"
FIRST_TOKEN_EXPERTS = "first_token.experts"
KERNELS = ("kernel.product", "kernel.attention", "kernel.memory")

PRODUCTS = ("gemm", "layer", "")
"""Kernels whose time is that of matrix products; a row without a kernel is one of a layer."""

NAMES = {
    TENSOR: "training with tensor or pipeline parallelism",
    UNFUSED: "training before fused attention kernels",
    SHARDED: "training with sharded parameters (FSDP)",
    EXPERTS: "training with experts",
    ADAPTERS: "training of adapters",
    RESEARCH: "training with research code on mixed nodes",
    COLLECTIVES[0]: "collectives below 64 KiB",
    COLLECTIVES[1]: "collectives from 64 KiB to 4 MiB",
    COLLECTIVES[2]: "collectives from 4 MiB",
    EXCHANGE: "exchanges of experts",
    SERVING: "serving",
    SERVING_EXPERTS: "serving with experts",
    FIRST_TOKEN: "first tokens",
    FIRST_TOKEN_EXPERTS: "first tokens with experts",
    KERNELS[0]: "matrix products and layers",
    KERNELS[1]: "attention kernels",
    KERNELS[2]: "kernels that wait for memory",
}


FAMILY = {kind: kind.partition(".")[0] for kind in NAMES}
"""Family of each kind: a kind with few tables borrows from the others of its family."""


@dataclass(frozen=True)
class Prediction:
    """Features of a prediction on which its uncertainty depends."""

    kind: str  # one of the kinds of this module
    chip: str  # catalogue name of the chip
    # tp, cp, ranks: tensor-parallel and context-parallel degrees and chips of the job, which are
    # compared with the largest that were measured
    tp: int = 1
    cp: int = 1
    ranks: int = 1
    assumed: bool = False  # whether kernels or links rest on assumed numbers
    # Probability that slow nodes lengthen the job, and the time they add; by default never
    slow: Slowing = NEVER
    # Tool that times a collective or kernel, or engine of a replica; empty where none is stated
    tool: str = ""
    # Family of a replica's model, see :func:`~workloads.confidence.answers.model_family`, or
    # width of a product, or of those of a training step
    family: str = ""
    crosses: bool = False  # whether a collective crosses servers
    framework: str = ""  # name of the framework of a training step, without settings
    stated: str = ""  # level of what was told of a training step
    filled: float = 0.0  # share of a rank's memory that a training step likely fills
    # below, above: ends of the hull of the times that fields of no stated value leave open, as
    # logarithms of their ratio to the prediction; at most and at least 0
    below: float = 0.0
    above: float = 0.0


def training_kind(
    *, experts: bool, zero: int, unfused: bool = False, adapters: bool = False
) -> str:
    """Kind of a training step."""
    if adapters:
        return ADAPTERS
    if experts:
        return EXPERTS
    if zero >= 3:
        return SHARDED
    return UNFUSED if unfused else TENSOR


def kernel_kind(kernel: str) -> str:
    """Kind of a kernel by its name in validation rows; a layer counts as matrix products."""
    product, attention, memory = KERNELS
    if kernel == "attention":
        return attention
    return product if kernel in PRODUCTS else memory


def collective_kind(size_bytes: int) -> str:
    """Kind of a collective by its reported size [B]."""
    small, medium, large = COLLECTIVES
    if size_bytes < 64 * KIB:
        return small
    return medium if size_bytes < 4 * MIB else large
