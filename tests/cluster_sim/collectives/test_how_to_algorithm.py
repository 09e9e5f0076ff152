"""The algorithm of the how-to page, registered from a temporary module, works everywhere."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

import cluster_sim as cs
from cluster_sim.collectives import ALGORITHMS, CollectiveCall, hbm_bytes, whole
from cluster_sim.collectives.algorithms.algorithm import ops_foreseen
from cluster_sim.collectives.algorithms.registry import fitting_algorithms
from cluster_sim.hardware.communication_costs import communication_costs
from experiments.cli.main import run
from tests.support.algorithm_fields import CALLS, check_fields
from topologies.clusters.names import cluster

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-an-algorithm.md"
NAME = "recursive-doubling"


@pytest.fixture
def algorithm(tmp_path, monkeypatch):
    """The algorithm of the page, registered as long as a test runs."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "recursive_doubling.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("recursive_doubling", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recursive_doubling", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, NAME, module.RECURSIVE_DOUBLING)
    return module.RECURSIVE_DOUBLING


def test_every_field_agrees_with_the_built_schedule(algorithm):
    calls = [call for call in CALLS if algorithm.runs(call)]
    assert len(calls) > 5
    for call in calls:
        check_fields(call, algorithm)


def test_footprint_rounds_and_memory_traffic_are_its_own(algorithm):
    call = CollectiveCall("all-reduce", whole(cluster("trn2.48xlarge")), 2**20)
    costs = communication_costs(call.group.cluster)
    assert algorithm.rounds(call, costs) == 4
    assert hbm_bytes(call, NAME) == 4 * 16 * 3 * 2**20
    assert ops_foreseen([call], algorithm, costs) < 1000
    assert NAME in [one.name for one in fitting_algorithms([call])]


def test_an_algorithm_of_ones_own_needs_no_registration(algorithm, monkeypatch):
    monkeypatch.delitem(ALGORITHMS, NAME)
    plain = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    timed = cs.collective_time("all-reduce", plain, size_bytes="64KiB", algorithm=algorithm)
    schedule = cs.collective("all-reduce", plain, size_bytes="64KiB", algorithm=algorithm)
    assert timed.algorithm == schedule.facts["algorithm"] == NAME
    assert cs.simulate(schedule).total_ps == timed.time_ps
    six = cluster("ring:6", bandwidth="100GB/s", latency="1us")
    with pytest.raises(cs.InputError, match="recursive-doubling does not make sense for all-red"):
        cs.collective_time("all-reduce", six, size_bytes=8, algorithm=algorithm)


def test_the_command_line_knows_it(algorithm, capsys):
    words = ["collective", "all-reduce", "trn2.48xlarge", "--size", "64KiB", "--quiet", "--json"]
    assert run([*words, "--algorithm", NAME]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["algorithm"], row["steps"], row["semantics"]) == (NAME, 4, "proven")
    assert run([*words, "--algorithm", "best"]) == 0
    (best,) = json.loads(capsys.readouterr().out)["rows"]
    assert best["time_s"] <= row["time_s"]
    assert run(["collective", "all-reduce", "ring:6", "--size", "1KiB", "--algorithm", NAME]) == 2
    run(["collective", "--help"])
    assert NAME in " ".join(capsys.readouterr().out.split())
