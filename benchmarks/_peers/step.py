"""The training step that simulators run message by message, on a torus of tensor-parallel rings.

Its all-reduces run on rings, half of each way round: those of every layer along the last axis, that
of the gradients along the first. Nothing overlaps, since ASTRA-sim runs a single communication of a
rank at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._measure import COMMAND
from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS
from topologies.catalogue.catalogue import choose
from topologies.clusters.names import cluster
from workloads.front import train
from workloads.training.iteration import Iteration
from workloads.training.layers.steps import HOST
from workloads.training.program.program import Program

MODEL = "llama-3.1-8b"
PRINTED = ("--json", "--quiet")
CHIP = "{bf16_peak: 100TFLOP/s, hbm_bytes: 96GiB, hbm_bandwidth: 3TB/s}"
"""A chip of no vendor, so that no launch or runtime adds to the time of a message."""
ONE_SLICE = (
    "part,quantity,value,unit,grade,source\n"
    "neuron-runtime,ring_slices,1,count,assumed,as ASTRA-sim has it\n"
)
"""Row of the catalogue by which a collective has a message a step and way, not several slices."""
WAYS = 2  # ways round a ring, each of which carries half of a collective
AXES = {"dp": 0, "tp": 1, "norm": 1}
"""Axis of the torus along which the ring of each group of ranks runs."""


class Node(NamedTuple):
    """Part of a step of one rank."""

    name: str
    duration_ps: int  # time of a kernel; zero for a collective [ps]
    size_bytes: int  # buffer of an all-reduce; zero for a kernel [B]
    axis: int  # axis of the torus along which the all-reduce runs; -1 for a kernel
    on_host: bool  # whether the host works, not the chip
    before: list[int]  # nodes that end before this starts


@dataclass(frozen=True)
class Step:
    """A training step of Llama-3.1-8B, 32 layers, with a sequence for each replica."""

    dp: int  # replicas, the first side of the torus
    tp: int  # ranks of each replica, the last side

    @property
    def sides(self) -> tuple[int, int]:
        """Chips along each axis."""
        return self.dp, self.tp

    @property
    def ranks(self) -> int:
        """Number of chips, with one rank each."""
        return self.dp * self.tp

    def command(self, folder: Path) -> tuple[str, ...]:
        """Write the cluster, and return the command that simulates every message here."""
        plan = (f"--{name.replace('_', '-')}={value}" for name, value in self._plan().items())
        machine, catalogue = map(str, self._files(folder))
        words = ("--cluster", machine, "--catalogue", catalogue, *plan, "--no-sequence-parallel")
        return (*COMMAND, "train", "--model", MODEL, *words, "--level", "chunk", *PRINTED)

    def iteration(self, folder: Path, **detail: Any) -> Iteration:
        """Simulate the step in this process, folded unless the detail says otherwise."""
        machine, catalogue = self._files(folder)
        torus = cluster(str(machine), catalogue=choose((), catalogue))
        return train(MODEL, torus, **self._plan(), sequence_parallel=False, **detail)

    def _plan(self) -> dict[str, Any]:
        return {"tp": self.tp, "global_batch": self.dp, "zero": 0, "overlap": "none"}

    def _files(self, folder: Path) -> tuple[Path, Path]:
        speed = f"bandwidth: {BANDWIDTH_BYTES_PER_S}B/s, latency: {LATENCY_PS}ps"
        axes = (
            f"{{name: {name}, size: {size}, {speed}}}"
            for name, size in zip("YX", self.sides, strict=True)
        )
        machine, catalogue = folder / "torus.yaml", folder / "one_slice.csv"
        machine.write_text(f"chip: {CHIP}\nscale_up: {{shape: torus, axes: [{', '.join(axes)}]}}\n")
        catalogue.write_text(ONE_SLICE)
        return machine, catalogue


def nodes(program: Program) -> Iterator[Node]:
    """Yield what each rank of a step does, in order; all ranks do the same."""
    (stream,) = program.streams
    before: list[list[int]] = [[] for _ in stream.ops.step]
    for src, dst in zip(stream.src.tolist(), stream.dst.tolist(), strict=True):
        before[dst].append(src)
    for number, waits in zip(stream.ops.step.tolist(), before, strict=True):
        step = program.steps[number]
        on_host = step.stream == HOST
        if not step.collective:
            duration_ps = int(program.step_ps[number])
            yield Node(step.name, duration_ps, 0, -1, on_host, waits)
            continue
        if step.collective != "all-reduce":
            raise ValueError(f"{step.name} is no all-reduce, but {step.collective}")
        yield Node(step.name, 0, step.size_bytes, AXES[step.axis], on_host, waits)


def hops(step: Step, of_a_rank: Iterable[Node]) -> int:
    """Return the number of messages on links, each from a chip to its neighbour.

    Every piece of a buffer takes 2 (n - 1) hops on a ring of n. Pieces without a byte are not
    counted, since only ASTRA-sim sends them; they are those of the norm of the gradients, 4 B.
    """
    messages = 0
    for node in of_a_rank:
        if node.axis >= 0:
            side = step.sides[node.axis]
            pieces = min(WAYS * side, node.size_bytes)
            messages += step.ranks // side * 2 * (side - 1) * pieces
    return messages
