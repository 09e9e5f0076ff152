"""The command line: help, libraries that commands load, streams, and faults of the program."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

from cluster_sim import __version__
from experiments.cli import main as main_function
from experiments.cli.commands.listing import KINDS
from experiments.cli.main import EXAMPLES, app, run
from experiments.cli.options.from_fields import FIRST
from experiments.cli.registry import COMMANDS
from tests.support.commands import ended, printed_by, refusal_of


def test_the_help_page_lists_every_command_by_the_first_line_of_its_docstring():
    lines = printed_by("-h").splitlines()
    assert max(len(line) for line in lines) <= 80
    for command in COMMANDS:
        assert any(line.split(maxsplit=1) == [command.name, command.summary] for line in lines)
        if command.name != "experiment":
            assert (command.load().__doc__ or "").partition("\n")[0] == command.summary


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


def test_a_command_loads_no_module_of_another_and_the_help_page_of_none():
    assert loaded("--help") == HELP_PAGE
    modules = loaded(f"{SMALL['collective']} --quiet")
    commands = {name for name in modules if name.startswith("experiments.cli.commands.")}
    assert not {name for name in modules if name.startswith("workloads.training")}
    assert commands == {"experiments.cli.commands.collective"}
    assert not modules & {"experiments.cli.commands.train", "experiments.cli.commands.sweep"}


STEP = "train --model gpt2 --cluster trn2.48xlarge --tp 4 --global-batch 64"
SMALL = {
    "collective": "collective all-reduce ring:4 --bandwidth 1GB/s --latency 1us --size 1KiB",
    "train": STEP.replace("--tp 4", "--tp 1"),  # arithmetic: no other plan is searched for
    "serve": "serve --model gpt2 --cluster trn2.48xlarge --tp 4 --requests poisson:9 --count 9",
}
"""Small commands that answer in JSON with numpy and no other large library."""


@pytest.fixture(scope="module")
def kept_files() -> None:
    """Let a first run solve the linear program of a torus, whose solution is kept on disk."""
    with contextlib.redirect_stdout(io.StringIO()):
        run(f"{STEP} --json --quiet".split())


def without(libraries: str, lines: Iterable[str]) -> str:
    """Run lines one after the other in a new process that must load no library; what they print."""
    code = """
import sys
from experiments.cli.main import run
libraries, *lines = sys.argv[1:]
for line in lines:
    status = run(line.split())
    if loaded := {*libraries.split()} & sys.modules.keys() or status:
        sys.exit(f"{line}: {loaded}")
"""
    command = [sys.executable, "-c", code, libraries, *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("kept_files")
def test_small_commands_need_numpy_and_no_other_large_library():
    large = "pandas pyarrow networkx pydantic rich scipy matplotlib simpy workloads.search"
    lines = [f"{command} --json --quiet" for command in SMALL.values()]
    assert without(large, lines).count('_s": ') > len(lines)


PRINTED = (STEP, "run-job --model gpt2 --cluster trn2.48xlarge --tp 4 --days 9 --runs 1")
WRITTEN = (
    f"{STEP} --out {{}}/run",
    "experiment step_time_breakdown --models llama-3.1-8b --cluster trn2.48xlarge --tp 8 "
    "--global-batch 64 --out {}/breakdown",
)


@pytest.mark.usefixtures("kept_files")
@pytest.mark.parametrize(("libraries", "commands"), [
    ("pandas networkx pydantic rich scipy", PRINTED),
    pytest.param("networkx pydantic rich scipy", WRITTEN, marks=pytest.mark.slow),
])  # fmt: skip
def test_tables_of_a_few_rows_are_made_without_large_libraries(libraries, commands, tmp_path):
    """Small commands print tables, or write them with pictures and traces by pandas."""
    lines = [f"{command} --quiet".format(tmp_path) for command in commands]
    assert without(libraries, lines).count("\n") > 5 * len(lines)


def test_the_version_is_printed(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"cluster-sim {__version__}\n"


def test_shells_are_told_commands_and_choices():
    def completed(words: str, number: int) -> list[str]:
        environment = {
            **os.environ, "_CLUSTER_SIM_COMPLETE": "bash_complete", "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }  # fmt: skip
        code = "from experiments.cli import main; main()"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert completed("cluster-sim tr", 1) == ["plain,train"]
    assert completed("cluster-sim train --schedule g", 3) == ["plain,gpipe"]


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_helps(command):
    page = printed_by(f"{command} --help")
    assert f"Usage: cluster-sim {command} " in page
    if command != "experiment":
        assert all(f"  --{name}" in page for name in ("json", "seed", "engine", "quiet"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_page_name_commands_and_options_that_exist(example):
    _, name, *words = example.split()
    assert app.get_command(None, name).make_context(name, words).params


def test_questions_of_the_documents_name_commands_and_options_that_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs/how-to/index.md").read_text()
    lines = re.findall(r"\| `cluster-sim (.*)` (?:\(.*\) )?\|", page)
    assert len(lines) == 26
    for line in lines:
        name, *words = shlex.split(line)
        command = app.get_command(None, name)
        if isinstance(command, click.Group):
            command, words = command.get_command(None, words[0]), words[1:]
        assert command.make_context(name, words).params, line


def test_options_stand_under_the_heading_of_their_group():
    page = printed_by("train --help-all")
    order = [
        "A model and the cluster that runs it:", "--model", "Plan of a training step:", "--tp",
        "Level of detail at", "--level", "Every command:", "--json", "--help",
    ]  # fmt: skip
    places = [page.index(words) for words in order]
    assert places == sorted(places)


def _every_command():
    """Words of every command, with those of experiments, and the command."""
    for name in app.list_commands(None):
        command = app.get_command(None, name)
        if not isinstance(command, click.Group):
            yield name, command
        for each in command.list_commands(None) if isinstance(command, click.Group) else ():
            yield f"{name} {each}", command.get_command(None, each)


@pytest.mark.parametrize("command", FIRST)
def test_help_describes_ten_options_and_names_the_others(command):
    line = next(words for words, _ in _every_command() if words.split()[-1] == command)
    page, full = (printed_by(f"{line} --help{end}") for end in ("", "-all"))
    parameters = dict(_every_command())[line].params
    names = {each.name: each.opts[0] for each in parameters if each.opts[0].startswith("-")}
    assert len(FIRST[command].split()) == 10
    assert all(f"  {names[name]} " in page for name in FIRST[command].split())
    words = page.replace(",", " ").split()
    assert set(names.values()) <= {*words, "-h"}
    assert page.count("\n") < (0.6 if len(names) > 30 else 0.95) * full.count("\n")


def test_every_command_describes_ten_options_of_its_own_or_has_hardly_more():
    many = {}
    for line, _ in _every_command():
        page, _, every = printed_by(f"{line} --help").partition("Every command:")
        assert "--json" in every
        _, _, most = page.partition("Used most, of ")
        described = most.partition("\n\n")[0] or page  # below are the names of others
        many[line] = len(re.findall(r"^  --", described, re.MULTILINE))
    assert {line for line, count in many.items() if count > 10} == {
        f"experiment {name}" for name in ("stragglers_and_jitter", "strong_scaling", "weak_scaling")
    }
    assert max(many.values()) == 11


def test_verbose_says_what_was_not_stated_and_what_the_catalogue_gave():
    line = "train --model gpt2 --cluster trn2.48xlarge --tp 4 --seq 512 --quiet"
    plain, why = ended(line), ended(line, "-v")
    assert (plain[0], why[0], plain[2]) == (0, 0, "")
    words = " ".join(why[2].split())
    assert "Not stated, and as neuronx has it: --zero 1, --overlap dp" in words
    assert "--dp 4, " in words
    assert "and by default: " in words
    assert "--seq " not in words.partition("Read from")[0]
    assert re.search(r"^trn2\.bf16_peak 667 TFLOP/s \(stated: \w+", why[2], re.MULTILINE)
    assert "p5.48xlarge" not in words
    assert "and searched" not in words
    sought = ended("train --model gpt2 --cluster trn2.48xlarge --global-batch 1 --quiet", "-v")[2]
    assert "Not stated, and searched: --tp " in sought
    beside = ended("train --model gpt2 --cluster trn2.48xlarge,dgx-h100 --seq 512 --quiet", "-v")[2]
    words = " ".join(beside.split())
    assert "on trn2.48xlarge as neuronx has it: " in words
    assert "on dgx-h100 as usual: --tp " in words
    assert "--tp " not in words.partition("and by default: ")[2]
    listed = ended("list models", "-v", "--json")
    assert json.loads(listed[1])
    assert "Read from the catalogue" not in listed[2]
    assert "--engine" in why[2]
    topology = ended("topology trn2.48xlarge", "-v")[2]
    assert "Read from the catalogue" in topology
    assert "--engine" not in listed[2] + topology  # neither is simulated


SLOW = "pandas scipy numba matplotlib networkx pyarrow simpy pydantic rich"
LISTS = ("models", "clusters", "schedules", "variants", "prices", "experiments")
HELPS = ("train", "plan", "serve", "fleet", "lend", "run-job", "validate", "sweep", "topology")


def test_looking_up_loads_no_numbers():
    lists, helps = (f"list {kind}" for kind in LISTS), (f"{name} --help" for name in HELPS)
    assert without(f"numpy {SLOW}", ["--help", "--version", *lists, *helps])


def test_no_list_loads_a_library_larger_than_numpy():
    assert without(SLOW, [f"list {kind} --json --quiet" for kind in KINDS]).count('"rows"') == 11


MAIN = sys.modules["experiments.cli.main"]
COMMAND = "-m cluster_sim list variants"


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """Run words of a shell with this Python in place of PY."""
    line = words.replace("PY ", f"{sys.executable} ")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("words", "status", "message"), [
    (f"PY {COMMAND} >&-", 2, "standard output is closed; send it somewhere"),
    (f"PY {COMMAND} >/dev/full", 2, "standard output: No space left on device. Free some"),
    ("PY -m cluster_sim --version >/dev/full", 2, "standard output: No space left"),
    (f"PY {COMMAND} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}", 0, ""),
    (f"PY {COMMAND} 2>&- >/dev/null", 0, ""),
    ("PYTHONIOENCODING=ascii PY -m cluster_sim train --model gpt2 --cluster dgx-h100", 0, ""),
    ("PY -m cluster_sim nope 2>&-", 2, ""),
    ("PY -m cluster_sim nope <&- >&- 2>&-", 2, ""),
    ("PY -m cluster_sim nope 2>/dev/full", 2, ""),
])  # fmt: skip
def test_streams_that_are_closed_full_or_left(words, status, message):
    if "/dev/full" in words and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    done = shell(words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message)


MEMORY = r"cluster-sim: ran out of memory; this process may use .*\n"
DISK = r"cluster-sim: No space left on device\. Free some space, or choose another place\.\n"


@pytest.mark.parametrize(
    ("fault", "message"), [(MemoryError(), MEMORY), (OSError(28, "No space left on device"), DISK)]
)
def test_a_fault_of_the_system_is_words_not_a_number(fault, message, monkeypatch):
    def full(*_, **__):
        raise fault

    monkeypatch.setattr("experiments.cli.options.inputs.cluster", full)
    assert re.fullmatch(message, refusal_of("topology trn2.48xlarge"))


@pytest.mark.parametrize("wants_traceback", [False, True])
def test_a_fault_of_the_program_is_a_line_or_a_traceback(wants_traceback, monkeypatch, capsys):
    def broken(*arguments: object, **named: object) -> None:
        raise KeyError("x")

    def left(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("experiments.cli.options.inputs.cluster", broken)
    monkeypatch.setattr(MAIN, "prepare", lambda: None)
    monkeypatch.setattr(MAIN, "open_streams", lambda: True)
    monkeypatch.setattr(MAIN, "leave", left)
    monkeypatch.setattr(sys, "argv", ["cluster-sim", "topology", "trn2.48xlarge"])
    if wants_traceback:
        monkeypatch.setenv("CLUSTER_SIM_TRACEBACK", "1")
    with pytest.raises(SystemExit, match="1"):
        main_function()
    message = capsys.readouterr().err
    assert ("Traceback" in message) is wants_traceback
    if not wants_traceback:
        assert message.startswith("cluster-sim: internal fault, not yours: KeyError: 'x', at ")
        assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "left"),
    [("train", "nothing half-written was left behind"), ("sweep", "the same command goes on")],
)
def test_an_interrupt_says_what_it_leaves(word, left, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    program = click.Group(commands=[click.Command(word, callback=interrupted)])
    assert run([word], program) == 130
    assert left in capsys.readouterr().err
