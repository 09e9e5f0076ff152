"""Releases of serving engines: the constants that were others until some month."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.models.model import Model
from workloads.training.frameworks.framework import DATE

AHEAD_FROM = "2026-01"  # month of vLLM 0.14, from which it plans an iteration ahead by default
AHEAD_OVERHEADS = ("serving.gpu.iteration_overhead", "serving.gpu.request_iteration")
"""Overheads that are others from then on."""
HIDDEN_FROM = "2026-07"  # month of SGLang 0.5.15, whose scheduler hides behind the step
COMPILED_FROM = "2025-03"  # month of vLLM 0.8, which compiles layers and captures prompts in pieces
TRITON_BEFORE = "2025-05"  # month after SGLang 0.4.6, whose products in blocks are DeepGEMM's
LATENT_STARTS = "serving.gpu.scaled_latent_start", "serving.mi300x.scaled_latent_start"
EAGER_OVERHEADS = (
    *("serving.gpu.graph_tokens", "serving.gpu.layer_host", "serving.gpu.mixed_attention"),
    *("serving.mi300x.layer_start", "serving.mi300x.scaled_layer_start", *LATENT_STARTS),
)
DATED = "vllm", "sglang"  # engines of which an earlier release has constants of its own
UNFUSED_BEFORE = "2025-12"
"""Month of Neuron's SDK 2.27: up to 2.26 its loops over blocks of experts were not fused."""
NO_FUSED_PROMPTS = ("trn1", "inf2"), "2024-07"
"""Chips, and the month from which their engine runs prompts with fused attention (SDK 2.19)."""


def release_month(date: Any) -> str:
    """Return a month or day as text, a year as its January; empty where none is stated."""
    text = str(date or "")
    if text and not re.fullmatch(DATE, text):
        raise InputError(f"date {text[:20]!r} is no month. Write it as 2024-06.")
    return f"{text}-01" if len(text) == len("2024") else text


def release_variants(catalogue: Catalogue, chip: str, engine: str, date: str) -> dict[str, str]:
    """Return the catalogue variants of an engine's software of a month; none for today's."""
    block_rate, variants = f"serving.{chip}", dict[str, str]()
    if not date:
        return variants
    chips, fused_from = NO_FUSED_PROMPTS
    if date < fused_from and chip in chips:
        variants["kernels.trainium.attention_largest_head_dim"] = "sdk-2.18"
    if date < AHEAD_FROM and engine == "vllm":
        variants |= dict.fromkeys(AHEAD_OVERHEADS, "vllm-0.13")
    if date < HIDDEN_FROM and engine == "sglang":
        variants["serving.gpu.iteration_overhead"] = "sglang-0.5.14"
    if date < TRITON_BEFORE and engine == "sglang":
        variants |= dict.fromkeys(LATENT_STARTS, "sglang-0.4.5")
    if date < COMPILED_FROM and engine == "vllm":
        variants |= dict.fromkeys(EAGER_OVERHEADS, "vllm-0.7")
    if date < UNFUSED_BEFORE and catalogue.has(block_rate, "expert_block_rate"):
        variants[f"{block_rate}.expert_block_rate"] = "sdk-2.26"
    return variants


def idle_release(model: Model, cluster: Cluster, date: str) -> Iterator[str]:
    """Say that the month of a release changes nothing, as on Neuron chips it seldom does."""
    if not date or not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        return
    variants = release_variants(cluster.numbers, cluster.chip, "", date)
    if not any(model.experts or not name.endswith(".expert_block_rate") for name in variants):
        yield (
            f"--date {date} changes nothing here: releases for {cluster.chip} from that month on "
            f"run {model.name} alike."
        )
