"""Runs of a study on processes of this machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool

from experiments.processes import process_pool
from experiments.sweeps.outcome import KILLED, Outcome, Run, outcome, run_row
from experiments.sweeps.study import Row

__all__ = ["AHEAD", "run_in_processes", "run_row", "run_rows"]

AHEAD = 4
"""Runs handed out for each worker at a time."""


def run_rows(
    rows: Sequence[Row], executor: Executor, workers: int, run: Run
) -> Iterator[tuple[Row, Outcome]]:
    """Yield each run with its outcome as soon as it is there, in any order.

    Only a few runs a worker are handed out at a time, so that stopping early is quick.

    Raises
    ------
    BrokenProcessPool
        When a worker process died; the runs that it had are not given.
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
    """Run rows on processes of this machine; a run that kills its worker has crashed.

    Which of the runs in flight killed the pool cannot be known, so each is tried again alone.
    """
    left = {row.digest: row for row in rows}
    while left:
        try:
            with process_pool(workers) as pool:
                for row, done in run_rows(list(left.values()), pool, workers, run):
                    del left[row.digest]
                    yield row, done
        except BrokenProcessPool:
            for row in list(left.values())[: workers * AHEAD]:
                yield row, _alone(row, run)
                del left[row.digest]


def _alone(row: Row, run: Run) -> Outcome:
    try:
        with process_pool(1) as pool:
            return pool.submit(run_row, run, row.arguments).result()
    except BrokenProcessPool:
        return outcome("crashed", KILLED)
