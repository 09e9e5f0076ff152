"""Options of a fleet that would change nothing, or that no fleet can have, are refused or named."""

from __future__ import annotations

from typing import Any

import pytest

import cluster_sim as cs
from experiments.cli.main import run
from workloads.fleet.scenario import models_of
from workloads.options.fleet import FleetInputs

SMALL = ["--cluster", "trn2-ultraserver:4", "--unit-rate", "4", "--quiet"]
FLEET = ["fleet", *SMALL, "--days", "0.05", "--policy", "static", "--no-compare"]
LEND = ["lend", *SMALL, "--demand", "burstgpt"]


@pytest.mark.parametrize(
    "options",
    [
        ["--tp", "8"],
        ["--prefill", "separate"],
        ["--chunk", "512"],
        ["--precision", "fp8"],
        ["--cache", "kept"],
    ],
)
@pytest.mark.parametrize("command", [FLEET, LEND], ids=["fleet", "lend"])
def test_settings_of_replicas_are_refused_beside_a_rate(
    command: list[str], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{options[0]} changes nothing beside --unit-rate" in line


@pytest.mark.parametrize("cluster", [["a", "b"], {"us": "a"}, "trn2-ultraserver:8,trn3-gen2:4"])
def test_lending_of_several_kinds_says_what_to_ask_instead(cluster: Any) -> None:
    with pytest.raises(cs.InputError, match="one kind of units in one region; ask for each"):
        cs.lend(cluster, "burstgpt")


def test_several_settings_are_named_together() -> None:
    with pytest.raises(cs.InputError, match=r"^--tp and --prefix-cache change nothing"):
        FleetInputs(unit_rate=3.0, tp=8, prefix_cache="50%")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--post-training", "lockstepp"], "Did you mean lockstep?"),
        (["--model", ","], "--model ',' has an empty name"),
        (
            ["--cluster", "tpu-v6e-pod:2", "--power-cap", "3"],
            "catalogue has no power of tpu-v6e-pod",
        ),
        (["--cap", "99999999999999999999"], "must be less than or equal to 1000000000"),
    ],
)
def test_impossible_values_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FLEET, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_file_of_jobs_states_its_own_post_training(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FLEET, "--post-training", "lockstep", "--training", f"{tmp_path}/jobs.csv"]) == 2
    assert "is for the default jobs, which --training" in capsys.readouterr().err


def test_no_name_of_several_models_is_empty() -> None:
    assert len(models_of("gpt2=20%,llama-3.1-8b=80%")) == 2
    with pytest.raises(cs.InputError, match="has an empty name"):
        models_of("gpt2,")


def test_limits_of_latency_beside_a_rate_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLEET, "--slo", "ttft=1s,tpot=9ms"]) == 0
    note = "--slo ttft=1s,tpot=9ms changes nothing by its limits of latency beside --unit-rate"
    assert note in capsys.readouterr().err
    assert run([*FLEET, "--slo", "ttft=6s,tpot=175ms,share=90%"]) == 0
    assert "--slo" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ([], "changes nothing without a batch tier"),
        (["--batch-share", "20%"], "changes nothing without a price of tokens"),
        (["--batch-share", "20%", "--token-price", "2"], ""),
    ],
)
def test_a_discount_that_no_request_gets_is_named(
    more: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FLEET, "--batch-discount", "0.3", *more]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "--batch-discount" in line]
    assert bool(notes) == bool(note)
    assert all(note in line for line in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start-day", "900"], "day 900 is not before the end of a demand of"),
    ],
)
def test_contradictions_about_the_demand_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FLEET, *options]) == 2
    assert message in capsys.readouterr().err
