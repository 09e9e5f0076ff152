"""Pipelines on unlike chips: exact times of two stages, the division of layers, refusals."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.toy_training import SPARSE, TOY, plan
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.search.unlike import Question, divided
from workloads.training.detail import Detail
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.placement import Joined
from workloads.training.plan.plan import ParallelPlan

FAST, SLOW = "trn3-gen2:1", "trn2.48xlarge"


def step(how: ParallelPlan, *names: str, model: Any = TOY, **detail: Any) -> Iteration:
    """A step whose stages are shared out equally over clusters."""
    clusters = tuple(cluster(name) for name in names)
    joined = Joined(clusters, (how.pp // len(names),) * len(names))
    return iteration(model, clusters[0], how, Detail(joined=joined, partial=True, **detail))


@pytest.mark.parametrize(
    ("first", "second", "layers"), [(FAST, SLOW, (4, 4)), (SLOW, FAST, (1, 7))]
)
def test_two_stages_of_which_the_second_is_slower(first, second, layers):
    """Forward on the first, a send, m times both passes on the second, a send and back."""
    run = step(plan(pp=2, global_batch=6, stage_layers=layers), first, second)
    ops = run.trace.frame()
    ops["lasts_ps"] = ops.end_ps - ops.start_ps
    sends = ops[ops.name.str.endswith(".send") & (ops.lasts_ps > 0)]
    assert sends.lasts_ps.nunique() == 1
    hop_ps = int(sends.lasts_ps.iloc[0])
    kernels = ops[(ops.what != "pp") & (ops.microbatch >= 0)]
    of_stage = kernels.groupby(["stage", "microbatch"]).lasts_ps.sum()
    assert of_stage[1, 0] > of_stage[0, 0]
    first_sent_ps = int(sends[(sends.stage == 0) & (sends.microbatch == 0)].start_ps.iloc[0])
    last = ops[(ops.stage == 0) & ops.name.eq("backward.receive")].end_ps.max()
    back_ps = kernels[(kernels.stage == 0) & (kernels.start_ps >= last)].lasts_ps.sum()
    after_ps = run.trace.total_ps - kernels.end_ps.max()
    expected = first_sent_ps + of_stage[1].sum() + 2 * hop_ps + back_ps + after_ps
    assert run.trace.total_ps == expected


@pytest.mark.parametrize(
    ("how", "model"),
    [
        ({"tp": 4, "pp": 4, "dp": 2, "overlap": "all"}, TOY),
        ({"pp": 4, "vpp": 2, "schedule": "interleaved", "dp": 2, "overlap": "dp"}, TOY),
        ({"tp": 2, "pp": 2, "dp": 2, "ep": 2, "overlap": "all"}, SPARSE),
    ],
)  # fmt: skip
def test_both_engines_and_all_ranks_give_the_same_time(how, model):
    fast, simpy, every = (
        step(plan(**how), SLOW, FAST, model=model, **detail)
        for detail in ({}, {"engine": "reference"}, {"folded": False})
    )
    assert np.array_equal(fast.trace.times.end_ps, simpy.trace.times.end_ps)
    assert fast.trace.total_ps == every.trace.total_ps
    assert sum(fast.breakdown_s.values()) == pytest.approx(fast.iteration_s, rel=1e-12)
    bubbles = [fast.parts_of_stages(range(s, s + 1))["bubble"] for s in range(fast.plan.pp)]
    assert np.mean(bubbles) == pytest.approx(fast.breakdown_s["bubble"])


def test_a_transfer_costs_what_the_slower_side_needs():
    """And never less than between domains of either cluster; a thinner network takes longer."""
    joined = Joined((cluster(SLOW), cluster(FAST)), (1, 1))

    def sent_ps(where, **detail):
        run = iteration(TOY, where, plan(pp=2), Detail(partial=True, **detail))
        return next(e.duration_ps.max() for e in run.program.exchanges if e.axis == "forward")

    times = [
        int(sent_ps(joined.clusters[0], joined=replace(joined, oversubscription=thinned)))
        for thinned in (1.0, 2.0, 4.0)
    ]
    # Each further copy of the bytes takes as long as the one before.
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=1e-3)
    for name in (SLOW, FAST):
        there = replace(cluster(name), domains=2)
        assert times[0] > sent_ps(there, chips=np.array([0, there.chips_per_domain]))


def every_division(layers: int, chunks: int, least: list[int]) -> Iterator[tuple[int, ...]]:
    """All ways to divide layers among chunks."""
    for cuts in combinations(range(layers + chunks - 1), chunks - 1):
        counts = np.diff([-1, *cuts, layers + chunks - 1]) - 1
        if all(count >= low for count, low in zip(counts, least, strict=True)):
            yield tuple(int(count) for count in counts)


@examples(60)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.integers(0, 8),
)
def test_no_division_has_a_faster_slowest_chunk(layers, speeds, end):
    sums = np.concatenate([[0], np.cumsum(layers)])
    times = np.array([slow * (sums - sums[:, None]) for slow in speeds], np.float64)
    times[-1] += end
    least = [0, *[1] * (len(speeds) - 2), 0]
    ways = list(every_division(len(layers), len(speeds), least))
    most = [len(layers)] * len(speeds)
    if not ways:
        with pytest.raises(InputError, match="layers"):
            divided(times, most, least)
        return

    def cost(counts):
        """Time of the slowest chunk, and of all."""
        cuts = np.cumsum([0, *counts])
        each = [times[k, low, high] for k, (low, high) in enumerate(pairwise(cuts))]
        return max(each), sum(each)

    chosen = divided(times, most, least)
    assert chosen in ways
    assert cost(chosen) == min(map(cost, ways))


HOPPER, BLACKWELL = "p5.48xlarge", "dgx-b200"
PAIR = {"tp": 4, "dp": 2, "global_batch": 32, "seq": 2048}


def test_layers_follow_speed_and_no_other_division_is_faster():
    run = cs.train("llama-3.1-8b", HOPPER, later_stages=BLACKWELL, **PAIR)
    first, second = run.plan.stage_layers
    assert run.plan.pp == 2
    assert first < 16 < second
    divisions = [
        replace(run.plan, stage_layers=(first + moved, second - moved)) for moved in range(-4, 5)
    ]
    detail = Detail(joined=run.joined, partial=True)
    times_s = [iteration(run.model, run.cluster, one, detail).iteration_s for one in divisions]
    assert run.iteration_s == min(times_s)
    equal, hopper, blackwell = run.unlike.beside
    assert run.iteration_s < equal.step_s < hopper.step_s
    assert blackwell.step_s < hopper.step_s
    assert run.unlike.slowest_network_s > run.iteration_s
    assert run.chips == 16
    assert run.unlike.idle_chips == (0, 0)
    assert run.interval.low < run.iteration_s < run.interval.high
    alone = [cs.train("llama-3.1-8b", name, **PAIR).cost.cost_usd for name in (HOPPER, BLACKWELL)]
    assert (run.cost.cost_usd is None) == (None in alone)


def test_memory_bounds_the_layers_of_a_stage():
    """Trainium1 has a third of the memory and would be given more layers by its speed alone."""
    how = {"tp": 8, "dp": 2, "global_batch": 16, "seq": 4096, "lora_rank": 0}
    run = cs.train("llama-2-13b", "trn1.32xlarge", later_stages="trn2.48xlarge", **how)
    for number, each in enumerate(run.joined.clusters):
        assert each.chips >= len(run.joined.held(number)) * 16 // run.plan.ranks_per_chip
    assert run.memory.fits
    assert sum(run.plan.stage_layers) == run.model.layers


RING = cluster("ring:8", bandwidth="100GB/s", latency="1us")


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("8b", {"pp": 3}, "room for 1 \\+ 1 = 2 stages. Use pp 2"),
        ("8b", {"dp": 4}, "on one cluster, and there is room for 8 ranks on p5.48xlarge"),
        ("8b", {"level": "flow"}, "stages on unlike chips have no --level flow"),
        ("8b", {"chips": 8}, "chips counts those of one cluster"),
        ("8b", {"jitter": "typical"}, "causes of --jitter"),
        ("8b", {"framework": "neuronx"}, "neuronx does not train on h100"),
        ("8b", {"later_stages": "ring:8"}, "bandwidth"),
        ("8b", {"later_stages": [RING]}, "ring:8 has no scale-out fabric"),
        ("8b", {"later_stages": SLOW}, "megatron-core on p5.48xlarge and neuronx on trn2.48xlarge"),
        ("8b", {"later_stages": 3}, "later_stages"),
        ("8b", {"stage_layers": (1, 2)}, "stage_layers sum to 3"),
        ("8b", {"later_stages": HOPPER, "tp": 3, "dp": None}, "leave 2 of 8 ranks on"),
        ("405b", {}, "memory has room for"),
    ],
)  # fmt: skip
def test_what_is_refused(model, changes, message):
    stated = {"later_stages": BLACKWELL, **PAIR, **changes}
    how = {name: value for name, value in stated.items() if value is not None}
    with pytest.raises(InputError, match=message):
        cs.train(f"llama-3.1-{model}", HOPPER, **how)


def test_a_stated_batch_is_kept_where_degrees_are_open():
    run = cs.train("llama-3.1-8b", HOPPER, later_stages=BLACKWELL, global_batch=32, seq=2048)
    assert run.plan.global_batch == 32


def test_degrees_that_are_tried_leave_few_chips_of_any_cluster_idle():
    pair = cluster("trn2.48xlarge"), cluster("dgx-h100:3")  # 16 and 24 chips
    tried = list(Question(TOY, pair, {}, Detail(), None, 1, 1.0).degrees())
    assert {each["tp"] * each["dp"] for each in tried} == {1, 2, 4, 8}
    assert all(each["pp"] == 40 // (each["tp"] * each["dp"]) for each in tried)
