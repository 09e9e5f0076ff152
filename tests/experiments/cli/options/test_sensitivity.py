"""The option ``--sensitivity`` of each command that has it: JSON keys, table and picture."""

import pytest

from tests.support.commands import document_of, printed_by

KEYS = {"input", "low", "high", "change_low", "change_high", "elasticity", "grade", "unit"}
SLOW = pytest.mark.slow


@pytest.mark.parametrize("line", [
    "serve --model qwen2.5-0.5b --cluster dgx-h100 --tp 1 --count 20",
    pytest.param("train --model gpt2 --cluster dgx-h100 --tp 4 --global-batch 2", marks=SLOW),
    pytest.param(
        "plan --model gpt2 --cluster dgx-h100 --global-batch 4 --tp 4 --pp 1 --top 1",
        marks=SLOW,
    ),
])  # fmt: skip
def test_numbers_are_ranked_with_their_ranges(line):
    rows = document_of(line, "--sensitivity")["sensitivity"]
    assert rows
    assert all(row.keys() == KEYS for row in rows)
    assert all(abs(row["elasticity"]) < 2 for row in rows), "no number acts more than twice over"


def test_a_run_directory_has_the_tornado(tmp_path):
    line = "collective all-reduce trn2.48xlarge --size 1MiB --algorithm mesh --sensitivity"
    printed = printed_by(line, f"--out={tmp_path}")
    assert "What the time of the first size depends on" in printed
    assert (tmp_path / "sensitivity.csv").exists()
    assert (tmp_path / "tornado.png").exists()


@SLOW
def test_a_fleet_ranks_what_it_lends_and_what_serving_costs(tmp_path):
    """What is not lent is paid for: the price acts in full, all else as on the share kept."""
    document = document_of(
        "fleet --cluster trn2-ultraserver:20 --demand azure-conv --days 0.5 --unit-rate 30 "
        f"--failures off --no-compare --sensitivity --out {tmp_path}"
    )
    share = document["expected_lendable_share"]
    lent = {row["input"]: row["elasticity"] for row in document["sensitivity"]}
    cost = {row["input"]: row["elasticity"] for row in document["sensitivity_cost"]}
    assert lent["fleet.change.mode_switch"] < 0
    assert cost["trn2-ultraserver.price"] == pytest.approx(1.0)
    for name, elasticity in lent.items():
        assert cost[name] == pytest.approx(-elasticity * share / (1 - share), rel=1e-6)
    assert {"tornado.png", "tornado_cost.png"} <= {path.name for path in tmp_path.iterdir()}
