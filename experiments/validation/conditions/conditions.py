"""Conditions of a measurement that a row may state: attention, compiler, release, power limit.

Each is optional and chooses catalogue variants, or a field of the plan, in place of those that the
recipe of the row's framework would take. A stated condition has priority over the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from workloads.kernels.chip_share import family

ROUNDS: Mapping[str, str] = {
    "training_results_v3.0": "2023-06",
    "training_results_v3.1": "2023-11",
    "training_results_v4.0": "2024-06",
    "training_results_v4.1": "2024-11",
    "training_results_v5.0": "2025-06",
    "training_results_v5.1": "2025-11",
}
"""Months in which MLCommons published its rounds of training, by the repository of a source."""
RELEASES: tuple[tuple[str, str, str], ...] = (
    ("2023-09", "gemm_sustained_fp8", "early-2023"),
    ("2024-03", "", ""),
    ("9999", "gemm_sustained_fp8", "late-2024"),
)
"""Ends of periods of software, each with the constant of H100 kernels and its variant before it."""
UNFUSED_BEFORE = "2025-12"
"""Month of Neuron's SDK 2.27: up to 2.26 its loops over blocks of experts were not fused."""
SLOW_BLOCK_SCALES = ("tensorrt-llm", "b200")
"""Engine and chip whose products take longer for weights with a scale for each block. TensorRT-LLM
1.3 is not slow; no shipped row was measured with it."""
NO_FUSED_PROMPTS = ("trn1", "inf2"), "2024-07"
"""Chips, and the month from which their engine runs prompts with fused attention (SDK 2.19)."""
DATE = r"(19|20)\d\d(-(0[1-9]|1[0-2])(-\d\d)?)?"
"""A year, a month or a day."""
ARXIV = r"arXiv[: ]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}"
"""An article's number, which begins with its year and month."""
LIMITED_BELOW_W = 600
"""Power limit below which an H100 (of 700 W) is predicted with the rates of 500 W."""
GRAPHED = ("kernels.h100", "kernels.b200")
"""Kernels of chips whose host may capture layers in CUDA graphs and launch them at once."""
SEPARATE = ("norm_efficiency", "activation_efficiency")
"""Classes of element-wise work that a compiler fuses."""


def chosen(row: Mapping[str, Any], chip: str) -> dict[str, str]:
    """Return the catalogue variants that a row's conditions stand for, by ``PART.QUANTITY``.

    An empty name restores the catalogue's own value where a recipe has chosen a variant.

    Examples
    --------
    >>> chosen({"power_limit_w": 500}, "h100")["kernels.h100.gemm_sustained"]
    '500-watt'
    >>> chosen({"compiled": 1}, "a100-80gb")["kernels.a100.norm_efficiency"]
    ''
    """
    kernels = f"kernels.{family(chip).name}"
    variants: dict[str, str] = {}
    if row.get("compiled") is not None and kernels in ("kernels.a100", "kernels.h100"):
        variants |= {f"{kernels}.{name}": "" if row["compiled"] else "eager" for name in SEPARATE}
    if row.get("graphs") is not None and kernels in GRAPHED:
        variants[f"{kernels}.host_dispatch"] = "graphs" if row["graphs"] else ""
    if row.get("launch_blocking") is not None:
        variants["training.issued_ahead"] = "blocking" if row["launch_blocking"] else ""
    if kernels != "kernels.h100":
        return variants
    date = month(row)
    if date:
        name, variant = _release(date)
        variants |= {f"{kernels}.{name}": variant} if name else {}
    limit = row.get("power_limit_w")
    if limit is not None:
        slow = "500-watt" if limit < LIMITED_BELOW_W else ""
        for name in ("gemm_sustained_fp8", "gemm_sustained"):
            path = f"{kernels}.{name}"
            variants[path] = slow or variants.get(path, "")
    return variants


def engine(row: Mapping[str, Any], chip: str, catalogue: Catalogue) -> dict[str, str]:
    """Return the catalogue variants of the serving software of a row's month and engine.

    Examples
    --------
    >>> from topologies.catalogue.catalogue import shipped_catalogue
    >>> engine({"date": "2025-10"}, "trn2", shipped_catalogue())
    {'serving.trn2.expert_block_rate': 'sdk-2.26'}
    """
    date, part, quantity = month(row), f"serving.{chip}", "expert_block_rate"
    variants: dict[str, str] = {}
    if row.get("block_scaled") and (row.get("scheduler"), chip) == SLOW_BLOCK_SCALES:
        variants["serving.gpu.block_scale_token"] = "tensorrt-llm-1.2"
    chips, fused_from = NO_FUSED_PROMPTS
    if date and date < fused_from and chip in chips:
        variants["kernels.trainium.attention_largest_head_dim"] = "sdk-2.18"
    if date and date < UNFUSED_BEFORE and catalogue.has(part, quantity):
        variants[f"{part}.{quantity}"] = "sdk-2.26"
    return variants


def month(row: Mapping[str, Any]) -> str:
    """Month of a row's software: stated, of a round of MLPerf, or of an arXiv number; else empty.

    Examples
    --------
    >>> month({"source": "arXiv 2504.14960; Table 3"}), month({"date": "2024-06-12"}), month({})
    ('2025-04', '2024-06-12', '')
    """
    date, source = str(row.get("date") or ""), str(row.get("source") or "")
    if date and not re.fullmatch(DATE, date):
        raise InputError(f"date {date[:20]!r} is no month. Write it as 2024-06.")
    if date:
        return date
    of_round = next((when for name, when in ROUNDS.items() if name in source), "")
    number = re.search(ARXIV, source)
    return of_round or (f"20{number[1]}-{number[2]}" if number else "")


def _release(date: str) -> tuple[str, str]:
    """Constant and variant for the software of a month; empty where the catalogue's own applies."""
    return next((name, variant) for until, name, variant in RELEASES if date < until)
