"""Runs of a study in processes of this machine."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from cluster_sim.processes import WorkerEndedError, process_pool
from experiments.sweeps.study import Row

__all__ = ["AHEAD", "run_in_processes", "run_row", "run_rows"]

LOOK_EVERY_S = 1.0  # interval at which the workers of a cluster are checked while no run finishes
AHEAD = 4  # runs that are submitted for each worker at a time


def run_rows(
    rows: Sequence[Row],
    executor: Executor,
    at_once: int,
    run: Run,
    *,
    look: Callable[[bool], None] | None = None,
) -> Iterator[tuple[Row, Future[Outcome]]]:
    """Yield each run with its future as soon as it finishes, in any order.

    Only a few runs are submitted at a time, so that stopping early is quick. ``look``: function
    that is called every second, and with True where runs have finished.
    """
    waiting = iter(rows)
    running: dict[Future[Outcome], Row] = {}
    while True:
        for row in itertools.islice(waiting, at_once - len(running)):
            running[executor.submit(run_row, run, row.arguments)] = row
        if not running:
            return
        every_s = None if look is None else LOOK_EVERY_S
        done, _ = wait(running, timeout=every_s, return_when=FIRST_COMPLETED)
        if look is not None:
            look(bool(done))
        for future in done:
            yield running.pop(future), future


def run_in_processes(rows: Sequence[Row], workers: int, run: Run) -> Iterator[tuple[Row, Outcome]]:
    """Run rows in processes of this machine; a run that kills its worker has crashed.

    It is unknown which of the runs in flight killed the pool, so each is repeated alone.
    """
    unfinished = {row.digest: row for row in rows}
    while unfinished:
        try:
            with process_pool(workers) as pool:
                for row, done in run_rows(list(unfinished.values()), pool, workers * AHEAD, run):
                    result = done.result()  # raises where a worker died
                    del unfinished[row.digest]
                    yield row, result
        except WorkerEndedError:
            # Rows are submitted in order, so those in flight are among the first.
            for row in list(unfinished.values())[: workers * AHEAD]:
                yield row, _alone(row, run)
                del unfinished[row.digest]


def _alone(row: Row, run: Run) -> Outcome:
    """Run a row in a process of its own."""
    try:
        with process_pool(1) as pool:
            return pool.submit(run_row, run, row.arguments).result()
    except WorkerEndedError:
        return outcome("crashed", KILLED)


Run = Callable[[Sequence[str]], int]
"""Function that runs a command line in this process and returns the exit status."""
Outcome = dict[str, Any]
"""``status``, ``message``, ``document`` and ``wall_s`` of a run, in a form that JSON can hold."""

KILLED = "its process was killed, perhaps for want of memory"

_ONE_AT_A_TIME = threading.Lock()  # output is caught for the whole process


def run_row(run: Run, arguments: Sequence[str]) -> Outcome:
    """Run one command line in this process and capture the JSON that it prints.

    Returns ``status``: ``ok``; ``refused`` for a user's mistake or an impossible plan (exit status
    2); or ``crashed``. ``message``: the reason. ``document``: the printed JSON. ``wall_s``: the
    duration [s].
    """
    output, errors = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status, fault = run(arguments), ""
        except (Exception, SystemExit) as error:  # one run's fault never stops the others
            status, fault = 1, f"{type(error).__name__}: {error}"
    wall_s = time.monotonic() - begun
    message = fault or _last_line(errors.getvalue())
    if status == 2:
        return outcome("refused", message.removeprefix("cluster-sim: "), None, wall_s)
    try:
        document = json.loads(output.getvalue())
    except ValueError:
        return outcome("crashed", message or "it printed no JSON document", None, wall_s)
    if status:
        return outcome("crashed", message or f"exit status {status}", document, wall_s)
    return outcome("ok", "", document, wall_s)


def outcome(status: str, message: str, document: Any = None, wall_s: float = 0.0) -> Outcome:
    """Return an outcome in the form in which it is stored."""
    return {"status": status, "message": message, "document": document, "wall_s": wall_s}


def _last_line(text: str) -> str:
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
