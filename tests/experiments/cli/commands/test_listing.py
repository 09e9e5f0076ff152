"""The command ``list``: each kind has rows, and loads no library that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from experiments.cli.commands.listing import KINDS
from experiments.cli.main import run

LARGE = {"matplotlib", "networkx", "numba", "pandas", "pyarrow", "scipy", "simpy"}
"""Libraries that take longer to load than a list takes to print."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_loads_no_large_library(kind: str) -> None:
    code = (
        "import sys; from experiments.cli.main import run;"
        f"run(['list', '{kind}', '--json', '--quiet']);"
        "print(*(name for name in sys.modules if '.' not in name), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & LARGE == set()
    assert json.loads(done.stdout)["rows"]


def test_every_bundled_demand_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "demands", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 8
    assert all(len(row["about"].split()) > 4 for row in rows)
