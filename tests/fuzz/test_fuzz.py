"""A short run of the fuzzer, and invariants of random plans and collectives."""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.fuzz.__main__ import ROOT, failures
from tests.fuzz.cases import Case, draw, from_json
from tests.fuzz.seeds import COMMANDS, files
from tests.fuzz.worker import answer as answer_of
from tests.fuzz.worker import every_option
from tests.support.probe_command import threads

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
"""The same cases every time; ``make fuzz`` draws new ones."""
NOT_MUTATED = {"explore", "serve-api"}
"""Commands that serve until interrupted; their hostile lines stand in ``test_hostile_lines.py``."""


@pytest.mark.slow
def test_no_mutated_input_leads_to_a_wrong_outcome():
    wrong = [f"{seed}: {fault}" for seed, fault in failures(SECONDS, SEED) if fault]
    assert not wrong, "\n".join(wrong[:20])


def test_a_case_is_made_again_from_its_seed_and_from_its_file():
    options = every_option()
    assert draw(7, options) == draw(7, options)
    assert from_json(draw(7, options).as_json()) == draw(7, options)


def test_every_command_is_drawn_also_the_one_without_arguments(monkeypatch):
    options = every_option()
    drawn = {draw(seed, options).arguments[0] for seed in range(1000)}
    assert drawn == set(options) - NOT_MUTATED
    monkeypatch.setattr("tests.fuzz.cases.COMMANDS", (("doctor",),))
    assert {draw(seed, options).arguments[0] for seed in range(200)} == {"doctor"}


READERS = {
    "cluster_sim/collectives/group_parsing.py": "order.txt",
    "cluster_sim/collectives/results.py": "matrix.csv",
    "experiments/calibration/kit/__init__.py": "kit/manifest.json",
    "experiments/calibration/measurements.py": "report.json",
    "experiments/reports/html.py": "run/schedules.csv",
    "experiments/reports/run_record.py": "run/run.json",
    "experiments/sweeps/study.py": "study.yaml",
    "workloads/training/nodes.py": "nodes.csv",
    "experiments/validation/reading/tool_outputs.py": "log.txt steps.log monitor.json",
    "experiments/validation/reading/rows.py": "rows.csv bench.json",
    "topologies/catalogue/reader.py": "overlay.csv",
    "topologies/clusters/graph_file.py": "graph.json",
    "topologies/clusters/yaml_file.py": "astra.yml cluster.yaml",
    "workloads/demand/read.py": "demand.csv",
    "workloads/demand/request_logs.py": "mooncake.jsonl",
    "workloads/fleet/inputs/jobs.py": "jobs.csv",
    "workloads/fleet/lending/front.py": "holidays.txt",
    "workloads/fleet/inputs/prices.py": "prices.csv",
    "workloads/fleet/policies/registry.py": "policy.py",
    "workloads/job/causes.py": "causes.csv",
    "workloads/models/huggingface.py": "config.json",
    "workloads/serving/engine_files.py": "vllm.sh pod.yaml",
    "workloads/serving/prefix_cache.py": "mooncake.jsonl",
    "workloads/serving/requests.py": "requests.csv",
    "workloads/traces/chakra.py": "traces/job.0.et traces/comm_group.json",
    "workloads/traces/goal.py": "schedule.goal",
    "workloads/traces/kineto.py": "profile.json",
    "workloads/traces/neuron_profile.py": "summary.json",
    "workloads/traces/replay.py": "profile.json",
    "workloads/sharing/arrivals.py": "queue.csv teams.csv sacct.txt pods.json",
    "workloads/sharing/teams.py": "kueue.json",
    "workloads/sharing/jobs.py": "jobs.yaml",
    "workloads/training/frameworks/framework.py": "framework.yaml",
    "topologies/support/files/tool_files.py": "launch.sh",
    "workloads/training/plan/other_tools.py": "plan.yaml",
}
"""Modules that read files from outside, each with the files that the fuzzer mutates for it."""
OWN_DATA = {
    "cluster_sim/collectives/algorithms/cycles.py",
    "experiments/scripts/generations.py", "experiments/validation/reading/rows.py",
    "workloads/confidence/residuals.py", "workloads/kernels/gemm.py",
}  # fmt: skip
"""Modules that read data of this program alone."""
NO_COMMAND = {
    "cluster_sim/trace/file.py", "experiments/cli/commands/serve_api.py",
    "experiments/hourly/demand.py", "experiments/hourly/state.py",
}  # fmt: skip
"""Modules that read what the library wrote, or what grows while it is read; each has tests of its
own."""
DOORS = re.compile(
    r"topologies\.files\.(reading|yaml_documents|frame) import |\bread_bounded\b"
    r"|topologies\.files\.table import .*read_csv"
)


def test_every_format_is_mutated():
    names = ("reading", "yaml_documents", "frame", "table")
    doors = {f"topologies/support/files/{name}.py" for name in names}
    doors |= {"workloads/traces/recording.py", "experiments/reports/run_record.py"}
    packages = ("topologies", "cluster_sim", "workloads", "experiments")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    readers = {str(one.relative_to(ROOT)) for one in paths if DOORS.search(one.read_text())}
    assert readers - doors - OWN_DATA - NO_COMMAND <= READERS.keys(), "add a seed file for it"
    named = {word for words in COMMANDS for word in words}
    for file in " ".join(READERS.values()).split():
        assert file in files()
        assert named & {file, file.partition("/")[0]}, f"no command reads {file}"


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_seeds_are_valid_as_they_stand(words, tmp_path, monkeypatch):
    """A mutation of what is refused anyway finds little."""
    monkeypatch.setattr("experiments.sweeps.runner.process_pool", threads)
    answer = answer_of(Case(0, (*words, "--quiet"), files()), tmp_path)
    assert (answer.status, answer.escaped) == (0, ""), answer.errors


STUDY = """
command: collective
fixed: {op: all-reduce, algorithm: ring, bandwidth: 100GB/s, latency: 1us}
grid:
  cluster: [ring:2, ring:3, ring:4, ring:5, ring:6, ring:7]
  size: [1KiB, 2KiB, 3KiB, 4KiB, 5KiB]
"""


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_gives_the_table_of_an_undisturbed_one(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(out: str) -> subprocess.Popen[bytes]:
        words = ["sweep", "study.yaml", "--workers=2", f"--out={out}", "--quiet", "--json"]
        code = "import sys; from experiments.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    rng = random.Random(SEED)
    for _ in range(4):
        child = start("killed")
        time.sleep(rng.uniform(0.5, 6.0))
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert start("killed").wait(timeout=300) == 0
    assert start("whole").wait(timeout=300) == 0
    tables = [pd.read_csv(tmp_path / out / "results.csv") for out in ("killed", "whole")]
    timed = [name for name in tables[0].columns if name.endswith(("build_s", "simulate_s"))]
    assert len(tables[0]) == 30
    pd.testing.assert_frame_equal(*[table.drop(columns=timed) for table in tables])
    assert not list(tmp_path.rglob("*.part"))
