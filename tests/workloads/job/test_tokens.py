"""Runs that last until a number of tokens is trained on."""

import re

import pytest

import cluster_sim as cs
from tests.support.refusals import refused
from workloads.economics import Economics, bought_s
from workloads.job.front import whole_job
from workloads.job.result import OF_FAILURES
from workloads.options.job import JobInputs
from workloads.training.iteration import Iteration

GOAL = 30_000_000_000


@pytest.fixture(scope="module")
def step() -> Iteration:
    return cs.train("llama-3.1-8b", "trn2-ultraserver:2", tp=8, global_batch=64)


def test_a_run_lasts_until_its_tokens_are_trained_on(step):
    result = cs.run_job(step, tokens=GOAL, runs=2)
    assert result.tokens == pytest.approx(GOAL, rel=1e-3)
    same = cs.run_job(step, days=result.job.span_s / 86400, runs=2)
    assert same.tokens == pytest.approx(result.tokens, rel=1e-9)
    assert same.cost_usd == pytest.approx(result.cost_usd, rel=1e-9)


def test_a_job_shorter_than_a_repair_has_no_spares_for_all_of_it(step):
    long, short = (cs.run_job(step, days=days, runs=1).job for days in (1, 0.02))
    assert short.span_s < long.recovery.repair_s < long.span_s
    assert (long.spares, short.spares) == (1, 0)


def test_a_budget_buys_days_and_their_tokens(step):
    """The price is the budget, days are in proportion to it, and --days ends a run before."""
    one, two = (cs.run_job(step, budget=text, runs=2) for text in ("$5k", "10k"))
    assert (one.cost_usd, two.cost_usd) == pytest.approx((5e3, 1e4), rel=1e-9)
    assert two.job.span_s == pytest.approx(2 * one.job.span_s, rel=1e-9)
    day = cs.run_job(step, budget="20k", days=1, runs=2)
    assert (day.job.span_s, day.budget_usd, two.budget_usd) == (86400.0, None, 10_000)
    assert day.tokens == cs.run_job(step, days=1, runs=2).tokens
    longer = cs.run_job(step, budget="5k", days=1000, runs=2)
    assert longer.job.span_s == one.job.span_s
    job = whole_job(step, budget="10k")["job"]
    assert (job["budget_usd"], job["cost_usd"]) == (10_000, pytest.approx(1e4))
    assert job["interval"]["tokens"]["low"] < job["tokens"] < job["interval"]["tokens"]["high"]


def test_an_uncertain_price_moves_what_a_budget_buys_and_not_the_budget():
    """The price of a DGX H100 differs from 25.60 to 98.32 USD/h."""
    step = cs.train("llama-3.1-8b", "dgx-h100:2", tp=2, global_batch=64)
    ends = cs.run_job(step, budget="10k", runs=2).document()["interval"]
    assert "cost_usd" not in ends
    sure = cs.run_job(step, days=4, runs=2).document()["interval"]
    width, usual = (each["tokens"]["high"] / each["tokens"]["low"] for each in (ends, sure))
    assert width > 1.3 * usual
    assert ends["days"]["high"] / ends["days"]["low"] > 1.5


def test_a_cluster_without_a_price_has_no_budget():
    ring = cs.cluster("ring:8", bandwidth="100GB/s", latency="1us")
    refused("budget is 5,000 USD, and ring:8 has no price", bought_s, 5000, ring, 8)


def test_length_price_and_energy_share_one_relative_interval(step):
    document = cs.run_job(step, tokens="30B", runs=2).document()
    ends = document["interval"]
    factors = {
        tuple(round(ends[name][end] / document[name], 9) for end in ("low", "high"))
        for name in ("days", "cost_usd", "energy_joules")
    }
    assert len(factors) == 1
    (low, high) = factors.pop()
    assert low < 1 < high
    assert low == pytest.approx(document["tokens"] / ends["tokens"]["high"])


def test_spares_are_paid_for_and_idle(step):
    result = cs.run_job(step, days=2, runs=2, failures=0, spares=3, checkpoint_interval="10min")
    spare_chips = result.document()["spare_chips"]
    assert spare_chips == 3 * step.cluster.chips_per_domain  # a unit is an UltraServer
    assert result.chips == step.chips + spare_chips
    economics, span_s = Economics.of(step.cluster), 2 * 86400.0
    assert result.cost_usd == pytest.approx(result.chips * span_s * economics.usd_per_chip_s)
    # Nothing fails, so all chips work but for checkpoints, and spares never do.
    idle_w = economics.pue * economics.idle_w
    step_w = step.cost.energy_joules / step.iteration_s
    stalled = result.breakdown["checkpoint"]
    assert 0.003 < stalled < 0.006
    watts = (1 - stalled) * step_w + (stalled * step.chips + spare_chips) * idle_w
    assert result.energy_joules == pytest.approx(span_s * watts)


def test_a_stated_stall_stops_every_checkpoint_for_so_long(step):
    """Twenty minutes of every hour and twenty, where nothing fails or slows the job."""
    stated = {"checkpoint_interval": "1h", "checkpoint_stall": "20min", "stragglers": False}
    result = cs.run_job(step, days=20, runs=1, failures=0, **stated)
    assert result.document()["checkpoint_stall_s"] == 1200
    assert result.breakdown["checkpoint"] == pytest.approx(0.25, abs=0.001)


@pytest.mark.parametrize(("changes", "message"), [
    ({"days": 3.0, "tokens": str(GOAL)}, f"--tokens {GOAL} and --days 3.0 each state the"),
    ({"budget": "2M", "tokens": "1T"}, "--tokens 1T and --budget 2M each state the length"),
    ({"budget": "dear"}, "--budget 'dear' is not a number; write it as 500k or 2M"),
    ({"tokens": "0"}, "--tokens '0' must be from 1 to"),
    ({"tokens": GOAL}, r"tokens is 30000000000 \(int\). Pass text or None."),
])  # fmt: skip
def test_impossible_lengths_are_refused(changes, message):
    refused(message, JobInputs, **changes)


NO_END = {"runs": 1, "failures": 1e6, "restart": "1h", "stragglers": False}


@pytest.mark.parametrize(("words", "message"), [
    ({"tokens": "100M", **NO_END}, "makes no progress"),
    *(({"tokens": text}, r"--tokens .*(15T|limit)|beyond")
      for text in ("15Q", "many", "-3", "0", "1e300", "15 TB")),
])  # fmt: skip
def test_numbers_of_tokens_that_no_job_trains_are_refused(step, words, message):
    refused(message, cs.run_job, step, **words)


def test_a_length_that_does_not_converge_says_so(step, monkeypatch):
    """The closest of all lengths is kept, and the remark stands in the document."""
    assert "notes" not in cs.run_job(step, tokens=GOAL, runs=2, spares="0").document()
    monkeypatch.setattr("workloads.job.front.CLOSE", 0.0)
    result = cs.run_job(step, tokens=GOAL, runs=2, spares="0")
    assert result.tokens == pytest.approx(GOAL, rel=1e-3)
    (note,) = result.document()["notes"]
    assert "did not converge in 5 corrections" in note


def test_a_whole_job_says_what_would_save_its_goodput():
    large = cs.train("llama-3.1-70b", "trn2-ultraserver:64", tp=8, pp=4, global_batch=1024)
    (note,) = whole_job(large, tokens="100B")["job"]["notes"]
    assert note.startswith("all replicas wait while a failed one is replaced; --elastic")


def test_a_job_says_what_its_spares_cost_where_nobody_stated_them(step):
    """One unit waits beside two, and nothing fails within a day: a third of the price buys none."""
    (note,) = cs.run_job(step, days=1, runs=1).notes
    assert note == (
        "33% of the price is for spares, whose number is not stated; with --spares 0 tokens would "
        "be 33% cheaper, at a goodput of 99.9% (99.9% with 1)."
    )
    assert not cs.run_job(step, days=1, runs=1, spares="1").notes
    (note,) = cs.run_job(step, days=1, runs=8).notes  # of which the first has no failure either
    assert re.search(r"at a goodput of (\d+\.\d%) \(\1 with 1\)\.$", note)


def test_a_stated_checkpoint_interval_is_compared_with_the_best(step):
    words = {"days": 30, "runs": 1, "failures": 20.0, "spares": "2"}
    *_, rare = cs.run_job(step, checkpoint_interval="24h", **words).notes
    assert re.search(r"the best interval found, would raise the goodput by \d+\.\d%\.$", rare)
    best = cs.run_job(step, **words)
    *_, same = cs.run_job(step, checkpoint_interval=best.job.interval_s, **words).notes
    assert same.endswith("would change the goodput by less than 0.1%.")
    assert not any("the best interval found" in note for note in best.notes)


def test_the_cost_of_a_failure_is_that_of_all_runs_with_its_interval(step):
    result = cs.run_job(step, days=60, runs=2)
    document = result.document()
    lost_s = document["failure_cost_s"]
    parts = [sum(each.parts_ms[part] for part in OF_FAILURES) / 1000 for each in result.outcomes]
    failures = sum(sum(each.failures.values()) for each in result.outcomes)
    assert lost_s == pytest.approx(sum(parts) / failures)
    ends = document["interval"]["failure_cost_s"]
    assert ends["low"] <= lost_s <= ends["high"]


def test_windows_beyond_the_time_without_failures_count_in_the_search_for_an_interval(step):
    """Twenty days of perfect goodput take longer, and have the window on the twenty-first."""
    words = {"failures": 4, "runs": 1, "spares": "0", "maintenance": "out@20d06:00+12h=1"}
    run = cs.run_job(step, tokens=round(20 * 86400 * step.tokens_per_s), **words)
    same = cs.run_job(step, days=run.job.span_s / 86400, **words)
    assert run.job.span_s > 20.25 * 86400
    assert (run.curve, run.goodput) == (same.curve, same.goodput)
