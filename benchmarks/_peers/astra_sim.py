"""ASTRA-sim's analytical network backends: a ring in every dimension, one chunk.

ASTRA-sim begins with its first dimension, which is our last. The execution trace of a rank (Chakra:
protocol buffers, each behind its length) holds a single node, the collective. All ranks have the
same trace, so their file names are links to one file. ASTRA-sim counts a gigabyte as 2³⁰ bytes, and
time in whole nanoseconds. The backend that is unaware of congestion does not run the all-to-all,
whose messages share links.
"""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path

from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS, SIZE_BYTES, Work
from workloads.traces.chakra_export import VERSION, node_message, write_messages
from workloads.traces.chakra_schema import COLLECTIVE, COLLECTIVES, messages

AWARE = "AstraSim_Analytical_Congestion_Aware"
UNAWARE = "AstraSim_Analytical_Congestion_Unaware"
IMPLEMENTATIONS = {"all-reduce": "ring", "all-to-all": "direct"}
OTHER_FILES = 100
"""Most files that ASTRA-sim has open besides the traces."""
MOST_HOPS = 10_000_000
"""Most messages on links that ASTRA-sim runs within minutes."""
ROUNDING = 1e-4
"""Largest share of the time that is lost by rounding to whole nanoseconds."""


def suits(work: Work) -> bool:
    """Return whether a run ends within minutes and may open a trace for each rank at once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return work.hops <= MOST_HOPS and work.ranks + OTHER_FILES <= most


def prepare(binary: str, work: Work, folder: Path) -> tuple[str, ...]:
    """Write the inputs of a run, and return its command."""
    trace = folder / "trace"
    facts = {
        "is_cpu_op": False, "comm_type": COLLECTIVES.index(work.kind), "comm_size": SIZE_BYTES,
    }  # fmt: skip
    metadata = messages()["GlobalMetadata"](version=VERSION)
    write_messages(trace, [metadata, node_message(0, work.kind, COLLECTIVE, 0, [], facts)])
    for rank in range(work.ranks):
        os.symlink(trace, folder / f"ranks.{rank}.et")
    sides = len(work.sides)
    system = {f"{kind}-implementation": [how] * sides for kind, how in IMPLEMENTATIONS.items()}
    settings = {
        "scheduling-policy": "LIFO", "endpoint-delay": 0, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, "collective-optimization": "localBWAware",
        "local-mem-bw": 10**9, "boost-mode": 0,
    }  # fmt: skip
    (folder / "system.json").write_text(json.dumps(settings | system))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    rate = BANDWIDTH_BYTES_PER_S / 2**30
    (folder / "network.yml").write_text(
        f"topology: {['Ring'] * sides}\nnpus_count: {list(work.sides[::-1])}\n"
        f"bandwidth: {[rate] * sides}\nlatency: {[LATENCY_PS / 1000] * sides}\n".replace("'", "")
    )
    files = {
        "workload": "ranks", "system": "system.json", "remote-memory": "memory.json",
        "network": "network.yml",
    }  # fmt: skip
    options = (f"--{what}-configuration={folder / name}" for what, name in files.items())
    return (binary, *options, f"--logging-folder={folder / 'log'}")


def simulated_s(output: str) -> float:
    """Time at which the last rank finishes, read from ASTRA-sim's output [s]."""
    return max(map(int, re.findall(r"finished, (\d+) cycles", output))) / 1e9
