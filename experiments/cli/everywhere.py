"""Options that every command takes, so that scripts may give them without asking which."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from experiments.cli.common import Engine, Quiet, Seed

Command = Callable[..., int | None]
TAKEN = {"engine": (Engine, "fast"), "seed": (Seed, 0), "quiet": (Quiet, False)}
"""Annotation and default of each."""


def everywhere(command: Command) -> Command:
    """Add the options of every command that this one has no use for.

    They are read and checked, and then left: what has no draws has no seed, and the engines give
    the same integers.

    Examples
    --------
    >>> def report(folder: str, quiet: Quiet = False) -> None: ...
    >>> list(inspect.signature(everywhere(report)).parameters)
    ['folder', 'quiet', 'engine', 'seed']
    """
    signature = inspect.signature(command)
    own = signature.parameters
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in TAKEN.items()
        if name not in own
    ]

    @functools.wraps(command)
    def complete(**given: Any) -> int | None:
        return command(**{name: value for name, value in given.items() if name in own})

    hints = get_type_hints(command, include_extras=True)
    typed = [one.replace(annotation=hints[one.name]) for one in own.values()]
    complete.__signature__ = signature.replace(parameters=[*typed, *added])  # type: ignore[attr-defined]
    complete.__annotations__ = hints | {one.name: one.annotation for one in added}
    return complete
