"""The commands ``topology``, ``list``, ``queue``, ``share`` and ``sweep``."""

import csv
import json
import sys

import networkx as nx
import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.commands import sweep as program
from experiments.cli.commands import topology as module
from experiments.sweeps import runner as row_runner
from tests.support.commands import document_of, ended, printed_by, refusal_of
from tests.support.probe_command import PROBE, threads
from tests.support.small_models import TOY_CONFIG, config_file
from workloads.confidence.residuals import shipped_residuals
from workloads.training.frameworks.framework import names

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
    again = refusal_of(f"topology trn2.48xlarge --out {path}")
    assert f"--out {path} is a file" in again
    monkeypatch.setattr("topologies.memory_limit.machine_bytes", lambda: 2**33)
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
    assert "spine, 7 x 73,728 chips: a step between servers" in printed
    assert "what leaves it has 1/8 of the adapters' rate" in " ".join(printed.split())
    assert "site_latency (assumed)" in printed


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


def test_causes_of_jitter_are_listed_and_each_with_its_source():
    rows = document_of("list jitter")["rows"]
    assert [row["name"] for row in rows] == ["chips", "servers", "hosts", "heat", "network"]
    assert all(row["low"] < row["high"] and row["source"] and row["note"] for row in rows)
    assert "whiskers of box plots" in " ".join(printed_by("list jitter chips").split())


def test_variants_are_listed_by_part_until_one_is_named():
    short, named = printed_by("list variants"), printed_by("list variants trn2.BF16")
    assert "trn2.bf16_peak=tensor-engine" not in short
    assert next(line for line in short.splitlines() if line.startswith("trn2 "))
    assert "trn2.bf16_peak=tensor-engine" in named
    assert "632 TFLOP/s" in named


def test_frameworks_are_listed_with_the_errors_of_their_rows():
    rows = {row["name"]: row for row in document_of("list frameworks")["rows"]}
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
    short, whole = (printed_by("list frameworks"), printed_by("list frameworks deepspeed"))
    assert len(short.splitlines()) < 3 * len(names())
    assert ("500-watt" in short, "500-watt" in whole) == (False, True)
    assert "measured rows" in whole


ROWS = "name,submit,chips,time\nfirst,0s,96,1h\nlarge,1min,128,1h\nsmall,2min,32,30min\n"
QUEUE = "queue trn2-ultraserver:2 --jobs"


def names_in(path):
    with path.open() as file:
        return [row["name"] for row in csv.DictReader(file)]


@pytest.fixture
def file(tmp_path):
    (path := tmp_path / "queue.csv").write_text(ROWS)
    return path


def test_answer_and_tables_show_the_waits_of_every_job_and_discipline(file, tmp_path):
    out = tmp_path / "out"
    printed = printed_by(f"{QUEUE} {file} --study --out {out}")
    assert "3 jobs queue for trn2-ultraserver:2" in printed
    assert "Jobs wait least with discipline backfill and place any: 19.67 min" in printed
    assert names_in(out / "jobs.csv") == ["first", "large", "small"]
    assert (out / "occupancy.png").stat().st_size > 10_000
    document = json.loads((out / "results.json").read_text())
    assert document["discipline"] == "backfill"
    assert [each["wait_s"] for each in document["jobs"]] == [0, 59 * 60, 0]
    assert (document["mean_wait_s"], document["longest_wait_s"]) == (59 * 20, 59 * 60)
    # Of eight servers six run for an hour, two for half of it, then eight for an hour.
    assert document["used"] == pytest.approx((6 + 1 + 8) / 16)
    assert document["idle_beside_waiting"] == pytest.approx((2 * 1 + 2 * 28) / 960)
    assert (document["mean_wait_ends_s"], document["recorded_mean_wait_s"]) == (None, None)
    assert [each["mean_wait_s"] for each in document["others"]][:1] == [(59 + 118) * 20]
    assert len(document["others"]) == 9


@pytest.mark.parametrize(("name", "key"), [("priority", "priority"), ("shortest", "limit")])
def test_jobs_that_a_discipline_cannot_tell_apart_are_named(file, name, key):
    file.write_text("submit,chips,time,limit\n0s,16,1h,2h\n1min,16,2h,2h\n")
    document = document_of(f"{QUEUE} {file} --discipline {name}")
    remark = f"All jobs have one {key}, so discipline {name} is backfill."
    assert document["remarks"] == [remark]


def test_a_mistake_is_one_line_and_status_2(file):
    file.write_text(ROWS.replace("128", "1280"))
    assert refusal_of(f"{QUEUE} {file}") == (
        "cluster-sim: job large needs 1,280 chips, but trn2-ultraserver:2 has 128. Leave it out, "
        "or use a larger cluster.\n"
    )


@pytest.fixture
def model(tmp_path):
    return config_file(tmp_path / "config.json", TOY_CONFIG)


@pytest.fixture
def jobs(model, tmp_path):
    plan = f"model: {model}, tp: 2, dp: 4, global_batch: 8, seq: 512"
    path = tmp_path / "jobs.yaml"
    path.write_text(f"jobs: [{{name: first, {plan}}}, {{name: second, {plan}}}]")
    return f"share trn2.48xlarge:2 --jobs {path} --steps 1"


def test_the_document_has_each_job_and_every_placement(jobs):
    document = document_of(jobs, "--study")
    assert [each["name"] for each in document["jobs"]] == ["first", "second"]
    first = document["jobs"][0]
    assert first["slowdown"] == first["beside_s"] / first["alone_s"]
    assert first["interval"]["low"] < first["beside_s"] < first["interval"]["high"]
    assert first["placement"] == "packed"
    assert (first["first_chip"], first["last_chip"], first["chips"]) == (0, 7, 8)
    names = [each["placement"] for each in document["placements"]]
    assert names == ["as stated", "packed", "server", "domain", "rack", "spread"]
    assert document["best"] in names


def test_tables_say_what_jobs_lose_and_the_run_directory_has_them(jobs, tmp_path):
    out = tmp_path / "out"
    printed = printed_by(jobs, "--placement=spread", f"--out={out}")
    assert "2 jobs on trn2.48xlarge:2" in printed
    assert "first crosses no full link that another job crosses, so it loses nothing." in printed
    assert names_in(out / "jobs.csv") == ["first", "second"]
    assert json.loads((out / "results.json").read_text())["placement"] == "spread"
    assert (out / "slowdowns.svg").exists()
    assert (out / "report.html").exists()


def test_an_answer_says_how_sure_it_is_on_the_links_that_jobs_share(model, tmp_path):
    plan = f"model: {model}, global_batch: 30, seq: 512"
    path = tmp_path / "jobs.yaml"
    jobs = f"{{name: pairs, {plan}, tp: 2, dp: 3, start: 3}}, {{name: ring, {plan}, dp: 10}}"
    path.write_text(f"jobs: [{jobs}]")
    document = document_of(f"share trn2.48xlarge --jobs {path}")
    assert {each["kind"] for each in document["links"]} == {"link"}
    (remark,) = document["remarks"]
    assert "On links within a domain, nine in ten steps" in remark
    assert all(each["slowdown"] > 1 for each in document["jobs"])


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Line of a study of two rows, which run in this process, with a column to show."""
    monkeypatch.setattr(row_runner, "process_pool", threads)
    monkeypatch.setattr(program, "program_of", lambda *_: PROBE)
    path = tmp_path / "study.yaml"

    def line(shown):
        path.write_text(f"command: probe\nfixed: {{op: x}}\ngrid: {{size: [1, 13]}}\n{shown}")
        return f"sweep {path}"

    return line


def test_rows_are_a_table_and_failures_are_said(study, monkeypatch):
    status, output, errors = ended(study("show: [double]"))
    lines = [line.split() for line in output.splitlines() if line.strip()]
    assert (lines[0], lines[1]) == (["size", "status", "double", "message"], ["1", "ok", "2"])
    assert lines[2][:5] == ["13", "refused", "-", "size", "13"]
    assert (status, errors) == (0, "1 of 2 rows failed; their message says why\n")
    monkeypatch.setattr(program, "MOST_COLUMNS", 3)
    assert "and 5 more columns; see --json or --out\n" in ended(study(""))[1]


def test_json_is_one_document_with_a_summary(study, tmp_path):
    status, output, errors = ended(study(""), "--json", "--quiet", f"--out={tmp_path / 'out'}")
    document = json.loads(output)
    assert (status, errors) == (0, "")
    assert document["summary"] == {"rows": 2, "ok": 1, "refused": 1}
    good, bad = document["rows"]
    assert (good["double"], good["memory_bytes.total"]) == (2, 1)
    assert bad == {"size": 13, "status": "refused", "message": "size 13 brings bad luck. Use 12."}
    assert (tmp_path / "out" / "results.csv").exists()


def test_a_column_that_is_not_there_costs_no_results(study):
    status, output, errors = ended(study("show: [dubble]"), "--quiet")
    assert (status, errors) == (0, "show: no column is called dubble. Did you mean double?\n")
    assert "refused" in output
