"""A user's own policy: a function ``policy`` in a Python file that the user names."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy.typing as npt

from topologies.errors import InputError
from topologies.files.reading import no_such_file
from workloads.fleet.policies.view import Decision, Policy, View

MAX_BYTES = 10**6


def load_policy(path: str | Path) -> Policy:
    """Load ``policy`` from a file, which runs the file's code: name only files that you trust.

    The file defines ``def policy(view)``, where ``view`` is a
    :class:`workloads.fleet.policies.view.View`, and returns the units that should serve, one number
    for each service (or a single number), or None to leave things as they are::

        def policy(view):
            return 1.2 * view.load[:, -15:].max(axis=1)
    """
    file = Path(path)
    if file.suffix != ".py":
        raise InputError(f"policy file {file} is no .py file. Name one that defines policy(view).")
    if not file.exists():
        raise InputError(f"policy file {file} cannot be read: {no_such_file(file)}")
    if not file.is_file():
        raise InputError(f"policy file {file} is no regular file. Name one with policy(view).")
    if file.stat().st_size > MAX_BYTES:
        raise InputError(
            f"policy file {file} has {file.stat().st_size:,} bytes, limit {MAX_BYTES:,}. "
            "Shorten it."
        )
    spec = importlib.util.spec_from_file_location(f"user_policy_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"policy file {file} cannot be loaded as Python. Correct it.")
    module = importlib.util.module_from_spec(spec)
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the answer
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        raise InputError(
            f"policy file {file}: {type(fault).__name__}: {fault}. Correct it."
        ) from fault
    policy = getattr(module, "policy", None)
    if not callable(policy):
        raise InputError(f"policy file {file} defines no function policy(view); add one.")
    return _guarded(policy, file)


def _guarded(policy: Policy, file: Path) -> Policy:
    """Turn an error of the user's function into one line that names the file and the minute."""

    def guarded(view: View) -> npt.ArrayLike | Decision | None:
        """Ask the policy; its faults name file and minute."""
        try:
            with redirect_stdout(sys.stderr):
                return policy(view)
        except (Exception, SystemExit) as fault:
            raise InputError(
                f"policy file {file}, minute {view.minute}: {type(fault).__name__}: {fault}. "
                "Correct its function policy(view)."
            ) from fault

    return guarded
