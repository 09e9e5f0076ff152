"""Commands that only look something up load no library for numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ("numpy", "pandas", "scipy", "numba", "matplotlib", "networkx", "pyarrow", "simpy")
LISTS = ("models", "clusters", "schedules", "variants", "prices", "experiments")
HELPS = ("train", "plan", "serve", "fleet", "lend", "run-job", "validate", "sweep", "topology")
CODE = """
import sys
from experiments.cli.main import run
status = run(sys.argv[1:])
sys.stderr.write(" ".join(name for name in {slow} if name in sys.modules))
sys.exit(status)
"""


@pytest.mark.parametrize(
    "words",
    [("--help",), ("--version",), *(("list", kind) for kind in LISTS),
     *((name, "--help") for name in HELPS)],
    ids=" ".join,
)  # fmt: skip
def test_looking_up_loads_no_numbers(words: tuple[str, ...]) -> None:
    code = CODE.format(slow=SLOW)
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
