"""Kinds of prediction with similar errors, and the features of a prediction of each kind.

The interval of a prediction is made from the residuals of its kind. Kinds follow what dominates the
error: kernels and pipelines in tensor-parallel training, the framework in sharded training, small
products and exchanges with experts, start-up in small collectives, links in large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.confidence.mixture import NEVER, Slowing

KIB, MIB = 2**10, 2**20

TENSOR = "training.tensor"
SHARDED = "training.sharded"
EXPERTS = "training.experts"
RESEARCH = "training.research"
COLLECTIVES = ("collective.small", "collective.medium", "collective.large")
EXCHANGE = "collective.exchange"
SERVING = "serving.dense"
SERVING_EXPERTS = "serving.experts"
KERNEL = "kernel"

FAMILY = {
    TENSOR: "training",
    SHARDED: "training",
    EXPERTS: "training",
    RESEARCH: "training",
    **dict.fromkeys(COLLECTIVES, "collective"),
    EXCHANGE: "collective",
    SERVING: "serving",
    SERVING_EXPERTS: "serving",
    KERNEL: "kernel",
}
"""Family of each kind: a kind with few tables borrows from the others of its family."""

NAMES = {
    TENSOR: "training with tensor or pipeline parallelism",
    SHARDED: "training with sharded parameters (FSDP)",
    EXPERTS: "training with experts",
    RESEARCH: "training with research code on mixed nodes",
    COLLECTIVES[0]: "collectives below 64 KiB",
    COLLECTIVES[1]: "collectives from 64 KiB to 4 MiB",
    COLLECTIVES[2]: "collectives from 4 MiB",
    EXCHANGE: "exchanges of experts",
    SERVING: "serving",
    SERVING_EXPERTS: "serving with experts",
    KERNEL: "kernels",
}


@dataclass(frozen=True)
class Prediction:
    """Features of a prediction on which its uncertainty depends.

    Attributes
    ----------
    kind : str
        One of the kinds of this module.
    chip : str
        Catalogue name of the chip.
    tp, cp, ranks : int
        Degrees, compared with the largest that were measured.
    assumed : bool
        Whether kernels or links rest on assumed numbers.
    slow : Slowing
        Probability that slow nodes lengthen it, and by how much; by default never.
    """

    kind: str
    chip: str
    tp: int = 1
    cp: int = 1
    ranks: int = 1
    assumed: bool = False
    slow: Slowing = NEVER


def training_kind(*, experts: bool, zero: int) -> str:
    """Kind of a training step.

    Examples
    --------
    >>> training_kind(experts=False, zero=3)
    'training.sharded'
    """
    if experts:
        return EXPERTS
    return SHARDED if zero >= 3 else TENSOR


def collective_kind(size_bytes: int) -> str:
    """Kind of a collective of a size, as its report states it [B].

    Examples
    --------
    >>> collective_kind(2**20)
    'collective.medium'
    """
    small, medium, large = COLLECTIVES
    if size_bytes < 64 * KIB:
        return small
    return medium if size_bytes < 4 * MIB else large
