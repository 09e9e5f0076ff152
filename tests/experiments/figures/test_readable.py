"""Figures have the numbers of their commands, and no texts that overlap."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import cluster_sim as cs
from cluster_sim.plot.timeline_figure import Bars, busy_share, smoothed
from experiments.figures.collective import bandwidth
from experiments.figures.fleet import power_figure, roles_figure
from experiments.figures.jobs import curve_figure
from experiments.figures.plan import _numerals, bars, plan_label
from experiments.figures.serving import latencies
from experiments.figures.training import lines, one_step, stacked
from experiments.figures.validation import scatter
from experiments.reports.plan_rows import BRIEF, brief
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.support.units import format_seconds
from workloads.search.search import search
from workloads.serving import Requests, Served, parse_slo
from workloads.training.program.breakdown import PARTS

PLAN = {"tp": 1, "pp": 2, "dp": 8, "stage_layers": "", "zero": 2, "schedule": "1f1b", "order": "x"}


def test_percentiles_of_latencies_are_those_of_the_table():
    few = {"count": 9, "prompt": 256, "output": 32, "tp": 8}
    result = cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:9", **few)
    texts = {text.get_text() for text in latencies(result.served, result.slo).axes[0].texts}
    shown = {f"{level} {format_seconds(result.ttft_s[level])}" for level in ("p50", "p90", "p99")}
    assert shown <= texts


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


@pytest.fixture
def model(tmp_path):
    return cs.model(config_file(tmp_path / "small.json", TOY_CONFIG))


def test_a_step_is_drawn_with_its_interval_and_mfu(model):
    step = cs.train(model, "trn2.48xlarge", cs.Plan(tp=4, pp=2, dp=2, global_batch=16, seq=512))
    axes = one_step("a step", step.breakdown_s, step.mfu, step.interval).axes[0]
    assert axes.get_xlabel().startswith("time of one iteration [s]")
    mark, low, high = axes.get_lines()
    assert low.get_xdata() == pytest.approx([step.interval.low])
    assert high.get_xdata() == pytest.approx([step.interval.high])
    assert mark.get_xdata() == pytest.approx([step.mfu * step.time_s])


def test_bars_of_plans_are_as_long_as_their_steps(model):
    machine = cs.cluster("trn2.48xlarge")
    searched = search(model, machine, 16, stated={"seq": 512}, finalists=6, each=("tp", "pp"))
    rows = brief(searched, 6)
    assert rows.columns.tolist() == ["model", "cluster", *BRIEF]
    assert len(rows) == 6
    assert not rows.duplicated(["tp", "pp"]).any()
    assert rows["iteration_s"].is_monotonic_increasing
    parts = rows[[f"{part}_s" for part in PARTS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(rows["iteration_s"].tolist(), rel=1e-9)
    axes = bars(rows).axes[0]
    drawn = sum(bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle))
    assert drawn == pytest.approx(rows["iteration_s"].sum())
    (marks,) = axes.get_lines()
    assert np.asarray(marks.get_xdata()).tolist() == rows["estimate_s"].tolist()


def test_roles_and_power_of_a_fleet_are_drawn():
    where = {"cluster": "trn2-ultraserver:20", "unit_rate": 5.0, "policy": "threshold"}
    frame = cs.run_fleet(**where, days=0.05).frame()
    assert len(frame) == 72
    units = frame[[name for name in frame if str(name).endswith("_units")]]
    assert units.drop(columns="load_units").sum(axis=1).to_numpy() == pytest.approx(20.0)
    top, bottom = roles_figure(frame, chips_per_unit={"": 64}, title="Fleet").axes
    assert (top.get_ylabel(), top.get_ylim()[1]) == ("chips", pytest.approx(20 * 64))
    large, _ = roles_figure(frame, chips_per_unit={"": 640}, title="Fleet").axes
    assert (large.get_ylabel(), large.get_ylim()[1]) == ("chips [thousand]", pytest.approx(12.8))
    assert "needed for the demand" in top.get_legend_handles_labels()[1]
    assert bottom.get_xlabel() == "time, UTC"
    assert len(power_figure(frame, title="Fleet").axes) == 2


def test_goodput_is_drawn_in_per_cent_of_the_time(model):
    step = cs.train(model, "trn2.48xlarge", cs.Plan(tp=4, pp=2, dp=2, global_batch=16, seq=512))
    result = cs.run_job(step, days=2, runs=2, failures=500)
    drawn = curve_figure(result).axes[0].get_lines()[0].get_ydata()
    assert drawn.tolist() == pytest.approx([100 * share for share in result.curve.goodput])


def served(ttft_s: list[float]) -> Served:
    """Requests that arrive together and take eleven tokens, a tenth of a second each."""
    count, first = len(ttft_s), np.array(ttft_s)
    requests = Requests(np.zeros(count), np.full(count, 10), np.full(count, 11))
    none = np.zeros(0)
    return Served(requests, first, first + 1.0, none, none, 1.0, 1.0, 0, 1.0, 1)


def test_each_request_is_a_step_and_limits_stand_beside():
    figure = latencies(served([1.0, 3.0, 2.0, np.nan]), parse_slo("ttft=6s"), "toy")
    left, right = figure.axes
    limit, steps = left.get_lines()[:2]
    assert np.asarray(limit.get_xdata()).tolist() == [6.0, 6.0]
    assert np.asarray(steps.get_xdata()).tolist() == [1.0, 2.0, 3.0]
    assert np.asarray(steps.get_ydata()).tolist() == pytest.approx([100 / 3, 200 / 3, 100])
    assert np.asarray(right.get_lines()[0].get_xdata()).tolist() == pytest.approx([0.1] * 3)
    assert "p50 2 s" in [text.get_text() for text in left.texts]
