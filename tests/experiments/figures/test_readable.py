"""Figures that once had overlapping texts stay readable."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from cluster_sim.plot.timeline_figure import Bars, busy_share, smoothed
from experiments.figures.collective import bandwidth
from experiments.figures.plan import _numerals, plan_label
from experiments.figures.training import lines, stacked
from experiments.figures.validation import scatter

PLAN = {"tp": 1, "pp": 2, "dp": 8, "stage_layers": "", "zero": 2, "schedule": "1f1b", "order": "x"}


def test_a_plan_without_stage_layers_is_even_and_without_a_pipeline_has_none():
    telling = ["schedule", "stage_layers", "zero"]
    assert plan_label(PLAN, telling) == "tp 1, pp 2, dp 8\nschedule 1f1b, layers even, zero 2"
    assert plan_label({**PLAN, "pp": 1}, telling) == "tp 1, pp 1, dp 8\nzero 2"


def test_what_is_written_in_a_bar_fits_and_its_shares_are_those_of_the_axis():
    parts = [{"compute": 9.9, "exposed_tp": 0.1}, {"compute": 5.0}]
    axes = stacked(["a", "b"], parts, whole_s=[10.0, 10.0]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["9.9 s\n99%", "5 s\n50%"]


def test_ticks_of_a_scatter_have_room():
    times, common = np.geomspace(1e-5, 0.1, 40), {"error": 0.0, "quantity": "time_s"}
    figure = scatter([{"published": at, "predicted": at, **common} for at in times], "nccl_aic")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_xlabel() == "published time"  # the ticks have their unit
    boxes = [tick.label1.get_window_extent() for tick in axes.xaxis.get_major_ticks()]
    shown = sorted((box.x0, box.x1) for box in boxes if box.width)
    assert len(shown) > 3
    assert all(left[1] < right[0] for left, right in itertools.pairwise(shown))


def test_numerals_cover_neither_circles_nor_each_other():
    figure = Figure()
    axes = figure.subplots()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    near = [(50, 50), (52, 50), (50, 52), (54, 51), (20, 20), (80, 80)]
    _numerals(figure, axes, near)
    figure.draw_without_rendering()
    texts = [text for text in axes.texts if text.get_text()]
    assert {"1", "5", "6"} <= {text.get_text() for text in texts}
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
    dots = axes.transData.transform(near)
    assert not any(box.contains(*dot) for box in boxes for dot in dots)


def test_ops_that_take_turns_within_a_few_pixels_are_drawn_evenly():
    begin = np.arange(500) / 500
    lane = np.zeros(500, np.int64)
    shown = Bars(lane, lane, begin, begin + 1e-3, np.arange(500), ["link"], ["copy"])
    share = busy_share(lane, shown.start_s, shown.end_s, 1, (0.0, 1.0))[None]
    assert np.ptp(share[0, 0, 10:-10]) > 0.5
    even = smoothed(share, shown, (0.0, 1.0))
    assert np.ptp(even[0, 0, 10:-10]) < 0.05
    assert even.mean() == pytest.approx(share.mean(), rel=0.01)


def reduced(**columns: object) -> pd.DataFrame:
    """Two rows of all-reduces."""
    usual = {
        "collective": "all-reduce", "cluster": "c", "ranks": 8, "algorithm": "ring",
        "size_bytes": 2**20, "time_s": 1.0, "lower_bound_s": 0.5, "bound": "links",
    }  # fmt: skip
    return pd.DataFrame({**usual, **columns})


@pytest.mark.parametrize(("second", "message"), [(50e9, "2 times"), (99e9, "hardly more than")])
def test_bandwidth_is_compared_with_other_algorithms(second, message):
    frame = reduced(algorithm=["ring", "rdh"], busbw_bytes_per_s=[100e9, second])
    title = bandwidth(frame).axes[0].get_title(loc="left")
    assert title.endswith(f"At 1 MiB ring reaches 100 GB/s, {message} rdh, the next best")


def test_bandwidths_stand_with_the_interval_of_their_times():
    frame = reduced(size_bytes=[2**20, 2**21], busbw_bytes_per_s=[100e9, 200e9])
    assert not bandwidth(frame).axes[0].collections
    assert not bandwidth(frame.assign(low=1.0, high=1.0)).axes[0].collections
    for low, high in (("low", "high"), ("low_s", "high_s")):
        band = bandwidth(frame.assign(**{low: 0.8, high: 1.25})).axes[0].collections[0]
        rates = band.get_paths()[0].vertices[:, 1]
        assert (min(rates), max(rates)) == pytest.approx((100 / 1.25, 200 / 0.8))
    alone = bandwidth(frame[:1].assign(low=0.8, high=1.25)).axes[0].collections[0]
    assert alone.get_paths()[0].vertices[:, 1] == pytest.approx((80.0, 125.0))


def test_lines_that_coincide_are_one_with_both_names():
    rows = [
        {"x": x, "y": y + shift, "name": name}
        for name, shift in (("a", 0.0), ("b", 0.001), ("c", 1.0))
        for x, y in ((1, 1.0), (2, 3.0))
    ]
    figure = lines(pd.DataFrame(rows), "x", "y", "name", "", labels=("x", "y"))
    drawn = figure.axes[0].get_lines()
    assert [line.get_label() for line in drawn] == ["a and b", "c"]
