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
from benchmarks._peers.peers import PEERS, Peer
from benchmarks._peers.work import Work

WORK = (
    Work((512,)),
    Work((1024,)),
    Work((16, 16, 16)),
    Work((32, 32, 16)),
    Work((32, 32, 32)),
    Work((16, 16, 16), "all-to-all"),
)


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
        suited = [peer for peer in there if peer.suits(work)]
        print(f"{work.kind} of 1 GiB, {work.shape}, process to process", flush=True)
        with tempfile.TemporaryDirectory() as name:
            runners = [ours(work)]
            measured(*runners[0].command)  # writes byte code and machine code, if they are missing
            for number, peer in enumerate(suited):
                folder = Path(name) / str(number)
                folder.mkdir()
                command = peer.prepare(work, folder)
                runners.append(Runner(peer.name, command, peer.simulated_s, peer.tolerance(work)))
            compare(work, runners, Path(name) / "output")


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


def compare(work: Work, runners: list[Runner], output: Path) -> None:
    """Run all simulators by turns; print times and memory, and each time relative to ours."""
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
        show(runner.name, work.hops, best, ratio)


if __name__ == "__main__":
    main()
