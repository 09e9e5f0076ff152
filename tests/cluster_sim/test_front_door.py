"""The front door: its names, what they return, and keywords that mean what options mean."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cluster_sim as cs
from tests.support.commands import document_of
from tests.support.refusals import refused
from workloads.demand import constant
from workloads.fleet.front import OPTIONS as GROUPS
from workloads.fleet.lending.front import GROUPS as LENDING
from workloads.fleet.scenario import keywords_of
from workloads.options.job import JobInputs
from workloads.options.keywords import read_options
from workloads.options.serving import DeploymentInputs, ReplicaInputs, RequestInputs
from workloads.serving import fixed_lengths, poisson
from workloads.serving.front import WORDS

ROOT = Path(__file__).parents[2]
SCREEN = 24 * 80
FLEET = "trn2-ultraserver:20"


def test_every_name_is_there_and_listed():
    assert set(cs.__all__) <= set(dir(cs))
    for name in cs.__all__:
        assert getattr(cs, name) is getattr(cs, name)
    with pytest.raises(AttributeError, match="no attribute 'clutser'"):
        _ = cs.clutser
    assert dir(cs) == sorted(["__version__", *cs.__all__])
    assert all(dir(module) == sorted(module.__all__) for module in (cs.plot, cs.metrics))


def test_types_places_and_names_agree():
    tree = ast.parse(Path(cs.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(typed) == set(cs.__all__) == set(cs._PLACES)
    for name, place in cs._PLACES.items():
        assert typed[name].replace(":", ".").rstrip(".") == place.replace(":", ".").rstrip(".")


def test_the_import_costs_nothing():
    code = (
        "import sys; import cluster_sim as cs; dir(cs);"
        "heavy = {'numpy', 'pandas', 'topologies', 'workloads', 'experiments', 'matplotlib'};"
        "sys.exit(str(heavy & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_readme_and_reference_list_the_names():
    readme = (ROOT / "README.md").read_text()
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `cs.")]
    assert {name for row in rows for name in re.findall(r"cs\.(\w+)", row)} == set(cs.__all__)


def _sections(value: object) -> dict[str, str]:
    """Sections of a numpydoc docstring by their heading."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.getdoc(value) or "", flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _described(sections: dict[str, str]) -> set[str]:
    """Parameters and attributes that a docstring describes."""
    described = sections.get("Parameters", "") + sections.get("Attributes", "")
    heads = re.findall(r"^(\S.*?)(?: : .*)?$", described, re.M)
    return {one.strip().lstrip("*") for head in heads for one in head.split(",")}


OF_FRAMES = [getattr(m, name) for m in (cs.metrics, cs.plot) for name in m.__all__]


@pytest.mark.parametrize(
    "value", [*filter(inspect.isfunction, OF_FRAMES)], ids=lambda v: v.__name__
)
def test_tables_and_pictures_say_what_they_take_and_give(value):
    sections, signature = _sections(value), inspect.signature(value)
    assert set(signature.parameters) <= _described(sections)
    assert ("Returns" in sections) == (signature.return_annotation != "None")
    assert ">>> " in sections["Examples"]


@pytest.mark.parametrize("name", [name for name in cs.__all__ if callable(getattr(cs, name))])
def test_every_name_says_what_it_takes_gives_and_refuses(name):
    value = getattr(cs, name)
    sections = _sections(value)
    described = _described(sections)
    if value is not cs.InputError:
        assert set(inspect.signature(value).parameters) <= described
    if not inspect.isclass(value):
        assert {"Returns", "Raises"} <= sections.keys()
    assert ">>> " in sections["Examples"]


def test_names_and_fields_stand_for_what_they_name(tmp_path):
    step = cs.train("llama-3.1-8b", "trn2.48xlarge", tp=4, pp=2, global_batch=8, seq=2048)
    plan = cs.Plan(tp=4, pp=2, dp=2, global_batch=8, seq=2048)
    same = cs.train(cs.model("llama-3.1-8b"), cs.cluster("trn2.48xlarge"), plan)
    assert (step.plan, step.time_s) == (plan, same.time_s)
    chunks = cs.train("llama-3.1-8b", "trn2.48xlarge", plan, dp=1, partial=True, level="collective")
    assert (chunks.plan.dp, chunks.level) == (1, "collective")
    with pytest.raises(cs.InputError, match=r"train has no 'tpp'\. Did you mean tp\?"):
        cs.train("llama-3.1-8b", "trn2.48xlarge", tpp=4)
    with pytest.raises(cs.InputError, match=r"train has no 'tokens'\. Pass it .* to cs\.run_job"):
        cs.train("llama-3.1-8b", "trn2.48xlarge", tokens="1T")
    texts = [cs.train("llama-3.1-8b", "trn2.48xlarge", plan, faults=each).time_s
             for each in ("engine:3:slow=1/2", ["engine:3@0s:slow=1/2"])]  # fmt: skip
    assert texts[0] == texts[1] > step.time_s
    group = cs.Group(cs.cluster("trn2.48xlarge"), range(16))
    times = {
        cs.collective_time("all-reduce", who, size_bytes=size).time_ps
        for who in (group, group.cluster, "trn2.48xlarge")
        for size in (2**20, "1MiB")
    }
    assert len(times) == 1
    taken = cs.collective_time("all-reduce", "dgx-h100", size_bytes="1GiB")
    assert taken.interval is not None
    assert taken.interval.low < taken.time_s < taken.interval.high
    plans = cs.search_plans("llama-3.1-8b", "trn2.48xlarge", global_batch=16).frame()
    assert not plans.isna().any(axis=None)
    rows, head = tmp_path / "faster.csv", "part,quantity,value,unit,grade,source"
    rows.write_text(f"{head}\ntrn2,link_bandwidth,256,GB/s,assumed,A\n")
    faster = cs.cluster("trn2.48xlarge", catalogue=rows)
    assert faster == cs.cluster("trn2.48xlarge", catalogue=str(rows)) != group.cluster


def test_a_collective_from_schedule_to_pictures():
    cluster = cs.cluster("trn2.48xlarge")
    group = cs.Group(cluster, range(4))
    schedule = cs.collective("all-reduce", group, size_bytes=2**20, algorithm="ring")
    trace = cs.simulate(schedule)
    assert (type(schedule), type(trace)) == (cs.Schedule, cs.Trace)
    assert trace.total_ps == cs.simulate(schedule, engine="reference").total_ps
    time = cs.collective_time("all-reduce", group, size_bytes=2**20, algorithm="ring")
    assert time.time_s == pytest.approx(trace.total_s)
    assert len(cs.metrics.resource_use(trace))
    assert cs.plot.timeline(trace).axes
    for noun in (cluster, group, schedule, trace, time):
        assert len(repr(noun)) < SCREEN
        assert noun._repr_html_().startswith("<table>")


def test_answers_are_frames_and_short_tables():
    model, cluster = cs.model("llama-3.2-1b"), cs.cluster("trn2.48xlarge")
    plan = cs.Plan(tp=4, dp=4, global_batch=16, seq=512, recompute="selective")
    step = cs.train(model, cluster, plan)
    assert step.time_s == pytest.approx(sum(step.breakdown_s.values()))
    quick = {"finalists": 1, "quiet": True, "seq": 512, "pp": 1, "recompute": "selective"}
    search = cs.search_plans(model, cluster, 16, tp=4, **quick)
    assert search.finalists[0].iteration_s <= step.time_s
    requests = poisson(1.0, 20, fixed_lengths(256, 32), np.random.default_rng(0))
    served = cs.serve(model, cluster, requests, tp=8)
    assert served.ttft_s["n"] == len(served.frame()) == 20
    assert "TTFT p50" in repr(served)
    fleet = cs.run_fleet(FLEET, unit_rate=5.0, days=0.1, policy=lambda view: 15.0)
    static = cs.run_fleet(FLEET, unit_rate=5.0, days=0.1, policy="static")
    hours = [each.summary["training_chip_hours"] for each in (fleet, static)]
    assert fleet.regret["gain_over_static_chip_hours"] == pytest.approx(hours[0] - hours[1])
    assert len(fleet.frame()) == 144
    table = cs.validate("korthikanti_layers")
    assert len(table.frame()) == table.summary["rows"]
    assert isinstance(search.frame(), pd.DataFrame)
    for noun in (model, cluster, plan, step, search, served, fleet):
        assert len(repr(noun)) < SCREEN
    for noun in (model, cluster, plan, step, search):
        assert noun._repr_html_().startswith("<table>")


def _options(*kinds: Any) -> set[str]:
    return {each.name for kind in kinds for each in fields(kind)}


def test_every_option_is_a_word():
    """Keywords are made of the options, so only those without one are listed."""
    stated = set(inspect.signature(cs.serve).parameters) | set(WORDS)
    assert _options(RequestInputs, ReplicaInputs, DeploymentInputs) <= stated
    words = set(keywords_of(cs.lend, *LENDING))
    # A what-if changes the run after the history, which lending does not have.
    assert "what_if" not in words
    assert {"until", "begin", "confidence", "window", "reserve"} < words
    assert {"what_if", "power_cap", "carbon"} < set(keywords_of(cs.run_fleet, *GROUPS))
    refused("Did you mean reserve", cs.lend, FLEET, "burstgpt", reserves=3)


@pytest.mark.parametrize(("keywords", "options"), [
    ({"start_day": 2.0, "power_cap": 1.0, "policy": "power-cap", "failures": "off"},
     ["--start-day=2", "--power-cap=1", "--policy=power-cap", "--failures=off"]),
    ({"what_if": "growth=30%", "hold": 600, "reserve": 2, "change_time": "5min"},
     ["--what-if=growth=30%", "--hold=10min", "--reserve=2", "--change-time=5min"]),
])  # fmt: skip
def test_a_keyword_means_what_the_option_means(keywords, options):
    common = {"policy": "threshold", "unit_rate": 5.0, "days": 0.1}
    done = cs.run_fleet(FLEET, **{**common, **keywords})
    policy = [] if "policy" in keywords else ["--policy=threshold"]
    line = ["fleet", f"--cluster={FLEET}", "--unit-rate=5", "--days=0.1", *policy]
    document = document_of([*line, *options, "--no-compare", "--no-intervals"])
    for key in ("training_chip_hours", "served_tokens", "role_changes", "units_needed_peak"):
        assert {**done.scenario.sizing.document(), **done.summary}[key] == document[key]


@pytest.mark.parametrize(("keywords", "error"), [
    ({"powercap": 3}, "Did you mean power_cap"),
    ({"weights": "disk"}, "choose from store, nvme, host, peer"),
    ({"quantile": 2}, "a number from 0 to 1"),
    ({"floor": "three"}, "floor is 'three' .* Pass a whole number"),
    ({"what_if": ["monday", "growth=3%"]}, "2 what-ifs for one run"),
    ({"hold": "soon"}, "--hold 'soon'"),
    ({"demand": constant(60.0), "service": "code"}, "service is a word about demands by name"),
    ({"policy": "treshold"}, "Did you mean threshold"),
])  # fmt: skip
def test_wrong_keywords_are_refused(keywords, error):
    with pytest.raises(cs.InputError, match=error):
        cs.run_fleet(FLEET, **{"unit_rate": 5.0, "days": 0.05, "policy": "threshold", **keywords})


def test_a_job_takes_the_words_of_its_command():
    words = {"checkpoint": "peer", "repair": "2h", "restart": 300, "spares": 3, "tokens": 15e12}
    how = read_options(JobInputs, words)
    assert (how.peers, how.standby, how.repair_s, how.restart_s) == (True, "cold", 7200.0, 300.0)
    assert (how.spares, how.goal, how.interval_s) == ("3", 15 * 10**12, None)
    step = cs.train("llama-3.2-1b", "trn2.48xlarge", tp=4, global_batch=8, seq=512)
    for word, value, message in (
        ("chekpoint", "peer", "Did you mean checkpoint"),
        ("standby", "hot", "--standby 'hot'"),
        ("spares", -1, "--spares '-1'"),
        ("runs", 0, "runs is 0"),
    ):
        refused(message, cs.run_job, step, **{word: value})


def test_a_replica_takes_the_words_of_its_command():
    replica = ("llama-3.2-1b", "trn2.48xlarge")
    few = cs.serve(*replica, "poisson:2", count=20, prompt=300, output=20, slots=4)
    assert few.summary["requests"] == 20
    for requests, words, message in (
        ("poisson:2", {"chunk": 3}, "--chunk 3 cuts prompts"),
        ("poisson:2", {"count": 0}, "count is 0; it must be a number from 1 on"),
        ("poisson:2", {"slots": 10**6}, "slots is 1000000; .* a number from 1 to 100,000"),
        ("poisson:2", {"cont": 3}, "Did you mean count"),
        ("poisson:often", {}, "'often' is not a rate in requests/s. Write poisson:0"),
        (few.served.requests, {"count": 3}, "count for requests as they are"),
    ):
        refused(message, cs.serve, *replica, requests, **words)
