"""The breakdown experiment at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.scripts import training
from tests.support.small_models import TOY_CONFIG, config_file


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A small model's config.json."""
    return config_file(tmp_path / "config.json", TOY_CONFIG)


def test_breakdown_has_a_row_for_each_model_and_overlap(config: str) -> None:
    frame = training.step_time_breakdown(
        models=(config,), cluster="trn2.48xlarge", tp=(4,), pp=(2,), global_batch=16, seq=512
    )
    assert frame["overlap"].tolist() == ["none", "dp", "all"]
    assert frame["iteration_s"].is_monotonic_decreasing
    bars = training.draw_step_time_breakdown(frame).axes[0].patches
    drawn = sum(bar.get_width() for bar in bars)
    assert drawn == pytest.approx((frame["iteration_s"] / frame["iteration_s"].max()).sum())
