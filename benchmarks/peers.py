"""Other simulators that are on the path, beside ours: the same messages, process to process.

Each piece of work is given to every simulator in turn, a few times over, so that all see the same
load from whatever else the machine does; the run with the least processor time counts. Simulated
times must agree as far as the models are equal.
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
    """A simulator that has its input."""

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
            measured(*runners[0].command)  # finds byte code and machine code made, or makes them
            for number, peer in enumerate(suited):
                folder = Path(name) / str(number)
                folder.mkdir()
                command = peer.prepare(work, folder)
                runners.append(Runner(peer.name, command, peer.simulated_s, peer.tolerance(work)))
            compare(work, runners, Path(name) / "output")


def present(peers: Sequence[Peer]) -> list[Peer]:
    """Peers that can run here; print a line for each of the others."""
    for peer in peers:
        if peer.missing():
            print(f"{peer.name} is left out: no {' and no '.join(peer.missing())} on the path")
    return [peer for peer in peers if not peer.missing()]


def ours(work: Work) -> Runner:
    """The command line of this simulator."""
    algorithm = "ring" if len(work.sides) == 1 else "per-axis"
    command = (*COMMAND, "collective", work.kind, work.shape, *PLAIN, "--algorithm", algorithm)
    return Runner("cluster-sim", command, lambda told: json.loads(told)["rows"][0]["time_s"], 0.0)


def compare(work: Work, runners: list[Runner], output: Path) -> None:
    """Run all by turns; print processor time, memory, and how many times as long each takes."""
    used: dict[str, list[Used]] = {runner.name: [] for runner in runners}
    simulated_s: dict[str, float] = {}
    for _ in range(REPEATS):
        for runner in runners:
            runs = used[runner.name]
            if runs and runs[-1].cpu_s > LONG_S:
                continue
            runs.append(measured(*runner.command, output=output))
            simulated_s[runner.name] = runner.simulated_s(output.read_text())
    own, own_s = min(run.cpu_s for run in used["cluster-sim"]), simulated_s["cluster-sim"]
    for runner in runners:
        best, found_s = min(used[runner.name], key=lambda run: run.cpu_s), simulated_s[runner.name]
        if abs(found_s - own_s) > runner.tolerance * own_s:
            raise ValueError(f"{runner.name} simulates {found_s} s, cluster-sim {own_s} s")
        ratio = f"  {best.cpu_s / own:6.1f} x  simulated {found_s * 1e3:.6f} ms"
        show(runner.name, work.hops, best, ratio)


if __name__ == "__main__":
    main()
