"""The option ``--sensitivity`` of each command that has it: JSON keys, table and picture."""

from __future__ import annotations

import json

import pytest

from experiments.cli.main import run

COMMANDS = {
    "collective": "collective all-reduce trn2.48xlarge --size 1MiB --algorithm mesh",
    "train": "train --model gpt2 --cluster dgx-h100 --tp 4 --dp 2 --global-batch 2",
    "plan": "plan --model gpt2 --cluster dgx-h100 --global-batch 4 --tp 4 --pp 1 --top 1",
    "serve": "serve --model qwen2.5-0.5b --cluster dgx-h100 --tp 1 --count 20",
}
KEYS = {"input", "low", "high", "change_low", "change_high", "elasticity", "grade", "unit"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("train", "plan") else [])
        for name in COMMANDS
    ],
)
def test_numbers_are_ranked_with_their_ranges(name, capsys):
    assert run([*COMMANDS[name].split(), "--sensitivity", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sensitivity"]
    assert rows
    assert all(row.keys() == KEYS for row in rows)
    assert all(abs(row["elasticity"]) < 2 for row in rows), "no number acts more than twice over"


def test_a_run_directory_has_the_tornado(tmp_path, capsys):
    out = tmp_path / "run"
    assert run([*COMMANDS["collective"].split(), "--sensitivity", "--out", str(out)]) == 0
    assert "What the time of the first size depends on" in capsys.readouterr().out
    assert (out / "sensitivity.csv").exists()
    assert (out / "tornado.png").exists()
