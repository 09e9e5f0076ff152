"""The command ``run-job``: its keys, pictures, sweeps and refusals."""

import math

import pandas as pd
import pytest

import cluster_sim as cs
from tests.support.commands import document_of, printed_by
from workloads.job import PARTS

STEP = "--model=llama-3.1-8b --cluster=trn2.48xlarge:4 --tp=4 --global-batch=64"
QUICK = f"run-job {STEP} --days=20 --runs=2"
KEYS = {
    "goodput", "breakdown", "failures_by_cause", "mtbf_s", "checkpoint_interval_s",
    "best_checkpoint_interval_s", "young_daly_interval_s", "spares", "tokens", "cost_usd",
    "energy_joules", "interval",
}  # fmt: skip
DAY_S = 86400


@pytest.fixture(scope="module")
def answered():
    """Answer of one quick run."""
    return document_of(QUICK)


def answer(words):
    return document_of(QUICK, *words.split())


def test_the_document_has_its_keys_and_amounts_follow_from_goodput(answered):
    assert set(answered) >= KEYS
    assert set(answered["breakdown"]) == set(PARTS)
    ends = answered["interval"]
    for name in ("iteration_s", "usd_per_million_tokens", "tokens"):
        assert ends[name]["low"] < answered[name] < ends[name]["high"]
    assert ends["low"] <= answered["goodput"] <= ends["high"]
    steps = answered["goodput"] * 20 * DAY_S / answered["iteration_s"]
    assert answered["tokens"] == pytest.approx(steps * 64 * answered["plan"]["seq"])
    hours = 20 * 24 * (answered["chips"] + answered["spare_chips"]) / 16
    assert answered["cost_usd"] == pytest.approx(35.7608 * hours, rel=0.01)
    # Four servers of 16 chips fail as often as their part of Llama 3's: chips, hosts, no more.
    assert 20 * DAY_S < answered["mtbf_s"] < 60 * DAY_S


def test_a_run_of_a_stated_length_costs_what_its_price_may_be(answered):
    """The price of a Trn3 of 144 chips is assumed: 504 USD/h, 432 to 648."""
    step = "--model=llama-3.1-8b --cluster=trn3-gen2:1 --tp=4 --global-batch=144"
    document = document_of(f"run-job {step} --days=2 --runs=2")
    ends, price = document["interval"]["cost_usd"], document["interval"]["price"]
    assert (price["low"], price["high"]) == pytest.approx((432 / 504, 648 / 504))
    assert price["basis"].startswith("trn3-gen2 price 504 USD/h (assumed")
    assert ends["low"] == pytest.approx(document["cost_usd"] * price["low"], rel=0.01)
    assert ends["high"] == pytest.approx(document["cost_usd"] * price["high"], rel=0.01)
    assert not {"cost_usd", "price"} & answered["interval"].keys()  # the price has no range


def test_options_do_what_they_say(answered):
    often = answer("--failures=20 --checkpoint-interval=10min --spares=0 --repair=2h")
    assert often["mtbf_s"] == pytest.approx(365.25 * DAY_S / 20 / 64)
    assert (often["checkpoint_interval_s"], often["spares"]) == (600, 0)
    assert often["breakdown"]["waiting_for_spares"] > 0.02
    assert often["interval"]["basis"].endswith("as stated")
    spared = answer("--failures=20 --checkpoint-interval=600s --spares=9 --restart=30min")
    assert (spared["breakdown"]["waiting_for_spares"], spared["restart_s"]) == (0, 1800)
    blocking = answer("--checkpoint=blocking --no-stragglers")
    assert blocking["checkpoint_stall_s"] == blocking["checkpoint_write_s"]
    assert blocking["breakdown"]["stragglers"] == 0
    never = answer("--failures=0 --no-stragglers")
    assert (never["mtbf_s"], never["best_checkpoint_interval_s"]) == (None, None)
    assert never["goodput"] == 1
    assert answer("--lora-rank=16")["checkpoint_bytes"] < answered["checkpoint_bytes"] / 100


def test_the_plan_is_searched_where_no_degree_is_stated():
    plan = document_of("run-job --model=gpt2 --cluster=trn2.48xlarge --runs=1 --days=5")["plan"]
    assert math.prod(plan[name] for name in ("tp", "pp", "dp", "cp")) == 16


def test_a_run_directory_has_pictures_and_tables(tmp_path):
    out = tmp_path / "job"
    printed_by(QUICK, "--failures=20", f"--out={out}")
    for name in ("timeline.png", "interval.png", "failures.png", "report.html"):
        assert (out / name).stat().st_size > 1000
    metrics = pd.read_csv(out / "metrics.csv").set_index("metric")["value"]
    assert float(metrics["interval.low"]) <= float(metrics["goodput"])
    assert float(metrics["tokens_interval.low"]) < float(metrics["tokens"])
    runs = pd.read_csv(out / "runs.csv")
    assert runs[list(PARTS)].sum(axis=1).to_numpy() == pytest.approx(1)
    assert pd.read_csv(out / "timeline.csv")["day"].iloc[-1] == pytest.approx(20, abs=0.3)


@pytest.mark.slow
def test_a_study_runs_it(tmp_path):
    study, out = tmp_path / "study.yaml", tmp_path / "out"
    words = [word.removeprefix("--").split("=") for word in f"{STEP} --days=20 --runs=1".split()]
    fixed = "".join(f"  {name}: {value}\n" for name, value in words)
    grid = "grid:\n  spares: ['0', '1']\n"
    study.write_text(f"command: run-job\nfixed:\n{fixed}  failures: 5\n{grid}")
    printed_by(f"sweep {study} --out={out} --workers=1")
    assert list(pd.read_csv(out / "results.csv")["status"]) == ["ok", "ok"]


def test_python_gives_the_same(answered):
    model, cluster = cs.model("llama-3.1-8b"), cs.cluster("trn2.48xlarge:4")
    step = cs.train(model, cluster, cs.Plan(tp=4, dp=16, global_batch=64))
    result = cs.run_job(step, days=20, runs=2)
    assert result.goodput == answered["goodput"]
    assert "goodput" in repr(result)
    assert result._repr_html_().startswith("<table>")
    assert len(result.frame()) == 4


def test_sensitivity_ranks_what_moves_the_goodput():
    """Longer stalls and rarer failures move it as they should; what no job reads is absent."""
    rows = {row["input"]: row for row in answer("--sensitivity")["sensitivity"]}
    assert rows["fleet.training.checkpoint_stall"]["elasticity"] < 0
    assert rows["failure.chip.mtbf"]["elasticity"] > 0
    assert rows["failure.chip.mtbf"]["change_low"] < 0 < rows["failure.chip.mtbf"]["change_high"]
    assert "job.restart.start" in rows
    assert not any(name.startswith("serving.") for name in rows)


@pytest.mark.slow
def test_train_and_plan_tell_the_same_job_of_a_step():
    """A step of a stated plan, so that all three are about one step."""
    line = f"{STEP} --pp=1 --microbatch=1 --recompute=selective --zero=1 --tokens=1T"
    whole, step, best = (document_of(f"{name} {line}") for name in ("run-job", "train", "plan"))
    for job in (step["job"], best["job"]):
        shared = [name for name in job if name != "interval"]
        assert {name: job[name] for name in shared} == {name: whole[name] for name in shared}
        assert job["tokens"] == pytest.approx(1e12, rel=1e-3)
    assert step["job"]["interval"]["days"] == whole["interval"]["days"]
    text = " ".join(printed_by(f"train {line}").split())
    assert "tokens value length" in text
    assert f"spare chips, in price and energy {whole['spare_chips']}" in text


def test_an_elastic_job_goes_on_and_one_that_is_not_says_what_that_would_give():
    often = "--failures=600 --checkpoint=peer --global-batch=512"
    waits, goes_on = answer(often), answer(f"{often} --elastic")
    assert (waits["elastic"], goes_on["elastic"]) == (False, True)
    assert waits["breakdown"]["fewer_replicas"] == 0 < goes_on["breakdown"]["fewer_replicas"]
    assert goes_on["goodput"] > waits["goodput"] + 0.01
    scaled = answer(f"{often} --elastic --elastic-batch=scaled")
    assert 0 < scaled["breakdown"]["fewer_replicas"] < goes_on["breakdown"]["fewer_replicas"]
    note, *_ = waits["notes"]
    assert note.startswith("all replicas wait while a failed one is replaced; --elastic")
    assert f"for a goodput of {goes_on['goodput']:.0%}"[:-2] in note
    assert not any("--elastic" in each for each in goes_on.get("notes", ()))
    warm = answer("--failures=30 --checkpoint=peer --standby=warm --elastic")
    assert "--elastic has an effect only while no spare is ready" in warm["notes"][0]
