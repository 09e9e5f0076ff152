"""Input for other simulators and their output, none of which need be installed; measuring."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from google.protobuf.internal.decoder import _DecodeVarint32

from benchmarks import peers as benchmark
from benchmarks._measure import measured
from benchmarks._peers import astra_sim, loggopsim, simgrid
from benchmarks._peers.peers import PEERS
from benchmarks._peers.step import Step, hops, nodes
from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS, SIZE_BYTES, Work
from cluster_sim.collectives import CollectiveCall, compose, whole
from cluster_sim.schedule.repeats import calls_written_out
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster
from workloads.traces.chakra import read_chakra
from workloads.traces.chakra_schema import messages
from workloads.traces.recording import COLLECTIVE
from workloads.training.execution.chunk_level import expand
from workloads.training.execution.lower import lower

TOYS = (Work((4,)), Work((8,)), Work((4, 2)), Work((4, 4, 2)))
"""Rings and tori, all sides powers of two."""
Message = tuple[int, int, int]
"""Sender, receiver, bytes."""


def call(work):
    """The same work as a collective of ours."""
    speeds = {"bandwidth": f"{BANDWIDTH_BYTES_PER_S} B/s", "latency": f"{LATENCY_PS} ps"}
    return CollectiveCall(work.kind, whole(cluster(work.shape, **speeds)), SIZE_BYTES)


def our_sizes(work):
    """How many messages of which size we put on links."""
    schedule = compose(call(work), "ring" if len(work.sides) == 1 else "per-axis").schedule
    sizes = schedule.size_bytes[schedule.resource >= 0]
    return Counter(sizes.tolist())


@pytest.fixture
def programs(monkeypatch):
    """Commands that a peer's preparation would run, none of which is; files to convert are kept."""
    commands = []

    def note(command, **_):
        commands.append([str(word) for word in command])
        for word in commands[-1]:
            if word.endswith(".goal"):
                Path(word).with_suffix(".kept").write_text(Path(word).read_text())

    monkeypatch.setattr(subprocess, "run", note)
    return commands


@pytest.mark.parametrize("work", TOYS)
def test_goal_schedule_sends_and_receives_our_messages(work, tmp_path, programs):
    sizes = Counter()
    for stage in work.stages():
        sizes[stage.message_bytes] += stage.steps * work.ranks
    assert sizes == our_sizes(work)
    assert work.hops == sizes.total()
    command = loggopsim.prepare(work, tmp_path)
    ((converter, *_),) = programs
    assert converter == loggopsim.CONVERTER
    assert command[0] == loggopsim.BINARY
    text = (tmp_path / "ring.kept").read_text()
    sent, received = goal_messages(text, "send"), goal_messages(text, "recv")
    assert sent == Counter((to, rank, size) for rank, to, size in received.elements())
    # LogGOPSim takes n - 1 times G for n bytes, so each message is given one more.
    assert Counter(size - 1 for _, _, size in sent.elements()) == our_sizes(work)
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options["-L"] == str(LATENCY_PS)
    assert int(options["-G"]) * BANDWIDTH_BYTES_PER_S == 10**12


def goal_messages(text, verb):
    """Sends or receives of a GOAL schedule, each with its rank, the other rank and its bytes."""
    messages = Counter()
    for block in text.split("rank ")[1:]:
        rank = int(block.split(" ", 1)[0])
        for size, other in re.findall(rf": {verb} (\d+)b (?:to|from) (\d+)", block):
            messages[rank, int(other), int(size)] += 1
    return messages


@pytest.mark.parametrize("work", [Work((4, 2)), Work((4, 4), "all-to-all")])
def test_astra_sim_is_given_our_collective_and_links(work, tmp_path):
    command = astra_sim.prepare(astra_sim.AWARE, work, tmp_path)
    traces = sorted(tmp_path.glob("ranks.*.et"))
    assert len(traces) == work.ranks
    recording = read_chakra(traces)
    assert (recording.kind == COLLECTIVE).all()
    assert Counter(recording.rank.tolist()) == Counter(range(work.ranks))
    assert set(recording.size_bytes.tolist()) == {SIZE_BYTES}
    network = (tmp_path / "network.yml").read_text()
    assert f"npus_count: {list(work.sides[::-1])}" in network
    rates = json.loads(re.findall(r"bandwidth: (.*)", network)[0])
    assert np.allclose(np.multiply(rates, 2**30), BANDWIDTH_BYTES_PER_S)
    assert json.loads(re.findall(r"latency: (.*)", network)[0]) == [1000.0] * len(work.sides)
    system = json.loads((tmp_path / "system.json").read_text())
    assert len(system["all-reduce-implementation"]) == len(work.sides)
    assert command[0] == astra_sim.AWARE


STEP = Step(dp=4, tp=4)
"""A step on a torus of 16 chips."""


def test_step_has_our_messages(tmp_path):
    step = STEP.iteration(tmp_path, level="chunk", folded=False)
    expanded = expand(step.program, lower(step.program, memory=False), step.cluster, whole=True)
    schedule = calls_written_out(expanded.schedule, expanded.routines)
    links = np.flatnonzero(np.asarray(schedule.resources.kinds) == "link")
    on_links = schedule.resource >= 0
    on_links[on_links] = np.isin(schedule.resources.kind[schedule.resource[on_links]], links)
    of_a_rank = list(nodes(step.program))
    assert hops(STEP, of_a_rank) == np.count_nonzero(on_links)
    sent = sum(
        2 * node.size_bytes * (STEP.sides[node.axis] - 1) * STEP.ranks // STEP.sides[node.axis]
        for node in of_a_rank
        if node.axis >= 0
    )
    assert sent == schedule.size_bytes[on_links].sum()


def test_astra_sim_is_given_our_step(tmp_path):
    command = astra_sim.prepare_step(astra_sim.AWARE, STEP, tmp_path)
    assert len(list(tmp_path.glob("ranks.*.et"))) == STEP.ranks
    assert "--num-queues-per-dim=2" in command
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["preferred-dataset-splits"] == system["active-chunks-per-dimension"] == 2
    ours = list(nodes(STEP.iteration(tmp_path).program))
    theirs = trace_nodes(tmp_path / "trace")
    assert [node.name for node in theirs] == [node.name for node in ours]
    assert [list(node.data_deps) for node in theirs] == [node.before for node in ours]
    kernels_ps = sum(node.duration_ps for node in ours)
    assert abs(sum(node.duration_micros for node in theirs) * 10**6 - kernels_ps) <= 10**6 / 2


def trace_nodes(path):
    """Nodes of a Chakra trace: messages with their lengths before them, after the first."""
    content, nodes, place = path.read_bytes(), [], 0
    while place < len(content):
        length, place = _DecodeVarint32(content, place)
        nodes.append(content[place : place + length])
        place += length
    return [messages()["Node"].FromString(node) for node in nodes[1:]]


def test_simgrid_is_given_our_ring(tmp_path, programs):
    work = Work((8,))
    command = simgrid.prepare_smpi(work, tmp_path)
    zone = ElementTree.parse(tmp_path / "ring.xml").getroot()[0]
    links = zone.findall("link")
    assert {link.get("bandwidth") for link in links} == {f"{BANDWIDTH_BYTES_PER_S}Bps"}
    assert {link.get("latency") for link in links} == {f"{LATENCY_PS}ps"}
    assert len(zone.findall("host")) == len(links) == work.ranks
    assert len((tmp_path / "hosts").read_text().split()) == work.ranks
    (message_bytes,) = our_sizes(work)
    assert command[-1] == str(message_bytes)
    ranks, size, bandwidth, latency = simgrid.prepare_s4u(work, tmp_path)[1:5]
    assert (int(ranks), int(size)) == (work.ranks, message_bytes)
    assert int(bandwidth) == BANDWIDTH_BYTES_PER_S
    assert float(latency) == LATENCY_PS * 1e-12
    assert [command_words[0] for command_words in programs] == ["smpicc", "c++"]


PRINTED = {
    "LogGOPSim": (
        "LogGP network backend; size: 4 (1 CPUs, 1 NICs); L=1000000, o=0 g=0, G=10, O=0, P=4, "
        "S=2147483647\nPERFORMANCE: Processes: 4 \t Events: 72 \t Time: 0 s \t Speed: inf ev/s\n"
        "Maximum finishing time at host 0: 16112127360 (16.1121 s)\n"
    ),
    "SimGrid, S4U": "ring took 0.016112127360 s\n",
    "SimGrid, SMPI": "ring took 0.016112138320 s\n",
    "ASTRA-sim, aware": (
        "[2026-03-25 17:20:47.113] [workload] [info] sys[3] finished, 16112070 cycles, "
        "exposed communication 16112070 cycles.\n"
        "[2026-03-25 17:20:47.113] [workload] [info] sys[0] finished, 16112071 cycles, "
        "exposed communication 16112071 cycles.\n"
    ),
}
"""Standard output of each for the ring of four."""


@pytest.mark.parametrize("name", PRINTED)
def test_output_is_read_as_the_time_that_we_simulate(name):
    work = Work((4,))
    (peer,) = (one for one in PEERS if one.name == name)
    ours_s = run(compose(call(work), "ring").schedule).total_s
    assert peer.simulated_s(PRINTED[name]) == pytest.approx(ours_s, rel=peer.tolerance(work))


def test_missing_peers_are_named(monkeypatch, capsys):
    here = PEERS[0]._replace(name="shell", needs=("sh",))
    gone = PEERS[0]._replace(name="gone", needs=("sh", "no-such-program", "nor-this-one"))
    words = "gone is left out: no no-such-program and no nor-this-one on the path\n"
    assert [peer.name for peer in benchmark.present([here, gone])] == ["shell"]
    assert capsys.readouterr().out == words
    monkeypatch.setattr(benchmark, "PEERS", [gone])  # none is left, and so nothing is run
    benchmark.main()
    assert capsys.readouterr().out == words


def test_comparison_stops_where_simulated_times_differ(tmp_path):
    work, echo = Work((4,)), ("echo", "ring took 2.0 s")
    ours = benchmark.Runner("cluster-sim", ("echo", "ring took 1.0 s"), simgrid.simulated_s, 0.0)
    other = benchmark.Runner("other", echo, simgrid.simulated_s, 0.5)
    with pytest.raises(ValueError, match=r"other simulates 2.0 s, cluster-sim 1.0 s"):
        benchmark.compare(work.hops, [ours, other], tmp_path / "output")


MB = 10**6


def test_memory_of_a_command_is_not_that_of_this_process(tmp_path):
    held = np.ones(200 * MB, np.uint8)
    used = measured(sys.executable, "-c", "print('done')", output=tmp_path / "output")
    assert (tmp_path / "output").read_text() == "done\n"
    assert used.peak_bytes < held.nbytes / 2
    larger = measured(sys.executable, "-c", f"bytearray(b'a') * {100 * MB}")
    assert larger.peak_bytes > used.peak_bytes + 50 * MB


def test_failed_command_shows_its_last_words(capfd):
    code = "import sys; print('why it failed', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    with pytest.raises(RuntimeError, match=r"ended with status 3: why it failed$"):
        measured(sys.executable, "-c", code, "3")
    measured(sys.executable, "-c", code, "0")
    assert capfd.readouterr().err == ""


def test_command_that_is_not_there_is_named():
    with pytest.raises(
        RuntimeError, match=r"no-such-program ended with status 1: FileNotFoundError.*"
    ):
        measured("no-such-program")
