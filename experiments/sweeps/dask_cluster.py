"""Runs of a study on a Dask cluster, whose workers and scheduler may fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager
from typing import Any

from experiments.sweeps import runner
from experiments.sweeps.runner import KILLED, Outcome, Run, outcome
from experiments.sweeps.study import Row
from topologies.errors import InputError, shown

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


def run_on_dask(rows: Sequence[Row], address: str, run: Run) -> Iterator[tuple[Row, Outcome]]:
    """Yield each run with its outcome as soon as it finishes, in any order.

    Dask gives up a run after several of its workers have died, and with it innocent runs that were
    on the same worker. Such runs are therefore repeated, each alone; a run that kills its worker
    again has crashed.
    """
    with _connected(address) as cluster:
        suspects: list[Row] = []
        yield from _run(rows, cluster, run, suspects, at_once=cluster.workers() * runner.AHEAD)
        guilty: list[Row] = []
        yield from _run(suspects, cluster, run, guilty, at_once=1)
        for row in guilty:
            yield row, outcome("crashed", KILLED)


def _run(
    rows: Sequence[Row], cluster: _Cluster, run: Run, suspects: list[Row], *, at_once: int
) -> Iterator[tuple[Row, Outcome]]:
    """Yield finished runs; those whose workers died are added to ``suspects``."""
    from distributed import KilledWorker

    last_alive = [time.monotonic()]

    def look(some_finished: bool) -> None:
        """Give up where no worker has been alive for long."""
        if some_finished or cluster.workers():
            last_alive[0] = time.monotonic()
        elif time.monotonic() - last_alive[0] > PATIENCE_S:
            raise cluster.lost(f"no worker has been alive for {PATIENCE_S:.0f} s")

    for row, done in runner.run_rows(rows, cluster.executor, at_once, run, look=look):
        try:
            yield row, done.result()
        except KilledWorker:
            suspects.append(row)
        except CancelledError:
            raise cluster.lost("its scheduler went away") from None


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
    with _quiet_logs():
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


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Suppress Dask's messages about lost connections, which a single error line reports."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
