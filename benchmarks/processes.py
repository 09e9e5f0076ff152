"""Commands from the first keystroke to the prompt: processor time, wall time and memory of each.

A command runs in a process of its own, several times, and the least is shown, since whatever else
the machine does only adds. Beside it stands a ring written by hand in SimPy, in a process of its
own as well, and how many times as fast the command is, by processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

REPEATS = 3
LONG_S = 5.0
"""Processor time from which a command is not repeated [s]."""

PLAIN = ("--bandwidth", "100GB/s", "--latency", "1us", "--size", "1GiB", "--json", "--quiet")
COMMAND = (str(Path(sys.executable).with_name("cluster-sim")),)
SMALLEST = ("collective", "all-reduce", "ring:8", *PLAIN)
RINGS = (22, 71, 224, 512, 1024, 2237)
"""Ranks of rings of about 10³, 10⁴, 10⁵, 5·10⁵, 2·10⁶ and 10⁷ ops."""
SIDES = (16, 32, 64)
"""Sides of tori whose all-reduce per axis is 4·10⁵, 6·10⁶ and 10⁸ ops."""
UNITS = (1, 4, 16)
"""UltraServers of training steps that are followed message by message."""
STEP = ("train", "--model", "llama-3.1-8b", "--tp", "16", "--microbatch", "1", "--level", "chunk")
BY_HAND = (22, 71, 224)
"""Ranks of the rings that SimPy runs in less than a minute."""


@dataclass(frozen=True)
class Used:
    """Time and memory of one process.

    Attributes
    ----------
    user_s, system_s, wall_s : float
        [s].
    peak_bytes : int
    """

    user_s: float
    system_s: float
    wall_s: float
    peak_bytes: int

    @property
    def cpu_s(self) -> float:
        """Processor time [s]."""
        return self.user_s + self.system_s


def main() -> None:
    """Print the four tables."""
    start_up()
    by_hand = {ranks: least(*_simpy_ring(ranks)) for ranks in BY_HAND}
    print("ring all-reduce, process to process")
    for ranks in RINGS:
        ops = 2 * ranks * (ranks - 1) + ranks
        used = least(*COMMAND, "collective", "all-reduce", f"ring:{ranks}", *PLAIN,
                     "--algorithm", "ring")  # fmt: skip
        beside = by_hand.get(ranks)
        ratio = "" if beside is None else f"; SimPy by hand {beside.cpu_s / used.cpu_s:6.1f} x"
        show(f"{ranks} ranks", ops, used, ratio)
    print("all-reduce per axis of a torus, process to process")
    for side in SIDES:
        shape = f"torus:{side}x{side}x{side}"
        ops = side**3 * 6 * side
        used = least(*COMMAND, "collective", "all-reduce", shape, *PLAIN, "--algorithm", "per-axis")
        show(shape, ops, used)
    print("training step, every message of every rank, process to process")
    for units in UNITS:
        command = (*COMMAND, *STEP, "--cluster", f"trn2-ultraserver:{units}",
                   "--global-batch", str(4 * units), "--json", "--quiet")  # fmt: skip
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        show(f"{64 * units:,} chips", json.loads(told)["ops"], least(*command))


def start_up() -> None:
    """Print what it takes to do nearly nothing."""
    print("start-up, process to process")
    for what, command in (
        ("python", (sys.executable, "-c", "pass")),
        ("import numpy", (sys.executable, "-c", "import numpy")),
        ("import cluster_sim", (sys.executable, "-c", "import cluster_sim")),
        ("--help", (*COMMAND, "--help")),
        ("smallest collective", (*COMMAND, *SMALLEST)),
    ):
        show(what, 0, least(*command))


def show(what: str, ops: int, used: Used, more: str = "") -> None:
    """Print one line."""
    rate = f"{ops:12,} ops {ops / used.cpu_s / 1e6:6.2f} M ops/s" if ops else " " * 31
    print(
        f"{what:>20} {rate}  cpu {used.cpu_s:6.2f} s ({used.system_s:.2f} of the system)  "
        f"wall {used.wall_s:6.2f} s  {used.peak_bytes / 1e6:7.0f} MB{more}",
        flush=True,
    )


def least(*command: str) -> Used:
    """Run a command a few times; the run with the least processor time."""
    runs = [measured(*command)]  # the first finds files and caches cold
    while len(runs) <= REPEATS and runs[-1].cpu_s < LONG_S:
        runs.append(measured(*command))
    return min(runs, key=lambda used: used.cpu_s)


def measured(*command: str) -> Used:
    """Run a command in a process of its own."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begun
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Used(usage.ru_utime, usage.ru_stime, wall_s, usage.ru_maxrss * 1024)


def _simpy_ring(ranks: int) -> tuple[str, ...]:
    """A process that runs the leanest of the rings by hand."""
    code = f"from benchmarks._by_hand import with_events; print(with_events({ranks}))"
    return sys.executable, "-c", code


if __name__ == "__main__":
    main()
