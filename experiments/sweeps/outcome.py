"""One run of a study in this process, and its outcome."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[Sequence[str]], int]
"""Function that runs a command line in this process and returns the exit status."""
Outcome = dict[str, Any]
"""``status``, ``message``, ``document`` and ``wall_s`` of a run, in a form that JSON can hold."""

KILLED = "its process was killed, perhaps for want of memory"

_ONE_AT_A_TIME = threading.Lock()  # output is caught for the whole process


def run_row(run: Run, arguments: Sequence[str]) -> Outcome:
    """Run one command line in this process and capture the JSON that it prints.

    Returns ``status``: ``ok``; ``refused`` for a user's mistake or an impossible plan (exit status
    2); or ``crashed``. ``message``: the reason. ``document``: the printed JSON. ``wall_s``: the
    duration [s].
    """
    output, errors = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status, fault = run(arguments), ""
        except (Exception, SystemExit) as error:  # one run's fault never stops the others
            status, fault = 1, f"{type(error).__name__}: {error}"
    wall_s = time.monotonic() - begun
    message = fault or _last_line(errors.getvalue())
    if status == 2:
        return outcome("refused", message.removeprefix("cluster-sim: "), None, wall_s)
    try:
        document = json.loads(output.getvalue())
    except ValueError:
        return outcome("crashed", message or "it printed no JSON document", None, wall_s)
    if status:
        return outcome("crashed", message or f"exit status {status}", document, wall_s)
    return outcome("ok", "", document, wall_s)


def outcome(status: str, message: str, document: Any = None, wall_s: float = 0.0) -> Outcome:
    """Return an outcome in the form in which it is stored."""
    return {"status": status, "message": message, "document": document, "wall_s": wall_s}


def _last_line(text: str) -> str:
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
