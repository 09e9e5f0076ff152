"""The printed answer of ``fleet`` says what its hours and prices contain."""

import re

import pytest

from tests.support.commands import document_of, ended

LINE = "fleet --cluster=trn2-ultraserver:20 --model=llama-3.1-8b --days=0.25 --no-intervals"


def test_evaluation_and_maintenance_stand_apart_from_training_and_failures(tmp_path):
    line = f"{LINE} --unit-rate=5 --policy=threshold --maintenance=out@0d01:00+1h=2"
    status, printed, errors = ended(line)
    document = document_of(line, f"--out={tmp_path}")
    assert not (tmp_path / "intervals.csv").exists()  # nobody asked for them
    hours = document["chip_hours_by_role"]
    assert (status, hours["maintenance"]) == (0, 2 * 64 * 1.0)
    assert re.search(rf"of it evaluation +{hours['evaluation']:,.0f} ", printed)
    assert re.search(r"of it maintenance +128 ", printed)
    apart = 1 - hours["evaluation"] / document["training_chip_hours"]
    price = document["usd_per_million_trained_tokens_without_evaluation"]
    assert price == pytest.approx(document["usd_per_million_trained_tokens"] * apart, rel=1e-9)
    assert re.search(rf"without evaluation +{price:.4g}\n", printed)
    assert "SLO not stated" not in errors  # the rate is as given


def test_limits_that_nobody_states_are_named():
    line = f"{LINE} --tp=1 --slots=16 --demand=azure-code"
    _, _, errors = ended(line)
    assert "SLO not stated: ttft=6s,tpot=175ms for 99% of the requests; --slo sets" in errors
    assert "SLO not stated" not in ended(line, "--slo=ttft=2s")[2]
