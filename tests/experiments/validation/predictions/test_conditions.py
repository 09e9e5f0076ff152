"""Conditions of serving rows, the month and engine of their software, as catalogue variants."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.validation.predictions.serving import engine, month
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError

BEFORE_0_14 = {
    "serving.gpu.iteration_overhead": "vllm-0.13",
    "serving.gpu.request_iteration": "vllm-0.13",
}


@pytest.mark.parametrize(
    ("row", "chip", "variants"),
    [
        ({"date": "2025-10"}, "trn2", {"serving.trn2.expert_block_rate": "sdk-2.26"}),
        ({"date": "2025-12"}, "trn2", {}),
        ({"date": "2024-07"}, "inf2", {"serving.inf2.expert_block_rate": "sdk-2.26"}),
        (
            {"date": "2024-06"},
            "inf2",
            {
                "kernels.trainium.attention_largest_head_dim": "sdk-2.18",
                "serving.inf2.expert_block_rate": "sdk-2.26",
            },
        ),
        (
            {"block_scaled": 1, "scheduler": "tensorrt-llm"},
            "b200",
            {"serving.gpu.block_scale_token": "tensorrt-llm-1.2"},
        ),
        ({"block_scaled": 1, "scheduler": "tensorrt-llm"}, "h200", {}),
        ({"block_scaled": 1, "scheduler": "vllm"}, "b200", {}),
        ({"date": "2025-12", "scheduler": "vllm"}, "b200", BEFORE_0_14),
        ({"date": "2026-01", "scheduler": "vllm"}, "b200", {}),
        ({"date": "2025-12", "scheduler": "sglang"}, "b200", {}),
    ],
)
def test_serving_software_is_told_by_month_and_engine(
    row: dict[str, Any], chip: str, variants: dict[str, str]
) -> None:
    assert engine(row, chip, shipped_catalogue()) == variants
    shipped_catalogue().with_variants(variants)


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"date 'soon' is no month"):
        month({"date": "soon"})


def test_a_source_says_no_month() -> None:
    assert month({"source": "arXiv 2504.14960; training_results_v4.1"}) == ""
