"""Faults in training: of kernels, links and adapters, at every level, folded and unfolded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.hardware.faults import fault_table, parse_fault, spelled_out
from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.toy_training import LATENT, SPARSE, TOY, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.model import Model
from workloads.training.execution import struck_groups
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.lower import lower
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.fold import affected_ranks, fold

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)
EQUAL = (
    ("trn2.48xlarge", SHORT, {"tp": 16}, ("cable:0-1@0s:dead",)),
    ("trn2.48xlarge", SHORT, {"tp": 4, "dp": 4}, ("cable:0-1@0s:dead",)),
    ("trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2}, ("cable:0-4@0s:slow=1/4",)),
    ("trn2.48xlarge:4", TOY, {"tp": 4, "pp": 4, "dp": 4}, ("adapter:17@0s:slow=1/8",)),
    ("trn2.48xlarge:2", SHORT, {"tp": 4, "dp": 8, "overlap": "dp"},
     ("cable:0-1@0s:slow=1/4", "adapter:9@0s:slow=1/2")),
    ("trn2.48xlarge", SHORT, {"tp": 16, "dp": 4, "ranks_per_chip": 4}, ("cable:0-1@0s:slow=1/4",)),
    ("trn2.48xlarge", SPARSE, {"tp": 2, "dp": 8, "ep": 2, "zero": 3}, ("cable:8-11@0s:dead",)),
)  # fmt: skip


def step(machine, model, how, texts, **changes):
    """One step with faults."""
    faults = [parse_fault(text) for text in texts]
    return iteration(model, cluster(machine), plan(**how), faults=faults, **changes)


@pytest.mark.parametrize(("machine", "model", "how", "texts"), EQUAL, ids=str)
def test_a_fault_costs_what_it_costs_chunk_by_chunk(machine, model, how, texts):
    """Where the levels are equal without faults; a byte's rounding aside, ranks of a chip as well.

    An unfolded step takes the same time, and the usual step is that without faults.
    """
    usual = step(machine, model, how, ())
    composed, chunks = (step(machine, model, how, texts, level=lv) for lv in ("auto", "chunk"))
    assert composed.level == "collective"
    assert composed.iteration_s == pytest.approx(chunks.iteration_s, rel=1e-8)
    assert composed.undisturbed_s == usual.iteration_s < composed.iteration_s
    waited_s, chunks_s = (each.breakdown_s["straggler"] for each in (composed, chunks))
    assert waited_s == pytest.approx(chunks_s, abs=1e-6)
    whole = step(machine, model, how, texts, folded=False)
    assert whole.trace.total_ps == composed.trace.total_ps
    assert whole.crossed == composed.crossed
    assert len(composed.program) < len(whole.program) or how == {"tp": 16}


@examples(3)
@given(st.data())
def test_more_slowdown_is_never_faster(data):
    """Full speed is no fault, and every slower one takes as long or longer."""
    machine, model, how, _ = data.draw(st.sampled_from([case for case in EQUAL if "tp" in case[2]]))
    chip = data.draw(st.integers(0, 15))
    other = chip // 4 * 4 + (chip + 1) % 4
    part = data.draw(st.sampled_from([f"cable:{chip}-{other}", f"adapter:{chip}"]))
    usual = step(machine, model, how, ())
    speeds = ("1/1", "3/4", "1/2", "1/8")
    steps = [step(machine, model, how, (f"{part}@0s:slow={speed}",)) for speed in speeds]
    assert steps[0].trace.total_ps == usual.trace.total_ps
    times = [each.trace.total_ps for each in steps]
    assert times == sorted(times)
    for each in steps:
        assert bool(each.crossed.struck) != (part in each.crossed.idle)


def test_what_was_hit_is_told():
    how = {"tp": 4, "dp": 4}
    slow = step("trn2.48xlarge", SHORT, how, ("cable:0-1@0s:slow=1/4",))
    assert not slow.crossed.idle
    first = slow.crossed.struck[0]
    assert (first.axis, first.collective) == ("tp", "all-gather")
    assert (first.groups, first.of_groups) == (1, 4)
    added = sum(each.calls * (each.time_s - each.usual_s) for each in slow.crossed.struck)
    assert slow.iteration_s - slow.undisturbed_s == pytest.approx(added, rel=1e-6)
    stages = step("trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2}, ("cable:0-1@0s:slow=1/4",))
    assert {each.of_groups for each in stages.crossed.struck if each.axis == "tp"} == {4}
    twice = step("trn2.48xlarge", SHORT, how, ("cable:0-1@0s:slow=1/4",), iterations=2)
    assert twice.crossed == slow.crossed


def test_an_idle_part_changes_nothing_and_is_named():
    how = {"tp": 4, "dp": 2}
    usual = step("trn2.48xlarge:2", SHORT, how, (), partial=True)
    texts = ("cable:14-15@0s:dead", "adapter:20@0s:slow=1/2", "adapter:0@0s:slow=1/2")
    idle = step("trn2.48xlarge:2", SHORT, how, texts, partial=True)
    assert idle.iteration_s == usual.iteration_s == idle.undisturbed_s
    assert not idle.crossed.struck
    why = "no collective of this step crosses it"
    assert idle.crossed.idle == {text.split("@")[0]: why for text in texts}
    healthy = step("trn2.48xlarge", SHORT, how, ("link:0-1@0s:slow=1/1",), partial=True)
    assert healthy.crossed.idle == {"link:0-1": "the collectives that cross it take no longer"}


def test_a_group_too_large_is_timed_by_some_of_its_domains(monkeypatch):
    """A slow adapter's delay is exact to 1 %; a slow cable's is at most 1.6 times the true one."""
    for text, most in (("adapter:9@0s:slow=1/2", 1.01), ("cable:0-4@0s:slow=1/4", 1.6)):
        delays = []
        for ops in (struck_groups.MOST_OPS, 500):
            with monkeypatch.context() as patch:
                patch.setattr(struck_groups, "MOST_OPS", ops)
                slow = step("trn2.48xlarge:4", SHORT, {"tp": 4, "dp": 16}, (text,))
            delays.append(slow.iteration_s - slow.undisturbed_s)
        assert delays[0] * 0.99 < delays[1] < most * delays[0]


@pytest.mark.parametrize("text", ["adapter:5@0s:slow=1/2", "link:5-s0@0s:slow=1/2"])
def test_with_nccl_all_ports_wait_for_the_slow_one(text):
    how = {"tp": 8, "dp": 2}
    slow = step("dgx-h100:2", TOY, how, (text,))
    assert slow.crossed.struck
    assert slow.iteration_s > slow.undisturbed_s
    for each in slow.crossed.struck:
        assert each.usual_s < each.time_s < 2 * each.usual_s
        assert each.axis == ("dp" if "adapter" in text else each.axis)


def test_tokens_routed_by_server_cross_a_slow_adapter():
    how = {"dp": 32, "ep": 16, "routed_nodes": 1}
    machine = "trn2.48xlarge:2"
    chips = [place % 2 * 16 + place // 2 for place in range(32)]
    healthy = step(machine, SPARSE, how, (), chips=chips)
    slow = step(machine, SPARSE, how, ("adapter:19@0s:slow=1/4",), chips=chips)
    (tokens,) = [each for each in slow.crossed.struck if each.axis == "ep"]
    assert (tokens.groups, tokens.of_groups) == (1, 2)
    assert slow.iteration_s > healthy.iteration_s


@pytest.mark.parametrize(("machine", "texts", "message"), [
    ("trn2.48xlarge", ("cable:0-5@0s:dead",), "no resource link:0-5 on trn2.48xlarge"),
    ("trn2.48xlarge", ("cable:0-1@1ms:dead",), r"stand from the start\. Write @0s"),
    ("trn2.48xlarge", ("adapter:0@0s:dead",), "chip 0 has no other way out"),
    ("dgx-h100", ("link:3-s0@0s:dead",), "no other way to its switch"),
    ("mi300x-platform", ("link:1-0@0s:dead",), "are timed over all links of a chip"),
    ("trn2.48xlarge", ("server:3@0s:slow=1/2",), "servers are numbered 0 to 0"),
    ("trn2.48xlarge", ("engine5@1ms:dead",),
     r"is not RESOURCE@TIME:dead\|slow=P/Q. Write engine:5@1ms:slow=1/2"),
    ("trn2.48xlarge", ("engine:5@1ms:slow=0/2",), "P and Q .* 1 to 32768. Use dead"),
    ("trn2.48xlarge", ("engine:5@1:dead",), "has no unit"),
    ("trn2.48xlarge", ("engine:99@1ms:dead",),
     "no resource engine:99 in this run; kinds are cc, engine, host, receive"),
    ("trn2.48xlarge", ("engine:5@1us:dead",), r"ops never ran\. First: op"),
    ("trn2.48xlarge", ("engine:5@1us:dead", "engine:5@1us:slow=1/2"),
     "engine:5 has two faults at 1,000,000 ps"),
    ("trn2.48xlarge", ("uplink:0@0s:slow=1/2",), "no .*; use --level chunk or flow"),
])  # fmt: skip
def test_a_fault_that_cannot_be_is_one_line(machine, texts, message):
    refused(message, step, machine, SHORT, {"dp": 8}, texts, partial=True)


def test_a_server_is_the_engines_of_its_chips():
    how = {"tp": 4, "dp": 4, "ranks_per_chip": 4}
    (slow,) = [parse_fault("server:0@0s:slow=1/2")]
    engines = [each.resource for each in spelled_out([slow], sixteen(), 4)]
    assert engines[:5] == ["engine:0", "engine:0.1", "engine:0.2", "engine:0.3", "engine:1"]
    assert len(engines) == 64
    usual = step("trn2.48xlarge", SHORT, how, (), partial=True)
    throttled = step("trn2.48xlarge", SHORT, how, ("chip:2@0s:slow=1/2",), partial=True)
    assert throttled.breakdown_s["straggler"] > 0
    assert usual.iteration_s < throttled.iteration_s < 2 * usual.iteration_s


@pytest.mark.parametrize(
    "text", ["engine:5@1ms:slow=1/3", "cc:0.1@0s:slow=1/100", "send:2@2ms:dead"]
)
def test_a_fault_folded_is_the_fault_unfolded(text):
    """Only what the fault sets apart is run on its own, and the times are those of the whole."""
    texts = [text, text.split("@")[0] + "@6ms:slow=1/1"]
    toy = "trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2, "overlap": "dp"}
    few, whole = step(*toy, texts), step(*toy, texts, folded=False)
    assert few.trace.total_ps == whole.trace.total_ps > step(*toy, []).trace.total_ps
    assert 2 < len(few.program) < len(whole.program) == 16
    assert few.breakdown_s == pytest.approx(whole.breakdown_s)


def test_ranks_of_a_struck_chip_are_set_apart():
    toy = toy_program(plan(tp=4, pp=2, dp=2), sixteen())
    faults = [parse_fault("engine:5@1ms:dead")]
    assert affected_ranks(toy, faults).tolist() == [5]
    few = fold(toy, affected_ranks(toy, faults))
    assert (few.count[few.rank == 5].tolist(), few.count.sum()) == ([1], 16)
    assert fault_table(lower(few), faults).numerator.tolist() == [0]


@pytest.mark.parametrize("model", [TOY, SPARSE])
@pytest.mark.parametrize("changes", [{}, {"overlap": "dp"}, {"overlap": "all", "zero": 3}])
def test_iterations_in_a_row(changes, model):
    """Without overlap each is as long as the first; with it the next may begin under the last."""
    how = plan(tp=2, pp=2, dp=4, **changes)
    once, thrice = (iteration(model, sixteen(), how, iterations=n) for n in (1, 3))
    assert len(thrice.program.streams[0].ops) == 3 * len(once.program.streams[0].ops)
    assert thrice.iteration_s <= once.iteration_s * (1 + 1e-12)
    assert sum(thrice.breakdown_s.values()) == pytest.approx(thrice.iteration_s, abs=1e-12)
    assert thrice.iteration_s == pytest.approx(once.iteration_s, rel=0.3)
    microbatch = thrice.program.streams[1].ops.microbatch
    assert np.unique(microbatch[microbatch >= 0]).tolist() == [*range(24)]


MACHINES = ("trn1.32xlarge", "trn2.48xlarge", "dgx-h100:2", "trn3-gen1")
SLACK_PS = 100
"""Rounding of the rates of flows; a fault may shorten a step by no more than this."""


def _random_plan(draw):
    """A plan of at most 64 ranks; not every one suits its model and machine."""

    def pick(*choices):
        return choices[draw.integers(len(choices))]

    machine, model = cluster(pick(*MACHINES)), pick(TOY, SPARSE, LATENT)
    dp, schedule = pick(1, 2, 4), pick("gpipe", "1f1b", "zero-bubble", "interleaved", "dualpipe")
    return model, machine, ParallelPlan(
        tp=pick(1, 2, 4), pp=pick(1, 2, 4), cp=pick(1, 1, 2),
        ep=1 if model is TOY else pick(1, 2, 4), vpp=2 if schedule == "interleaved" else 1,
        dp=dp, global_batch=dp * pick(1, 2, 4), seq=512, overlap=pick("none", "dp", "all"),
        zero=pick(0, 1, 2, 3), schedule=schedule, recompute=pick("none", "selective", "full"),
        ranks_per_chip=2 if machine.chip == "trn1" else 1,
    )  # fmt: skip


def _random_faults(draw, names, total_ps):
    """One to three resources, each slow from some instant on or dead for a while."""
    faults = []
    for place in draw.choice(len(names), int(draw.integers(1, 4)), replace=False).tolist():
        begin, length = draw.integers(0, total_ps), draw.integers(1, total_ps)
        slow = f"slow=1/{draw.integers(1, 20)}"
        if draw.random() < 0.3:
            faults.append(f"{names[place]}@{begin}ps:dead")
            begin += length
        faults.append(f"{names[place]}@{begin}ps:{slow}")
    return tuple(parse_fault(text) for text in faults)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_random_fault_is_the_same_folded_and_never_helps(seed):
    """Five plans for each seed; among them were groups of which some ranks only are equal."""
    draw, done = np.random.default_rng(seed), 0
    while done < 5:
        try:
            model, machine, plan = _random_plan(draw)
            healthy = iteration(model, machine, plan, partial=True, folded=False)
        except InputError:
            continue
        names = healthy.trace.schedule.resources.names()
        faults = _random_faults(draw, names, healthy.trace.total_ps)
        done += 1

        def step(faults=faults, **changes):
            return iteration(model, machine, plan, partial=True, faults=faults, **changes)  # noqa: B023

        few, whole = step(), step(folded=False)
        assert few.trace.total_ps == whole.trace.total_ps >= healthy.trace.total_ps - SLACK_PS
        rounding_s = 1e-9 + 1e-6 * few.iteration_s
        assert few.breakdown_s == pytest.approx(whole.breakdown_s, abs=rounding_s)
        assert whole.undisturbed_s == pytest.approx(healthy.iteration_s, rel=1e-12)
        rank, factor = int(draw.integers(plan.ranks)), float(draw.uniform(1, 3))
        late = step((), disturbed=Disturbance(0.0, seed, ((rank, factor),)))
        longest_ps = healthy.trace.total_ps * factor * (1 + 1e-5) + SLACK_PS
        assert healthy.trace.total_ps - SLACK_PS <= late.trace.total_ps <= longest_ps
    reference = step(folded=False, engine="reference")
    assert np.array_equal(reference.trace.times.end_ps, whole.trace.times.end_ps)
