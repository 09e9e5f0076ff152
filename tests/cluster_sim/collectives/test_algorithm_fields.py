"""Every field of every algorithm agrees with its schedule, of the how-to page's algorithm too."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cluster_sim as cs
from cluster_sim.collectives import (
    ALGORITHMS,
    KINDS,
    CollectiveCall,
    Group,
    compose,
    hbm_bytes,
    prove,
    whole,
)
from cluster_sim.collectives.algorithms.algorithm import ops_foreseen
from cluster_sim.collectives.algorithms.registry import fitting_algorithms, suitable
from cluster_sim.collectives.messages import Channels
from cluster_sim.hardware.communication_costs import communication_costs
from experiments.cli.main import run
from experiments.cli.main import run as command
from tests.support.collective_cases import named
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from topologies.support.registry import by_name

GROUPS = (
    ("ring:1", (0,), 1),
    ("ring:2", (0, 1), 1),
    ("ring:5", (0, 1, 2, 3, 4), 1),
    ("ring:5", (3, 0, 4), 1),
    ("torus:3x4", tuple(range(12)), 1),
    ("torus:2x2x3", tuple(range(12)), 1),
    ("mesh:5", tuple(range(5)), 1),
    ("switch:4", tuple(range(4)), 1),
    ("trn2.48xlarge", tuple(range(16)), 1),
    *(("trn2.48xlarge", (0, 1, 4, 5), cores) for cores in (1, 2)),
    ("trn2.48xlarge", tuple(range(16)), 4),
    ("trn2.48xlarge", (0, 2), 1),
    ("trn2.48xlarge:3", (0, 1, 16, 17, 32, 33), 1),
    ("trn2.48xlarge:3", (0, 1, 4, 5, 16, 17, 20, 21), 4),
    ("trn2.48xlarge:3", (0, 16, 32), 1),
    ("trn3-gen1", tuple(range(8)), 1),
)

CALLS = [
    CollectiveCall(kind, Group(named(machine), chips, cores), 1 << 20)
    for machine, chips, cores in GROUPS
    for kind in KINDS
]


def check_fields(call, algorithm):
    """Compare what an algorithm says of itself with what its messages are."""
    costs = communication_costs(call.group.cluster)
    messages = algorithm.messages(call, costs)
    assert algorithm.message_count(call, costs) == len(messages)
    built = compose(call, algorithm, contended=True)
    assert algorithm.rounds(call, costs) == built.steps
    accesses = pytest.approx(_accesses(messages, costs), rel=1e-9)
    assert algorithm.memory_accesses(call, costs) * call.size_bytes == accesses
    foreseen = ops_foreseen([call], algorithm, costs)
    assert 0.45 * len(built.schedule) - call.ranks <= foreseen <= 2.5 * len(built.schedule)
    if call.group.cluster.plain:
        assert algorithm.streamed_ops(call, costs) in (0, len(built.schedule))
    if built.chunks.is_tracked:
        assert prove(built) == "proven"


def _accesses(messages, costs):
    """Accesses of memories that each message of a table costs, all together [B]."""
    channels, size = messages.channels, messages.size_bytes()
    fused = np.zeros(len(channels), np.bool_) if channels.fused is None else channels.fused
    is_fused = fused[messages.channel]
    copied = np.where(is_fused, costs.fused_copy_accesses, costs.copy_accesses)
    added = np.where(is_fused, costs.fused_reduce_accesses, costs.reduce_accesses)
    each = np.where(messages.reduce, added, copied)
    return float((size * np.where(channels.joins[messages.channel], 0, each)).sum())


CASES = [
    pytest.param(call, one, id=f"{one.name}-{call.kind}-{call.group.cluster.name}-{call.ranks}")
    for call in CALLS
    for one in suitable(call)
    if one.runs(call)
]


@pytest.mark.parametrize(("call", "algorithm"), CASES)
def test_fields_agree_with_the_built_schedule(call, algorithm):
    check_fields(call, algorithm)


def test_every_algorithm_is_tested_and_named_once():
    tested = {case.values[1].name for case in CASES}
    assert tested == set(ALGORITHMS) == {one.name for one in ALGORITHMS.values()}
    assert all(one.summary and set(one.kinds) <= set(KINDS) for one in ALGORITHMS.values())
    ring = ALGORITHMS["ring"]
    with pytest.raises(ValueError, match="algorithm ring: 'allreduce' is no operation"):
        replace(ring, kinds=("allreduce",))
    with pytest.raises(ValueError, match="two entries are registered as algorithm ring"):
        by_name("algorithm", (ring, ALGORITHMS["mesh"], replace(ring, summary="another")))


RING = replace(ALGORITHMS["ring"], stands_for=lambda call, costs: None)


def _changed(**changes):
    """A ring of one's own whose messages have one column moved, or another number of ranks."""

    def messages(call, costs):
        table = RING.messages(call, costs)
        return replace(table, **{name: change(table) for name, change in changes.items()})

    return replace(RING, name="mine", messages=messages)


WRONG = {
    "the peer of channel 7 is rank 8, and there are ranks 0 to 7": _changed(
        channels=lambda table: Channels.table(table.channels.src, np.arange(1, 9))
    ),
    "the source of channel 0 is rank -1, and there are ranks 0 to 7": _changed(
        channels=lambda table: Channels.table(np.arange(-1, 7), table.channels.dst)
    ),
    "the channel of message 7 is channel 8, and there are channels 0 to 7": _changed(
        channel=lambda table: table.channel + 1
    ),
    "the first chunk of message 8 is chunk 8, and there are chunks 0 to 7": _changed(
        first=lambda table: np.arange(len(table)) % 9
    ),
    "the last chunk of message 0 is chunk 8, and there are chunks 0 to 7": _changed(
        first=lambda table: 0 * table.first, count=lambda table: 0 * table.count + 9
    ),
    "the target of edge 0 is message 112, and there are messages 0 to 111": _changed(
        edges=lambda table: replace(table.edges, dst=0 * table.edges.dst + len(table))
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_own_algorithm_that_refers_to_nothing_is_refused_in_one_line(fault):
    ring = cs.cluster("ring:8", bandwidth="100GB/s", latency="1us")
    for front in (cs.collective, cs.collective_time):
        with pytest.raises(InputError) as caught:
            front("all-reduce", ring, size_bytes=2**20, algorithm=WRONG[fault])
        assert str(caught.value) == f"algorithm mine: {fault}. Correct its messages."
    with pytest.raises(InputError, match="algorithm mine writes messages of 9 ranks, and the call"):
        compose(CALLS[0], _changed(ranks=lambda table: 9))


def test_a_registered_algorithm_that_is_wrong_ends_a_command_in_one_line(monkeypatch, capsys):
    fault = next(iter(WRONG))
    monkeypatch.setitem(ALGORITHMS, "ring", replace(WRONG[fault], name="ring"))
    line = "collective all-reduce ring:8 --bandwidth 1GB/s --latency 1us --size 1KiB --algorithm"
    assert command([*line.split(), "ring"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"cluster-sim: algorithm ring: {fault}. Correct its messages.\n"


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-an-algorithm.md"
NAME = "recursive-doubling"


@pytest.fixture
def algorithm(tmp_path, monkeypatch):
    """The algorithm of the page, registered as long as a test runs."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (path := tmp_path / "recursive_doubling.py").write_text(code)
    spec = importlib.util.spec_from_file_location("recursive_doubling", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recursive_doubling", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, NAME, module.RECURSIVE_DOUBLING)
    return module.RECURSIVE_DOUBLING


def test_every_field_agrees_with_the_built_schedule(algorithm):
    calls = [call for call in CALLS if algorithm.runs(call)]
    assert len(calls) > 5
    for call in calls:
        check_fields(call, algorithm)


def test_footprint_rounds_and_memory_traffic_are_its_own(algorithm):
    call = CollectiveCall("all-reduce", whole(cluster("trn2.48xlarge")), 2**20)
    costs = communication_costs(call.group.cluster)
    assert algorithm.rounds(call, costs) == 4
    assert hbm_bytes(call, NAME) == 4 * 16 * 3 * 2**20
    assert ops_foreseen([call], algorithm, costs) < 1000
    assert NAME in [one.name for one in fitting_algorithms([call])]


def test_an_algorithm_of_ones_own_needs_no_registration(algorithm, monkeypatch):
    monkeypatch.delitem(ALGORITHMS, NAME)
    plain = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    timed = cs.collective_time("all-reduce", plain, size_bytes="64KiB", algorithm=algorithm)
    schedule = cs.collective("all-reduce", plain, size_bytes="64KiB", algorithm=algorithm)
    assert timed.algorithm == schedule.facts["algorithm"] == NAME
    assert cs.simulate(schedule).total_ps == timed.time_ps
    six = cluster("ring:6", bandwidth="100GB/s", latency="1us")
    with pytest.raises(cs.InputError, match="recursive-doubling does not make sense for all-red"):
        cs.collective_time("all-reduce", six, size_bytes=8, algorithm=algorithm)


def test_the_command_line_knows_it(algorithm, capsys):
    words = ["collective", "all-reduce", "trn2.48xlarge", "--size", "64KiB", "--quiet", "--json"]
    assert run([*words, "--algorithm", NAME]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["algorithm"], row["steps"], row["semantics"]) == (NAME, 4, "proven")
    assert run([*words, "--algorithm", "best"]) == 0
    (best,) = json.loads(capsys.readouterr().out)["rows"]
    assert best["time_s"] <= row["time_s"]
    assert run(["collective", "all-reduce", "ring:6", "--size", "1KiB", "--algorithm", NAME]) == 2
    run(["collective", "--help"])
    assert NAME in " ".join(capsys.readouterr().out.split())
