"""The frame of the command line: what a mistake on it is answered with."""

from __future__ import annotations

import pytest

from experiments.cli.main import app, run

COMMANDS = {
    *("topology", "collective", "train", "plan", "serve", "fleet"),
    *("sweep", "validate", "calibrate", "report"),
}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("collective all-reduce ring:8 --size 1MiB --ranks abc", ("--ranks 'abc'", "integer")),
        ("fleet --seed -1", ("--seed '-1'", "equal to 0")),
        ("fleet --weight x", ("--weight 'x'", "number")),
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
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("cluster-sim: ")
    assert told.err.count("\n") == 1
    assert all(name in told.err for name in names), told.err


def test_every_command_is_there() -> None:
    assert {item.callback.__name__ for item in app.registered_commands if item.callback} == COMMANDS


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: cluster-sim {command} " in capsys.readouterr().out


def test_a_fault_of_the_system_is_words_not_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topologies.clusters.names.cluster", full)
    assert run(["topology", "trn2.48xlarge"]) == 2
    assert capsys.readouterr().err == "cluster-sim: No space left on device.\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_takes_the_common_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"  --{name}" in page for name in ("json", "seed", "engine", "quiet")), page


def test_common_options_are_checked_where_they_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(["topology", "ring:8", "--no-graph", "--json", "--seed", "7", "--engine", "reference"])
        == 0
    )
    assert run(["topology", "ring:8", "--engine", "simpy"]) == 2
    assert "unknown engine 'simpy'" in capsys.readouterr().err
