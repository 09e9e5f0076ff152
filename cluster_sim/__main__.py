"""``cluster-sim`` and ``python -m cluster_sim``: the command line, whatever stands beside it."""

from __future__ import annotations

import importlib
import os
import sys

import cluster_sim
from cluster_sim.shadowing import shadowed


def main() -> None:
    """Run the command line of this process; one line where its packages cannot be imported."""
    if sys.stderr is None:  # closed by whoever called
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    message = shadowed(cluster_sim.__file__)
    if message:
        sys.stderr.write(f"cluster-sim: {message}\n")
        sys.exit(2)
    # Loaded by name: the command line belongs to a package above this one.
    importlib.import_module("experiments.cli.main").main()


if __name__ == "__main__":
    main()
