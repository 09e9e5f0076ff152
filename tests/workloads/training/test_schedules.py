"""Pipeline schedules are one place each; all else follows from their passes."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from cluster_sim.collectives.duration.expert_library import visited
from tests.support.toy_training import SPARSE, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.search.candidates import candidates
from workloads.search.estimate import estimate
from workloads.training.iteration import iteration
from workloads.training.memory.memory import memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules import registry
from workloads.training.plan.schedules.held import most_held, passes
from workloads.training.plan.schedules.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    PipelineSchedule,
    in_order,
)
from workloads.training.plan.stages import chunk_layers, end_stages
from workloads.training.program.groups import routed_ps

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-pipeline-schedule.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
EVERY = [(one, chunks) for one in registry.SCHEDULES for chunks in one.chunks_searched]


def exceeded(moment: tuple[int, ...], moments: set[tuple[int, ...]]) -> bool:
    """Whether another moment holds as many microbatches of every chunk, and more of one."""
    others = moments - {moment}
    return any(all(a >= b for a, b in zip(other, moment, strict=True)) for other in others)


@pytest.mark.parametrize(("schedule", "chunks"), EVERY)
def test_worst_moments_are_those_that_no_other_exceeds(schedule, chunks):
    """Held microbatches of each chunk are counted pass by pass."""
    dropped = WEIGHT if schedule.splits_weights else BACKWARD
    for pp, m in product((2, 3, 4), (1, 3, 4, 7, 19)):
        for stage in range(pp):
            order = passes(schedule, pp, stage, m, chunks)
            held, moments = [0] * chunks, set()
            for phase, chunk in zip(order.phase.tolist(), order.chunk.tolist(), strict=True):
                held[chunk] += (phase == FORWARD) - (phase == dropped)
                moments.add(tuple(held))
            worst = {moment for moment in moments if not exceeded(moment, moments)}
            assert set(map(tuple, most_held(schedule, pp, stage, m, chunks).tolist())) == worst


@pytest.mark.parametrize(("schedule", "chunks"), EVERY)
def test_many_microbatches_hold_what_the_last_round_adds(schedule, chunks, monkeypatch):
    whole = [most_held(schedule, 4, stage, 83, chunks).tolist() for stage in range(4)]
    monkeypatch.setattr("workloads.training.plan.schedules.held.COUNTED", 16)
    most_held.cache_clear()
    short = [most_held(schedule, 4, stage, 83, chunks).tolist() for stage in range(4)]
    most_held.cache_clear()
    assert short == whole


def test_a_schedule_that_leaves_out_a_pass_is_refused():
    lame = PipelineSchedule("lame", "lame", lambda pp, s, m, c: in_order([(FORWARD, 0, 0)]))
    with pytest.raises(ValueError, match="lame: stage 0 of 2 does not take each of 2 microbatches"):
        passes(lame, 2, 0, 2)


def test_no_schedule_is_compared_by_name_elsewhere():
    """A name in another file would be a second place that a new schedule must be told to."""
    root = Path(__file__).parents[3]
    quoted = re.compile("|".join(f"['\"]{name}['\"]" for name in registry.schedule_names()))
    places = [
        str(file.relative_to(root))
        for folder in ("workloads", "experiments", "cluster_sim", "topologies")
        for file in (root / folder).rglob("*.py")
        if "plan/schedules" not in str(file) and quoted.search(_code(file.read_text()))
    ]
    assert places == []


def _code(text: str) -> str:
    """The text without docstrings, whose examples may name a schedule."""
    return re.sub(r'"""(?:[^"]|"(?!""))*"""', "", text)


ADD = """
import sys
sys.path.insert(0, {folder!r})
from batched_warm_up import BATCHED_WARM_UP
from workloads.training.plan.schedules import registry
registry.SCHEDULES = (*registry.SCHEDULES, BATCHED_WARM_UP)
"""
"""What the how-to page's line in the registry does, for one process."""


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page's own code in a temporary module, and what adds it to the list."""
    folder = tmp_path_factory.mktemp("added")
    first, *_ = BLOCK.findall(PAGE.read_text())
    (folder / "batched_warm_up.py").write_text(first)
    return ADD.format(folder=str(folder))


def ran(code: str, *lines: str) -> str:
    """Output of a process with the added schedule: of code, then of some commands."""
    call = "from experiments.cli.main import run\nfor line in sys.argv[1:]: run(line.split())"
    words = [sys.executable, "-c", f"{code}\n{call}", *lines]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRAIN = (
    "train --model gpt2 --cluster trn2.48xlarge --tp 2 --pp 4 --global-batch 64 --seq 512 --json"
)


def test_the_page_shows_what_its_code_prints_and_train_runs_it(added):
    """The last stage, which needs most memory, holds three microbatches where 1F1B holds one."""
    *_, shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    _, second = BLOCK.findall(PAGE.read_text())
    lines = [f"{TRAIN} --schedule {name}" for name in ("batched-warm-up", "1f1b")]
    printed = ran(added + second, *lines, "train --help-all")
    assert printed.startswith(shown)
    documents, _, described = printed.removeprefix(shown).partition("Usage: ")
    ours, end = json.JSONDecoder().raw_decode(documents)
    usual = json.loads(documents[end:])
    held = [one["memory_bytes"]["activations"] for one in (ours, usual)]
    assert ours["plan"]["schedule"] == "batched-warm-up"
    assert held[0] == 3 * held[1]
    assert ours["iteration_s"] == pytest.approx(usual["iteration_s"], rel=0.02)
    assert "batched-warm-up" in [word.strip(",;") for word in described.split()]


@pytest.mark.slow
def test_plan_searches_the_added_schedule_and_draws_it(added, tmp_path):
    line = (
        "plan --model gpt2 --cluster trn2.48xlarge --global-batch 64 --seq 512 --tp 4 --pp 4 "
        f"--top 2 --finalists 2 --schedule batched-warm-up --json --out {tmp_path / 'run'}"
    )
    document = json.loads(ran(added, line))
    assert {row["schedule"] for row in document["rows"]} == {"batched-warm-up"}
    assert abs(document["rows"][0]["estimate_error"]) < 0.05
    assert (tmp_path / "run" / "pareto.svg").read_text().count("batched warm-up") >= 1


HOW = {"schedule": "dualpipe", "vpp": 2, "pp": 4}
COMBINED = {"schedule": "combined-1f1b", "vpp": 2, "pp": 4}
IN_PAIRS = (HOW, COMBINED, {"schedule": "combined-1f1b"})
WIDE = {"ep": 16, "dp": 16, "seq": 1024, "zero": 1, "global_batch": 16}


def routed(**changes: Any) -> ParallelPlan:
    # DeepEP routes and sends fewer bytes by itself.
    return ParallelPlan(**{"framework": "megatron-core:alltoall", **WIDE, **changes})


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_most_passes_are_pairs_and_few_microbatches_have_none(pp):
    """The steady state of a stage holds two pairs a microbatch; see the steps of the source."""
    how = registry.pipeline_schedule("dualpipe")
    for stage in range(pp):
        order = passes(how, pp, stage, 5 * pp, 2)
        pair = (order.phase[:-1] == 0) & (order.phase[1:] == 1)
        pair &= order.chunk[:-1] != order.chunk[1:]
        steady = 3 * pp + stage + 1
        assert pair.sum() == 2 * steady + (pp - 1 - stage)
        few = passes(how, pp, stage, 2 * pp - 1, 2)
        assert few.phase.tolist()[: 4 * pp - 2] == [0] * (4 * pp - 2)


def test_the_model_goes_there_and_back():
    how = plan(**HOW)
    held = [[chunk.tolist() for chunk in chunk_layers(SPARSE, how, stage)] for stage in range(4)]
    assert held == [[[0], [7]], [[1], [6]], [[2], [5]], [[3], [4]]]
    assert end_stages(how) == (0, 0)
    first, last = (memory(SPARSE, how, s, sixteen().catalogue, "trn2") for s in (0, 3))
    ends = 2 * SPARSE.vocab * SPARSE.hidden * 2  # embedding and output layer in two bytes
    dense = memory(SPARSE, replace(how, pp=1, vpp=1), 0, sixteen().catalogue, "trn2")
    assert first.weights > last.weights - ends > 0
    assert dense.weights < 4 * first.weights


@pytest.mark.parametrize("how", IN_PAIRS)
def test_every_kernel_of_a_pair_is_done_once_and_waits_for_its_own_pass(how):
    """The same kernels as of the plain order; gradients of weights after those of inputs."""
    how = plan(**how, dp=4, ep=4, global_batch=40)
    beside = toy_program(how, sixteen(), SPARSE)
    for stage, stream in enumerate(beside.streams):
        ops = stream.ops
        assert (ops.back >= 0).all()
        assert (ops.back <= np.arange(len(ops))).all()
        names = np.array([beside.steps[number].name for number in ops.step.tolist()])
        for layer in np.concatenate(chunk_layers(SPARSE, how, stage)).tolist():
            for microbatch in range(10):
                of_pass = (ops.layer == layer) & (ops.microbatch == microbatch)
                done = names[of_pass].tolist()
                assert done.count("attention.core") == done.count("attention.core.data") == 1
                assert done.index("attention.qkv") < done.index("attention.out.data")
                assert done.index("attention.qkv.data") < done.index("attention.qkv.weight")


@pytest.mark.parametrize("how", IN_PAIRS)
def test_the_search_knows_what_paired_passes_hide(how):
    pp = how.get("pp", 1) // 2 or 1
    machine, model = cluster(f"dgx-h100:{2 * pp}"), replace(SPARSE, layers=16)
    degrees = {"pp": pp, "dp": 16, "ep": 16, "seq": 4096}
    plan = ParallelPlan(**how | degrees, microbatch=8, global_batch=16 * 128)
    taken_s = iteration(model, machine, plan).iteration_s
    assert estimate(model, machine, [plan])[0] == pytest.approx(taken_s, rel=0.12)
    if how is not HOW:
        plain = replace(plan, schedule="interleaved" if pp > 1 else "1f1b")
        assert taken_s < 0.95 * iteration(model, machine, plain).iteration_s


def test_combined_passes_are_independent_neighbours():
    """A forward pass more before the first backward one, as of Megatron-Core's schedule."""
    for pp, stage, chunks in ((1, 0, 1), (4, 3, 2), (4, 0, 3)):
        order = passes(registry.pipeline_schedule("combined-1f1b"), pp, stage, 8, chunks)
        plain = passes(registry.pipeline_schedule("interleaved"), pp, stage, 8, chunks)
        before = [int(np.argmax(each.phase == 1)) for each in (order, plain)]
        assert before[0] == before[1] + 1
        pair = (order.phase[:-1] == 0) & (order.phase[1:] == 1)
        apart = order.microbatch[:-1] != order.microbatch[1:]
        assert (apart | (order.chunk[:-1] != order.chunk[1:]))[pair].all()
    with pytest.raises(InputError, match="combined-1f1b has at least 2 chunks a stage, not vpp 1"):
        ParallelPlan(pp=2, schedule="combined-1f1b")
    small, few = replace(SPARSE, layers=4), {"pp": 2, "vpp": 2, "dp": 4, "seq": 512}
    for count in (1, 2, 3):  # with two, the first stage has all forward passes before the others
        few["global_batch"] = 4 * count
        step = iteration(small, cluster("dgx-h100"), ParallelPlan(**few, schedule="combined-1f1b"))
        assert step.iteration_s > 0


def test_a_token_is_sent_to_each_server_once():
    machine = cluster("dgx-h100:2")

    def exchanged_ps(chips, size_bytes):
        return duration_ps(CollectiveCall("all-to-all", Group(machine, chips, 1), size_bytes))

    size = 2**28
    crossing_ps = exchanged_ps(np.array([0, 8]), round(visited(2, 8) * size / 8))
    expected = max(crossing_ps, exchanged_ps(np.arange(8), size))
    assert routed_ps(Group(machine, np.arange(16), 1), 2, 8, size) == expected
    assert expected < exchanged_ps(np.arange(16), size)


def test_routing_and_fp8_shorten_exchanges_and_memory():
    machine = cluster("dgx-h100:2")
    plain, _, narrow = steps = [
        iteration(SPARSE, machine, routed(**how))
        for how in ({}, {"routed_nodes": 1}, {"fp8_exchange": True})
    ]
    usual_s, routed_s, fp8_s = (step.breakdown_s["exposed_ep"] for step in steps)
    assert routed_s < 0.8 * usual_s
    assert 0.7 * usual_s < fp8_s < 0.9 * usual_s  # one way of two is halved
    assert narrow.memory.activations < plain.memory.activations


@pytest.mark.parametrize(("changes", "message"), [
    ({"routed_nodes": 3}, "ep 16 lies on 2. Use at most 2"),
    ({"routed_nodes": 1, "ep": 8}, "ep 8 lies within one. Use --routed-nodes 0"),
    ({"routed_nodes": 1, "level": "chunk"}, "--level chunk writes out a copy for each expert"),
    ({"routed_nodes": 1, "level": "flow"}, "--level flow writes out a copy for each expert"),
])  # fmt: skip
def test_options_that_a_plan_cannot_have_are_refused(changes, message):
    level = changes.pop("level", "collective")
    with pytest.raises(InputError, match=message):
        iteration(SPARSE, cluster("dgx-h100:2"), routed(**changes), level=level)


def test_the_search_leaves_out_plans_without_such_servers():
    machine = cluster("dgx-h100:2")
    possible = candidates(SPARSE, machine, 64, stated={"routed_nodes": 2, "seq": 1024})
    assert {one.routed_nodes for one in possible.plans} == {2}
    assert min(one.ep for one in possible.plans) > 1
    with pytest.raises(InputError, match="ep 8 lies within one"):
        candidates(SPARSE, machine, 64, stated={"routed_nodes": 2, "ep": 8, "tp": 1, "pp": 1})
