"""Numbers of one answer add up: parts are the whole, rates are amounts over time, ends enclose."""

import random
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest

from tests.fuzz.option_sweep import answer
from tests.fuzz.sweep_bases import write_files
from tests.laws import draws
from topologies.clusters.names import cluster
from workloads.economics import Economics

Document = Mapping[str, Any]
Sums = Iterator[tuple[str, float, float]]  # what is claimed, and two numbers that must be equal
WIDE, HOUR_S = range(27), 3600.0


def within(document, value):
    """The value where it lies in the document's interval, else the nearer end."""
    interval = document["interval"]
    return min(max(value, interval["low"]), interval["high"])


def of_step(step):
    memory, plan, step_s = step["memory_bytes"], step["plan"], step["iteration_s"]
    parts = [memory[part] for part in memory if part not in ("total", "capacity")]
    yield "parts are the step", sum(step["breakdown_s"].values()), step_s
    yield "parts are the memory", sum(parts), memory["total"]
    yield "the memory has room", min(memory["total"], memory["capacity"]), memory["total"]
    yield "no part is negative", min(0.0, *step["breakdown_s"].values()), 0.0
    yield "the batch is the tokens", plan["global_batch"] * plan["seq"], step["tokens"]
    yield "tokens in a step", step["tokens_per_s"] * step_s, step["tokens"]
    yield "tokens of chips", step["tokens_per_s_per_chip"] * step["chips"], step["tokens_per_s"]
    yield "degrees are the ranks", plan["tp"] * plan["pp"] * plan["dp"] * plan["cp"], step["ranks"]
    yield "ends enclose the step", within(step, step_s), step_s
    yield "none but useful FLOPs", max(step["hfu"], step["mfu"]), step["hfu"]
    if step["energy_joules"] and not step["cluster"].startswith("first"):
        economics = Economics.of(cluster(step["cluster"]))
        idle_w = step["chips"] * economics.pue * economics.idle_w
        busy_w = step["chips"] * economics.pue * economics.busy_w
        watts = step["energy_joules"] / step_s
        yield "power from idle to busy", min(max(watts, idle_w), busy_w), watts


def of_job(job):
    yield "parts are the run", sum(job["breakdown"].values()), 1.0
    yield "useful time is goodput", job["breakdown"]["useful"], job["goodput"]
    yield "causes are the failures", sum(job["failures_by_cause"].values()), job["failures"]
    yield "tokens in a run", job["tokens_per_s"] * job["days"] * 24 * HOUR_S, job["tokens"]
    batch = job["plan"]["global_batch"] * job["plan"]["seq"]
    yield "tokens of steps", job["steps"] * batch, job["tokens"]


def of_queue(queue):
    jobs = queue["jobs"]
    work_s = sum(job["chips"] * job["run_s"] for job in jobs)
    first_s = min(job["submit_s"] for job in jobs)
    yield "parts are the time", sum(queue["breakdown"].values()), 1.0
    yield "used time", work_s / queue["chips"] / queue["end_s"], queue["used"]
    yield "the last end", max(job["end_s"] for job in jobs) - first_s, queue["end_s"]
    yield "the mean wait", sum(job["wait_s"] for job in jobs) / len(jobs), queue["mean_wait_s"]
    for job in jobs:
        yield f"{job['name']} waits", job["start_s"] - job["submit_s"], job["wait_s"]


def of_fleet(fleet):
    groups = ("inference", "training", "moving", "idle", "broken")
    hours, minutes = fleet["chip_hours"], fleet["minutes"]
    yield "hours of roles", sum(fleet["chip_hours_by_role"].values()), hours
    yield "hours of groups", sum(fleet[f"{group}_chip_hours"] for group in groups), hours
    yield "hours of chips", fleet["chips"] * minutes / 60, hours
    ended = sum(fleet[f"{fate}_tokens"] for fate in ("served", "shed", "queued"))
    yield "fates of tokens", ended, fleet["offered_tokens"]
    trained = fleet["training_steps"] * fleet["training_step_tokens"]
    yield "tokens of steps", trained, fleet["training_tokens"]
    yield "mean power", fleet["power_mean_w"] * minutes * 60, fleet["energy_joules"]
    usd = fleet["usd_per_million_tokens"] * fleet["served_tokens"] / 1e6
    # Units that move, idle or are broken are divided between serving and training in proportion.
    works = fleet["inference_chip_hours"] + fleet["training_chip_hours"]
    serving = fleet["inference_chip_hours"] / works
    yield "price of tokens", usd, serving * fleet["cost_with_electricity_usd"]


def of_service(service):
    rate = service["requests_per_s"]
    yield "rate of answers", service["output_tokens_mean"] * rate, service["tokens_per_s"]
    yield "rate of prompts", service["prompt_tokens_mean"] * rate, service["prompt_tokens_per_s"]
    yield "in time", rate * service["slo_attainment"], service["request_goodput_per_s"]
    yield "every request", service["ttft_s"]["n"], service["requests"]
    held, room = service["kv_peak_bytes"], service["kv_budget_bytes"]
    yield "the cache has room", min(held, room), held
    first_s = service["ttft_s"]["p50"]
    yield "ends enclose first tokens", within(service, first_s), first_s


def of_search(search):
    left_out = sum(search["pruned"].values()) + search["oversized"]
    yield "every candidate", left_out + search["fitting"], search["candidates"]
    yield "every fitting plan", search["estimated"] + search["bounded"], search["fitting"]
    steps_s = [row["iteration_s"] for row in search["rows"]]
    yield "the first is the best", min(steps_s), steps_s[0]
    for row in search["rows"]:
        yield "parts are the step", sum(row["breakdown_s"].values()), row["iteration_s"]


def of_loans(night):
    hours = 0.0
    for loan in night["loans"]:
        length = datetime.fromisoformat(loan["to"]) - datetime.fromisoformat(loan["from"])
        hours += loan["units"] * length.total_seconds() / HOUR_S
        yield "chips of units", loan["units"] * 64, loan["chips"]
    test = night["backtest"]
    yield "hours of loans", hours, night["lent_unit_hours"]
    yield "share of nights", test["violated_share"] * test["nights"], test["violated"]
    nights = sum(day["nights"] for day in test["by_weekday"])
    yield "weekdays are all nights", nights, test["nights"]


def of_replay(replay):
    yield "parts are the step", sum(replay["breakdown_s"].values()), replay["iteration_s"]


def of_collective(collective):
    for row in collective["rows"]:
        bound_s = row["lower_bound_s"] or 0.0
        yield "the bound is below", min(row["time_s"], bound_s), bound_s


def any_schedule(rng):
    schedule = rng.choice(("gpipe", "1f1b", "interleaved", "zero-bubble"))
    vpp = 2 if schedule == "interleaved" else 1
    return draws.train(rng, pp=2, zero=rng.randrange(4), schedule=schedule, vpp=vpp)


EACH = [
    (draws.train, of_step), (any_schedule, of_step), (draws.job, of_job), (draws.queue, of_queue),
    (draws.fleet, of_fleet), (draws.serve, of_service), (draws.plan, of_search),
    (draws.lend, of_loans), (draws.replay, of_replay), (draws.collective, of_collective),
]  # fmt: skip


def check(draw, sums, seed):
    """Check the answer to a line that is drawn; return how many numbers were compared."""
    line = draw(random.Random(seed)).written("first")
    outcome = answer(line)
    if outcome["status"] == "refused":
        return 0
    assert outcome["status"] == "ok", (line, outcome["message"])
    claims = list(sums(outcome["document"]))
    for claim, one, other in claims:
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12), (claim, line)
    return len(claims)


@pytest.fixture(autouse=True)
def _in_a_folder_of_inputs(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("draw", "sums"), EACH)
def test_an_answer_adds_up(draw, sums):
    assert any(check(draw, sums, seed) for seed in range(9))  # until a case is not refused


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "sums"), EACH)
def test_answers_add_up_widely(draw, sums):
    assert sum(check(draw, sums, seed) for seed in WIDE)
