"""``python -m experiments NAME`` is ``cluster-sim experiment NAME``; without a name, a list."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.cli.main import leave, prepare, run


def main(arguments: Sequence[str]) -> int:
    """Run the experiment that is named first, or list all; return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return run(["list", "experiments", *arguments[1:]])
    return run(["experiment", *arguments])


if __name__ == "__main__":
    prepare()
    leave(main(sys.argv[1:]))
