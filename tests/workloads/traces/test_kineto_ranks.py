"""Profiles of PyTorch: one rank, and the ranks of a job side by side."""

from pathlib import Path

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from tests.support.kineto_profiles import SENDRECV, STREAM, Profile, exchange
from tests.support.refusals import refused
from tests.support.small_traces import kineto, profile
from topologies.clusters.names import cluster
from workloads.traces.kineto import read_kineto
from workloads.traces.recording import COLLECTIVE, COMPUTE, OPERATIONS, RECEIVE, SEND
from workloads.traces.replay import STEP_SPREAD, WAIT_LEFT, replay

DGX = cluster("dgx-h100")
US = 10**6
"""Picoseconds of a microsecond."""


def message_ps(size_bytes: int, source: int = 0, target: int = 1) -> int:
    """Time of a message between two chips of the server [ps]."""
    ends = Group(DGX, np.array([source, target]))
    return duration_ps(CollectiveCall("permute", ends, size_bytes))


def pipeline(folder: Path, iterations: int = 1) -> list[Path]:
    """Write two stages: the first computes 100 µs and sends, the second receives and computes."""
    first, second = Profile(0), Profile(1)
    for number in range(iterations):
        at = 1000 + 500 * number
        for ranks_profile in (first, second):
            ranks_profile.add("user_annotation", f"ProfilerStep#{number}", at, 500)
        first.kernel("sm90_xmma_gemm", at, at + 10, 100)
        facts = first.call("send", at + 20, 10**6, peer=1)
        first.kernel(SENDRECV, at + 22, at + 110, 50, STREAM, **facts)
        facts = second.call("recv", at, 10**6, peer=0)
        second.kernel(SENDRECV, at + 2, at + 10, 150, STREAM, **facts)
        second.kernel("sm90_xmma_gemm", at + 20, at + 160, 80)
    return [profile.write(folder) for profile in (first, second)]


def test_a_receive_ends_once_its_message_has_arrived(tmp_path):
    played = replay(pipeline(tmp_path), DGX)
    recording = played.recording
    send, receive = (int(np.argmax(recording.kind == kind)) for kind in (SEND, RECEIVE))
    assert (recording.peer[send], recording.peer[receive]) == (1, 0)
    assert recording.size_bytes[[send, receive]].tolist() == [2 * 10**6] * 2
    times = played.trace.times
    arrival = (10 + 100) * US + message_ps(2 * 10**6)
    assert times.end_ps[send] == times.end_ps[receive] == arrival
    assert played.trace.total_ps == arrival + 80 * US
    assert not played.unmapped


def test_messages_wait_for_the_work_that_they_carry(tmp_path):
    """On a chip of half the rate a stage sends once it has computed, not at the recorded time."""
    played = replay(pipeline(tmp_path), cluster("dgx-a100"))
    recording = played.recording
    product, send = (int(np.argmax(recording.kind == kind)) for kind in (COMPUTE, SEND))
    assert recording.duration_ps[product] > 200 * US
    assert played.trace.times.start_ps[send] == played.trace.times.end_ps[product]


def test_a_stage_alone_keeps_its_wait_for_the_stage_before(tmp_path):
    _, second = pipeline(tmp_path)
    played = replay([second], DGX)
    assert played.trace.total_ps == (8 + 150 + 80) * US
    assert played.unmapped == {SENDRECV: 1}


def test_a_kernel_without_facts_carries_the_calls_before_it(tmp_path):
    played = replay([exchange(rank).write(tmp_path) for rank in (0, 1)], DGX)
    kinds = played.recording.kind
    assert [(kinds == kind).sum() for kind in (SEND, RECEIVE, COLLECTIVE)] == [2, 2, 0]
    assert played.trace.total_ps == (10 + 100 + 100) * US + message_ps(2 * 10**6)
    assert not played.unmapped


def test_several_messages_of_a_kernel_share_its_time(tmp_path):
    profile = Profile(1, world=3)
    for at, verb, elements, peer in (
        (1000, "send", 10, 0), (1010, "send", 30, 2), (1020, "recv", 10, 0), (1030, "recv", 10, 2),
    ):  # fmt: skip
        profile.call(verb, at, elements, peer)
    profile.kernel(SENDRECV, 1045, 1050, 80, STREAM)
    recording = read_kineto([profile.write(tmp_path)])
    sends = recording.duration_ps[recording.kind == SEND]
    receives = recording.duration_ps[recording.kind == RECEIVE]
    assert sends.tolist() == [20 * US, 60 * US]
    assert receives.tolist() == [40 * US, 40 * US]
    skipped = Profile(1, world=3)
    skipped.call("send", 900, 10, 0)  # has no kernel, and no part of that of the next call
    skipped.call("send", 1000, 30, 2)
    skipped.kernel(SENDRECV, 1002, 1050, 80, STREAM)
    recording = read_kineto([skipped.write(tmp_path)])
    assert recording.duration_ps[recording.kind == SEND].tolist() == [80 * US]


def test_exchanges_of_experts_are_collectives(tmp_path):
    paths = []
    for rank in (0, 1):
        profile = Profile(rank)
        facts = profile.call("all_to_allv", 1000, 10**6)
        profile.kernel(SENDRECV, 1002, 1010, 60, STREAM, **facts)
        paths.append(profile.write(tmp_path))
    played = replay(paths, DGX)
    kinds = played.recording.kind
    operations = played.recording.operation[kinds == COLLECTIVE]
    assert [OPERATIONS[number] for number in operations] == ["all-to-all"] * 2
    call = CollectiveCall("all-to-all", Group(DGX, np.arange(2)), 2 * 10**6)
    assert played.trace.total_ps == 8 * US + duration_ps(call)


def test_peers_are_read_from_titles_of_older_releases(tmp_path):
    """Before PyTorch 2.2 ``nccl:send 0->1`` and the dimensions of its input are all there is."""
    paths = []
    for rank, title in ((0, "nccl:send 0->1"), (1, "nccl:recv 1<-0")):
        profile = Profile(rank)
        dims = {"Input Dims": [[1000, 1000]], "Input type": ["c10::BFloat16"]}
        profile.add("user_annotation", title, 1000, 20, **dims)
        profile.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 1010, 1020, 30, STREAM)
        paths.append(profile.write(tmp_path))
    played = replay(paths, DGX)
    kinds = played.recording.kind
    assert sorted(kinds[kinds >= SEND].tolist())[:2] == [SEND, RECEIVE]
    assert played.trace.total_ps == 10 * US + message_ps(2 * 10**6)


def test_an_all_gather_returns_one_input_from_each_rank_and_coalesced_ones_are_added(tmp_path):
    stated, coalesced = Profile(0, world=8), Profile(1)
    dims = {"Input Dims": [[1000]], "Input type": ["float"]}
    stated.add("user_annotation", "nccl:_all_gather_base", 1000, 20, **dims)
    stated.kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t", 1010, 1020, 30, STREAM)
    for at in (1000, 1010, 1020):
        coalesced.call("_all_gather_base", at, 10**6)
    coalesced.kernel("ncclDevKernel_AllGather_RING_LL", 1040, 1050, 30, STREAM)
    for each, size_bytes in ((stated, 8 * 4000), (coalesced, 3 * 2 * 10**6)):
        recording = read_kineto([each.write(tmp_path)])
        assert recording.size_bytes[recording.kind == COLLECTIVE].tolist() == [size_bytes]


def _in_contrary_orders(folder: Path, lasts: int, streams: int) -> list[Path]:
    """Two ranks that call an all-reduce and an all-to-all, each rank another of them first."""
    paths = []
    for rank, names in enumerate((("all_reduce", "all_to_all"), ("all_to_all", "all_reduce"))):
        profile = Profile(rank)
        for place, name in enumerate(names):
            at = 1000 + 40 * place
            dims = {"Input Dims": [[1000]], "Input type": ["float"]}
            profile.add("user_annotation", f"nccl:{name}", at, 20, **dims)
            stream = STREAM + (streams > 1 and name == "all_to_all")
            profile.kernel(SENDRECV, at + 5, at + 10, lasts, stream)
        paths.append(profile.write(folder))
    return paths


def test_calls_of_no_group_meet_by_their_operation(tmp_path):
    """Two process groups on two streams, in another order on each rank, as no title tells them.

    The same on one stream could not have run; files of sampled events look like this.
    """
    paths = _in_contrary_orders(tmp_path, 500, streams=2)
    assert len(replay(paths, DGX).recording.groups) == 2
    paths = _in_contrary_orders(tmp_path, 30, streams=1)
    refused("in orders that contradict each other: give whole traces", replay, paths, DGX)


def test_a_message_without_its_receive_is_refused_by_file_and_node(tmp_path):
    first, _ = pipeline(tmp_path)
    idle = Profile(1)
    idle.kernel("sm90_xmma_gemm", 1000, 1010, 5)
    second = idle.write(tmp_path)
    refused(r"rank0\.json\.gz: node 1 .* sends to rank 1 with tag", replay, [first, second], DGX)


def test_a_message_to_nobody_keeps_its_recorded_time(tmp_path):
    profile = Profile(0)
    facts = profile.facts("send", 10**6)
    del facts["Dst Rank"]
    profile.kernel(SENDRECV, 1000, 1010, 30, STREAM, **facts)
    played = replay([profile.write(tmp_path)], DGX)
    assert played.unmapped == {SENDRECV: 1}
    assert played.trace.total_ps == 40 * US


PROFILES = Path(__file__).parent / "profiles"
"""Steps of Llama 3.2 1B by Transformers on one H100, in full and by single short sequences."""


def test_a_profile_with_its_own_times_takes_its_own_time(tmp_path):
    path = kineto(tmp_path / "rank0.json.gz", profile())
    played = replay([path], DGX, compute="recorded", communication="recorded")
    assert played.trace.total_ps == 380 * 10**6
    assert played.recording.facts["recorded_s"] == pytest.approx(380e-6)
    waited_s = played.host_waits_s
    assert waited_s > STEP_SPREAD * played.iteration_s
    fastest_s = played.iteration_s - (1 - WAIT_LEFT) * waited_s
    spread = fastest_s, (1 + STEP_SPREAD) * played.iteration_s
    assert (played.low_s, played.high_s) == pytest.approx(spread)


def test_kernels_scale_by_what_limits_them(tmp_path):
    path = kineto(tmp_path / "rank0.json.gz", profile())
    played = replay([path], DGX, communication="recorded")
    assert (played.how, played.source) == ("scaled", "a100-80gb")
    nodes = {name: k for k, name in enumerate(played.recording.name)}
    product, stream = nodes["sgemm_128x64"], nodes["vectorized_elementwise_kernel"]
    assert played.recording.duration_ps[product] == pytest.approx(100e6 * 312 / 989.4)
    assert played.recording.duration_ps[stream] == pytest.approx(50e6 * 2.039 / 3.35)
    assert played.low_s <= played.iteration_s <= played.high_s


def test_without_launches_streams_keep_the_order_of_their_times(tmp_path):
    """Two products, each before an all-reduce on a stream of its own that waits for it."""
    events = []
    for place in range(4):
        what = ("sm90_xmma_gemm", 7) if place % 2 == 0 else ("ncclDevKernel_AllReduce", 20)
        event = {"ph": "X", "cat": "kernel", "name": what[0], "ts": 400 * place, "dur": 400}
        events.append({**event, "args": {"stream": what[1]}})
    path = kineto(tmp_path / "rank0.json.gz", {"traceEvents": events})
    words = {"compute": "scaled", "communication": "recorded", "recorded_on": "a100-80gb"}
    products_s = 2 * 400e-6 * 312 / 989.4
    assert replay([path], DGX, **words).iteration_s == pytest.approx(products_s + 800e-6)


def test_a_profile_of_an_h100_tells_the_step_of_an_h200():
    """The same script's profile on an H200 took 150.8 ms; cuBLAS calls its products nvjet."""
    played = replay([PROFILES / "h100_compiled.json.gz"], cluster("dgx-h200"))
    assert (played.how, played.source) == ("scaled", "h100")
    assert played.iteration_s == pytest.approx(150.8e-3, rel=0.03)
    assert played.low_s < 150.8e-3 < played.high_s


def test_a_profile_that_waits_for_its_host_says_so():
    """Without the profiler, which makes the host slower, the step took 56.4 ms."""
    played = replay([PROFILES / "h100_small.json.gz"], DGX)
    assert played.host_waits_s > 0.6 * played.iteration_s
    assert played.low_s < 56.4e-3 < played.high_s


def test_two_ranks_of_a_job_meet(tmp_path):
    late = profile(1)
    late["traceEvents"][2]["dur"] = 102
    first, second = (
        kineto(tmp_path / f"rank{rank}.json.gz", each)
        for rank, each in enumerate((profile(), late))
    )
    assert replay([first, second], DGX).trace.schedule.labels["what"].names[-1] == "join"
    refused("rank 0 is also in", replay, [first, first], DGX)


def test_a_collective_without_a_size_keeps_its_time(tmp_path):
    document = profile()
    for name in ("In msg nelems", "Out msg nelems"):
        del document["traceEvents"][4]["args"][name]
    played = replay([kineto(tmp_path / "rank0.json.gz", document)], DGX)
    assert played.unmapped == {"ncclDevKernel_AllReduce": 1}


def test_times_that_no_clock_shows_and_a_profile_of_the_host_alone_are_refused(tmp_path):
    def written(**change):
        document = profile()
        document["traceEvents"][2] |= change
        return kineto(tmp_path / "rank0.json.gz", document)

    for name, value, shown in (
        ("dur", -5, "-5"),
        ("ts", float("nan"), "nan"),
        ("ts", None, "None"),
        ("dur", "soon", "nan"),
    ):
        refused(f"{name} of 'sgemm_128x64' is {shown}", replay, [written(**{name: value})], DGX)
    assert len(replay([written(cat="cpu_op")], DGX).recording)
    document = profile()
    document["traceEvents"] = [one for one in document["traceEvents"] if one["cat"] != "kernel"]
    refused("no accelerator activity", replay, [kineto(tmp_path / "rank0.json.gz", document)], DGX)
