"""The command ``topology``: its JSON, table, run directory and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pandas as pd
import pytest

from experiments.cli.commands import topology as module
from experiments.cli.main import run

SCALE_UP = ("links", "diameter_hops", "mean_hops", "bisection_bytes_per_s")
RATES = ("scale_up_bytes_per_s_per_chip", "scale_out_bytes_per_s_per_chip", "hbm_bytes_per_s")
COUNTS = ("cluster", "chips", "domains", "nodes", "hbm_bytes", "scale_out_links", "nics", "hosts")
COSTS = ("flops_per_s", "build_s", "peak_rss_bytes")
KEYS = (*SCALE_UP, *RATES, *COUNTS, *COSTS)


def command(*arguments: str) -> int:
    return run(["topology", *arguments])


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert command(*arguments, "--json") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    document = json.loads(printed.out)
    assert isinstance(document, dict)
    return document


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    results = document(capsys, "trn2-ultraserver:16")
    assert set(KEYS) <= set(results)
    assert (results["chips"], results["domains"], results["nodes"], results["links"]) == (
        1024,
        16,
        1024,
        6144,
    )
    assert (results["nics"], results["hosts"]) == (1024, 64)
    assert results["hbm_bytes"] == 1024 * 96 * 2**30
    assert results["flops_per_s"]["bf16"] == pytest.approx(1024 * 667e12)
    assert results["peak_rss_bytes"] > 10**7


def test_rainier_says_what_it_assumes_and_how_far_its_places_are_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["topology", "rainier", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["assumed"]["trn2.link_latency"]["low"] == 1.5e-7
    assert document["assumed"]["efa-v3.same_campus_latency"]["grade"] == "assumed"
    assert "trn2.hbm_remote_efficiency" not in document["assumed"]
    rows = [(each["layer"], each["row"], each["step_s"]) for each in document["places"]]
    assert rows == [
        ("ToR", "same_tor_latency", 15e-6),
        ("leaf", "same_pod_latency", 16e-6),
        ("spine", "same_building_latency", 17e-6),
        ("campus", "same_campus_latency", 22.5e-6),
    ]
    between = document["assumed"]["rainier.building_oversubscription"]
    assert (between["value"], between["low"], between["high"]) == (1, 1, 7)
    assert run(["topology", "rainier", "--variant", "rainier.sites=three-campuses"]) == 0
    printed = capsys.readouterr().out
    assert "spine, 7 x 73,728 chips: a step between servers" in printed
    assert "what leaves it has 1/8 of the adapters' rate" in " ".join(printed.split())
    assert "site_latency (assumed)" in printed


def test_a_plain_shape_says_what_it_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    results = document(capsys, "torus:4x4", "--bandwidth", "50GB/s")
    assert results["assumed"] == {"latency": "1us"}
    assert results["bisection_bytes_per_s"] == 8 * 50 * 10**9
    assert results["hbm_bytes"] is None
    assert command("ring:8", "--latency", "2us") == 0
    printed = capsys.readouterr().out
    assert "assumed, as no --bandwidth was given: 100GB/s a link" in printed
    assert "--latency" not in printed


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn3-gen1") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["bisection", "of", "a", "domain", "4.096", "TB/s"] in lines
    assert ["switches", "at", "most,", "within", "cross-rack", "3"] in lines
    assert ["dense", "peak,", "a", "chip,", "bf16", "671", "TFLOP/s"] in lines


def test_variant_and_overlay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = document(capsys, "trn2.48xlarge", "--variant", "trn2.hbm_bandwidth=kernel-guide")
    assert results["hbm_bytes_per_s"] == 48 * 10**12
    overlay = tmp_path / "own.csv"
    overlay.write_text(
        "part,quantity,variant,value,unit,grade,source\ntrn2,link_bandwidth,,64,GB/s,stated,own\n"
    )
    results = document(capsys, "trn2.48xlarge", "--catalogue", str(overlay))
    assert results["bisection_bytes_per_s"] == 512 * 10**9


def test_the_graph_is_built_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "trn2.48xlarge")["build_s"] is None
    assert document(capsys, "trn2.48xlarge", "--graph")["build_s"] > 0
    assert command("trn2.48xlarge") == command("trn2.48xlarge", "--graph") == 0
    assert capsys.readouterr().out.count("building the graph took") == 1


def test_the_answer_for_rainier_makes_no_graph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph takes 16 s of a core and 2.7 GB."""
    monkeypatch.setitem(sys.modules, "topologies.views.graph", None)
    results = document(capsys, "rainier")
    assert (results["nodes"], results["links"]) == (499_968, 2_999_808)


def test_out_writes_drawing_measures_and_links(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    results = document(capsys, "trn3-gen2:2", "--out", str(out))
    names = {path.name for path in out.iterdir()}
    assert {"topology.png", "topology.svg", "measures.json", "links.csv", "run.json"} <= names
    assert json.loads((out / "measures.json").read_text())["links"] == results["links"]
    links = pd.read_csv(out / "links.csv")
    assert len(links) * 2 == results["links"]
    assert links[links.src == "0"].groupby("tier").bandwidth_bytes_per_s.sum().to_dict() == {
        "cross-rack": 128 * 10**9,
        "rack": 512 * 10**9,
        "sled": 512 * 10**9,
    }
    assert pd.read_csv(out / "scale_out.csv").layer.tolist() == ["ToR", "leaf"]


def test_out_refuses_a_directory_of_something_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    assert command("trn2.48xlarge", "--out", str(tmp_path)) == 2
    assert "holds thesis.tex" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_memory_is_in_bytes_on_either_system(monkeypatch: pytest.MonkeyPatch) -> None:
    here = module.peak_rss_bytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert module.peak_rss_bytes() * 1024 == pytest.approx(here, rel=0.2)


def test_out_holds_the_graph_that_networkx_reads(tmp_path: Path) -> None:
    assert command("torus:4x8", "--out", str(tmp_path / "run"), "--quiet") == 0
    graph = nx.read_graphml(tmp_path / "run" / "graph.graphml")
    assert (len(graph), graph.number_of_edges()) == (32, 128)
