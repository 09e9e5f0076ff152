"""Commands from their start to the prompt: processor time, wall time and memory of each.

Each command runs several times in a process of its own. The least time is shown, because other work
of the machine can only add to it. Rings are compared with one written by hand in SimPy, which runs
in its own process too: the ratio is that of the processor times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from benchmarks._measure import COMMAND, PLAIN, least, show
from tools.precompile import DEMO

SMALLEST = ("collective", "all-reduce", "ring:8", *PLAIN)
LLAMA = ("--model", "llama-3.1-8b", "--cluster", "trn2.48xlarge", "--tp", "8")
FIRST = (
    ("train", *LLAMA, "--global-batch", "64"),
    ("serve", *LLAMA, "--requests", "poisson:2"),
    ("run-job", "--model", "llama-3.1-405b", "--cluster", "trn2-ultraserver:16", "--tp", "32",
     "--pp", "2", "--days", "90"),
    ("lend", "--cluster", "trn2-ultraserver:20", "--demand", "azure-code"),
    ("fleet", "--cluster", "trn2-ultraserver:64", "--demand", "azure-code", "--days", "2"),
)  # fmt: skip
"""Small commands of every kind, from the README and the tutorial."""
RINGS = (22, 71, 224, 512, 1024, 2237)
"""Ranks of rings of about 10³, 10⁴, 10⁵, 5·10⁵, 2·10⁶ and 10⁷ ops."""
SIDES = (16, 32, 64)  # sides of tori whose all-reduce per axis is 4·10⁵, 6·10⁶ and 10⁸ ops
UNITS = (1, 4, 16)
"""Numbers of UltraServers of training steps that are simulated message by message."""
STEP = ("train", "--model", "llama-3.1-8b", "--tp", "16", "--microbatch", "1", "--level", "chunk")
BY_HAND = (22, 71, 224)  # ranks of the rings that SimPy runs in less than a minute


def main() -> None:
    """Print the five tables."""
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
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        show(f"{64 * units:,} chips", json.loads(output)["ops"], least(*command))


def start_up() -> None:
    """Print the time and memory of commands that do nearly nothing."""
    print("start-up, process to process")
    for what, command in (
        ("python", (sys.executable, "-c", "pass")),
        ("import numpy", (sys.executable, "-c", "import numpy")),
        ("import cluster_sim", (sys.executable, "-c", "import cluster_sim")),
        ("--help", (*COMMAND, "--help")),
        ("smallest collective", (*COMMAND, *SMALLEST)),
    ):
        show(what, 0, least(*command))
    first_commands()


def first_commands() -> None:
    """Print the time of the commands that a user types first, and of the demo with its report."""
    print("first commands, process to process")
    with tempfile.TemporaryDirectory() as folder:
        for words in FIRST:
            show(words[0], 0, least(*COMMAND, *words, "--quiet"))
        show("demo", 0, least(*COMMAND, *DEMO, "--out", f"{folder}/demo", "--quiet"))


def _simpy_ring(ranks: int) -> tuple[str, ...]:
    """Command that runs the leanest of the rings by hand."""
    code = f"from benchmarks._by_hand import with_events; print(with_events({ranks}))"
    return sys.executable, "-c", code


if __name__ == "__main__":
    main()
