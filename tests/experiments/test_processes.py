"""Forked workers: the same results as here, in order, and none where a fork would be unsafe."""

from __future__ import annotations

import os
import threading

import pytest

from experiments.processes import can_fork, forked
from topologies.errors import InputError


def test_results_are_those_of_calls_here_in_order() -> None:
    items = [lambda number=number: number for number in range(7)]  # nothing that could be sent

    def work(item: object) -> tuple[int, bool]:
        assert callable(item)
        return item() ** 2, os.getpid() == here

    here = os.getpid()
    with forked(work, items, 1) as alone, forked(work, items, 3) as several:
        plain, apart = list(alone), list(several)
    assert [number for number, _ in plain] == [number for number, _ in apart]
    assert all(is_here for _, is_here in plain)
    if can_fork():
        assert not any(is_here for _, is_here in apart)


@pytest.mark.skipif(not can_fork(), reason="the runner of these tests has threads of its own")
def test_a_worker_forks_no_workers() -> None:
    with forked(lambda _: can_fork(), range(2), 2) as results:
        assert list(results) == [False, False]


def test_no_fork_beside_another_thread() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_fork()
        with forked(lambda _: os.getpid(), range(2), 2) as results:
            assert list(results) == [os.getpid()] * 2
    finally:
        stop.set()
        thread.join()


def test_an_error_of_a_worker_is_raised_here() -> None:
    def refuse(item: int) -> int:
        if item == 2:
            raise InputError("2 is too many; give 1.")
        return item

    with pytest.raises(InputError, match="2 is too many"), forked(refuse, range(4), 2) as results:
        list(results)
