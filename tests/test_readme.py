"""The README does what it says: its Python runs and prints what stands below it."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from experiments.cli.commands import COMMANDS
from experiments.scripts.registry import EXPERIMENTS

README = (Path(__file__).parents[1] / "README.md").read_text()
CODE, OUTPUT = re.findall(r"```python\n(.*?)```\n+```\n(.*?)```", README, re.DOTALL)[0]


def test_the_python_prints_what_the_readme_shows() -> None:
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(CODE, "README.md", "exec"), {})
    assert printed.getvalue() == OUTPUT


def test_commands_and_experiments_of_the_readme_exist() -> None:
    known = {command.name for command in COMMANDS}
    named = set(re.findall(r"^cluster-sim ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= known
    asked = set(re.findall(r"python -m experiments ([a-z_]+)", README))
    assert asked <= {experiment.name for experiment in EXPERIMENTS}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)", README))))
def test_links_of_the_readme_lead_somewhere(path: str) -> None:
    assert (Path(__file__).parents[1] / path).exists()
