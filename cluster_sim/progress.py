"""Progress of tasks of more than two seconds: bars on a terminal, one line in a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[str, int, int], None]
"""Function that takes the name of a task, the units of work done, and those there are in all."""
Watch = Callable[[Sequence[Any], str], Iterable[Any]]
"""Function that wraps a slow sequence to show progress, with a word for the work."""
PATIENCE_S = 2.0
"""Time before the first bar appears: a quick command prints nothing but its answer [s]."""


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Report]:
    """Give a function that reports the progress of tasks and draws a bar for each."""
    # Nothing is drawn in the first two seconds, when quiet, or where nobody watches: stderr is no
    # terminal and this is no notebook.
    if quiet or not (sys.stderr.isatty() or in_notebook()):
        yield lambda _what, _done, _whole: None
        return
    bars = _notebook_line() if in_notebook() else _terminal_bars()
    drawing = _Drawing(bars)
    # A first unit of work may take minutes, in which nothing is reported. A notebook's line is sent
    # by the thread of its cell only.
    timer = threading.Timer(PATIENCE_S, drawing.start)
    timer.daemon = True
    if isinstance(bars, _Terminal):
        timer.start()

    def report(task: str, done: int, total: int) -> None:
        bars.update(task, done, total)
        if time.monotonic() - drawing.begun_s > PATIENCE_S:
            drawing.start()

    try:
        yield report
    finally:
        timer.cancel()
        drawing.stop()


def progress(items: Sequence[Any], task: str, *, quiet: bool) -> Iterator[Any]:
    """Yield the items, and draw a bar of how many are done."""
    with progress_bars(quiet=quiet) as report:
        for done, item in enumerate(items):
            report(task, done, len(items))
            yield item
        report(task, len(items), len(items))


@contextmanager
def one_piece(task: str, watch: Watch) -> Iterator[None]:
    """Show a single piece of work, the body of a ``with`` statement, as a sequence of one."""
    pieces = iter(watch([None], task))
    try:
        for _ in pieces:
            yield
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


def unwatched(items: Sequence[Any], _task: str) -> Iterable[Any]:
    """Return the items themselves, without showing progress."""
    return items


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class _Drawing:
    """Bars that are drawn from one moment on, whichever thread notices first that it has come."""

    def __init__(self, bars: _Terminal | _Notebook):
        self.bars = bars
        self.begun_s = time.monotonic()
        self.lock = threading.Lock()
        self.is_drawn = self.is_over = False

    def start(self) -> None:
        """Begin to draw, unless that was done, the work is over, or nothing was reported yet."""
        with self.lock:
            if self.is_drawn or self.is_over or not self.bars.tasks:
                return
            self.is_drawn = True
            self.bars.start()

    def stop(self) -> None:
        """Take the bars away, and draw none from now on."""
        with self.lock:
            self.is_over = True
            self.bars.stop()


class _Terminal:
    """Progress bars on stderr, one for each task."""

    def __init__(self, bars: Progress):
        self.bars = bars
        self.tasks = dict[str, "TaskID"]()

    def update(self, task: str, done: int, total: int) -> None:
        """Advance the progress bar of a task, which is added with its first report."""
        if task not in self.tasks:
            self.tasks[task] = self.bars.add_task(task, total=total)
        self.bars.update(self.tasks[task], completed=done, total=total)

    def start(self) -> None:
        """Begin to draw the bars."""
        self.bars.start()

    def stop(self) -> None:
        """Remove the bars from the terminal."""
        self.bars.stop()


class _Notebook:
    """One line of HTML below a notebook's cell, for the task that reported last."""

    def __init__(self, display: Any, html: Any):
        self.display, self.html = display, html
        self.handle: Any = None
        self.updated = 0.0
        self.tasks = set[str]()

    def update(self, task: str, done: int, total: int) -> None:
        """Advance the progress bar, at most five times a second."""
        self.tasks.add(task)
        # Each update is a message to the browser; a loop would flood it.
        if self.handle is not None and time.monotonic() - self.updated > 0.2:
            from html import escape

            bar = f'<progress value="{done}" max="{total}"></progress>'
            self.handle.update(self.html(f"{bar} {escape(task)} {done:,}/{total:,}"))
            self.updated = time.monotonic()

    def start(self) -> None:
        """Begin to draw the line."""
        self.handle = self.display(self.html(""), display_id=True)

    def stop(self) -> None:
        """Remove the line."""
        if self.handle is not None:
            self.handle.update(self.html(""))


def _notebook_line() -> _Notebook:
    from IPython.display import HTML, display

    return _Notebook(display, HTML)


def _terminal_bars() -> _Terminal:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    return _Terminal(Progress(*columns, console=console))
