"""Conditions of a serving row, its month and engine, as variants of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from workloads.training.frameworks.framework import DATE

UNFUSED_BEFORE = "2025-12"
"""Month of Neuron's SDK 2.27: up to 2.26 its loops over blocks of experts were not fused."""
SLOW_BLOCK_SCALES = ("tensorrt-llm", "b200")
"""Engine and chip whose products take longer for weights with a scale for each block. TensorRT-LLM
1.3 is not slow; no shipped row was measured with it."""
NO_FUSED_PROMPTS = ("trn1", "inf2"), "2024-07"
"""Chips, and the month from which their engine runs prompts with fused attention (SDK 2.19)."""


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
    """Return the month, year or day of a row's software; empty where it is not stated.

    >>> month({"date": "2024-06-12"}), month({})
    ('2024-06-12', '')
    """
    date = str(row.get("date") or "")
    if date and not re.fullmatch(DATE, date):
        raise InputError(f"date {date[:20]!r} is no month. Write it as 2024-06.")
    return date
