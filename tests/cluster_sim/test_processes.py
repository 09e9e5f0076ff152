"""Pools of processes, whose workers may die or be stopped, and progress bars at a terminal only."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import pytest

from cluster_sim import progress as shown
from cluster_sim.processes import (
    WorkerEndedError,
    available_workers,
    can_fork,
    forked,
    process_pool,
)
from cluster_sim.progress import one_piece, progress, progress_bars, unwatched
from tests.support.forks import forks
from topologies.support.errors import InputError

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
    (script := folder / "script.py").write_text(HEEDS_CTRL_C + code)
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


SHOW_CURSOR = "\x1b[?25h"


class Terminal(io.StringIO):
    """Keeps what a terminal would be sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, for stderr, on which bars are drawn at once."""
    monkeypatch.setattr(shown, "PATIENCE_S", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_a_bar_tells_what_is_done_and_of_how_much(terminal):
    with redirect_stderr(terminal):
        assert list(progress(["a", "b", "c"], "letters", quiet=False)) == ["a", "b", "c"]
        with progress_bars(quiet=False) as report:
            report("clocks", 1, 4)
            report("breakdown", 2, 9)
    assert all(text in terminal.getvalue() for text in ("letters", "3/3", "1/4", "2/9"))


@pytest.mark.parametrize(("patience_s", "quiet"), [(-1.0, True), (1000.0, False)])
def test_quiet_and_short_work_draw_nothing(terminal, monkeypatch, patience_s, quiet):
    monkeypatch.setattr(shown, "PATIENCE_S", patience_s)
    with redirect_stderr(terminal):
        assert list(progress([1, 2], "numbers", quiet=quiet)) == [1, 2]
    assert terminal.getvalue() == ""


def test_a_bar_appears_while_the_first_piece_of_work_lasts(terminal, monkeypatch):
    monkeypatch.setattr(shown, "PATIENCE_S", 0.01)
    with redirect_stderr(terminal):
        for _ in progress(["long"], "runs", quiet=False):
            end = time.monotonic() + 30.0
            while "0/1" not in terminal.getvalue():
                assert time.monotonic() < end
                time.sleep(0.01)


def test_no_terminal_gets_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(shown, "PATIENCE_S", -1.0)
    with progress_bars(quiet=False) as report:
        report("numbers", 1, 2)
    assert capsys.readouterr().err == ""


def test_a_fault_takes_the_bars_away(terminal):
    def fail(items: int) -> None:
        with redirect_stderr(terminal), progress_bars(quiet=False) as report:
            report("numbers", 1, items)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail(2)
    assert terminal.getvalue().endswith(SHOW_CURSOR)


@pytest.mark.parametrize("is_faulty", [False, True])
def test_a_single_piece_of_work_has_a_bar_that_goes_with_it(terminal, is_faulty):
    done = []
    try:
        with redirect_stderr(terminal), one_piece("search", partial(progress, quiet=False)):
            if is_faulty:
                raise ValueError("no")
            done.append("search")
    except ValueError as fault:
        held = fault  # its traceback holds the frames, and the bar goes nevertheless
        assert held.args == ("no",)
        assert terminal.getvalue().endswith(SHOW_CURSOR)
    assert bool(done) != is_faulty
    assert ("1/1" in terminal.getvalue()) != is_faulty
    with one_piece("search", unwatched):
        done.append("unwatched")
    assert done[-1] == "unwatched"
