"""The picture of a replica's latencies."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.figures.serving import latencies
from workloads.serving import Served, parse_slo
from workloads.serving.requests import Requests


def served(ttft_s: list[float]) -> Served:
    """Requests that arrive together and take eleven tokens, a tenth of a second each."""
    count, first = len(ttft_s), np.array(ttft_s)
    requests = Requests(np.zeros(count), np.full(count, 10), np.full(count, 11))
    none = np.zeros(0)
    return Served(requests, first, first + 1.0, none, none, 1.0, 1.0, 0, 1.0, 1)


def test_each_request_is_a_step_and_limits_stand_beside() -> None:
    figure = latencies(served([1.0, 3.0, 2.0, np.nan]), parse_slo("ttft=6s"), "toy")
    left, right = figure.axes
    limit, steps = left.get_lines()[:2]
    assert np.asarray(limit.get_xdata()).tolist() == [6.0, 6.0]
    assert np.asarray(steps.get_xdata()).tolist() == [1.0, 2.0, 3.0]
    assert np.asarray(steps.get_ydata()).tolist() == pytest.approx([100 / 3, 200 / 3, 100])
    assert np.asarray(right.get_lines()[0].get_xdata()).tolist() == pytest.approx([0.1] * 3)
    assert "p50 2 s" in [text.get_text() for text in left.texts]


def test_nothing_finished_is_drawn_as_nothing() -> None:
    figure = latencies(served([np.nan]), parse_slo("tpot=1s"))
    assert [len(axes.get_lines()) for axes in figure.axes] == [0, 1]
