"""The model of a pipeline against closed forms of its bubble and of its exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.pipeline_lines import line
from workloads.search.estimate import span
from workloads.search.pipeline_model import EACH, ONCE, walk_s
from workloads.training.layers.steps import CC, ENGINE, NOTHING, LayerOp
from workloads.training.program.ops import Catalog


def test_a_block_of_ops_is_followed_exactly() -> None:
    steps = [
        LayerOp("a", "compute", ENGINE, 2.0),
        LayerOp("b", "tp", CC, axis="tp", collective="all-gather"),
        LayerOp("c", "compute", ENGINE, 1.0, after=NOTHING),
        LayerOp("d", "compute", ENGINE, 1.0, after="b"),
    ]
    catalog = Catalog()
    span_ps = span(catalog.ops(steps), catalog.steps, lambda step: 3.0)
    assert span_ps == 6.0


@given(st.integers(1, 12), st.integers(1, 24), st.sampled_from(["gpipe", "1f1b"]))
def test_equal_stages_have_the_bubble_of_the_books(
    stages: int, microbatches: int, schedule: str
) -> None:
    time_s = walk_s(line(stages, microbatches, schedule))
    ideal = 3.0 * microbatches
    assert time_s / ideal - 1 == pytest.approx(bubble_fraction(stages, microbatches), abs=1e-12)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_interleaving_divides_the_bubble(stages: int, rounds: int, vpp: int) -> None:
    microbatches = stages * rounds
    time_s = walk_s(line(stages, microbatches, "interleaved", vpp=vpp))
    bubble = bubble_fraction(stages, microbatches, vpp)
    assert time_s / (3.0 * vpp * microbatches) - 1 == pytest.approx(bubble, abs=1e-12)


@given(st.integers(2, 8), st.integers(0, 24))
def test_going_there_and_back_leaves_one_pass_a_stage(stages: int, more: int) -> None:
    """DualPipe where passes of a pair take as long as one after the other."""
    microbatches = 2 * stages + more
    time_s = walk_s(line(stages, microbatches, "dualpipe", vpp=2))
    assert time_s == 6.0 * microbatches + stages - 1


@given(st.integers(2, 8), st.integers(8, 24))
def test_weights_fill_the_bubble(stages: int, microbatches: int) -> None:
    time_s = walk_s(line(stages, microbatches, "zero-bubble"))
    assert time_s - 3.0 * microbatches == pytest.approx(zero_bubble_s(stages, 1.0, 1.0, 1.0))


def test_in_1f1b_long_transfers_slow_every_microbatch() -> None:
    slow: dict[str, Any] = {"hop_s": np.ones(4)}
    few, many = (walk_s(line(4, m, **slow)) for m in (20, 40))
    assert (many - few) / 20 > 3.0
    assert walk_s(line(4, 20, hop_s=np.zeros(4))) == pytest.approx(3.0 * 23)


def test_a_longer_stage_sets_the_pace() -> None:
    uneven = line(2, 10, first=np.array([0, 1, 3]), kind=np.zeros(3, np.int64),
                  gather_s=np.zeros(3), reduce_s=np.zeros(3))  # fmt: skip
    assert walk_s(uneven) == pytest.approx(10 * 6.0 + 3.0)


def test_a_stage_that_waits_for_what_it_sends_is_slower() -> None:
    slow: dict[str, Any] = {"hop_s": np.full(2, 0.5)}
    beside, waits = (line(2, 8, "gpipe", sends_beside=b, **slow) for b in (True, False))
    assert walk_s(waits) == pytest.approx(walk_s(beside) + 2 * 7 * 0.5)


@given(st.integers(1, 40), st.floats(0.1, 5))
def test_gradients_beside_layers_end_as_two_machines_in_line(layers: int, talk: float) -> None:
    ends = float(layers)  # the forward pass
    for layer in range(layers):
        ends = max(ends, layers + 2.0 * (layer + 1)) + talk
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64),
               gather_s=np.zeros(layers), reduce_s=np.full(layers, talk), reduces=ONCE)  # fmt: skip
    assert walk_s(one) == pytest.approx(ends)
    assert walk_s(one._replace(dp_beside=False)) == pytest.approx(layers * (3.0 + talk))


@given(st.integers(1, 20), st.floats(0.1, 3))
def test_parameters_are_gathered_one_layer_ahead(layers: int, talk: float) -> None:
    one = line(1, 1, first=np.array([0, layers]), kind=np.zeros(layers, np.int64),
               gather_s=np.full(layers, talk), reduce_s=np.zeros(layers), gathers=EACH)  # fmt: skip
    forward = talk + (layers - 1) * max(1.0, talk) + 1.0
    backward = talk + (layers - 1) * max(2.0, talk) + 2.0
    assert walk_s(one) == pytest.approx(forward + backward)


@given(st.integers(1, 20), st.floats(0.1, 3), st.floats(0, 3))
def test_updated_parameters_are_gathered_once_before_the_first_pass(
    layers: int, talk: float, rest: float
) -> None:
    """Each stage begins with what is outside layers, at the start of the iteration."""
    one = line(1, 2, first=np.array([0, layers]), kind=np.zeros(layers, np.int64), gathers=ONCE,
               gather_s=np.full(layers, talk), reduce_s=np.zeros(layers),
               gather_rest_s=np.array([rest]))  # fmt: skip
    first = rest + talk + (layers - 1) * max(1.0, talk) + 1.0
    assert walk_s(one) == pytest.approx(first + 5.0 * layers)
    two = line(2, 1, gathers=ONCE, gather_s=np.array([0, talk]), gather_rest_s=np.array([0, rest]))
    assert walk_s(two) == pytest.approx(max(1.0, rest + talk) + 5.0)
