"""The README names commands and experiments that exist; its code is run by tests/docs."""

import re
from pathlib import Path

from experiments.cli.registry import COMMANDS
from experiments.scripts.registry import EXPERIMENTS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_commands_and_experiments_of_the_readme_exist():
    commands = {command.name for command in COMMANDS}
    named = set(re.findall(r"^cluster-sim ([a-z-]+)", README, re.MULTILINE))
    assert named
    assert named <= commands
    experiments = set(re.findall(r"python -m experiments ([a-z_]+)", README))
    assert experiments <= {experiment.name for experiment in EXPERIMENTS}
