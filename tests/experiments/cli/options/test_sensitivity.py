"""The option ``--sensitivity`` of each command that has it: JSON keys, table and picture."""

from __future__ import annotations

import json
from pathlib import Path

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
def test_numbers_are_ranked_with_their_ranges(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMANDS[name].split(), "--sensitivity", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sensitivity"]
    assert rows
    assert all(row.keys() == KEYS for row in rows)
    assert all(abs(row["elasticity"]) < 2 for row in rows), "no number acts more than twice over"


@pytest.mark.slow
def test_a_fleet_ranks_what_it_lends_and_what_serving_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers act on the share lent as they act on the units that serving needs."""
    words = "fleet --cluster trn2-ultraserver:20 --demand azure-conv --days 0.5 --unit-rate 30"
    options = ["--failures", "off", "--no-compare", "--sensitivity", "--json"]
    assert run([*words.split(), *options, "--out", str(tmp_path / "run")]) == 0
    document = json.loads(capsys.readouterr().out)
    share = document["expected_lendable_share"]
    lent = {row["input"]: row for row in document["sensitivity"]}
    cost = {row["input"]: row for row in document["sensitivity_cost"]}
    assert all(row.keys() == KEYS for row in (*lent.values(), *cost.values()))
    assert lent["fleet.change.mode_switch"]["elasticity"] < 0
    # What is not lent is paid for: the price acts in full, all else as it acts on the share kept.
    assert cost["trn2-ultraserver.price"]["elasticity"] == pytest.approx(1.0)
    for name, row in lent.items():
        kept = -row["elasticity"] * share / (1 - share)
        assert cost[name]["elasticity"] == pytest.approx(kept, rel=1e-6)
    assert (tmp_path / "run" / "tornado.png").exists()
    assert (tmp_path / "run" / "tornado_cost.png").exists()


def test_a_run_directory_has_the_tornado(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run([*COMMANDS["collective"].split(), "--sensitivity", "--out", str(out)]) == 0
    assert "What the time of the first size depends on" in capsys.readouterr().out
    assert (out / "sensitivity.csv").exists()
    assert (out / "tornado.png").exists()
