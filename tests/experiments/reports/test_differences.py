"""Two recorded runs beside each other: what was asked and came out differently, and ratios."""

import json
import re

import pandas as pd
import pytest

from experiments.cli.main import run
from experiments.reports.certainty import NONE, ratio_sentences, ratios
from experiments.reports.differences import change_sentence, compare, question_rows, result_rows
from tests.support.commands import printed_by
from tests.support.refusals import refused
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.catalogue.catalogue import is_invented, shipped_catalogue
from workloads.confidence.split_conformal import ratio_ends


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Run directories of two steps of unlike degree, one of them twice, and of served requests."""
    base = tmp_path_factory.mktemp("runs")
    config = config_file(base / "config.json", TOY_CONFIG)
    on = ["--model", config, "--cluster", "trn2.48xlarge", "--quiet"]
    step = ["train", *on, "--global-batch", "16", "--seq", "512"]
    commands = {
        "narrow": [*step, "--tp", "2"],
        "again": [*step, "--tp", "2"],
        "wide": [*step, "--tp", "4", "--recompute", "full"],
        "served": ["serve", *on, "--requests", "poisson:1", "--count", "4", "--tp", "4"],
    }
    for name, words in commands.items():
        assert run([*words, "--out", str(base / name)]) == 0
    return {name: base / name for name in commands}


def test_a_run_differs_in_nothing_from_its_repetition(folders):
    answer = compare(folders["narrow"], folders["again"])
    assert (answer["question"], answer["results"]) == ([], [])
    assert change_sentence(answer) == ""
    assert all(entry["ratio"] == 1 and not entry["differs"] for entry in answer["ratios"])


def test_options_and_results_that_differ_stand_side_by_side(folders):
    answer = compare(folders["narrow"], folders["wide"])
    assert question_rows(answer) == [["--tp", "2", "4"], ["--recompute", "default", "full"]]
    files = (folders[name] / "results.json" for name in ("narrow", "wide"))
    documents = [json.loads(file.read_text()) for file in files]
    steps_s = [document["iteration_s"] for document in documents]
    by_name = {entry["name"]: (entry["first"], entry["second"]) for entry in answer["results"]}
    assert by_name["iteration_s"] == tuple(steps_s)
    (ratio,) = [row[3] for row in result_rows(answer) if row[0] == "iteration"]
    assert float(ratio) == pytest.approx(steps_s[1] / steps_s[0], rel=0.005)
    apart = ratios("train", [{**document, "cluster": "x"} for document in documents])
    for one, other in zip(answer["ratios"], apart, strict=True):  # one machine shares errors
        assert other["low"] < one["low"] < one["ratio"] < one["high"] < other["high"]
    assert sum(answer["change_s"].values()) == pytest.approx(steps_s[1] - steps_s[0])
    assert re.match(r"The step is .* longer: ", change_sentence(answer))
    halved = [*answer["results"], {"name": "plan.global_batch", "first": 32, "second": 16}]
    fewer = change_sentence({**answer, "results": halved})
    assert re.match(r"The step is .* longer, of 0.5 times the tokens: ", fewer)


@pytest.mark.slow
def test_a_part_of_a_machine_and_several_machines_are_compared(tmp_path):
    config = config_file(tmp_path / "config.json", TOY_CONFIG)
    step = ["train", "--model", config, "--global-batch", "16", "--seq", "512", "--quiet"]
    where = {"part": ["trn2.48xlarge", "--chips", "4"], "both": ["trn2.48xlarge,trn1.32xlarge"]}
    for name, cluster in where.items():
        for tp in ("2", "4"):
            folder = str(tmp_path / f"{name}{tp}")
            assert run([*step, "--cluster", *cluster, "--tp", tp, "--out", folder]) == 0
    part = compare(tmp_path / "part2", tmp_path / "part4")
    assert "the tokens a second" in {entry["number"] for entry in part["ratios"]}
    both = compare(tmp_path / "both2", tmp_path / "both4")
    assert {"rows.0.iteration_s", "rows.1.iteration_s"} <= {row["name"] for row in both["results"]}
    unlike = compare(tmp_path / "part2", tmp_path / "both2")
    assert "iteration_s" in unlike["only_first"]
    assert {"ratios", "rows"} <= set(unlike["only_second"])
    assert unlike["results"] == []


def test_the_command_prints_both_tables(folders, tmp_path):
    out = tmp_path / "out"
    printed = printed_by(f"compare {folders['narrow']} {folders['wide']} --out {out}")
    for words in ("asked differently", "\niteration ", "The step is"):
        assert words in printed
    assert {"question.csv", "metrics.csv"} <= {file.name for file in out.iterdir()}
    rows = pd.read_csv(out / "metrics.csv").set_index("name")
    assert rows.loc["iteration", "first"].endswith(" ms")
    same = printed_by(f"compare {folders['narrow']} {folders['again']}")
    assert same.startswith("Nothing came out differently.\n")


def test_runs_of_unlike_commands_and_changed_results_are_refused(folders):
    refused("Compare runs of one command", compare, folders["narrow"], folders["served"])
    served = folders["served"]
    (served / "summary.json").write_text("{}")
    refused("was changed since the run", compare, served, served)


def row(name, rate, low, high):
    ends = {"tokens_per_s": {"low": low, "high": high}}
    return {"cluster": name, "tokens_per_s": rate, "interval": ends}


def test_independent_errors_add_as_squares_of_logarithms():
    low, ratio, high = ratio_ends((2.0, 6.0, 18.0), (1.0, 2.0, 4.0))
    assert ratio == 3.0
    assert (low * high) ** 0.5 == pytest.approx(ratio)
    assert ratio_ends((1.0, 1.0, 1.0), (2.0, 2.0, 2.0)) == (0.5, 0.5, 0.5)


def test_a_difference_within_the_error_is_not_called_one():
    near, far = row("near", 12.0, 8.0, 18.0), row("far", 90.0, 60.0, 135.0)
    entries = ratios("train", [row("first", 10.0, 6.0, 16.0), near, far])
    assert [(one["cluster"], one["differs"]) for one in entries] == [("near", False), ("far", True)]
    assert [one["ratio"] for one in entries] == [1.2, 9.0]
    one, other = ratio_sentences(entries)
    assert one.startswith("near has 1.2 times the tokens a second (80 %: ")
    assert one.endswith(f"of first. {NONE}")
    assert other.endswith("of first. Beyond the error of two predictions: the tokens a second.")


def test_a_chip_of_assumed_rates_is_surely_neither_faster_nor_slower():
    far = [row("first", 10.0, 6.0, 16.0), row("far", 90.0, 60.0, 135.0)]
    (entry,) = ratios("train", far, {"first": ("", "trn9")})
    assert (entry["differs"], entry["invented"], entry["ratio"]) == (False, ["trn9"], 9.0)
    (sentence,) = ratio_sentences([entry])
    assert sentence.endswith("of first. All rates of trn9 are assumed: ratios hold if these do.")
    catalogue = shipped_catalogue()
    invented = [chip for chip in ("trn2", "trn3", "trn4", "h100") if is_invented(chip, catalogue)]
    assert invented == ["trn4"]


def test_tokens_cost_the_same_at_the_price_that_is_named():
    """Four chips at 9 USD an hour train 10 tokens/s; eight at 2 train 30, so 13.5 is even."""
    dear = {**row("dear", 10.0, 8.0, 12.5), "chips": 4, "usd_per_million_tokens": 1000.0}
    cheap = {**row("cheap", 30.0, 24.0, 37.5), "chips": 8, "usd_per_million_tokens": 4e3 / 27}
    for each in (dear, cheap):
        usd = each["usd_per_million_tokens"]
        each["interval"] |= {"usd_per_million_tokens": {"low": usd / 2, "high": usd * 2}}
    *_, entry = ratios("train", [dear, cheap])
    numbers = {"usd": 13.5, "low": 9.846, "high": 18.51, "paid_usd": 2.0, "of_usd": 9.0}
    assert entry["break_even_chip_hour"] == pytest.approx({**numbers, "of_jobs": False}, rel=1e-3)
    assert entry["break_even_chip_hour"]["usd"] == pytest.approx(2.0 / entry["ratio"])
    assert "where a chip-hour of cheap costs 13.5 USD (80 %: " in ratio_sentences([entry])[1]
    # Spare chips and lost time of the cheap job make its tokens a half dearer.
    jobs = [{"job": {"usd_per_million_tokens": usd}} for usd in (1000.0, 6e3 / 27)]
    *_, entry = ratios("train", [dear | jobs[0], cheap | jobs[1]])
    assert entry["break_even_chip_hour"]["usd"] == pytest.approx(9.0)
    assert ratio_sentences([entry])[1].startswith("Tokens of both jobs cost the same where a chip-")
    *_, entry = ratios("train", [dear, {**cheap, "stages": []}])
    assert "break_even_chip_hour" not in entry


@pytest.mark.parametrize(("kind", "differs"), [("spot", True), ("on demand", False)])
def test_prices_of_two_kinds_are_no_difference(kind, differs):
    """A price three times as high is certain, unless the two are paid in unlike ways."""
    priced = [
        {
            "cluster": name,
            "usd_per_million_tokens": usd,
            "interval": {"usd_per_million_tokens": {"low": usd / 1.5, "high": usd * 1.5}},
        }
        for name, usd in (("first", 1.0), ("second", 3.0))
    ]
    (entry,) = ratios("train", priced, {"first": ("spot", ""), "second": (kind, "")})
    assert (entry["differs"], entry["price_kinds"]) == (differs, [kind, "spot"])
    assert entry["ratio"] == 3.0
    words = " ".join(ratio_sentences([entry]))
    assert ("the price of a million tokens, spot (80 %" in words) == differs
    assert ("two kinds, on demand and spot" in words) != differs
    others = [{**entry, "cluster": name} for name in ("third", "fourth")]
    third = {**others[0], "price_kinds": ["owned", "spot"]}
    assert " ".join(ratio_sentences([entry, *others])).count("two kinds") == (not differs)
    *_, named = ratio_sentences([entry, third], "first has a price of its own kind.")
    assert named.startswith("first has a price of its own kind.")
    assert "Such ratios say little of the machines: --price-basis chooses one" in named
    words = " ".join(ratio_sentences([entry, third]))
    assert ("three kinds, on demand, spot and owned" in words) != differs
