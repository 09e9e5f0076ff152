"""Progress bars appear at a terminal only."""

import io
import time
from contextlib import redirect_stderr
from functools import partial

import pytest

from cluster_sim import progress as shown
from cluster_sim.progress import one_piece, progress, progress_bars, unwatched

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
