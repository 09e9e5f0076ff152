"""Runs of a study behind a ``concurrent.futures.Executor``: processes here, or a Dask cluster."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from experiments.sweeps.study import Row
from topologies.errors import InputError

Run = Callable[[Sequence[str]], int]
"""Runs a command line in this process and gives its exit status."""
AHEAD = 4
"""Runs handed out for each worker at a time."""

_ONE_AT_A_TIME = threading.Lock()  # what a command prints is caught for the whole process


def run_row(run: Run, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one command line in this process and catch the JSON that it prints.

    Returns
    -------
    dict
        ``status``: ``ok``; ``refused``, a user's mistake or a plan that cannot be (exit status 2);
        or ``crashed``. ``message``: why. ``document``: what was printed. ``wall_s``.
    """
    out, told = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        try:
            status, fault = run(arguments), ""
        except (Exception, SystemExit) as error:  # one run's fault never stops the others
            status, fault = 1, f"{type(error).__name__}: {error}"
    wall_s = time.monotonic() - begun
    message = fault or _last_line(told.getvalue())
    if status == 2:
        return _outcome("refused", message.removeprefix("cluster-sim: "), None, wall_s)
    try:
        document = json.loads(out.getvalue())
    except ValueError:
        return _outcome("crashed", message or "it printed no JSON document", None, wall_s)
    if status:
        return _outcome("crashed", message or f"exit status {status}", document, wall_s)
    return _outcome("ok", "", document, wall_s)


def run_rows(
    rows: Sequence[Row], executor: Executor, workers: int, run: Run
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Give each run with its outcome as soon as it is there, in any order.

    Only a few runs a worker are handed out at a time, so that stopping early is quick.

    Raises
    ------
    BrokenProcessPool
        When a worker process died; the runs that it had are not given.
    """
    waiting = iter(rows)
    running: dict[Future[dict[str, Any]], Row] = {}
    while True:
        for row in _some(waiting, workers * AHEAD - len(running)):
            running[executor.submit(run_row, run, row.arguments)] = row
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()


def run_in_processes(
    rows: Sequence[Row], workers: int, run: Run
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The same on processes of this machine; a run that kills its worker is said to have crashed.

    Which of the runs in flight killed the pool cannot be known, so each is tried again alone.
    """
    left = {row.digest: row for row in rows}
    while left:
        try:
            with process_pool(workers) as pool:
                for row, outcome in run_rows(list(left.values()), pool, workers, run):
                    del left[row.digest]
                    yield row, outcome
        except BrokenProcessPool:
            for row in list(left.values())[: workers * AHEAD]:
                yield row, _alone(row, run)
                del left[row.digest]


def _alone(row: Row, run: Run) -> dict[str, Any]:
    try:
        with process_pool(1) as pool:
            return pool.submit(run_row, run, row.arguments).result()
    except BrokenProcessPool:
        return _outcome("crashed", "its process was killed, perhaps for want of memory", None, 0.0)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that leave Ctrl-C to their parent and are ended when it leaves early."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask_pool(address: str) -> Iterator[tuple[Executor, int]]:
    """Executor on a Dask cluster, and how many workers it has.

    Raises
    ------
    InputError
        When Dask is not installed, or nobody answers at the address.
    """
    if not address.partition(":")[2]:
        raise InputError(f"--dask {address!r} has no port; write tcp://host:8786.")
    try:
        import distributed
    except ImportError:
        raise InputError(
            '--dask needs Dask. Install it with: pip install "cluster-sim[dask]"'
        ) from None
    try:
        client: Any = distributed.Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as fault:
        reason = " ".join(str(fault).split())
        raise InputError(f"no Dask scheduler answers at {address}: {reason}") from None
    with client:
        workers = len(client.scheduler_info()["workers"])
        if not workers:
            raise InputError(f"the Dask cluster at {address} has no workers. Start one.")
        yield client.get_executor(pure=False), workers


def available_workers() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _some(rows: Iterator[Row], count: int) -> Iterator[Row]:
    for _ in range(count):
        try:
            yield next(rows)
        except StopIteration:
            return


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _outcome(status: str, message: str, document: Any, wall_s: float) -> dict[str, Any]:
    return {"status": status, "message": message, "document": document, "wall_s": wall_s}


def _last_line(text: str) -> str:
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
