"""Bars on stderr for what takes longer than two seconds; nothing where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Tell = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and of how much."""
PATIENCE_S = 2.0


@contextmanager
def telling(*, quiet: bool) -> Iterator[Tell]:
    """A function to be told how far things are; it draws a bar for each of them.

    Nothing is drawn in the first two seconds, when ``quiet``, or when stderr is no terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _whole: None
        return
    bars, known, begun = _bars(), dict[str, "TaskID"](), time.monotonic()

    def tell(what: str, done: int, whole: int) -> None:
        if what not in known:
            known[what] = bars.add_task(what, total=whole)
        bars.update(known[what], completed=done, total=whole)
        if time.monotonic() - begun > PATIENCE_S:
            bars.start()

    try:
        yield tell
    finally:
        bars.stop()


def _bars() -> Progress:
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
    return Progress(*columns, console=console)


def progress(items: Sequence[Any], what: str, *, quiet: bool) -> Iterator[Any]:
    """Yield the items, and show how many are done."""
    with telling(quiet=quiet) as tell:
        for done, item in enumerate(items):
            tell(what, done, len(items))
            yield item
        tell(what, len(items), len(items))
