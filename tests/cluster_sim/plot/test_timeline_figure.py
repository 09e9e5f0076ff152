"""The timeline figure, its lanes and its colours."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb

from cluster_sim.plot import timeline_figure as module
from cluster_sim.plot.palette import KNOWN, OTHERS, colors
from cluster_sim.plot.timeline_figure import Legend, timeline
from cluster_sim.trace.trace import Trace, run
from tests.support.memory_kernel import memory_kernel
from tests.support.random_schedules import on_one_link, spans
from tests.support.refusals import refused
from topologies.clusters.names import cluster


def _overlapping() -> Trace:
    return spans([0, 0, 1], ["compute", "tp", "compute"], [0, 4, 2], [6, 10, 20])


def _corners(figure: object) -> list[tuple[float, float, float]]:
    """Left, right and middle height of each bar [s, s, lane]."""
    (bars,) = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    boxes = [path.get_extents() for path in bars.get_paths()]
    return [(box.x0, box.x1, (box.y0 + box.y1) / 2) for box in boxes]


def test_each_op_is_a_bar_from_its_start_to_its_end():
    figure = timeline(run(on_one_link(2)))
    assert _corners(figure) == [(0, 5e-12, 0), (5e-12, 1e-11, 0)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["link:0-1"]
    assert figure.axes[0].get_xlabel() == "time [ps]"
    cut = timeline(run(on_one_link(4)), window_s=(3e-12, 9e-12))
    assert np.allclose(_corners(cut), [(3e-12, 5e-12, 0), (5e-12, 9e-12, 0)], atol=0)
    assert len(_corners(timeline(_overlapping(), by="rank", ranks=1))) == 1


def test_lanes_by_rank_and_colours_by_what():
    axes = timeline(_overlapping(), by="rank").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["compute", "tp"]
    (bars,) = axes.collections
    for color, name in zip(bars.get_facecolors()[:2], ("compute", "exposed_tp"), strict=True):
        assert color[:3] == pytest.approx(to_rgb(KNOWN[name]))


def test_many_ops_become_shares_of_pixels(monkeypatch):
    monkeypatch.setattr(module, "MOST_BARS", 1)
    axes = timeline(_overlapping(), by="rank", legend=Legend({"compute": "#ff0000"})).axes[0]
    (image,) = axes.images
    pixels = np.asarray(image.get_array(), float)[..., :3]
    lanes = pixels[:: len(pixels) // 2]
    tenth = pixels.shape[1] // 20
    shown = [lanes[0, tenth].tolist(), lanes[0, -tenth].tolist(), lanes[1, -tenth].tolist()]
    assert shown == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]
    column = pixels[: len(pixels) // 2, 5 * tenth]
    both = [np.array([1, 0, 0]), np.array(to_rgb(KNOWN["exposed_tp"]))]
    halves = [float((np.abs(column - color).max(1) < 1e-6).mean()) for color in both]
    assert halves == pytest.approx([0.5, 0.5], abs=0.01), "no blend of two colours"
    assert axes.get_xlabel().endswith("its share of the time · white: idle")


def test_the_shares_of_a_pixel_are_exact():
    start, end = np.array([0.0, 0.3]), np.array([0.1, 0.65])
    share = module.busy_share(np.array([0, 0]), start, end, 1, (0.0, 1.0))
    width = 1 / module.PIXELS
    assert share.sum() * width == pytest.approx(0.45)
    assert share[0, [0, module.PIXELS // 2]] == pytest.approx(1.0)
    assert share[0, module.PIXELS // 5] == 0.0
    begin = np.linspace(0.1, 0.3, 5000)  # rounding leaves no flecks where nothing runs
    share = module.busy_share(np.zeros(5000, np.int64), begin, begin + 1e-5, 1, (0.0, 1.0))
    assert share[0, 450:].sum() == 0
    assert share.sum() == pytest.approx(5000 * 1e-5 * module.PIXELS, rel=1e-6)


def test_more_lanes_than_fit_are_averaged(monkeypatch):
    monkeypatch.setattr(module, "MOST_BARS", 1)
    monkeypatch.setattr(module, "MOST_LANES", 1)
    trace = spans([0, 1], ["compute"] * 2, [0, 5], [5, 10])
    (image,) = timeline(trace, legend=Legend({"compute": "#000000"})).axes[0].images
    pixels = np.asarray(image.get_array())[..., :3]
    assert set(np.unique(pixels).tolist()) == {0, 1}
    assert (pixels == pixels[:, :1]).all(), "half of the lanes are busy all the time"
    assert (pixels == 0).mean() == pytest.approx(0.5, abs=1 / len(pixels))


def test_every_third_lane_is_named_when_there_are_many():
    count = 3 * module.MOST_NAMED_LANES
    axes = timeline(spans([0] * count, ["tp"] * count, [0] * count, [9] * count)).axes[0]
    assert len(axes.get_yticks()) == module.MOST_NAMED_LANES
    assert axes.get_ylabel() == f"{count} lanes by resource, one in 3 named"


@pytest.mark.parametrize(("options", "message"), [
    ({"window_s": (5.0, 6.0)}, "nothing to draw"),
    ({"window_s": (2e-12, 1e-12)}, "it must grow"),
    ({"by": "rnk"}, r"no label rnk\. Did you mean rank"),
    ({"what": "step"}, "no label step of names"),
    ({"ranks": 9}, "nothing to draw"),
])  # fmt: skip
def test_an_impossible_timeline_is_refused(options, message):
    refused(message, timeline, _overlapping(), **options)


def test_colours_are_known_or_in_order_and_never_twice_while_they_last():
    chosen = colors(["dp", "a", "b", "compute"])
    assert chosen["dp"] == KNOWN["exposed_dp"]
    assert (chosen["a"], chosen["b"]) == (OTHERS[0], OTHERS[1])
    many = colors(f"x{k}" for k in range(30))
    assert len(set(list(many.values())[: len(OTHERS)])) == len(OTHERS)


def test_flows_that_hold_nothing_are_drawn_where_they_share_and_words_are_in_the_legend():
    kernel = memory_kernel(cluster("trn2.48xlarge"), [3], 10**9)
    figure = timeline(run(kernel), legend=Legend(words={"shared": "loads and stores"}))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["hbm:3"]
    assert axes.get_legend().get_texts()[0].get_text() == "loads and stores"
