"""Traces of small jobs: Chakra files, a profile of PyTorch, a GOAL schedule."""

import gzip
import json
from pathlib import Path
from typing import Any

from topologies.clusters.names import cluster
from workloads.traces import chakra_schema as schema
from workloads.traces.chakra import VERSION, node_message, write_messages

RING = cluster("ring:4", bandwidth="50GB/s", latency="1us")


def node(number: int, kind: int, *, us: int = 0, after: Any = (), **facts: Any) -> Any:
    return node_message(number, f"node{number}", kind, us * 10**6, list(after), facts)


def et(path: Path, *nodes: Any, version: str = VERSION) -> Path:
    write_messages(path, [schema.messages()["GlobalMetadata"](version=version), *nodes])
    return path


def step(rank: int, us: int = 10) -> list[Any]:
    """Compute, an all-reduce of 1 MB, compute."""
    return [
        node(1, schema.COMPUTE, us=us + rank),
        node(2, schema.COLLECTIVE, after=[1], comm_type=0, comm_size=10**6),
        node(3, schema.COMPUTE, us=5, after=[2]),
    ]


def job(folder: Path, ranks: int = 4) -> list[Path]:
    return [et(folder / f"job.{rank}.et", *step(rank)) for rank in range(ranks)]


def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A complete event of a PyTorch profile."""
    stream = args.pop("stream", 7)
    tid = stream if cat in ("kernel", "gpu_memcpy") else 1
    args |= {"stream": stream} if cat == "kernel" else {}
    return {
        "ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 0, "tid": tid,
        "args": args,
    }  # fmt: skip


def profile(rank: int = 0, world: int = 2) -> dict[str, Any]:
    """Two kernels with an all-reduce between them on another stream, and a wait of the host."""
    reduce = {
        "Collective name": "allreduce", "In msg nelems": 10**6, "Out msg nelems": 10**6,
        "dtype": "Float", "Group size": world, "Process Group Name": "0",
        "Process Group Ranks": str(list(range(world))),
    }  # fmt: skip
    events = [
        event("ProfilerStep#1", "user_annotation", 1000, 500),
        event("cudaLaunchKernel", "cuda_runtime", 1000, 5, correlation=1),
        event("sgemm_128x64", "kernel", 1010, 100, correlation=1),
        event("cudaLaunchKernel", "cuda_runtime", 1008, 5, correlation=2),
        event("ncclDevKernel_AllReduce", "kernel", 1112, 200, correlation=2, stream=20, **reduce),
        event("cudaDeviceSynchronize", "cuda_runtime", 1020, 295),
        event("cudaLaunchKernel", "cuda_runtime", 1320, 5, correlation=3),
        event("vectorized_elementwise_kernel", "kernel", 1330, 50, correlation=3),
    ]
    device, place = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}, {"rank": rank, "world_size": world}
    facts = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": place}
    return {**facts, "traceEvents": events}


def kineto(path: Path, document: dict[str, Any]) -> Path:
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


GOAL = """num_ranks 2
rank 0 {
l1: calc 1000
l2: send 5000000b to 1 tag 3
l2 requires l1
}
rank 1 {
l1: recv 5000000b from 0 tag 3
l2: calc 500
l2 requires l1
}
"""
