"""Figures of run directories have the numbers of their commands, of serving too, at toy size."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

import cluster_sim as cs
from experiments.figures.fleet import power_figure, roles_figure
from experiments.figures.plan import bars
from experiments.figures.serving import latencies
from experiments.figures.training import one_step
from experiments.reports.plan_rows import BRIEF, brief
from tests.support.small_models import TOY_CONFIG, config_file
from workloads.search.search import search
from workloads.serving import Served, parse_slo
from workloads.serving.requests import Requests
from workloads.training.program.breakdown import PARTS


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
