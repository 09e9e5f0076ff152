"""Samples packed into one sequence, among whose tokens alone attention looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.validation.predictions.training import stated_plan
from tests.support.toy_training import LATENT, SELECTING, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.models.model import Model, training_flops
from workloads.training.layers.adapters import trained_flops
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import LayerOp, RankShapes


def steps_of(model: Model, **changes: Any) -> tuple[LayerOp, ...]:
    shapes = RankShapes(model, plan(**changes), "h100", shipped_catalogue())
    return forward(shapes) + backward(shapes)


@pytest.mark.parametrize("model", [TOY, replace(TOY, window=128), LATENT])
def test_packed_samples_take_as_long_as_so_many_short_sequences(model: Model) -> None:
    """A batch of 2 × 4,096 tokens in samples of 256 is one of 32 sequences of 256."""
    packed = steps_of(model, seq=4096, sample_tokens=256, microbatch=2)
    short = steps_of(model, seq=256, microbatch=32, global_batch=32)
    assert [(step.name, step.seconds) for step in packed] == [
        (step.name, step.seconds) for step in short
    ]


def test_scores_of_an_indexer_stay_within_a_sample() -> None:
    """The mean token sees 512.5 keys of a sample of 1,024 and 2,048.5 of a whole sequence."""

    def index_s(**changes: Any) -> float:
        steps = steps_of(SELECTING, seq=4096, **changes)
        return sum(step.seconds for step in steps if step.name == "attention.index")

    launches = index_s(sample_tokens=128)
    whole, packed = index_s() - launches, index_s(sample_tokens=1024) - launches
    assert packed / whole == pytest.approx((512.5 - 64.5) / (2048.5 - 64.5))


def test_flops_count_the_scores_within_samples() -> None:
    how = plan(seq=4096, sample_tokens=256, global_batch=8)
    assert trained_flops(TOY, how) == training_flops(TOY, 256, 8 * 4096)
    assert trained_flops(TOY, how) < trained_flops(TOY, plan(seq=4096, global_batch=8))


def test_a_row_states_its_samples() -> None:
    row = {
        "cluster": "dgx-h100", "chips": 8, "tp": 1, "pp": 1, "dp": 8, "cp": 1, "seq": 4096,
        "sample_tokens": 200, "global_batch": 32, "framework": "megatron-core",
    }  # fmt: skip
    assert stated_plan(row)["sample_tokens"] == 200
