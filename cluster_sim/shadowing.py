"""Check that no folder earlier on Python's path stands in for one of our packages."""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGES = ("topologies", "workloads", "experiments")


def shadowed(file: str) -> str:
    """Say which folder stands in for a package beside ``file``'s folder; empty where none does."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(file)))
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return f"the package {name} is missing beside {root}. Install cluster-sim again."
        folder = os.path.dirname(os.path.abspath(spec.origin))
        if os.path.realpath(os.path.dirname(folder)) != os.path.realpath(root):
            return (
                f"{folder} comes before the package {name} of cluster-sim ({root}) on Python's "
                "path. Rename it, start Python in another folder, or take it out of PYTHONPATH."
            )
    return ""


def check_not_shadowed(file: str) -> None:
    """Refuse to be imported where another package stands in for one of ours."""
    # The command is let through, because it says the same without a traceback.
    message = shadowed(file)
    first = sys.argv[0] if sys.argv else ""
    is_command = first == "-m" or os.path.basename(first).startswith("cluster-sim")
    if message and not is_command:
        raise ImportError(message)
