"""The demo and the breakdown experiment at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli.main import run
from experiments.scripts import demo, step_time_breakdown
from tests.support.small_models import TOY_CONFIG, config_file


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A small model's config.json."""
    return config_file(tmp_path / "config.json", TOY_CONFIG)


def test_demo_tells_parts_that_sum_to_the_step(config: str) -> None:
    frame = demo.run(config, "trn2.48xlarge", tp=4, pp=2, global_batch=16, seq=512)
    assert frame["part"].iloc[-1] == "iteration"
    assert frame["time_s"].iloc[:-1].sum() == pytest.approx(frame["time_s"].iloc[-1])
    assert 0 < frame["mfu"].iloc[0] < 1
    figure = demo.plot(frame)
    axes = figure.axes[0]
    assert axes.get_xlabel().startswith("time of one iteration [s]")
    mark, low, high = axes.get_lines()
    assert low.get_xdata() == pytest.approx([frame["low_s"].iloc[0]])
    assert high.get_xdata() == pytest.approx([frame["high_s"].iloc[0]])
    whole_s = frame["time_s"].iloc[-1]
    assert mark.get_xdata() == pytest.approx([frame["mfu"].iloc[0] * whole_s])
    assert frame["step"].iloc[0] in figure.get_suptitle()


def test_demo_simulates_its_step_once(config: str, tmp_path: Path) -> None:
    before = demo.simulate.cache_info().misses
    size = ("--cluster", "trn2.48xlarge", "--tp", "4", "--pp", "2", "--global-batch", "32")
    command = ["experiment", "demo", "--model", config, *size, "--seq", "512"]
    assert run([*command, "--out", str(tmp_path / "run"), "--json"]) == 0
    assert demo.simulate.cache_info().misses == before + 1


def test_breakdown_has_a_row_for_each_model_and_overlap(config: str) -> None:
    frame = step_time_breakdown.run(
        models=(config,), cluster="trn2.48xlarge", tp=(4,), pp=(2,), global_batch=16, seq=512
    )
    assert frame["overlap"].tolist() == ["none", "dp", "all"]
    assert frame["iteration_s"].is_monotonic_decreasing
    bars = step_time_breakdown.plot(frame).axes[0].patches
    drawn = sum(bar.get_width() for bar in bars)
    assert drawn == pytest.approx((frame["iteration_s"] / frame["iteration_s"].max()).sum())
