"""``python -m tools.precompile``: compiles the byte code and machine code of all commands.

``make develop`` runs it, so that the first command does not have to compile. Each entry of
``COMMANDS`` is the smallest command that uses some of the compiled functions. Commands run in
processes of their own, two at a time. ``make setup`` runs it with ``demo``, for what the
demonstration needs alone; all else is compiled when it is first used.
"""

from __future__ import annotations

import compileall
import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from experiments.cli.options.inputs import QUIET

ROOT = Path(__file__).parents[1]
PACKAGES = ("topologies", "cluster_sim", "workloads", "experiments")
PLAIN = ("ring:4", "--bandwidth", "1GB/s", "--latency", "1us")
TRAIN = ("train", "--model", "llama-3.1-8b", "--cluster", "trn2.48xlarge", "--tp", "4")
STEP = ("--global-batch", "8", "--seq", "4096", "--allow-oversized")

DEMO = (
    *("train", "--model", "llama-3.1-405b", "--cluster", "trn2-ultraserver:16", "--tp", "32"),
    *("--pp", "2", "--vpp", "1", "--zero", "1", "--recompute", "selective"),
    *("--microbatch", "1", "--sequence-parallel"),
    *("--global-batch", "256", "--seq", "8192", "--overlap", "all", "--framework", "neuronx"),
)
"""The step that ``make demo`` simulates."""
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("runs of schedules", ("collective", "all-reduce", *PLAIN, "--size", "1KiB")),
    ("clocks of all ranks", (*TRAIN, *STEP, "--level", "rank-vector", "--jitter", "0.01")),
    ("faults", (*TRAIN, *STEP, "--fault", "engine:0@1ms:slow=1/2")),
    ("breakdowns of training steps", (*TRAIN, *STEP, "--unfolded")),
    ("runs with shared memory", ("collective", "all-reduce", "trn2.48xlarge", "--size", "1MiB")),
    ("searches for plans", ("plan", *TRAIN[1:5], *STEP[:4])),
    ("files of a run", (*TRAIN, *STEP, "--out", "run")),
)


def main(words: Sequence[str]) -> int:
    """Run every command once, or that of the demonstration; return the number that failed."""
    demo = (("the demonstration", (*DEMO, "--out", "demo")),)
    commands = demo if "demo" in words else COMMANDS
    begun = time.perf_counter()
    failed = 0
    for package in PACKAGES:  # Python caches byte code by itself only if the user allows it
        compileall.compile_dir(ROOT / package, quiet=2)
    with ProcessPoolExecutor(2) as pool:
        works = {pool.submit(run_quietly, command): what for what, command in commands}
        for done, work in enumerate(as_completed(works), 1):
            failed += bool(work.result())
            state = "failed" if work.result() else "ready"
            line = f"machine code [{done}/{len(works)}]: {works[work]} {state}"
            sys.stderr.write(f"{line}, {time.perf_counter() - begun:.0f} s\n")
    return failed


def run_quietly(command: Sequence[str]) -> int:
    """Run a command of ``cluster-sim`` without its output, and return the exit status."""
    from experiments.cli.main import run

    os.environ[QUIET] = "1"
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        return run([*command, "--json"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
