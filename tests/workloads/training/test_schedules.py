"""Pipeline schedules are one place each; all else follows from their passes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from workloads.training.plan.schedules.held import most_held, passes
from workloads.training.plan.schedules.registry import all_schedules, schedule_names
from workloads.training.plan.schedules.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    PipelineSchedule,
    in_order,
)

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-pipeline-schedule.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
EVERY = [(one, chunks) for one in all_schedules() for chunks in one.chunks_searched]


def held_now(schedule: PipelineSchedule, pp: int, stage: int, m: int, chunks: int) -> int:
    """Most microbatches in flight, counted one by one: the slow definition."""
    order = passes(schedule, pp, stage, m, chunks)
    rows = list(zip(*(column.tolist() for column in order), strict=True))
    last = {(number, chunk): place for place, (_, number, chunk) in enumerate(rows)}
    alive: set[tuple[int, int]] = set()
    most = 0
    for place, (_, number, chunk) in enumerate(rows):
        alive.add((number, chunk))
        most = max(most, len(alive))
        if last[number, chunk] == place:
            alive.remove((number, chunk))
    return most


@pytest.mark.parametrize(("schedule", "chunks"), EVERY)
def test_microbatches_in_flight_are_counted_from_the_passes(
    schedule: PipelineSchedule, chunks: int
) -> None:
    for pp, m in product((2, 3, 4), (1, 3, 4, 7, 19)):
        for stage in range(pp):
            counted = most_held(schedule, pp, stage, m, chunks).sum(axis=1).max()
            assert counted == held_now(schedule, pp, stage, m, chunks)


@pytest.mark.parametrize(("schedule", "chunks"), EVERY)
def test_worst_moments_are_those_that_no_other_exceeds(
    schedule: PipelineSchedule, chunks: int
) -> None:
    for pp, m in product((2, 4), (1, 4, 19)):
        for stage in range(pp):
            order = passes(schedule, pp, stage, m, chunks)
            dropped = WEIGHT if schedule.splits_weights else BACKWARD
            held, moments = [0] * chunks, set()
            for phase, chunk in zip(order.phase.tolist(), order.chunk.tolist(), strict=True):
                held[chunk] += (phase == FORWARD) - (phase == dropped)
                moments.add(tuple(held))
            worst = {
                moment
                for moment in moments
                if not any(
                    other != moment and all(a >= b for a, b in zip(other, moment, strict=True))
                    for other in moments
                )
            }
            assert set(map(tuple, most_held(schedule, pp, stage, m, chunks).tolist())) == worst


@pytest.mark.parametrize(("schedule", "chunks"), EVERY)
def test_many_microbatches_hold_what_the_last_round_adds(
    schedule: PipelineSchedule, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [most_held(schedule, 4, stage, 83, chunks).tolist() for stage in range(4)]
    monkeypatch.setattr("workloads.training.plan.schedules.held.COUNTED", 16)
    most_held.cache_clear()
    short = [most_held(schedule, 4, stage, 83, chunks).tolist() for stage in range(4)]
    most_held.cache_clear()
    assert short == whole


def test_a_schedule_that_leaves_out_a_pass_is_refused() -> None:
    lame = PipelineSchedule("lame", "lame", lambda pp, s, m, c: in_order([(FORWARD, 0, 0)]))
    with pytest.raises(ValueError, match="lame: stage 0 of 2 does not take each of 2 microbatches"):
        passes(lame, 2, 0, 2)


def test_no_schedule_is_compared_by_name_elsewhere() -> None:
    """A name in another file would be a second place that a new schedule must be told to."""
    root = Path(__file__).parents[3]
    quoted = re.compile("|".join(f"['\"]{name}['\"]" for name in schedule_names()))
    places = [
        str(file.relative_to(root))
        for folder in ("workloads", "experiments", "cluster_sim", "topologies")
        for file in (root / folder).rglob("*.py")
        if "plan/schedules" not in str(file) and quoted.search(_code(file.read_text()))
    ]
    assert places == []


def _code(text: str) -> str:
    """The text without docstrings, whose examples may name a schedule."""
    return re.sub(r'"""(?:[^"]|"(?!""))*"""', "", text)


ADD = """
import sys
sys.path.insert(0, {folder!r})
from batched_warm_up import BATCHED_WARM_UP
from workloads.training.plan.schedules import registry
registry.SCHEDULES = (*registry.SCHEDULES, BATCHED_WARM_UP)
"""
"""What the how-to page's line in the registry does, for one process."""


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page's own code in a temporary module, and what adds it to the list."""
    folder = tmp_path_factory.mktemp("added")
    first, *_ = BLOCK.findall(PAGE.read_text())
    (folder / "batched_warm_up.py").write_text(first)
    return ADD.format(folder=str(folder))


def ran(code: str, *lines: str) -> str:
    """What a process with the added schedule prints: of code, then of some commands."""
    call = "from experiments.cli.main import run\nfor line in sys.argv[1:]: run(line.split())"
    words = [sys.executable, "-c", f"{code}\n{call}", *lines]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRAIN = (
    "train --model gpt2 --cluster trn2.48xlarge --tp 2 --pp 4 --global-batch 64 --seq 512 --json"
)


def test_the_page_shows_what_its_code_prints_and_train_runs_it(added: str) -> None:
    """The last stage, which needs most memory, holds three microbatches where 1F1B holds one."""
    *_, shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    _, second = BLOCK.findall(PAGE.read_text())
    lines = [f"{TRAIN} --schedule {name}" for name in ("batched-warm-up", "1f1b")]
    printed = ran(added + second, *lines, "train --help")
    assert printed.startswith(shown)
    documents = printed.removeprefix(shown)
    ours, after = json.JSONDecoder().raw_decode(documents)
    usual, after = json.JSONDecoder().raw_decode(documents[after:].lstrip())[0], documents[after:]
    held = [one["memory_bytes"]["activations"] for one in (ours, usual)]
    assert ours["plan"]["schedule"] == "batched-warm-up"
    assert held[0] == 3 * held[1]
    assert ours["iteration_s"] == pytest.approx(usual["iteration_s"], rel=0.02)
    assert "batched-warm-up" in [word.strip(",;") for word in after.split()]


@pytest.mark.slow
def test_plan_searches_the_added_schedule_and_draws_it(added: str, tmp_path: Path) -> None:
    line = (
        "plan --model gpt2 --cluster trn2.48xlarge --global-batch 64 --seq 512 --tp 4 --pp 4 "
        f"--top 2 --finalists 2 --schedule batched-warm-up --json --out {tmp_path / 'run'}"
    )
    document = json.loads(ran(added, line))
    assert {row["schedule"] for row in document["rows"]} == {"batched-warm-up"}
    assert abs(document["rows"][0]["estimate_error"]) < 0.05
    assert (tmp_path / "run" / "pareto.svg").read_text().count("batched warm-up") >= 1
