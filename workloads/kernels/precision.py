"""Precisions of matrix products: the size of an element, and which chips compute in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.support.errors import InputError, check_choice, suggestion

SCALES = 1 / 32  # bytes of scales for each element of a micro-scaled format
ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0 + SCALES,
    "fp4": 0.5,
    "mxfp4": 0.5 + SCALES,
    "int4": 0.5 + 2 * SCALES,  # scales of 16 bits for groups of 32, as Kimi K2 has them
}
"""Size of an element with its share of the scales [B]."""
TRAINING = ("bf16", "fp8", "mxfp8", "mxfp4")  # precisions of a training step's products
CASTS: Mapping[str, float] = {"tensorwise": 0.0, "rowwise": 5.0, "blockwise": 3.0}
"""Memory traffic of casting an element of a product's input to fp8, by fp8 recipe [B].

The scale of a whole tensor is computed by the kernel that writes the tensor. Scales of rows or
blocks lie along the product's inner dimension, which differs between the three products of a layer,
so each product casts both of its inputs from bf16 anew. Finding the largest value of a row takes a
pass of its own (2 + 2 B read, 1 B written); that of a block stays in the kernel (2 B read, 1 B
written). Counted from torchao's recipes (``torchao.float8``) and the blocks of 128 of DeepSeek-V3
(arXiv 2412.19437, section 3.3).
"""
SERVING = ("bf16", "fp16", "fp8", "mxfp8", "fp4", "mxfp4")
"""Precisions of served weights and products."""
SERVING_CACHES = ("bf16", "fp8")  # precisions that cached keys and values may have


def element_width(precision: str) -> str:
    """Return the format without micro-scales that has elements of the same width."""
    return precision.removeprefix("mx")


def precisions_of(chip: str, catalogue: Catalogue, among: tuple[str, ...]) -> tuple[str, ...]:
    """Return the precisions in which a chip computes, among the ones in ``among``."""
    return tuple(precision for precision in among if catalogue.has(chip, f"{precision}_peak"))


FP8_MXFP4 = "fp8-mxfp4"
"""Stored precision of routed experts in mxfp4 beside others in fp8."""
WIDENED = ("nccl", "rccl")
"""Collective runtimes of chips on which engines have kernels that read weights of 8 or 4 bits and
widen them to 16 on the chip: Marlin and Triton kernels of GPUs."""


class Format(NamedTuple):
    """Precision in which weights lie in memory, and that of the products with them."""

    weights: str
    products: str
    # Whether a product in fp8 casts its input from 16 bits, or finds it in its precision already
    casts: bool = True


def served_formats(
    precision: str, stored: str, chip: str, catalogue: Catalogue
) -> tuple[Format, Format]:
    """Return the formats of a served model's weights and of those of its routed experts."""
    # A checkpoint that is ``stored`` in mxfp4 has only its experts in it, and inputs of products in
    # 16 bits (gpt-oss; transformers' ``Mxfp4Config``). Blackwell and Trn3 take these as mxfp8
    # (FlashInfer's and TensorRT-LLM's W4A8). Hopper and Ampere widen the weights within the product
    # (vLLM's Triton and Marlin kernels). Neuron's engine for chips without mxfp8 widens them when
    # it loads them, so that they take 16 bits of memory (AWS's gpt-oss recipe for Trn2).
    family = chip_family(chip, catalogue)
    # Integers of four bits are widened everywhere, as they have no products. DeepSeek-V4 has fp8
    # beside its experts, which chips without products in it widen as well.
    if precision == stored and stored in ("mxfp4", "int4", FP8_MXFP4):
        wide, experts = ("fp8", "mxfp4") if stored == FP8_MXFP4 else ("bf16", stored)
        floats = experts == "mxfp4" and catalogue.has(chip, "mxfp8_peak")
        products = "mxfp8" if floats else "bf16"
        others = wide if catalogue.has(chip, f"{wide}_peak") else "bf16"
        weights = "bf16" if family.is_neuron and products == "bf16" else experts
        return Format(others if family.is_neuron else wide, others), Format(weights, products)
    if family.runtime not in WIDENED:
        check_precision(precision, chip, catalogue, SERVING, "serve")
    check_choice("--precision", precision, SERVING)
    products = precision if catalogue.has(chip, f"{precision}_peak") else "bf16"
    return (Format(precision, products),) * 2


def check_precision(
    precision: str, chip: str, catalogue: Catalogue, among: tuple[str, ...], does: str
) -> None:
    """Refuse a precision in which a chip does not compute."""
    able = precisions_of(chip, catalogue, among)
    if precision not in able:
        if not able:
            catalogue.value(chip, f"{precision}_peak")  # names the row to add
        raise InputError(
            f"cannot {does} in {precision} on {chip}; it computes in {', '.join(able)}."
            f"{suggestion(precision, able)} Use one of these as --precision."
        )
