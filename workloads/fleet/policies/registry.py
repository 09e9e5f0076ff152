"""Policies by name: those that are built in, and a user's own.

A user's own policy is a function ``policy`` in a Python file that the user names. Its settings are
parameters of that function, with their defaults, such as ``mine.py:margin=1.5`` states one.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from topologies.support.arguments import check_names
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.files.reading import check_regular
from topologies.support.registry import by_name
from workloads.fleet.policies import rules
from workloads.fleet.policies.view import Decision, Policy, PolicyKind, Situation, View
from workloads.options.fleet import PolicyInputs

KINDS: dict[str, PolicyKind] = by_name("policy", rules.POLICIES)
"""Built-in policies by name."""


def check_name(name: str) -> None:
    """Check that a policy is built in or a Python file."""
    if not _is_file(name) and name not in KINDS:
        raise InputError(
            f"unknown policy {shown(name)!r}; choose {', '.join(KINDS)} or a file such as mine.py."
            + suggestion(name, KINDS)
        )


def bound_of(name: str) -> str:
    """Name of the policy with foresight that bounds a policy from above."""
    return KINDS[name].bound if name in KINDS else PolicyKind.bound


def _is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name


def policy_named(name: str, settings: PolicyInputs, situation: Situation) -> Policy:
    """Return a built-in policy by its name, or a user's from a file such as ``mine.py``."""
    if _is_file(name):
        path, _, stated = name.partition(".py:")
        return load_policy(f"{path.removesuffix('.py')}.py", stated)
    check_name(name)
    return KINDS[name].build(settings, situation)


MAX_BYTES = 10**6


def load_policy(path: str | Path, stated: str = "") -> Policy:
    """Load ``policy`` from a file, which runs the file's code: name only files that you trust."""
    # ``stated`` are settings, such as ``margin=1.5,dear=60``, of ``def policy(view, margin=1.2)``.
    file = Path(path)
    if file.suffix != ".py":
        raise InputError(f"policy file {file} is no .py file. Name one that defines policy(view).")
    check_regular(file, name=f"policy file {file}", limit_bytes=MAX_BYTES)
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
    return _guarded(partial(policy, **_settings(policy, stated, file)), file)


def _settings(policy: Policy, stated: str, file: Path) -> dict[str, Any]:
    """Read settings of a user's function, which have the types of their defaults there."""
    parameters = inspect.signature(policy).parameters.values()
    usual = {each.name: each.default for each in parameters if each.default is not each.empty}
    values: dict[str, Any] = {}
    for part in filter(None, stated.split(",")):
        name, _, text = (piece.strip() for piece in part.partition("="))
        check_names(f"policy file {file}", [name], [*usual])
        kind = type(usual[name])
        try:
            values[name] = bool(int(text)) if kind is bool else kind(text)
        except (TypeError, ValueError):
            raise InputError(
                f"policy file {file}: {name} is {shown(text)!r}; write a value such as "
                f"{name}={int(usual[name]) if kind is bool else usual[name]}."
            ) from None
    return values


def _guarded(policy: Policy, file: Path) -> Policy:
    """Turn an error of the user's function into one line that names the file and the minute."""

    def guarded(view: View) -> npt.ArrayLike | Decision | None:
        """Call the user's function for a minute."""
        try:
            with redirect_stdout(sys.stderr):
                return policy(view)
        except (Exception, SystemExit) as fault:
            raise InputError(
                f"policy file {file}, minute {view.minute}: {type(fault).__name__}: {fault}. "
                "Correct its function policy(view)."
            ) from fault

    return guarded
