"""Processor time, wall time and memory of this process, and of commands in their own processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

REPEATS = 3  # runs of a command after its first one, which finds files and caches cold
LONG_S = 5.0  # processor time from which a command is not repeated [s]
NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"
COMMAND = (str(Path(sys.executable).with_name("cluster-sim")),)
LAUNCH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("_launch.py")))
"""Process that runs a command and is smaller than any that is measured."""
PLAIN = ("--bandwidth", "100GB/s", "--latency", "1us", "--size", "1GiB", "--json", "--quiet")
"""Options of a collective on a plain shape."""


@dataclass(frozen=True)
class Used:
    """Time and memory of one process."""

    # user_s, system_s, wall_s: processor time in the program and in the system, and wall time [s]
    user_s: float
    system_s: float
    wall_s: float
    peak_bytes: int  # largest resident memory [B]

    @property
    def cpu_s(self) -> float:
        """Processor time [s]."""
        return self.user_s + self.system_s


def show(what: str, ops: int, used: Used, more: str = "") -> None:
    """Print one line: the name, the rate of ops if there are any, times and memory."""
    rate = f"{ops:12,} ops {ops / used.cpu_s / 1e6:6.2f} M ops/s" if ops else " " * 31
    print(
        f"{what:>20} {rate}  cpu {used.cpu_s:6.2f} s ({used.system_s:.2f} of the system)  "
        f"wall {used.wall_s:6.2f} s  {used.peak_bytes / 1e6:7.0f} MB{more}",
        flush=True,
    )


def least(*command: str) -> Used:
    """Run a command a few times, and return the run with the least processor time."""
    runs = [measured(*command)]  # the first finds files and caches cold
    while len(runs) <= REPEATS and runs[-1].cpu_s < LONG_S:
        runs.append(measured(*command))
    return min(runs, key=lambda used: used.cpu_s)


def measured(*command: str, output: Path = Path(os.devnull)) -> Used:
    """Run a command in a process of its own, with its standard output in a file.

    The command may keep Python's byte code on disk, as in every installation. What it writes to
    standard error is shown only if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTE_CODE}
    with tempfile.NamedTemporaryFile("r", errors="replace") as errors:
        words = (*LAUNCH, str(output), errors.name, *command)
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        status, *used = json.loads(done.stdout or "[1]")
        if status:
            last = [*done.stderr.splitlines()[-1:], *errors.read().splitlines()[-5:]]
            raise RuntimeError(f"{' '.join(command)} ended with status {status}: {' '.join(last)}")
    return Used(*used)


def clocks() -> npt.NDArray[np.float64]:
    """Wall clock and processor time of this process [s]; on a busy machine the latter is less."""
    return np.array([time.perf_counter(), time.process_time()])
