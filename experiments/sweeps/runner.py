"""Runs of a study in processes of this machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

from cluster_sim.processes import WorkerEndedError, process_pool
from experiments.sweeps.outcome import KILLED, Outcome, Run, outcome, run_row
from experiments.sweeps.study import Row

__all__ = ["AHEAD", "run_in_processes", "run_row", "run_rows"]

AHEAD = 4
"""Runs that are submitted for each worker at a time."""


def run_rows(
    rows: Sequence[Row], executor: Executor, workers: int, run: Run
) -> Iterator[tuple[Row, Outcome]]:
    """Yield each run with its outcome as soon as it finishes, in any order.

    Only a few runs for each worker are submitted at a time, so that stopping early is quick. Raises
    BrokenProcessPool if a worker process died; the runs in flight have no outcome then.
    """
    waiting = iter(rows)
    running: dict[Future[Outcome], Row] = {}
    while True:
        for row in itertools.islice(waiting, workers * AHEAD - len(running)):
            running[executor.submit(run_row, run, row.arguments)] = row
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()


def run_in_processes(rows: Sequence[Row], workers: int, run: Run) -> Iterator[tuple[Row, Outcome]]:
    """Run rows in processes of this machine; a run that kills its worker has crashed.

    It is unknown which of the runs in flight killed the pool, so each is repeated alone.
    """
    unfinished = {row.digest: row for row in rows}
    while unfinished:
        try:
            with process_pool(workers) as pool:
                for row, done in run_rows(list(unfinished.values()), pool, workers, run):
                    del unfinished[row.digest]
                    yield row, done
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
