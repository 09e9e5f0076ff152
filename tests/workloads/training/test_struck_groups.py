"""Faults of links and adapters at the collective level: the times of the chunk level."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.hardware.faults import parse_fault, spelled_out
from tests.support.examples import examples
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution import struck_groups
from workloads.training.iteration import Iteration, iteration

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)
EQUAL: tuple[tuple[str, Model, dict[str, Any], tuple[str, ...]], ...] = (
    ("trn2.48xlarge", SHORT, {"tp": 16}, ("cable:0-1@0s:dead",)),
    ("trn2.48xlarge", SHORT, {"tp": 4, "dp": 4}, ("cable:0-1@0s:dead",)),
    ("trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2}, ("cable:0-4@0s:slow=1/4",)),
    ("trn2.48xlarge:4", TOY, {"tp": 4, "pp": 4, "dp": 4}, ("adapter:17@0s:slow=1/8",)),
    (
        "trn2.48xlarge:2",
        SHORT,
        {"tp": 4, "dp": 8, "overlap": "dp"},
        ("cable:0-1@0s:slow=1/4", "adapter:9@0s:slow=1/2"),
    ),
    ("trn2.48xlarge", SHORT, {"tp": 16, "dp": 4, "ranks_per_chip": 4}, ("cable:0-1@0s:slow=1/4",)),
    ("trn2.48xlarge", SPARSE, {"tp": 2, "dp": 8, "ep": 2, "zero": 3}, ("cable:8-11@0s:dead",)),
)


def step(
    machine: str, model: Model, how: dict[str, Any], texts: tuple[str, ...], **changes: Any
) -> Iteration:
    """One step with faults."""
    faults = [parse_fault(text) for text in texts]
    return iteration(model, cluster(machine), plan(**how), faults=faults, **changes)


@pytest.mark.parametrize(("machine", "model", "how", "texts"), EQUAL, ids=str)
def test_a_fault_costs_what_it_costs_chunk_by_chunk(
    machine: str, model: Model, how: dict[str, Any], texts: tuple[str, ...]
) -> None:
    """Where the levels are equal without faults; a byte's rounding aside, ranks of a chip as well.

    An unfolded step takes the same time, and the usual step is that without faults.
    """
    usual = step(machine, model, how, ())
    composed, chunks = (step(machine, model, how, texts, level=lv) for lv in ("auto", "chunk"))
    assert composed.level == "collective"
    assert composed.iteration_s == pytest.approx(chunks.iteration_s, rel=1e-8)
    assert composed.undisturbed_s == usual.iteration_s < composed.iteration_s
    assert composed.breakdown_s["straggler"] == pytest.approx(
        chunks.breakdown_s["straggler"], abs=1e-6
    )
    whole = step(machine, model, how, texts, folded=False)
    assert whole.trace.total_ps == composed.trace.total_ps
    assert whole.crossed == composed.crossed
    assert len(composed.program) < len(whole.program) or how == {"tp": 16}


@examples(3)
@given(st.data())
def test_more_slowdown_is_never_faster(data: st.DataObject) -> None:
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
        assert each.crossed is not None
        assert bool(each.crossed.struck) != (part in each.crossed.idle)


def test_what_was_hit_is_told() -> None:
    how = {"tp": 4, "dp": 4}
    slow = step("trn2.48xlarge", SHORT, how, ("cable:0-1@0s:slow=1/4",))
    assert slow.crossed is not None
    assert not slow.crossed.idle
    first = slow.crossed.struck[0]
    assert (first.axis, first.collective, first.groups, first.of_groups) == (
        "tp", "all-gather", 1, 4,
    )  # fmt: skip
    added = sum(each.calls * (each.time_s - each.usual_s) for each in slow.crossed.struck)
    assert slow.iteration_s - (slow.undisturbed_s or 0) == pytest.approx(added, rel=1e-6)
    stages = step("trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2}, ("cable:0-1@0s:slow=1/4",))
    assert stages.crossed is not None
    assert {each.of_groups for each in stages.crossed.struck if each.axis == "tp"} == {4}
    twice = step("trn2.48xlarge", SHORT, how, ("cable:0-1@0s:slow=1/4",), iterations=2)
    assert twice.crossed == slow.crossed


def test_an_idle_part_changes_nothing_and_is_named() -> None:
    how = {"tp": 4, "dp": 2}
    usual = step("trn2.48xlarge:2", SHORT, how, (), partial=True)
    texts = ("cable:14-15@0s:dead", "adapter:20@0s:slow=1/2", "adapter:0@0s:slow=1/2")
    idle = step("trn2.48xlarge:2", SHORT, how, texts, partial=True)
    assert idle.iteration_s == usual.iteration_s == idle.undisturbed_s
    assert idle.crossed is not None
    assert not idle.crossed.struck
    why = "no collective of this step crosses it"
    assert idle.crossed.idle == {text.split("@")[0]: why for text in texts}
    healthy = step("trn2.48xlarge", SHORT, how, ("link:0-1@0s:slow=1/1",), partial=True)
    assert healthy.crossed is not None
    assert healthy.crossed.idle == {"link:0-1": "the collectives that cross it take no longer"}


def test_a_group_too_large_is_timed_by_some_of_its_domains(monkeypatch) -> None:
    """A slow adapter's delay is exact to 1 %; a slow cable's is at most 1.6 times the true one."""
    for text, most in (("adapter:9@0s:slow=1/2", 1.01), ("cable:0-4@0s:slow=1/4", 1.6)):
        delays = []
        for ops in (struck_groups.MOST_OPS, 500):
            with monkeypatch.context() as patch:
                patch.setattr(struck_groups, "MOST_OPS", ops)
                slow = step("trn2.48xlarge:4", SHORT, {"tp": 4, "dp": 16}, (text,))
            delays.append(slow.iteration_s - (slow.undisturbed_s or 0))
        assert delays[0] * 0.99 < delays[1] < most * delays[0]


@pytest.mark.parametrize("text", ["adapter:5@0s:slow=1/2", "link:5-s0@0s:slow=1/2"])
def test_with_nccl_all_ports_wait_for_the_slow_one(text: str) -> None:
    how = {"tp": 8, "dp": 2}
    slow = step("dgx-h100:2", TOY, how, (text,))
    assert slow.crossed is not None
    assert slow.crossed.struck
    assert slow.iteration_s > (slow.undisturbed_s or 0)
    for each in slow.crossed.struck:
        assert each.usual_s < each.time_s < 2 * each.usual_s
        assert each.axis == ("dp" if "adapter" in text else each.axis)


def test_tokens_routed_by_server_cross_a_slow_adapter() -> None:
    how = {"dp": 32, "ep": 16, "routed_nodes": 1}
    machine = "trn2.48xlarge:2"
    chips = [place % 2 * 16 + place // 2 for place in range(32)]
    usual, slow = (
        step(machine, SPARSE, how, texts, chips=chips)
        for texts in ((), ("adapter:19@0s:slow=1/4",))
    )
    assert slow.crossed is not None
    (tokens,) = [each for each in slow.crossed.struck if each.axis == "ep"]
    assert (tokens.groups, tokens.of_groups) == (1, 2)
    assert slow.iteration_s > usual.iteration_s


@pytest.mark.parametrize(
    ("machine", "text", "message"),
    [
        ("trn2.48xlarge", "cable:0-5@0s:dead", "no resource link:0-5 on trn2.48xlarge"),
        ("trn2.48xlarge", "cable:0-1@1ms:dead", r"stand from the start\. Write @0s"),
        ("trn2.48xlarge", "adapter:0@0s:dead", "chip 0 has no other way out"),
        ("dgx-h100", "link:3-s0@0s:dead", "no other way to its switch"),
        ("mi300x-platform", "link:1-0@0s:dead", "are timed over all links of a chip"),
        ("trn2.48xlarge", "server:3@0s:slow=1/2", "servers are numbered 0 to 0"),
    ],
)
def test_what_cannot_be_composed_is_one_line(machine: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        step(machine, SHORT, {"dp": 8}, (text,), partial=True)


def test_the_slowest_link_of_a_mesh_sets_the_pace_of_rings_over_it() -> None:
    """A link to a chip outside the group changes nothing; names with the larger chip first do."""
    how = {"tp": 4, "overlap": "none"}
    usual, outside, struck = (
        step("mi300x-platform", SHORT, how, texts, partial=True)
        for texts in ((), ("link:5-0@0s:slow=1/2",), ("link:1-0@0s:slow=1/2",))
    )
    assert outside.iteration_s == usual.iteration_s
    longer_s = struck.iteration_s - usual.iteration_s
    wire_s = usual.breakdown_s["exposed_tp"]
    assert 0 < longer_s <= wire_s


def test_a_server_is_the_engines_of_its_chips() -> None:
    how = {"tp": 4, "dp": 4, "ranks_per_chip": 4}
    (slow,) = [parse_fault("server:0@0s:slow=1/2")]
    engines = [each.resource for each in spelled_out([slow], sixteen(), 4)]
    assert engines[:5] == ["engine:0", "engine:0.1", "engine:0.2", "engine:0.3", "engine:1"]
    assert len(engines) == 64
    throttled, usual = (
        step("trn2.48xlarge", SHORT, how, texts, partial=True)
        for texts in (("chip:2@0s:slow=1/2",), ())
    )
    assert throttled.breakdown_s["straggler"] > 0
    assert usual.iteration_s < throttled.iteration_s < 2 * usual.iteration_s
