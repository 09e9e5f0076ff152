"""Finalists in several processes: how many there are, and what happens when one is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest

from cluster_sim.processes import WorkerEndedError
from tests.support.forks import forks
from tests.support.toy_training import TOY, sixteen
from topologies.clusters.names import cluster
from workloads.search.search import PROCESSES, Finalist, Runner, search

SEARCH = import_module("workloads.search.search")  # the package has a function of this name
SHORT = {"seq": 256, "pp": 1}
__all__ = ["forks"]


@pytest.mark.usefixtures("forks")
def test_large_clusters_take_two_processes_where_there_are_two_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Runner(TOY, cluster("trn2-ultraserver:16"), "fast")
    small = Runner(TOY, sixteen(), "fast")
    for processors, processes in ((8, PROCESSES), (1, 1)):
        monkeypatch.setattr(SEARCH, "available_workers", lambda number=processors: number)
        assert large.processes(10, 0) == processes
        assert large.processes(1, 0) == small.processes(10, 0) == 1
        assert small.processes(10, 4) == 4


def test_where_no_process_can_be_forked_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SEARCH, "can_fork", lambda: False)
    assert Runner(TOY, sixteen(), "fast").processes(10, 4) == 1


@pytest.mark.usefixtures("forks")
def test_a_progress_bar_with_a_thread_leaves_the_processes() -> None:
    workers = []

    def watch(items: Sequence[Any], task: str) -> Iterator[Any]:
        over = threading.Event()
        bar = threading.Thread(target=over.wait)  # as a bar in a terminal is drawn
        bar.start()
        try:
            for item in items:
                if task == "simulated":
                    workers.append(len(multiprocessing.active_children()))
                yield item
        finally:
            over.set()
            bar.join()

    search(TOY, sixteen(), 64, stated=SHORT, finalists=4, processes=2, watch=watch)
    assert workers == [2, 2, 2, 2]


@pytest.mark.usefixtures("forks")
def test_a_killed_process_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    finalist = Runner.finalist

    def killed(*task: Any) -> Finalist:
        if multiprocessing.parent_process() is not None:  # else this would end the tests
            os.kill(os.getpid(), signal.SIGKILL)
        return finalist(*task)

    monkeypatch.setattr(Runner, "finalist", killed)
    with pytest.raises(WorkerEndedError, match="ended from outside"):
        search(TOY, sixteen(), 64, stated=SHORT, finalists=4, processes=2)
