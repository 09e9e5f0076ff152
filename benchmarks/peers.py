"""Comparison with other simulators that are on the path: the same messages, process to process.

The simulators run each piece of work by turns, a few times over, so that other load on the machine
affects all alike; the run with the least processor time counts. Simulated times must agree as far
as the models are equal.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._measure import COMMAND, LONG_S, PLAIN, REPEATS, Used, measured, show
from benchmarks._peers import astra_sim
from benchmarks._peers.peers import PEERS, Peer
from benchmarks._peers.step import Step, hops, nodes
from benchmarks._peers.work import Work

WORK = (
    Work((512,)),
    Work((1024,)),
    Work((16, 16, 16)),
    Work((32, 32, 16)),
    Work((32, 32, 32)),
    Work((16, 16, 16), "all-to-all"),
)
STEPS = (Step(dp=16, tp=16), Step(dp=64, tp=16))


class Runner(NamedTuple):
    """A simulator whose input is written, with the command that runs it."""

    name: str
    command: tuple[str, ...]
    simulated_s: Callable[[str], float]
    tolerance: float


def main() -> None:
    """Print a table for each piece of work."""
    there = present(PEERS)
    for work in WORK if there else ():
        print(f"{work.kind} of 1 GiB, {work.shape}, process to process", flush=True)
        suited = [peer for peer in there if peer.suits(work)]
        with tempfile.TemporaryDirectory() as name:
            runners = [ours(work)]
            for number, peer in enumerate(suited):
                command = peer.prepare(work, _folder(name, number))
                runners.append(Runner(peer.name, command, peer.simulated_s, peer.tolerance(work)))
            compare(work.hops, runners, Path(name) / "output")
    for step in STEPS if any(peer.prepare_step for peer in there) else ():
        print(f"training step, dp {step.dp} × tp {step.tp}, process to process", flush=True)
        with tempfile.TemporaryDirectory() as name:
            compare_step(step, there, Path(name))


def _folder(name: str, number: int) -> Path:
    folder = Path(name) / str(number)
    folder.mkdir()
    return folder


def compare_step(step: Step, peers: Sequence[Peer], folder: Path) -> None:
    """Run a training step by turns, in each simulator that has its messages."""

    def total_s(output: str) -> float:
        return float(json.loads(output)["iteration_s"])

    runners = [Runner("cluster-sim", step.command(folder), total_s, 0.0)]
    for number, peer in enumerate(peers):
        if peer.prepare_step is not None and astra_sim.opens(step.ranks):
            command = peer.prepare_step(step, _folder(str(folder), number))
            runners.append(Runner(peer.name, command, peer.simulated_s, astra_sim.ROUNDING))
    messages = hops(step, nodes(step.iteration(folder).program))
    compare(messages, runners, folder / "output")


def present(peers: Sequence[Peer]) -> list[Peer]:
    """Return the simulators that can run here, and print a line for each that cannot."""
    for peer in peers:
        if peer.missing():
            print(f"{peer.name} is left out: no {' and no '.join(peer.missing())} on the path")
    return [peer for peer in peers if not peer.missing()]


def ours(work: Work) -> Runner:
    """Return the runner of this simulator's own command line."""
    algorithm = "ring" if len(work.sides) == 1 else "per-axis"
    command = (*COMMAND, "collective", work.kind, work.shape, *PLAIN, "--algorithm", algorithm)
    return Runner(
        "cluster-sim", command, lambda output: json.loads(output)["rows"][0]["time_s"], 0.0
    )


def compare(messages: int, runners: list[Runner], output: Path) -> None:
    """Run all simulators by turns; print times and memory, and each time relative to ours."""
    measured(*runners[0].command)  # writes byte code and machine code, if they are missing
    used: dict[str, list[Used]] = {runner.name: [] for runner in runners}
    simulated_s: dict[str, float] = {}
    for _ in range(REPEATS):
        for runner in runners:
            runs = used[runner.name]
            if runs and runs[-1].cpu_s > LONG_S:
                continue
            runs.append(measured(*runner.command, output=output))
            simulated_s[runner.name] = runner.simulated_s(output.read_text())
    our_cpu_s, expected_s = (
        min(run.cpu_s for run in used["cluster-sim"]),
        simulated_s["cluster-sim"],
    )
    for runner in runners:
        best, time_s = min(used[runner.name], key=lambda run: run.cpu_s), simulated_s[runner.name]
        if abs(time_s - expected_s) > runner.tolerance * expected_s:
            raise ValueError(f"{runner.name} simulates {time_s} s, cluster-sim {expected_s} s")
        ratio = f"  {best.cpu_s / our_cpu_s:6.1f} x  simulated {time_s * 1e3:.6f} ms"
        show(runner.name, messages, best, ratio)


if __name__ == "__main__":
    main()
