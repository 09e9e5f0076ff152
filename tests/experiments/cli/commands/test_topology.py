"""The command ``topology``."""

import json
import sys

import networkx as nx
import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.commands import topology as module
from tests.support.commands import document_of, printed_by, refusal_of

KEYS = {
    "links", "diameter_hops", "mean_hops", "bisection_bytes_per_s", "hbm_bytes_per_s", "cluster",
    "scale_up_bytes_per_s_per_chip", "scale_out_bytes_per_s_per_chip", "chips", "domains", "nodes",
    "hbm_bytes", "scale_out_links", "nics", "hosts", "flops_per_s", "build_s", "peak_rss_bytes",
}  # fmt: skip


def test_a_graph_alone_is_read_back_as_the_same_cluster(tmp_path, monkeypatch):
    path = tmp_path / "pod.graphml"
    document = document_of(f"topology trn2.48xlarge --out {path}")
    read = nx.read_graphml(path)
    graph = cs.cluster("trn2.48xlarge").graph()
    assert [*tmp_path.iterdir()] == [path]
    assert {str(node) for node in graph} == set(read)
    assert read.number_of_edges() == graph.number_of_edges()
    assert document["links"] <= graph.number_of_edges()
    assert document_of(f"topology ring:4 --out {path}")["links"] == nx.read_graphml(path).size()
    monkeypatch.setattr("topologies.support.memory_limit.machine_bytes", lambda: 2**33)
    huge = refusal_of(f"topology rainier --out {tmp_path / 'huge.graphml'}")
    assert "GiB" in huge
    assert "Name fewer domains: they are alike." in huge


def test_json_has_the_documented_keys():
    document = document_of("topology trn2-ultraserver:16")
    assert set(document) >= KEYS
    assert [document[key] for key in ("chips", "domains", "nodes", "links", "nics", "hosts")] == [
        1024, 16, 1024, 6144, 1024, 64,
    ]  # fmt: skip
    assert document["hbm_bytes"] == 1024 * 96 * 2**30
    assert document["flops_per_s"]["bf16"] == pytest.approx(1024 * 667e12)
    assert document["peak_rss_bytes"] > 10**7
    assert document["build_s"] is None
    assert document_of("topology trn2.48xlarge --graph")["build_s"] > 0


def test_rainier_says_what_it_assumes_and_how_far_its_places_are_apart(monkeypatch):
    """No graph is made for it, which takes 16 s of a core and 2.7 GB."""
    monkeypatch.setitem(sys.modules, "topologies.views.graph", None)
    document = document_of("topology rainier")
    assert (document["nodes"], document["links"]) == (499_968, 2_999_808)
    assert document["assumed"]["trn2.link_latency"]["low"] == 1.5e-7
    assert document["assumed"]["efa-v3.same_campus_latency"]["grade"] == "assumed"
    assert "trn2.hbm_remote_efficiency" not in document["assumed"]
    rows = [(each["layer"], each["row"], each["step_s"]) for each in document["places"]]
    assert rows == [
        ("ToR", "same_tor_latency", 15e-6), ("leaf", "same_pod_latency", 16e-6),
        ("spine", "same_building_latency", 17e-6), ("campus", "same_campus_latency", 22.5e-6),
    ]  # fmt: skip
    between = document["assumed"]["rainier.building_oversubscription"]
    assert (between["value"], between["low"], between["high"]) == (1, 1, 7)
    printed = printed_by("topology rainier --variant rainier.sites=three-campuses")
    assert "spine, 7 groups of up to 73,728 chips: a collective" in printed
    assert "what leaves a group has 1/8 of the adapters' rate" in " ".join(printed.split())
    assert "by site_latency, assumed" in printed


def test_a_plain_shape_says_what_it_assumed():
    document = document_of("topology torus:4x4 --bandwidth 50GB/s")
    assert document["assumed"] == {"latency": "1us"}
    assert document["bisection_bytes_per_s"] == 8 * 50 * 10**9
    assert document["hbm_bytes"] is None
    printed = printed_by("topology ring:8 --latency 2us")
    assert "assumed, as no --bandwidth was given: 100GB/s a link" in printed
    assert "--latency" not in printed


def test_the_table_for_people():
    lines = [line.split() for line in printed_by("topology trn3-gen1 --graph").splitlines()]
    assert ["bisection", "of", "a", "domain", "4.096", "TB/s"] in lines
    assert ["switches", "at", "most,", "within", "cross-rack", "3"] in lines
    assert ["dense", "peak,", "a", "chip,", "bf16", "671", "TFLOP/s"] in lines
    assert sum("took" in line for line in lines) == 1


def test_variant_and_overlay(tmp_path):
    line, overlay = "topology trn2.48xlarge", tmp_path / "own.csv"
    slower = document_of(line, "--variant=trn2.hbm_bandwidth=kernel-guide")
    assert slower["hbm_bytes_per_s"] == 48 * 10**12
    head = "part,quantity,variant,value,unit,grade,source\n"
    overlay.write_text(f"{head}trn2,link_bandwidth,,64,GB/s,stated,own\n")
    narrow = document_of(line, f"--catalogue={overlay}")
    assert narrow["bisection_bytes_per_s"] == 512 * 10**9


def test_out_writes_drawing_measures_links_and_a_graph_that_networkx_reads(tmp_path):
    out, shape = tmp_path / "run", tmp_path / "shape"
    document = document_of(f"topology trn3-gen2:2 --out {out}")
    names = {path.name for path in out.iterdir()}
    assert {"topology.png", "topology.svg", "measures.json", "links.csv", "run.json"} <= names
    assert json.loads((out / "measures.json").read_text())["links"] == document["links"]
    links = pd.read_csv(out / "links.csv")
    assert len(links) * 2 == document["links"]
    assert links[links.src == "0"].groupby("tier").bandwidth_bytes_per_s.sum().to_dict() == {
        "cross-rack": 128 * 10**9, "rack": 512 * 10**9, "sled": 512 * 10**9,
    }  # fmt: skip
    assert pd.read_csv(out / "scale_out.csv").layer.tolist() == ["ToR", "leaf"]
    printed_by(f"topology torus:4x8 --out {shape}")
    graph = nx.read_graphml(shape / "graph.graphml")
    assert (len(graph), graph.number_of_edges()) == (32, 128)


def test_memory_is_in_bytes_on_either_system(monkeypatch):
    here = module.peak_rss_bytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert module.peak_rss_bytes() * 1024 == pytest.approx(here, rel=0.2)
