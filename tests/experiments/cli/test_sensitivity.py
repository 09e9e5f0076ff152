"""``--sensitivity`` on each command that has it: JSON keys, table, picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.main import run

COMMANDS = {
    "collective": "collective all-reduce trn2.48xlarge --size 1MiB --algorithm mesh",
    "train": "train --model gpt2 --cluster trn2.48xlarge --tp 4 --global-batch 16",
    "serve": "serve --model qwen2.5-0.5b --cluster trn2.48xlarge --tp 4 --count 20",
}
KEYS = {"input", "low", "high", "change_low", "change_high", "elasticity", "grade"}


@pytest.mark.parametrize("name", COMMANDS)
def test_numbers_are_ranked_with_their_ranges(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMANDS[name].split(), "--sensitivity", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sensitivity"]
    assert rows
    assert all(row.keys() == KEYS for row in rows)
    assert all(abs(row["elasticity"]) < 2 for row in rows), "no number acts more than twice over"


def test_a_run_directory_has_the_tornado(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run([*COMMANDS["collective"].split(), "--sensitivity", "--out", str(out)]) == 0
    assert "What the answer depends on" in capsys.readouterr().out
    assert (out / "sensitivity.csv").exists()
    assert (out / "tornado.png").exists()
