"""Faults of ``collective``: links and adapters slow down on both engines, or are refused."""

from __future__ import annotations

import json

import pytest

from cluster_sim.hardware import faults
from experiments.cli.main import run

RING = ("collective", "all-reduce", "ring:4", "--bandwidth", "100GB/s", "--latency", "1us")
SERVERS = ("collective", "all-reduce", "trn2.48xlarge:2", "--algorithm", "hierarchical")
QUIET = ("--size", "1MiB", "--json", "--quiet")


def time_s(capsys, *words) -> float:
    """Time of the one row of a command."""
    assert run([*words, *QUIET]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    return float(row["time_s"])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_slow_link_holds_up_the_ring(capsys, engine):
    healthy = time_s(capsys, *RING, "--algorithm", "ring")
    fault = ("--algorithm", "ring", "--fault", "link:0-1@0s:slow=1/2", "--engine", engine)
    slow = time_s(capsys, *RING, *fault)
    assert slow == pytest.approx(1e-6 + 6 * 2**18 / 50e9, rel=1e-9)
    assert slow > healthy


def test_a_slow_adapter_is_as_slow_on_both_engines(capsys):
    healthy = time_s(capsys, *SERVERS)
    fault = (*SERVERS, "--fault", "tx:5@0s:slow=1/4", "--engine")
    fast, reference = (time_s(capsys, *fault, engine) for engine in ("fast", "reference"))
    assert fast == reference > healthy


def test_the_time_without_the_fault_stands_beside_it(capsys):
    healthy = time_s(capsys, *RING, "--algorithm", "ring")
    fault = ("--algorithm", "ring", "--fault", "link:0-1@0s:slow=1/2")
    assert run([*RING, *QUIET, *fault]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["undisturbed_s"] == healthy < row["time_s"]
    assert run([*RING, *fault, "--size", "1MiB"]) == 0
    assert "healthy" in capsys.readouterr().out


@pytest.mark.parametrize("link", ["link:2-s0", "link:s0-2"])
def test_a_link_of_a_switch_is_named_as_the_trace_prints_it(capsys, link):
    """Every message of a ring through a switch passes the slow link once in each of its steps."""
    words = ("collective", "all-gather", "switch:4", "--bandwidth", "100GB/s", "--latency", "1us")
    healthy = time_s(capsys, *words, "--algorithm", "ring")
    slow = [
        time_s(capsys, *words, "--algorithm", "ring", "--fault", f"{link}@0s:slow=1/2", *engine)
        for engine in ((), ("--engine", "reference"))
    ]
    assert slow[0] == slow[1] > healthy


def test_messages_go_around_a_cable_that_is_down_from_the_start(capsys):
    """A step over the missing hop takes the three others, which also carry their own messages."""
    ring = (*RING, "--algorithm", "ring")
    healthy = time_s(capsys, *ring)
    down, slow, later = (
        time_s(capsys, *ring, "--fault", f"cable:0-1@{what}")
        for what in ("0s:dead", "0s:slow=1/2", "1s:dead")
    )
    assert down > slow > later == healthy
    assert run([*RING, *QUIET, "--fault", "cable:0-1@2us:dead"]) == 2
    assert "ops never ran" in capsys.readouterr().err


@pytest.mark.parametrize("resource", ["link:16-17", "tx:20", "rx:31", "dma:16"])
def test_a_fault_of_an_idle_part_has_no_effect_and_says_so(capsys, caplog, resource):
    """The second server has no rank; what stands nowhere is refused as before."""
    few = ("collective", "all-reduce", "trn2.48xlarge:2", "--ranks", "16", "--algorithm", "ring")
    healthy = time_s(capsys, *few)
    faults._tell_idle.cache_clear()
    assert time_s(capsys, *few, "--fault", f"{resource}@0s:dead") == healthy
    assert f"the fault of {resource} has no effect" in caplog.text
    for nowhere in ("link:16-21", "tx:32", "link:99999999999-1", "uplink:1"):
        assert run([*few, *QUIET, "--fault", f"{nowhere}@0s:dead"]) == 2
        assert f"no resource {nowhere} in this run" in capsys.readouterr().err
