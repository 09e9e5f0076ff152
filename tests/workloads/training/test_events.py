"""Pipelines, prefetch, rings and exchanges as events of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster_sim.trace.trace import run
from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.toy_training import TOY, exchange_ps, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from workloads.training.execution.lower import lower
from workloads.training.iteration import iteration
from workloads.training.plan.stages import edge_share, layer_share
from workloads.training.program.fold import fold

WORK = 10**9


def idle_and_work(**changes: Any) -> tuple[int, int]:
    """Idle time and work of the longest stage when only attention's output product takes time.

    Forward and both halves of the backward pass then take one unit a layer, transfers a picosecond.
    """
    folded = fold(toy_program(plan(**changes), sixteen()))
    names = np.array([step.name for step in folded.steps]).astype(str)
    units = np.char.startswith(names, "attention.out") * WORK
    talks = [replace(one, duration_ps=np.ones_like(one.duration_ps)) for one in folded.exchanges]
    folded = replace(folded, step_ps=np.maximum(units, 1), exchanges=tuple(talks))
    busy = max(int(folded.step_ps[stream.ops.step].sum()) for stream in folded.streams)
    return run(lower(folded)).total_ps - busy, busy


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "microbatches"),
    [
        ("gpipe", 4, 1, 8), ("1f1b", 2, 1, 4), ("1f1b", 8, 1, 8),
        ("interleaved", 2, 2, 4), ("interleaved", 4, 2, 8), ("interleaved", 2, 4, 6),
    ],
)  # fmt: skip
def test_bubbles_are_the_closed_form(
    schedule: str, pp: int, vpp: int, microbatches: int, overlap: str
) -> None:
    """Stages of equal work leave (p − 1) / (v m) of the work idle."""
    idle, busy = idle_and_work(
        schedule=schedule, pp=pp, vpp=vpp, global_batch=microbatches, overlap=overlap
    )
    assert idle / busy == pytest.approx(bubble_fraction(pp, microbatches, vpp), abs=1e-4)


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (8, 8)])
def test_the_zero_bubble(pp: int, microbatches: int) -> None:
    how = {"pp": pp, "global_batch": microbatches, "schedule": "zero-bubble", "overlap": "all"}
    layers = TOY.layers // pp * WORK
    idle, busy = idle_and_work(**how)
    assert idle / busy == pytest.approx(zero_bubble_s(pp, layers, layers, layers) / busy, abs=1e-4)
    usual = idle_and_work(**{**how, "schedule": "1f1b"})
    assert idle < usual[0] / 2.9


def test_stages_of_unequal_length_wait_for_the_longest() -> None:
    even = idle_and_work(pp=2, global_batch=8)
    uneven = idle_and_work(pp=2, global_batch=8, stage_layers=(6, 2))
    assert uneven[1] == pytest.approx(1.5 * even[1], rel=1e-4)


def test_fully_sharded_parameters_are_gathered_beside_the_layer_before() -> None:
    folded = fold(toy_program(plan(dp=16, zero=3, overlap="dp"), sixteen()))
    frame = run(lower(folded)).frame()
    ops = frame[(frame["kind"] != "join") & (frame["microbatch"] == 2)]
    names = ops["name"].astype(str)
    gathers = ops[names == "parameters.bucket"]
    assert len(gathers) == 2 * TOY.layers
    compute = ops[(ops["what"] == "compute") & (ops["layer"] >= 0)]
    starts = compute.groupby("layer", observed=True)["start_ps"]
    for layer, start, end in zip(
        gathers["layer"], gathers["start_ps"], gathers["end_ps"], strict=True
    ):
        used = compute[(compute["layer"] == layer) & (compute["start_ps"] >= start)]
        assert used["start_ps"].min() >= end
    forward = gathers.head(TOY.layers).set_index("layer")["start_ps"]
    assert forward[5] >= starts.min()[3]
    assert len(ops[names == "gradients.bucket"]) == TOY.layers + 1


PIPELINES: list[dict[str, Any]] = [
    {},
    {"pp": 4},
    {"pp": 2, "vpp": 2},
    {"pp": 4, "schedule": "zero-bubble"},
    {"pp": 4, "schedule": "gpipe"},
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_of_replicas_are_those_of_the_zero_paper(zero: int, pipeline: Any) -> None:
    """Ψ gradients and Ψ parameters an iteration; ZeRO-3 gathers parameters twice a microbatch."""
    how, model = plan(dp=4, zero=zero, overlap="dp", **pipeline), replace(TOY, vocab=4)
    program = toy_program(how, sixteen(), model)
    sent = {"gradients": 0, "parameters": 0}
    for number in np.concatenate([stream.ops.step for stream in program.streams]).tolist():
        kind = program.steps[number].name.split(".")[0]
        if kind in sent:
            sent[kind] += program.steps[number].size_bytes
    layers = TOY.layers * 2 * 8 if zero == 3 else TOY.layers
    per_layer = {"gradients": 4, "parameters": 2}
    each = layer_share(model, how).total
    edges = sum(edge_share(model, how, stage) for stage in {0, how.pp - 1})
    passes = 8 if zero >= 2 else 1
    assert sent["gradients"] == per_layer["gradients"] * passes * (TOY.layers * each + edges)
    gathers = layers * each + edges * (8 if zero == 3 else 1)
    assert sent["parameters"] == per_layer["parameters"] * gathers * (zero > 0)


def test_what_is_not_dropped_is_gathered_and_reduced_once() -> None:
    """PyTorch's FSDP does this across a pipeline: ZeRO-3 is then ZeRO-1, in time and memory."""
    kept, usual = (
        iteration(TOY, sixteen(), plan(pp=4, dp=4, overlap="dp", recompute="none", **one))
        for one in ({"zero": 3, "reshard": False}, {"zero": 1})
    )
    assert kept.iteration_s == usual.iteration_s
    assert kept.memory == usual.memory
    dropped = iteration(TOY, sixteen(), plan(pp=4, dp=4, overlap="dp", zero=3))
    assert dropped.iteration_s > kept.iteration_s
    assert dropped.memory.weights == kept.memory.weights // 4


@pytest.mark.parametrize("zero", [0, 1])
def test_gradients_leave_in_buckets_of_whole_layers(zero: int) -> None:
    """Two buckets of three leave two of eight layers, and the edges."""
    how = plan(dp=16, zero=zero, overlap="dp", global_batch=32)
    each, edges = layer_share(TOY, how).total, edge_share(TOY, how, 0)
    program = toy_program(replace(how, bucket_bytes=4 * 3 * each - 3), sixteen())
    ops = program.streams[0].ops
    names = np.array([step.name for step in program.steps])[ops.step]
    sizes = np.array([step.size_bytes for step in program.steps])[ops.step]
    reduced = names == "gradients.bucket"
    assert sizes[reduced].tolist() == [4 * (3 * each), 4 * (3 * each), 4 * (2 * each + edges)]
    gathered = names == "parameters.bucket"
    assert ops.layer[gathered].tolist() == [0, 3, 6] * zero
    assert sizes[gathered].tolist() == [2 * 3 * each, 2 * 3 * each, 2 * 2 * each] * zero
    before = [ops.layer[:at].max(initial=-1) for at in np.flatnonzero(reduced)]
    last = [ops.layer[:at][ops.layer[:at] >= 0][-1] for at in np.flatnonzero(reduced)]
    assert before == [7] * 3
    assert last == [5, 2, 0]


def test_small_buckets_wait_for_the_latency_of_thousands_of_servers() -> None:
    """Each bucket of a layer waits for the latency of 997 servers, as the gradients of all do."""
    how = plan(dp=64 * 997, overlap="dp", global_batch=64 * 997)
    machine = cluster("rainier:63808")
    usual, small = (iteration(TOY, machine, replace(how, bucket_bytes=b)) for b in (0, 1))
    names = np.array([step.name for step in small.program.steps])
    assert (names[small.program.streams[0].ops.step] == "gradients.bucket").sum() == 9
    busy_s, usual_s = (run.breakdown_s["exposed_dp"] + run.overlapped_s for run in (small, usual))
    assert busy_s > 1.5 * usual_s


def test_a_ring_hides_behind_long_sequences_and_gathering_does_not() -> None:
    how = plan(cp=8, dp=2, seq=65536, global_batch=2, overlap="dp")
    ring, gathered = (
        iteration(TOY, cluster("dgx-h100:2"), replace(how, cp_exchange=way))
        for way in ("ring", "all-gather")
    )
    assert ring.breakdown_s["exposed_cp"] < 0.01 * ring.iteration_s
    assert gathered.breakdown_s["exposed_cp"] > 2 * ring.breakdown_s["exposed_cp"]
    assert ring.overlapped_s > ring.breakdown_s["exposed_cp"]


def test_fp8_is_faster_and_counts_against_its_own_peak() -> None:
    model = replace(TOY, hidden=4096, heads=32, head_dim=128, ffn=16384)
    machine = cluster("dgx-h100:2")
    slow, fast = (iteration(model, machine, plan(dp=16, precision=p)) for p in ("bf16", "fp8"))
    assert 1.1 < slow.iteration_s / fast.iteration_s < 2
    assert fast.peak_flops_per_s == pytest.approx(2 * slow.peak_flops_per_s, rel=1e-3)


def test_a_transfer_is_a_permute_of_two() -> None:
    ring = cluster("ring:4", bandwidth="100GB/s", latency="1us")
    assert exchange_ps(ring, np.array([0, 1]), "send", 10**8) == 10**9 + 10**6
