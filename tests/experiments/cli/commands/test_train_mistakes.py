"""Mistakes typed at ``train`` give one line and exit status 2, never a traceback."""

from __future__ import annotations

import json

import pytest

from experiments.cli.main import run

TRAIN = ["train", "--model", "gpt2", "--cluster", "p5.48xlarge", "--quiet"]


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return str(printed.err)


@pytest.mark.parametrize(
    "name", ["tp", "pp", "vpp", "dp", "cp", "ep", "microbatch", "global-batch", "seq"]
)
def test_a_degree_of_nothing_is_refused_by_name(name, capsys):
    message = refusal([*TRAIN, f"--{name}", "0"], capsys)
    assert f"--{name} is 0; it must be a whole number of at least 1." in message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tp: 0", "tp is 0"),
        ("tp: 1.5", "tp is 1.5"),
        ("order: 5", "order"),
        ("stage_layers: 3", "stage_layers sum to 3, but gpt2 has 12 layers"),
        ("stage_layers: [x]", "stage_layers is 'x'"),
        ("schedule: 7", "schedule is '7'; it must be one of gpipe"),
        ("tps: 8", "a plan has no 'tps'. Did you mean tp?"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("", "holds no fields"),
    ],
)
def test_a_mistaken_file_of_a_plan_is_refused_in_one_line(line, why, tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(line)
    assert why in refusal([*TRAIN, "--plan", str(file)], capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--straggler", "0:0.5"), ("--fault", "foo@1s:dead"), ("--jitter", "nan")],
)
def test_a_plan_is_not_blamed_for_what_disturbs_it(option, value, capsys):
    assert "nearest plan" not in refusal([*TRAIN, option, value], capsys)


def test_layers_of_the_only_chunk_may_be_stated(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text("stage_layers: 12\n")
    assert run([*TRAIN, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run([*TRAIN, "--json", "--plan", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == plain["iteration_s"]
