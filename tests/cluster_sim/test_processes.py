"""Pools of processes: results as of calls here, and workers that die, are stopped or left alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cluster_sim.processes import (
    WorkerEndedError,
    available_workers,
    can_fork,
    forked,
    process_pool,
)
from tests.support.forks import forks
from topologies.errors import InputError

ROOT = Path(__file__).parents[2]
__all__ = ["forks"]


def test_results_are_those_of_calls_here_in_order():
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


@pytest.mark.usefixtures("forks")
def test_a_worker_forks_no_workers():
    with forked(lambda _: can_fork(), range(2), 2) as results:
        assert list(results) == [False, False]


def test_no_fork_beside_another_thread():
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


@pytest.mark.usefixtures("forks")
def test_threads_that_were_told_to_end_forbid_no_fork():
    """Those of a progress bar may outlive it by a moment, and what follows would run alone."""
    timers = [threading.Timer(3600.0, lambda: None) for _ in range(20)]
    for step in ("start", "cancel"):
        for timer in timers:
            getattr(timer, step)()
    assert can_fork()


def test_an_error_of_a_worker_is_raised_here():
    def refuse(item: int) -> int:
        if item == 2:
            raise InputError("2 is too many; give 1.")
        return item

    with pytest.raises(InputError, match="2 is too many"), forked(refuse, range(4), 2) as results:
        list(results)


@pytest.mark.usefixtures("forks")
def test_a_forked_worker_that_dies_is_an_error_of_one_line():
    def kill(_: int) -> None:
        assert multiprocessing.parent_process() is not None  # else this would end the tests
        os.kill(os.getpid(), signal.SIGKILL)

    message = "a worker process was ended from outside.* Free some memory"
    with pytest.raises(WorkerEndedError, match=message), forked(kill, range(2), 2) as results:
        list(results)


def test_a_pool_gives_what_its_processes_return():
    with process_pool(1) as pool:
        assert pool.submit(abs, -3).result() == 3
    with pytest.raises(WorkerEndedError, match="ended from outside"), process_pool(1) as pool:
        pool.submit(os._exit, 1).result()


def test_one_processor_is_one_worker_and_calls_run_here(monkeypatch):
    with monkeypatch.context() as patched:  # a system that does not say which there are
        patched.delattr(os, "sched_getaffinity", raising=False)
        patched.setattr(os, "cpu_count", lambda: None)
        assert available_workers() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert available_workers() == 1
    with forked(lambda _: os.getpid(), range(2), available_workers()) as results:
        assert list(results) == [os.getpid()] * 2


HEEDS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
"""First lines of a script, as a job in the background of a shell starts without Ctrl-C."""
SPAWNED = """
import sys, time
from cluster_sim.processes import process_pool
from tests.cluster_sim.test_processes import wait_long

if __name__ == "__main__":
    with process_pool(2) as pool:
        tasks = [pool.submit(wait_long, sys.argv[1], number) for number in range(2)]
        tasks[0].result()
"""
FORKED = """
import sys
from functools import partial
from cluster_sim.processes import forked
from tests.cluster_sim.test_processes import wait_long

with forked(partial(wait_long, sys.argv[1]), range(2), 2) as results:
    list(results)
"""


def wait_long(folder: str, number: int) -> None:
    """Write this process's id to a file, and go on for long."""
    (Path(folder) / f"{number}").write_text(str(os.getpid()))
    time.sleep(60)


def alive(process: int) -> bool:
    """Return whether a process exists and is more than an entry that nobody has read yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def begun(folder: Path, code: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a script as the leader of a group, and wait until both of its workers are busy."""
    script = folder / "script.py"
    script.write_text(HEEDS_CTRL_C + code)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    files = [folder / "0", folder / "1"]
    while not all(path.exists() and path.read_text() for path in files):
        assert parent.poll() is None
        time.sleep(0.05)
    return parent, [int(path.read_text()) for path in files]


def check_gone(workers: list[int]) -> None:
    end = time.monotonic() + 20
    while any(map(alive, workers)):
        assert time.monotonic() < end, "a worker outlives its parent"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("code", [SPAWNED, FORKED], ids=["spawned", "forked"])
def test_workers_end_with_a_parent_that_is_killed(tmp_path, code):
    parent, workers = begun(tmp_path, code)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    check_gone(workers)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("code", [SPAWNED, FORKED], ids=["spawned", "forked"])
def test_ctrl_c_ends_the_workers_and_only_the_parent_reports_it(tmp_path, code):
    parent, workers = begun(tmp_path, code)
    os.killpg(parent.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == -signal.SIGINT
    check_gone(workers)
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1, errors
