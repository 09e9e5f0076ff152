"""Training of models whose layers select the keys that attention reads (sparse attention)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.counted_layers import counted, product_flops
from tests.support.toy_training import LATENT, SELECTING, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.kernels.attention import index_score_s
from workloads.models.model import (
    Model,
    attention_flops,
    forward_flops,
    index_flops,
    index_size,
    layer_flops,
    training_flops,
)
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import LayerOp, RankShapes
from workloads.training.memory.memory import layer_activations
from workloads.training.plan.stages import layer_share

CHIPS = ("a100-80gb", "h100", "b200", "trn2")
PLANS: list[dict[str, Any]] = [
    {"seq": 16_384},
    {"seq": 16_384, "tp": 4},
    {"seq": 16_384, "cp": 4},
    {"seq": 16_384, "cp": 4, "cp_exchange": "all-gather", "tp": 2},
]


def steps_of(
    model: Model, chip: str, changes: dict[str, Any]
) -> tuple[tuple[LayerOp, ...], tuple[LayerOp, ...]]:
    shapes = RankShapes(model, plan(**changes), chip, shipped_catalogue())
    return forward(shapes, moe=True), backward(shapes, moe=True)


def seconds(steps: tuple[LayerOp, ...]) -> float:
    return sum(step.seconds for step in steps)


def test_flops_of_selected_keys_by_hand() -> None:
    """128 of at most 1,024 keys, 4 heads of 32 columns that score all of them."""
    seen = (128 * 129 / 2 + 896 * 128) / 1024
    widths, scores = 16 * (96 + 64), 4 * 32
    assert attention_flops(SELECTING, 1024) == 2 * widths * seen + 2 * scores * 512.5
    assert index_flops(SELECTING, 1024) == 2 * scores * 512.5
    assert index_flops(SELECTING, 1024, 128) == 2 * scores * seen
    assert index_size(SELECTING) == (256 * scores + 1024 * (32 + 4), 2 * 32)
    plain = replace(TOY, window=128, keys="selected", indexer=SELECTING.indexer)
    assert index_size(plain) == (1024 * (scores + 32 + 4), 2 * 32)  # no compressed queries
    assert SELECTING.parameters - LATENT.parameters == 4 * sum(index_size(SELECTING))
    # Scores of keys that are not selected have no gradients.
    idle = 4 * (index_flops(SELECTING, 1024) - index_flops(SELECTING, 1024, 128))
    needed = training_flops(SELECTING, 1024, 1)
    assert needed == pytest.approx(3 * forward_flops(SELECTING, 1024) - 2 * idle, rel=1e-12)


def test_an_indexer_without_compressed_queries_takes_its_columns_of_one_product() -> None:
    model = replace(TOY, window=128, keys="selected", indexer=SELECTING.indexer)
    expected = layer_flops(model, 1024, moe=False) - attention_flops(model, 1024)
    assert product_flops(list(forward(counted(model)))) == pytest.approx(1024 * expected)


def test_as_many_selected_keys_as_tokens_need_the_dense_flops_and_the_indexers() -> None:
    whole = replace(SELECTING, window=1024)
    products = 2 * index_size(SELECTING).weights
    more = layer_flops(whole, 1024, moe=True) - layer_flops(LATENT, 1024, moe=True)
    assert more == pytest.approx(products + index_flops(whole, 1024), rel=1e-12)


@pytest.mark.parametrize("changes", PLANS)
@pytest.mark.parametrize("chip", CHIPS)
def test_no_more_selected_keys_are_ever_faster(chip: str, changes: dict[str, Any]) -> None:
    models = [replace(SELECTING, window=keys) for keys in (128, 512, 2048, 8192, 16_384)]
    for which in (0, 1):
        times = [seconds(steps_of(model, chip, changes)[which]) for model in models]
        assert times == pytest.approx(sorted(times), rel=2e-3)
        assert times[0] < times[-1]


@pytest.mark.parametrize("changes", PLANS)
@pytest.mark.parametrize("chip", CHIPS)
def test_short_sequences_have_the_dense_core_beside_the_indexer(
    chip: str, changes: dict[str, Any]
) -> None:
    model = replace(SELECTING, window=16_384)
    for sparse, dense in zip(
        steps_of(model, chip, changes), steps_of(LATENT, chip, changes), strict=True
    ):
        cores = [
            [(step.name, step.seconds) for step in steps if ".core" in step.name]
            for steps in (sparse, dense)
        ]
        assert cores[0] == cores[1]
        more = {step.name for step in sparse} - {step.name for step in dense}
        assert {name.split(".")[1] for name in more} == {"index"}


def test_an_indexer_scores_all_keys_forward_and_selected_ones_backward() -> None:
    ahead, back = steps_of(SELECTING, "h100", {"seq": 16_384})
    times = {step.name: step.seconds for step in (*ahead, *back)}
    launch_s = RankShapes(SELECTING, plan(), "h100", shipped_catalogue()).stream(0).seconds
    score_s = index_score_s("h100", 4, 32, "bf16")
    all_scores, some = 16_384 * 8192.5, 128 * 129 / 2 + (16_384 - 128) * 128
    expected = 2 * launch_s + all_scores * score_s
    assert times["attention.index"] == pytest.approx(expected, rel=1e-12)
    expected = 4 * launch_s + 3 * some * score_s
    assert times["attention.index.weight"] == pytest.approx(expected, rel=1e-12)


def test_an_indexer_is_exchanged_run_again_and_left_without_gradients_where_frozen() -> None:
    ahead, back = steps_of(SELECTING, "h100", {"seq": 16_384, "cp": 4})
    exchanged = {s.name: (s.collective, s.size_bytes) for s in (*ahead, *back) if "index" in s.name}
    size = 2 * 16_384 * 32
    assert exchanged["attention.index.keys"] == ("all-gather", size)
    assert exchanged["attention.index.sums.weight"] == ("reduce-scatter", size)
    again = {step.name for step in steps_of(SELECTING, "h100", {"recompute": "full"})[1]}
    assert {"again.attention.index", "attention.index.weight"} <= again
    frozen = {step.name for step in steps_of(SELECTING, "h100", {"lora_rank": 8})[1]}
    assert "attention.core.data" in frozen
    assert not any(name.endswith("index.weight") for name in frozen)


def test_memory_of_an_indexer_is_on_every_rank() -> None:
    how = plan(tp=4, recompute="none")
    more = layer_activations(SELECTING, how, moe=True) - layer_activations(LATENT, how, moe=True)
    assert more == 1024 * (2 * (4 * 32 + 32 + 4) + 4 * 128)
    shares = [layer_share(model, how, moe=True).total for model in (SELECTING, LATENT)]
    assert shares[0] - shares[1] == sum(index_size(SELECTING))
