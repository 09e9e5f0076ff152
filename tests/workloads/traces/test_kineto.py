"""Replay of profiles of PyTorch: own times, scaled kernels and slower networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from tests.support.small_traces import kineto, profile
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.traces.replay import STEP_SPREAD, WAIT_LEFT, replay

DGX = cluster("dgx-h100")
PROFILES = Path(__file__).parent / "profiles"
"""Steps of Llama 3.2 1B by Transformers on one H100, in full and by single short sequences."""


def test_a_profile_with_its_own_times_takes_its_own_time(tmp_path: Path) -> None:
    path = kineto(tmp_path / "rank0.json.gz", profile())
    played = replay([path], DGX, compute="recorded", communication="recorded")
    assert played.trace.total_ps == 380 * 10**6
    assert played.recording.facts["recorded_s"] == pytest.approx(380e-6)
    waited_s = played.host_waits_s
    assert waited_s > STEP_SPREAD * played.iteration_s
    fastest_s = played.iteration_s - (1 - WAIT_LEFT) * waited_s
    spread = fastest_s, (1 + STEP_SPREAD) * played.iteration_s
    assert (played.low_s, played.high_s) == pytest.approx(spread)


def test_kernels_scale_by_what_limits_them(tmp_path: Path) -> None:
    path = kineto(tmp_path / "rank0.json.gz", profile())
    played = replay([path], DGX, communication="recorded")
    assert (played.how, played.source) == ("scaled", "a100-80gb")
    nodes = {name: k for k, name in enumerate(played.recording.name)}
    product, stream = nodes["sgemm_128x64"], nodes["vectorized_elementwise_kernel"]
    assert played.recording.duration_ps[product] == pytest.approx(100e6 * 312 / 989.4)
    assert played.recording.duration_ps[stream] == pytest.approx(50e6 * 2.039 / 3.35)
    assert played.low_s <= played.iteration_s <= played.high_s


def test_a_profile_of_an_h100_tells_the_step_of_an_h200() -> None:
    """The same script's profile on an H200 took 150.8 ms; cuBLAS calls its products nvjet."""
    played = replay([PROFILES / "h100_compiled.json.gz"], cluster("dgx-h200"))
    assert (played.how, played.source) == ("scaled", "h100")
    assert played.iteration_s == pytest.approx(150.8e-3, rel=0.03)
    assert played.low_s < 150.8e-3 < played.high_s


def test_a_profile_that_waits_for_its_host_says_so() -> None:
    """Without the profiler, which makes the host slower, the step took 56.4 ms."""
    played = replay([PROFILES / "h100_small.json.gz"], DGX)
    assert played.host_waits_s > 0.6 * played.iteration_s
    assert played.low_s < 56.4e-3 < played.high_s


def test_a_slower_network_makes_the_host_wait_longer(tmp_path: Path) -> None:
    path = kineto(tmp_path / "rank0.json.gz", profile())
    slow: Cluster = cluster("ring:2", bandwidth="1GB/s", latency="1us")
    played = replay([path], slow, compute="recorded")
    collective = duration_ps(CollectiveCall("all-reduce", Group(slow, np.arange(2)), 4 * 10**6))
    assert played.trace.total_ps == (380 - 200) * 10**6 + collective


def test_two_ranks_of_a_job_meet(tmp_path: Path) -> None:
    late = profile(1)
    late["traceEvents"][2]["dur"] = 102
    paths = [
        kineto(tmp_path / "rank0.json.gz", profile()),
        kineto(tmp_path / "rank1.json.gz", late),
    ]
    assert replay(paths, DGX).trace.schedule.labels["what"].names[-1] == "join"
    with pytest.raises(InputError, match="rank 0 is also in"):
        replay([paths[0], paths[0]], DGX)


def test_a_collective_without_a_size_keeps_its_time(tmp_path: Path) -> None:
    document = profile()
    for name in ("In msg nelems", "Out msg nelems"):
        del document["traceEvents"][4]["args"][name]
    played = replay([kineto(tmp_path / "rank0.json.gz", document)], DGX)
    assert played.unmapped == {"ncclDevKernel_AllReduce": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dur": -5}, "dur of 'sgemm_128x64' is -5"),
        ({"ts": float("nan")}, "ts of 'sgemm_128x64' is nan"),
        ({"dur": "soon"}, "dur of 'sgemm_128x64' is nan"),
        ({"cat": "cpu_op"}, None),
    ],
)
def test_times_that_no_clock_shows_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str | None
) -> None:
    document = profile()
    document["traceEvents"][2] |= change
    path = kineto(tmp_path / "rank0.json.gz", document)
    if message:
        with pytest.raises(InputError, match=message):
            replay([path], DGX)
    else:
        assert len(replay([path], DGX).recording)


def test_a_profile_of_the_host_alone_is_refused(tmp_path: Path) -> None:
    document = profile()
    document["traceEvents"] = [one for one in document["traceEvents"] if one["cat"] != "kernel"]
    with pytest.raises(InputError, match="no accelerator activity"):
        replay([kineto(tmp_path / "rank0.json.gz", document)], DGX)
