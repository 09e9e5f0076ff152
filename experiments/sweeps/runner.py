"""Runs of a study in processes of this machine, or on a Dask cluster whose workers may fail."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from typing import Any

from cluster_sim.processes import WorkerEndedError, process_pool
from experiments.sweeps.study import Row
from topologies.support.errors import InputError, shown

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
    """Yield each run with its future as soon as it finishes; ``look`` is called every second."""
    # Only a few runs are submitted at a time, so that stopping early is quick.
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


def run_in_processes(rows: Sequence[Row], workers: int, run: Run) -> Generator[tuple[Row, Outcome]]:
    """Run rows in processes of this machine; a run that kills its worker has crashed."""
    # It is unknown which of the runs in flight killed the pool, so each is repeated alone.
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
    """Run a command line here: ``ok`` with its JSON, ``refused`` or ``crashed``; its time [s]."""
    output, errors = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status, fault = run(arguments), ""
        except (Exception, SystemExit) as error:  # one run's fault never stops the others
            status, fault = 1, f"{type(error).__name__}: {error}"
    wall_s = time.monotonic() - begun
    lines = [line for line in errors.getvalue().replace("\r", "\n").splitlines() if line.strip()]
    message = fault or (lines[-1].strip() if lines else "")
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


PATIENCE_S = 30.0
"""Time without any worker after which a sweep gives up; Dask's nanny restarts one in seconds."""
ANSWER_WITHIN = "10s"


class _Cluster:
    """A connection to a Dask scheduler."""

    def __init__(self, client: Any, address: str):
        self.address = address
        self._client = client
        self.executor: Executor = client.get_executor(pure=False)

    def workers(self) -> int:
        """Number of live workers that the scheduler knows."""
        try:
            return len(self._client.scheduler_info()["workers"])
        except (OSError, ValueError, TimeoutError, RuntimeError):
            raise self.lost("its scheduler does not answer") from None

    def lost(self, why: str) -> InputError:
        """Return the error about a cluster that was lost."""
        return InputError(
            f"the Dask cluster at {shown(self.address)} was lost: {why}. Finished runs are kept "
            "where --out was given; start the cluster again and repeat the command."
        )


def run_on_dask(rows: Sequence[Row], address: str, run: Run) -> Generator[tuple[Row, Outcome]]:
    """Yield each run with its outcome as soon as it finishes, in any order."""
    # Dask gives up a run after several of its workers have died, and with it innocent runs on the
    # same worker: such runs are repeated alone, and one that kills its worker again has crashed.
    with _connected(address) as cluster:
        suspects: list[Row] = []
        yield from _run_on_cluster(rows, cluster, run, suspects, at_once=cluster.workers() * AHEAD)
        guilty: list[Row] = []
        yield from _run_on_cluster(suspects, cluster, run, guilty, at_once=1)
        for row in guilty:
            yield row, outcome("crashed", KILLED)


def _run_on_cluster(
    rows: Sequence[Row], cluster: _Cluster, run: Run, suspects: list[Row], *, at_once: int
) -> Iterator[tuple[Row, Outcome]]:
    """Yield finished runs; those whose workers died are added to ``suspects``."""
    from distributed import KilledWorker

    last_alive = [time.monotonic()]

    def look(some_finished: bool) -> None:
        if some_finished or cluster.workers():
            last_alive[0] = time.monotonic()
        elif time.monotonic() - last_alive[0] > PATIENCE_S:
            raise cluster.lost(f"no worker has been alive for {PATIENCE_S:.0f} s")

    for row, done in run_rows(rows, cluster.executor, at_once, run, look=look):
        try:
            yield row, done.result()
        except KilledWorker:
            suspects.append(row)
        except CancelledError:
            raise cluster.lost("its scheduler went away") from None


LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")
"""Loggers of Dask that have levels of their own, and of what it runs on."""


@contextmanager
def _connected(address: str) -> Iterator[_Cluster]:
    if not address.partition(":")[2]:
        raise InputError(f"--dask {shown(address)!r} has no port; write tcp://host:8786.")
    try:
        import distributed
    except ImportError:
        raise InputError(
            '--dask needs Dask. Install it with: pip install "cluster-sim[dask]"'
        ) from None
    # Dask's lost connections, which an error line reports; what others log is shown.
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        try:
            client = distributed.Client(address, timeout=ANSWER_WITHIN, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TimeoutError) as fault:
            reason = " ".join(str(fault).split())
            raise InputError(
                f"no Dask scheduler answers at {shown(address)}: {reason}. "
                "Start it, or correct --dask."
            ) from None
        try:
            cluster = _Cluster(client, address)
            if not cluster.workers():
                raise InputError(f"the Dask cluster at {address} has no workers. Start one.")
            yield cluster
        finally:
            client.close(timeout=2)  # type: ignore[no-untyped-call]
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
