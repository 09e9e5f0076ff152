"""The command ``list``: each kind has rows, and loads no library that it does not need."""

from __future__ import annotations

import json

import click
import pytest

from experiments.cli.main import run
from experiments.cli.options.from_fields import as_options
from experiments.cli.registry import COMMANDS
from workloads.confidence.residuals import shipped_residuals
from workloads.training.frameworks.framework import names


def test_every_bundled_demand_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "demands", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 8
    assert all(len(row["about"].split()) > 4 for row in rows)


def test_causes_of_jitter_are_listed_and_each_with_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["list", "jitter", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["chips", "servers", "hosts", "heat", "network"]
    assert all(row["low"] < row["high"] and row["source"] and row["note"] for row in rows)
    assert run(["list", "jitter", "chips"]) == 0
    assert "whiskers of box plots" in " ".join(capsys.readouterr().out.split())


def test_variants_are_listed_by_part_until_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "variants"]) == 0
    short = capsys.readouterr().out
    assert run(["list", "variants", "trn2.bf16"]) == 0
    named = capsys.readouterr().out
    assert "trn2.bf16_peak=tensor-engine" not in short
    assert next(line for line in short.splitlines() if line.startswith("trn2 "))
    assert "trn2.bf16_peak=tensor-engine" in named
    assert "632 TFLOP/s" in named


def test_names_are_searched_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "models", "llama-3.1-405B"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_frameworks_are_listed_with_the_errors_of_their_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["list", "frameworks", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert tuple(rows) == names()
    assert all(row["measured_rows"] > 0 for row in rows.values())
    titan = rows["torchtitan"]
    residuals = [row for row in shipped_residuals().rows if row.framework == "torchtitan"]
    assert 0 < titan["measured_rows"] < len(residuals)  # each at one level of what was told
    assert 0 < titan["median_error"] < 1
    assert titan["plan"] == "zero 3, overlap dp, attention fused"
    assert {"h100", "mi300x"} <= set(titan["chips"].split(", "))
    assert "trn2" not in titan["chips"]
    assert rows["neuronx"]["chips"].split(", ")[0] == "trn1"


def test_all_about_a_framework_is_shown_where_it_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["list", "frameworks"]) == 0
    short = capsys.readouterr().out
    assert run(["list", "frameworks", "deepspeed"]) == 0
    whole = capsys.readouterr().out
    assert len(short.splitlines()) < 3 * len(names())
    assert "500-watt" not in short
    assert "500-watt" in whole
    assert "measured rows" in whole


def test_the_framework_option_is_completed_by_names() -> None:
    (command,) = (one for one in COMMANDS if one.name == "train")
    parameters = as_options("train", command.load()).params
    (option,) = (one for one in parameters if one.name == "framework")
    completed = option.shell_complete(click.Context(click.Command("train")), "titan")
    assert [item.value for item in completed] == ["torchtitan"]
