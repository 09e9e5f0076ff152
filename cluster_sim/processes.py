"""Pools of local processes for independent work, which never outlive their parent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from cluster_sim.progress import Watch, unwatched
from topologies.support.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

ENDING_S = 0.1
"""Time in which threads that were told to end, such as those of progress bars, do so [s]."""
LOOK_S = 0.002  # time between two looks at the threads [s]


class WorkerEndedError(InputError):
    """Report that a worker process ended without a result, such as for want of memory."""


@contextmanager
def process_pool(
    workers: int, *, method: str = "spawn", begin: Callable[[], object] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes, which end with the ``with`` block or with their parent."""
    # Workers ignore Ctrl-C, to which the parent reacts, and call ``begin`` before their first task.
    other_children = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context(method),
        initializer=begin_worker,
        initargs=(begin,),
    )
    try:
        yield pool
    except BaseException as fault:
        # Workers end before the pool is shut down, which then waits for its own thread as well:
        # while a thread is left, no further process can be forked.
        for child in set(multiprocessing.active_children()) - other_children:
            child.terminate()
        if isinstance(fault, BrokenProcessPool):
            raise WorkerEndedError(
                "a worker process was ended from outside, as the system does when memory runs "
                "short. Free some memory, and run this again."
            ) from None
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def forked(
    function: Callable[[Any], Any], items: Sequence[Any], workers: int
) -> Iterator[Iterator[Any]]:
    """Give an iterator of what a function returns for each item, in the order of the items."""
    # Forked processes have all that this one has loaded; only results are sent.
    if workers < 2 or not can_fork():
        yield map(function, items)
        return
    work = partial(_hold, function, items)
    with process_pool(workers, method="fork", begin=work) as pool:
        yield pool.map(_call, range(len(items)))


def on_all_cores(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    watch: Watch = unwatched,
    *,
    task: str,
) -> list[Result]:
    """Return what a function gives for every item, in their order, from forked processes."""
    # A progress bar has a thread, and beside one nothing may be forked: the pool comes first.
    with forked(function, items, min(available_workers(), len(items))) as results:
        return [next(results) for _ in watch(items, task)]


def can_fork() -> bool:
    """Return whether this process may fork workers of its own."""
    # A fork copies locks that other threads hold and that nobody would release. A worker forks
    # none, since its siblings are on the other cores.
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and multiprocessing.parent_process() is None
        and _is_alone()
    )


def _is_alone() -> bool:
    """Return whether this thread is the only one, when others that are ending have ended."""
    end_s = time.monotonic() + ENDING_S
    while threading.active_count() > 1 and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return threading.active_count() == 1


_WORK: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""Function and items of a forked worker; empty in every other process."""


def _hold(function: Callable[[Any], Any], items: Sequence[Any]) -> None:
    """Keep the work of a forked worker."""
    _WORK.append((function, items))


def _call(number: int) -> Any:
    function, items = _WORK[0]
    return function(items[number])


def available_workers() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin_worker(begin: Callable[[], object] | None) -> None:
    """Prepare a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if begin is not None:
        begin()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """Wait for the end of the parent, then end this process, whose result nobody would read."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
