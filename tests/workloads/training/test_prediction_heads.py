"""Further layers that each predict one token more: their size, work, place and limits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import cluster_sim as cs
from tests.support.small_decoders import small
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.models.model import Model, layer_flops, layer_parameters, training_flops
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import chunk_layers, edge_share, even_layers

V3 = named("deepseek-v3")
MACHINE = "dgx-h100"


def test_the_head_of_deepseek_v3_has_the_published_size() -> None:
    """Its card has 14 B weights of the head, with the embedding and output layer it shares."""
    more = V3.with_prediction_heads(1)
    added = more.parameters - V3.parameters
    shared = 2 * V3.vocab * V3.hidden
    assert added == 2 * V3.hidden**2 + 3 * V3.hidden + layer_parameters(
        V3.of_kind(V3.each_layer[-1]), moe=True
    )
    assert added + shared == pytest.approx(14e9, rel=0.05)
    assert not more.left_out
    assert V3.with_prediction_heads(0) is V3


def test_a_head_computes_a_layer_a_projection_and_the_logits_again() -> None:
    more = V3.with_prediction_heads(2)
    kind = V3.each_layer[-1]
    one = layer_flops(V3.of_kind(kind), 4096, moe=True)
    one += 2 * V3.vocab * V3.hidden + 4 * V3.hidden**2
    added = training_flops(more, 4096, 1) - training_flops(V3, 4096, 1)
    assert added == pytest.approx(3 * 2 * one)


def step_s(model: Model, **fields: Any) -> float:
    """Time of a step on one server."""
    return cs.train(model, MACHINE, global_batch=8, seq=1024, **fields).iteration_s


def test_each_head_adds_the_same_time() -> None:
    one_rank = {"dp": 1, "chips": 1}
    times = [step_s(small().with_prediction_heads(count), **one_rank) for count in range(4)]
    first, *others = (after - before for before, after in itertools.pairwise(times))
    assert first > 0
    assert others == pytest.approx([first] * 2, rel=1e-6)


@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"vpp": 2, "schedule": "interleaved"}])
def test_levels_agree_on_heads_of_a_pipeline(more: dict[str, Any]) -> None:
    model = small(num_hidden_layers=6).with_prediction_heads(2)
    times = {
        level: step_s(model, pp=2, level=level, **more) for level in ("collective", "rank-vector")
    }
    assert times["collective"] == times["rank-vector"]
    assert times["collective"] > step_s(small(num_hidden_layers=6), pp=2, **more)


@pytest.mark.parametrize(
    ("chunks", "layers"), [(1, (10,)), (4, (3, 3, 2, 2)), (8, (1,) * 6 + (2, 2))]
)
def test_heads_lie_in_the_last_chunk(chunks: int, layers: tuple[int, ...]) -> None:
    model = small(num_hidden_layers=8).with_prediction_heads(2)
    counts = even_layers(model, chunks)
    assert sorted(counts) == sorted(layers)
    assert counts[-1] >= 2
    assert sum(counts) == model.layers


def test_the_last_stage_has_an_embedding_of_its_own() -> None:
    plain, plan = small(num_hidden_layers=8), ParallelPlan(pp=4)
    model = plain.with_prediction_heads(1)
    added = edge_share(model, plan, 3) - edge_share(plain, plan, 3)
    assert added == model.prediction_parameters + plain.embedding_parameters
    assert edge_share(model, plan, 0) == edge_share(plain, plan, 0)
    assert chunk_layers(model, plan, 3)[0][-1] == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora_rank": 8}, "2 prediction heads with lora_rank 8, which leaves them frozen"),
        ({"train_only": "mlp"}, "with train_only mlp"),
        ({"pp": 2, "stage_layers": (5, 1)}, "1 layers in the last chunk, which holds the 2"),
    ],
)
def test_plans_that_do_not_train_heads_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        step_s(small().with_prediction_heads(2), **fields)


def test_heads_are_added_once() -> None:
    with pytest.raises(InputError, match="1 prediction heads beside the 2"):
        small().with_prediction_heads(2).with_prediction_heads(1)
