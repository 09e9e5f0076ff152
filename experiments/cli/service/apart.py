"""Questions in processes of their own, which end when their time is over."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from cluster_sim.processes import begin_worker
from experiments.cli.main import run
from experiments.cli.process import prepare
from experiments.cli.service.questions import QUESTIONS
from experiments.sweeps.runner import KILLED, Outcome, outcome, run_row

PRELOADED = [
    "experiments.cli.service.apart",
    *(f"experiments.cli.commands.{name}" for name in QUESTIONS),
    *(f"workloads.{name}.front" for name in ("fleet.lending", "fleet", "serving")),
    "workloads.front",
    "workloads.search.search",
]
"""Modules that are loaded in the process from which all others are forked."""
LATE = "late"
"""Status of a question that took too long."""


def run_apart(words: Sequence[str], files: Mapping[str, str], limit_s: float) -> Outcome:
    """Run a command line in a process of its own, in a folder that holds only some files.

    A process that takes longer than ``limit_s`` is killed. Returns the outcome of
    :func:`experiments.sweeps.runner.run_row`, or one with the status ``late``.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="cluster-sim-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        process = context.Process(target=_answer, args=(theirs, words, folder), daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(limit_s):
                return outcome(LATE, f"no answer within {limit_s:g} s; ask for less at once")
            result: Outcome = ours.recv()
            return result
        except EOFError:
            return outcome("crashed", KILLED)
        finally:
            ours.close()
            process.kill()
            process.join()
            process.close()


def _answer(connection: Connection, words: Sequence[str], folder: str) -> None:
    """Run a command line, and send its outcome."""
    begin_worker(prepare)
    os.chdir(folder)
    connection.send(run_row(run, words))
