"""ASTRA-sim's analytical network backends: a ring in every dimension.

ASTRA-sim begins with its first dimension, which is our last. The execution trace of a rank (Chakra:
protocol buffers, each behind its length) holds a collective as a single node, which is one chunk,
or a training step, whose collectives are two chunks each, one for each way round. All ranks have
the same trace, so their file names are links to one file. ASTRA-sim counts a gigabyte as 2³⁰ bytes,
network time in whole nanoseconds, and kernels in whole microseconds. The backend that is unaware of
congestion does not run the all-to-all, whose messages share links.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._peers.step import WAYS, Node, Step, nodes
from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS, SIZE_BYTES, Work
from workloads.traces.chakra import VERSION, node_message, write_messages
from workloads.traces.chakra_schema import COLLECTIVE, COLLECTIVES, COMPUTE, messages

AWARE = "AstraSim_Analytical_Congestion_Aware"
UNAWARE = "AstraSim_Analytical_Congestion_Unaware"
IMPLEMENTATIONS = {"all-reduce": "ring", "all-to-all": "direct"}
OTHER_FILES = 100  # most files that ASTRA-sim has open besides the traces
MOST_HOPS = 10_000_000  # most messages on links that ASTRA-sim runs within minutes
ROUNDING = 1e-4  # largest share of the time that is lost by rounding to whole nanoseconds


PS_PER_US = 10**6


def suits(work: Work) -> bool:
    """Return whether a run ends within minutes and may open a trace for each rank at once."""
    return work.hops <= MOST_HOPS and opens(work.ranks)


def opens(ranks: int) -> bool:
    """Return whether a process may open a trace for each rank at once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ranks + OTHER_FILES <= most


def prepare(binary: str, work: Work, folder: Path) -> tuple[str, ...]:
    """Write the inputs of a collective, and return the command that runs it."""
    facts = {
        "is_cpu_op": False, "comm_type": COLLECTIVES.index(work.kind), "comm_size": SIZE_BYTES,
    }  # fmt: skip
    _write_traces(folder, work.ranks, [node_message(0, work.kind, COLLECTIVE, 0, [], facts)])
    return _configured(binary, work.sides, folder, ways=1)


def prepare_step(binary: str, step: Step, folder: Path) -> tuple[str, ...]:
    """Write the inputs of a training step, and return the command that runs it."""
    _write_traces(folder, step.ranks, step_messages(nodes(step.iteration(folder).program)))
    return _configured(binary, step.sides, folder, ways=WAYS)


def step_messages(of_a_rank: Iterable[Node]) -> Iterator[Any]:
    """Yield the messages of the nodes of a step, each kernel ending at a whole microsecond.

    What is rounded off a kernel is added to the next, so that it does not accumulate.
    """
    left_ps = 0
    for number, node in enumerate(of_a_rank):
        facts: dict[str, Any] = {"is_cpu_op": node.on_host}
        if node.axis < 0:
            exact_ps = node.duration_ps + left_ps
            whole_ps = max(0, round(exact_ps / PS_PER_US)) * PS_PER_US
            left_ps = exact_ps - whole_ps
            yield node_message(number, node.name, COMPUTE, whole_ps, node.before, facts)
            continue
        facts |= {"comm_type": COLLECTIVES.index("all-reduce"), "comm_size": node.size_bytes}
        message = node_message(number, node.name, COLLECTIVE, 0, node.before, facts)
        dimensions = message.attr.add(name="involved_dim").bool_list.values
        dimensions.extend(node.axis == axis for axis in (1, 0))
        yield message


def _write_traces(folder: Path, ranks: int, trace_nodes: Iterable[Any]) -> None:
    trace = folder / "trace"
    write_messages(trace, [messages()["GlobalMetadata"](version=VERSION), *trace_nodes])
    for rank in range(ranks):
        os.symlink(trace, folder / f"ranks.{rank}.et")


def _configured(binary: str, sides: tuple[int, ...], folder: Path, ways: int) -> tuple[str, ...]:
    """Write the configuration for collectives that go round in one or two ways."""
    count = len(sides)
    system = {f"{kind}-implementation": [how] * count for kind, how in IMPLEMENTATIONS.items()}
    settings = {
        "scheduling-policy": "LIFO", "endpoint-delay": 0, "active-chunks-per-dimension": ways,
        "preferred-dataset-splits": ways, "local-mem-bw": 10**9, "boost-mode": 0,
        "collective-optimization": "localBWAware" if ways == 1 else "baseline",
    }  # fmt: skip
    (folder / "system.json").write_text(json.dumps(settings | system))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    rate = BANDWIDTH_BYTES_PER_S / 2**30
    (folder / "network.yml").write_text(
        f"topology: {['Ring'] * count}\nnpus_count: {list(sides[::-1])}\n"
        f"bandwidth: {[rate] * count}\nlatency: {[LATENCY_PS / 1000] * count}\n".replace("'", "")
    )
    files = {
        "workload": "ranks", "system": "system.json", "remote-memory": "memory.json",
        "network": "network.yml",
    }  # fmt: skip
    options = (f"--{what}-configuration={folder / name}" for what, name in files.items())
    return (binary, *options, f"--num-queues-per-dim={ways}", f"--logging-folder={folder / 'log'}")


def simulated_s(output: str) -> float:
    """Time at which the last rank finishes, read from ASTRA-sim's output [s]."""
    return max(map(int, re.findall(r"finished, (\d+) cycles", output))) / 1e9
