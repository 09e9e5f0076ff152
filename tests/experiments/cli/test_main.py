"""The frame of the command line: answers to mistakes, and the libraries that commands load."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_sim import __version__
from experiments.cli.main import EXAMPLES, app, run
from experiments.cli.registry import COMMANDS, Command

NAMES = [command.name for command in COMMANDS]
SINGLE = [name for name in NAMES if name != "experiment"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("collective all-reduce ring:8 --size 1MiB --ranks abc", ("--ranks 'abc'", "whole number")),
        ("fleet --seed -1", ("--seed '-1'", "equal to 0")),
        ("fleet --weight x", ("--weight 'x'", "number")),
        ("plan --global-batch 7.5", ("--global-batch '7.5'", "must be a whole number. See")),
        ("run-job --days -1", ("--days '-1'", "equal to 0")),
        ("fleet --days nan", ("--days 'nan'", "equal to 36525")),
        ("sweep study.yaml --workers 0", ("--workers '0'", "equal to 1")),
        ("fleet --start-day inf", ("--start-day 'inf'", "equal to 36525")),
        ("fleet --weight nan", ("--weight 'nan'", "equal to 1000000000")),
        ("nope", ("'nope'", "--help")),
        ("topology", ("CLUSTER", "--help")),
        ("topology ring:8 --jsn", ("--jsn", "--json")),
        ("topology ring:8 --graph=3", ("--graph", "does not take a value")),
    ],
)
def test_a_mistake_is_one_line_with_its_value(
    line: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cluster-sim: ")
    assert printed.err.count("\n") == 1
    assert all(name in printed.err for name in names), printed.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_summary_of_a_command_is_the_first_line_of_its_docstring(command: Command) -> None:
    if command.name != "experiment":
        assert (command.load().__doc__ or "").partition("\n")[0] == command.summary


def test_the_help_page_lists_every_command_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        assert any(line.split(maxsplit=1) == [command.name, command.summary] for line in lines)
    assert max(len(line) for line in lines) <= 80


def test_the_help_page_needs_none_of_the_large_libraries() -> None:
    code = (
        "import sys; from experiments.cli.main import run; run(['--help']);"
        "sys.exit(str({'numpy', 'pandas', 'numba', 'pydantic', 'rich'} & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


HELP_PAGE = {
    "experiments",
    *(f"experiments.cli{name}" for name in ("", ".main", ".registry")),
    *(f"experiments.cli.options{name}" for name in ("", ".from_fields")),
}
"""Modules of ``experiments`` that the help page of all commands loads."""


def loaded(line: str) -> set[str]:
    """Modules of ``experiments`` and ``workloads`` that a command line loads in a new process."""
    code = (
        "import sys; from experiments.cli.main import run;"
        f"sys.stdout = sys.stderr; run('{line}'.split()); sys.stdout = sys.__stdout__;"
        "print(*(name for name in sys.modules if name.startswith(('experiments', 'workloads'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_help_page_loads_no_module_of_a_command() -> None:
    assert loaded("--help") == HELP_PAGE


def test_a_command_loads_no_module_of_another() -> None:
    modules = loaded(f"{SMALL['collective']} --quiet")
    commands = {name for name in modules if name.startswith("experiments.cli.commands.")}
    assert not {name for name in modules if name.startswith("workloads.training")}
    assert commands == {"experiments.cli.commands.collective"}
    assert not modules & {"experiments.cli.commands.train", "experiments.cli.commands.sweep"}


SMALL = {
    "collective": "collective all-reduce ring:4 --bandwidth 1GB/s --latency 1us --size 1KiB",
    "train": "train --model llama-3.1-8b --cluster trn2.48xlarge --tp 8 --global-batch 64",
    "serve": "serve --model llama-3.1-8b --cluster trn2.48xlarge --tp 8 --requests poisson:0.5",
}
"""Small commands that answer in JSON with numpy and no other large library."""


@pytest.fixture(scope="module")
def kept_files() -> None:
    """Let a first run solve the linear program of a torus, whose solution is kept on disk."""
    with contextlib.redirect_stdout(io.StringIO()):
        run(f"{SMALL['train']} --json --quiet".split())


@pytest.mark.usefixtures("kept_files")
@pytest.mark.parametrize("command", SMALL.values(), ids=SMALL)
def test_a_small_command_needs_numpy_and_no_other_large_library(command: str) -> None:
    code = (
        "import sys; from experiments.cli.main import run;"
        f"run('{command} --json --quiet'.split());"
        "large = {'pandas', 'pyarrow', 'networkx', 'pydantic', 'rich', 'scipy', 'matplotlib', "
        "'simpy'};"
        "sys.exit(str(large & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert '_s": ' in done.stdout


WITH_TABLES = {
    "tables": f"{SMALL['train']}",
    "job": "run-job --model llama-3.1-8b --cluster trn2.48xlarge --tp 8 --days 9",
    "run": f"{SMALL['train']} --out {{}}",
    "demo": "experiment demo --model llama-3.1-8b --cluster trn2.48xlarge --tp 8 --pp 1 "
    "--global-batch 64 --out {}",
}
"""Small commands that print tables, or write them with pictures and traces, by pandas."""


@pytest.mark.usefixtures("kept_files")
@pytest.mark.parametrize("command", WITH_TABLES.values(), ids=WITH_TABLES)
def test_tables_are_made_without_large_libraries(command: str, tmp_path: Path) -> None:
    written = {"pandas"} if "--out" in command else set()
    code = (
        "import sys; from experiments.cli.main import run;"
        f"run('{command} --quiet'.format('{tmp_path}/run').split());"
        f"large = {{'pandas', 'networkx', 'pydantic', 'rich', 'scipy'}} - {written or '{*()}'};"
        "sys.exit(str(large & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.replace(f"written to {tmp_path}/run", "").strip() == ""
    assert done.stdout.count("\n") > 5


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"cluster-sim {__version__}\n"


def test_shells_are_told_commands_and_choices() -> None:
    def completed(words: str, number: int) -> list[str]:
        environment = {
            **os.environ,
            "_CLUSTER_SIM_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        code = "from experiments.cli import main; main()"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert completed("cluster-sim tr", 1) == ["plain,train"]
    assert completed("cluster-sim train --schedule g", 3) == ["plain,gpipe"]


def test_the_script_for_completion_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--show-completion", "bash"]) == 0
    assert "_CLUSTER_SIM_COMPLETE=bash_complete" in capsys.readouterr().out


@pytest.mark.parametrize("command", NAMES)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: cluster-sim {command} " in capsys.readouterr().out


def test_a_fault_of_the_system_is_words_not_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topologies.clusters.names.cluster", full)
    assert run(["topology", "trn2.48xlarge"]) == 2
    assert capsys.readouterr().err == (
        "cluster-sim: No space left on device. Free some space, or choose another place.\n"
    )


@pytest.mark.parametrize("command", SINGLE)
def test_every_command_takes_the_common_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"  --{name}" in page for name in ("json", "seed", "engine", "quiet")), page


def test_common_options_are_checked_where_they_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["topology", "ring:8", "--json", "--seed", "7", "--engine", "reference"]) == 0
    assert run(["topology", "ring:8", "--engine", "simpy"]) == 2
    assert "engine 'simpy' is none of" in capsys.readouterr().err


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_page_name_commands_and_options_that_exist(example: str) -> None:
    _, name, *words = example.split()
    command = app.get_command(None, name)
    assert command.make_context(name, words).params


def test_options_stand_under_the_heading_of_their_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    page = capsys.readouterr().out
    plan, run_of_level = page.index("Plan of a training step:"), page.index("Level of detail at")
    assert page.index("A model and the cluster that runs it:") < page.index("--model") < plan
    assert plan < page.index("--tp") < run_of_level < page.index("--level")
    assert page.index("Every command:") < page.index("--json") < page.index("--help")


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
