"""Titles of report pages state the finding of each command's results."""

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.cli.main import app, run
from experiments.figures.layout import settle
from experiments.reports.certainty import basis, interval_band
from experiments.reports.drawing import description, headline, hover
from experiments.reports.findings import SENTENCES, TABLED, answers, finding
from experiments.reports.html import command_line
from experiments.reports.run_record import read_record
from tests.support.refusals import refused

RESULTS = {
    "train": {
        "model": "m", "cluster": "c", "chips": 8, "iteration_s": 2.0, "mfu": 0.4,
        "breakdown_s": {"compute": 1.5, "exposed_tp": 0.5, "bubble": 0.0},
    },
    "plan": {
        "model": "m", "cluster": "c", "chips": 8, "rows": [
            {"tp": 4, "pp": 1, "dp": 2, "cp": 1, "ep": 2, "iteration_s": 2.0},
            {"tied": True},
        ],
    },
    "serve": {
        "model": "m", "cluster": "c", "chips": 1, "ttft_s": {"p50": 0.06}, "tpot_s": {"p50": 0.007},
        "slo_attainment": 0.999,
    },
    "run-job": {
        "model": "m", "cluster": "c", "chips": 8, "goodput": 0.988, "days": 30.0, "failures": 11.25
    },
    "fleet": {
        "cluster": "c", "policy": "clock", "training_chip_hours": 1.0, "chip_hours": 4.0,
        "slo_attainment": 0.9994,
    },
    "lend": {"confidence": 0.95, "lent_unit_hours": 10.0},
    "replay": {
        "format": "chakra", "ranks": 8, "cluster": "ring:8", "iteration_s": 2e-5, "recorded_s": 1e-5
    },
    "topology": {"cluster": "c", "chips": 64, "scale_up_bytes_per_s_per_chip": 1e12},
}  # fmt: skip
SAID = {
    "train": "A step of m on c (8 chips) takes 2 s: 75% compute, 25% tensor parallel, exposed; "
    "MFU 40%",
    "plan": "m trains fastest on c (8 chips) with tp 4, pp 1, dp 2, ep 2: 2 s a step; the "
    "next is as good within the error",
    "serve": "m on c: half of the requests see their first token within 60 ms, then one every "
    "7 ms; 99.9% keep the limits",
    "run-job": "m on c (8 chips) computes for 98.8% of 30 days, with 11.2 failures",
    "fleet": "c under the clock policy trains 25% of its chip-hours and serves 99.94% of the "
    "requests in time",
    "lend": "10 unit-hours can be lent tonight with 95 % confidence",
    "replay": "A chakra trace of 8 ranks takes 20 us on ring:8, 2.00 times as long as recorded",
    "topology": "c: 64 chips, 1 TB/s a chip within a domain",
}


@pytest.mark.parametrize("command", sorted(SENTENCES))
def test_results_become_a_sentence(command):
    assert finding(command, RESULTS[command], None) == SAID[command]
    assert finding(command, {}, None) == ""
    assert all(answer.value for answer in answers(command, RESULTS[command], None))


def test_numbers_stand_with_the_intervals_that_the_results_give():
    train = {
        "iteration_s": 2.0, "mfu": 0.4, "memory_bytes": {"total": 2**30},
        "interval": {"low": 1.6, "high": 2.5, "mfu": {"low": 0.32, "high": 0.5}},
    }  # fmt: skip
    serve = {
        "ttft_s": {"p50": 0.1, "p99": 0.9}, "tpot_s": {"p50": 0.02}, "tokens_per_s": 100.0,
        "interval": {"low": 0.05, "high": 0.2}, "tpot_interval": {"low": 0.01, "high": 0.03},
        "tokens_per_s_interval": {"low": 80.0, "high": 125.0},
    }  # fmt: skip
    assert answers("train", train, None) == [
        ("iteration", "2 s", "80 %: 1.6 s – 2.5 s"),
        ("MFU", "40 %", "80 %: 32 % – 50 %"),
        ("memory total", "1.074 GB", ""),
    ]
    assert answers("serve", serve, None) == [
        ("TTFT p50", "100 ms", "80 %: 50 ms – 200 ms"),
        ("TTFT p99", "900 ms", ""),
        ("TPOT p50", "20 ms", "80 %: 10 ms – 30 ms"),
        ("tokens", "100 /s", "80 %: 80 /s – 125 /s"),
    ]
    plan = {"rows": [{"iteration_s": 2.0, "mfu": 0.4}], "interval": train["interval"]}
    assert answers("plan", plan, None) == answers("train", train, None)[:2]


def test_the_interval_of_a_job_is_drawn_about_its_goodput_and_not_about_its_step():
    results = {
        "goodput": 0.988, "iteration_s": 10.95,
        "interval": {
            "level": 0.8, "low": 0.98, "high": 0.99, "basis": "16 runs",
            "tokens": {"low": 1e9, "high": 3e9},
        },
        "tokens": 2e9,
    }  # fmt: skip
    band = interval_band("run-job", results)
    assert (band["low"], band["middle"], band["high"]) == ("98 %", "goodput 98.8 %", "99 %")
    assert 12 < float(band["at"]) < 88
    assert basis("run-job", results) == "80% of runs would lie in this band. Basis: 16 runs."
    assert [answer for answer in answers("run-job", results, None) if answer.interval] == [
        ("goodput", "98.8 %", "80 %: 98 % – 99 %"),
        ("tokens", "2 G", "80 %: 1 G – 3 G"),
    ]
    refused("no interval", interval_band, "topology", results)


def test_tables_become_a_sentence():
    collective = pd.DataFrame({
        "collective": "all-reduce", "cluster": "ring:8", "algorithm": ["ring", "rdh", "ring"],
        "size_bytes": [1024, 2**20, 2**20], "time_s": [1e-6, 2e-6, 1e-6],
        "busbw_bytes_per_s": 1e9, "lower_bound_s": 1e-6, "ranks": 8, "semantics": "proven",
    })  # fmt: skip
    answered = {"status": ["ok", "refused"], "time_s": [1.0, np.nan]}
    sweep = pd.DataFrame({"cluster": ["a", "b"], **answered})
    validate = pd.DataFrame({"rows": [3], "ok": [2], "median_abs_error": [0.04]})
    frames = {"collective": collective, "sweep": sweep, "validate": validate}
    assert frames.keys() == TABLED.keys()
    findings = {command: finding(command, {}, frame) for command, frame in frames.items()}
    assert findings == {
        "collective": "all-reduce of 1 MiB on ring:8 takes 1 us with ring: 1 GB/s bus bandwidth",
        "sweep": "1 of 2 rows of this sweep are answered; the shortest takes 1 s with cluster a",
        "validate": "2 of 3 published rows are predicted, with a median error of 4.0%",
    }
    assert ("algorithm", "ring", "") in answers("collective", {}, collective)
    beside = pd.concat([collective, collective.assign(cluster="ring:4", time_s=3e-6)])
    assert finding("collective", {}, beside).endswith("1 GB/s bus bandwidth; 3 us on ring:4")
    with_ends = collective.assign(low=0.8e-6, high=1.25e-6)
    assert answers("collective", {}, with_ends)[0] == ("time", "1 us", "80 %: 800 ns – 1.25 us")


def test_a_run_names_the_command_that_repeats_it(tmp_path):
    words = ["collective", "all-reduce", "ring:8", "--size", "1KiB", "--bandwidth", "1GB/s",
             "--latency", "1us", "--algorithm", "ring", "--quiet", "--out"]  # fmt: skip
    assert run([*words, str(tmp_path / "a")]) == 0
    record = read_record(tmp_path / "a")
    line = command_line(record, app)
    links = "--bandwidth=1GB/s --latency=1us"
    assert line == f"cluster-sim collective all-reduce ring:8 --size=1KiB --algorithm=ring {links}"
    assert run([*line.split()[1:], "--quiet", "--out", str(tmp_path / "b")]) == 0
    assert read_record(tmp_path / "b")["results_digest"] == record["results_digest"]
    page = (tmp_path / "a" / "report.html").read_text()
    assert line in unescape(re.sub("</?span[^>]*>", "", page))
    assert '<span class="option">--size=1KiB</span>' in page
    title = re.findall("<h1>(.*?)</h1>", page)[0].replace("\u00a0", " ")
    assert title.startswith("all-reduce of 1 KiB on ring:8 takes ")
    alts = re.findall('<img alt="([^"]*)"', page)
    assert len(alts) == 3
    assert all(len(alt) > 40 and alt.endswith(".") for alt in alts), alts
    strange = {"command": "surprise", "inputs": {}}
    assert command_line(strange, app) == command_line(record, None) == ""


def test_values_lie_where_the_picture_shows_them():
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="line")
    axes.scatter([0.5, 9.0], [0.5, 0.5])
    axes.barh([0, 1], [0.25, 0], label="bar")
    axes.axvline(0.3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="cost [USD]")
    values = hover(figure, settle(figure))
    texts = [text for _, _, text in values["points"]]
    assert texts == ["line\ncost: 0 USD\n0", "line\ncost: 1 USD\n1", "cost: 0.5 USD\n0.5"]
    (low, middle) = values["points"][0], values["points"][2]
    assert low[0] < middle[0] < 1
    assert low[1] > middle[1] > 0
    (bar,) = values["boxes"]
    assert bar[4] == "bar\n0\ncost: 0.25 USD"
    assert bar[0] == pytest.approx(low[0], abs=0.01)
    assert (headline(figure), description(figure)) == ("", "Across: cost [USD]. Shown: line, bar.")


@pytest.mark.parametrize(("title", "line"), [
    ("rings are slow\nllama, tp 8", "rings are slow. llama, tp 8"),
    ("slower by:\njitter 2%, \nrank 1", "slower by: jitter 2%, rank 1"),
    ("one line\n", "one line"),
])  # fmt: skip
def test_lines_of_a_title_are_divided_by_a_period(title, line):
    figure = Figure()
    figure.suptitle(title)
    assert headline(figure) == line
