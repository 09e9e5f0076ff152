"""Queues of jobs: small cases by hand, a closed form, and laws of every discipline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.queues import CLUSTER, JOBS, WAITING, job
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.errors import InputError
from workloads.sharing.servers import DISCIPLINES, PLACES


def waits_min(jobs: list[dict[str, Any]], discipline: str, place: str = "any") -> list[float]:
    queue = cs.queue_jobs(CLUSTER, jobs, discipline=discipline, place=place)
    return [round(each.wait_s / 60, 6) for each in queue.jobs]


@pytest.mark.parametrize(
    ("discipline", "expected"),
    [
        # The second needs all servers, so everybody waits behind it.
        ("fifo", [0, 59, 118, 117, 116]),
        # The third ends before the second's turn at 60 min; the fourth would delay it; the fifth
        # starts when the third has left its servers.
        ("backfill", [0, 59, 0, 117, 28]),
        ("shortest", [0, 59, 0, 117, 28]),
    ],
)
def test_waits_of_five_jobs_by_hand(discipline: str, expected: list[float]) -> None:
    assert waits_min(WAITING, discipline) == expected


def test_a_later_job_may_run_past_the_turn_of_the_first_on_servers_that_it_leaves_free() -> None:
    jobs = [job(0, 5, 60), job(1, 6, 60), job(2, 2, 500), job(3, 1, 500)]
    # Of the three free servers, two are left over when the second has its six at 60 min.
    assert waits_min(jobs, "backfill") == [0, 59, 0, 117]


def test_schedulers_count_with_limits_rather_than_with_times() -> None:
    jobs = [job(0, 6, 60, limit="90min"), job(1, 8, 60), job(2, 2, 60, limit="88min")]
    assert waits_min(jobs, "backfill") == [0, 61, 0]
    jobs[2]["limit"] = "2h"
    assert waits_min(jobs, "backfill") == [0, 59, 118]


def test_jobs_of_one_time_are_considered_together() -> None:
    jobs = [job(0, 8, 60), job(0, 8, 30, priority=1)]
    assert waits_min(jobs, "priority") == [30, 0]
    later = [*jobs, job(1, 8, 10, priority=5)]
    assert waits_min(later, "priority") == [40, 0, 29]


def test_servers_that_come_free_at_one_time_are_given_together() -> None:
    jobs = [job(0, 4, 60), job(0, 4, 60), job(1, 8, 60), job(2, 4, 60)]
    # Between the ends of the first two, half of the servers are free, but for no time at all.
    assert waits_min(jobs, "shortest") == [0, 0, 59, 118]


def test_starts_are_exact_whatever_the_binary_fractions_of_times() -> None:
    jobs = [job(0.1 * number, 1, 0.7) for number in range(8)]
    assert [each.wait_s for each in cs.queue_jobs(CLUSTER, jobs).jobs] == [0.0] * 8


def test_a_job_waits_for_one_domain_or_takes_servers_of_two() -> None:
    jobs = [job(0, 2, 100), job(0, 3, 60), job(1, 3, 10)]
    scattered = cs.queue_jobs(CLUSTER, jobs)
    assert [(each.wait_s, each.domains) for each in scattered.jobs] == [(0, 1), (0, 1), (0, 2)]
    assert scattered.scattered == pytest.approx(1 / 3)
    assert waits_min(jobs, "backfill", "domain") == [0, 0, 59]


def test_a_job_takes_the_fullest_domain_that_has_room() -> None:
    jobs = [job(0, 3, 60), job(1, 1, 60), job(2, 4, 10)]
    assert waits_min(jobs, "fifo", "domain") == [0, 0, 0]


@given(JOBS, st.sampled_from(list(DISCIPLINES)), st.sampled_from(list(PLACES)))
def test_every_job_runs_once_and_no_server_twice(
    jobs: list[dict[str, Any]], discipline: str, place: str
) -> None:
    queue = cs.queue_jobs(CLUSTER, jobs, discipline=discipline, place=place)
    assert len(queue.jobs) == len(jobs)
    assert all(each.wait_s >= 0 for each in queue.jobs)
    assert queue.busy.max() <= 8
    assert sum(queue.breakdown.values()) == pytest.approx(1)
    work_s = sum(each.servers * each.job.run_s for each in queue.jobs)
    assert queue.breakdown["useful"] * 8 * queue.end_s == pytest.approx(work_s)
    if discipline != "preempt":
        assert queue.used == pytest.approx(queue.breakdown["useful"])
    if place == "domain":
        assert queue.scattered == 0
    if discipline == "fifo":
        starts_s = [each.start_s for each in queue.jobs]
        assert starts_s == sorted(starts_s)


@given(JOBS)
def test_backfill_never_delays_the_first_job_that_waits(jobs: list[dict[str, Any]]) -> None:
    # All limits are the true times, so the first waiting job starts as under fifo.
    fifo, filled = (
        cs.queue_jobs(CLUSTER, jobs, discipline=name).jobs for name in ("fifo", "backfill")
    )
    late = [number for number, each in enumerate(fifo) if each.wait_s > 0]
    if late:
        first = min(late, key=lambda number: (fifo[number].job.submit_s, number))
        assert filled[first].start_s <= fifo[first].start_s


def test_a_study_has_all_other_disciplines_and_places() -> None:
    study = cs.queue_jobs(CLUSTER, WAITING, study=True)
    pairs = {(name, place) for name in DISCIPLINES for place in PLACES}
    assert set(study.others) == pairs - {("backfill", "any")}
    alone = cs.queue_jobs(CLUSTER, WAITING, discipline="fifo", place="domain")
    assert study.others["fifo", "domain"].waits_s.tolist() == alone.waits_s.tolist()


def test_a_predicted_job_runs_for_its_steps_and_bounds_the_wait(tmp_path: Path) -> None:
    model = config_file(tmp_path / "config.json", TOY_CONFIG)
    plan = {"model": str(model), "tp": 4, "dp": 32, "global_batch": 32, "seq": 512}
    step = cs.train(model, CLUSTER, **{name: plan[name] for name in list(plan)[1:]})
    jobs = [{"submit": "0s", "steps": 1000, **plan}, job(0.001, 8, 1)]
    queue = cs.queue_jobs(CLUSTER, jobs)
    assert queue.jobs[0].job.run_s == pytest.approx(1000 * step.iteration_s, rel=1e-9)
    (tmp_path / "plan.yaml").write_text("tp: 4\nglobal_batch: 32\nseq: 512\n")
    path = tmp_path / "jobs.csv"
    path.write_text(f"submit,model,plan,chips,steps\n0s,{model},plan.yaml,128,1000\n")
    assert cs.queue_jobs(CLUSTER, path).jobs[0].end_s == queue.jobs[0].end_s
    low_s, high_s = queue.wait_ends_s or (0, 0)
    assert low_s < queue.waits_s.mean() < high_s
    assert high_s == pytest.approx((1000 * step.interval.high - 0.06) / 2)


SLURM = """JobID|Submit|Start|End|NNodes|Timelimit|Priority
7|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|6|02:00:00|4294901759
7.batch|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|1||
8|2026-11-02T08:30:00|2026-11-02T09:30:00|2026-11-02T10:00:00|8|1-00:00:00|10
9|2026-11-02T08:40:00|Unknown|Unknown|8|1-00:00:00|10
"""


def test_the_output_of_sacct_is_read_as_slurm_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "week.txt"
    path.write_text(SLURM)
    queue = cs.queue_jobs(CLUSTER, path)
    assert [(each.job.name, each.job.chips) for each in queue.jobs] == [("7", 96), ("8", 128)]
    assert [each.job.limit_s for each in queue.jobs] == [7200, 86_400]
    assert [each.wait_s for each in queue.jobs] == [0, 1800]
    assert [each.job.recorded_wait_s for each in queue.jobs] == [0, 3600]
    assert queue.left_out == (
        "Left out: job steps (1).",
        "Left out: jobs that never ran or have not ended (1).",
    )


def kubernetes() -> dict[str, Any]:
    pod = {"spec": {"containers": [{"resources": {"limits": {"aws.amazon.com/neuron": "16"}}}]}}
    times = {"startTime": "2026-11-02T08:10:00Z", "completionTime": "2026-11-02T09:10:00Z"}
    created = {"creationTimestamp": "2026-11-02T08:00:00Z"}
    single = {
        "kind": "Job",
        "metadata": {"name": "single", **created},
        "spec": {"parallelism": 2, "template": pod},
        "status": times,
    }
    replicated = [{"replicas": 3, "template": {"spec": {"parallelism": 1, "template": pod}}}]
    conditions = [
        {"type": "Suspended", "lastTransitionTime": "2026-11-02T08:20:00Z"},
        {"type": "Completed", "lastTransitionTime": "2026-11-02T08:50:00Z"},
    ]
    several = {
        "kind": "JobSet",
        "metadata": {"name": "several", **created},
        "spec": {"replicatedJobs": replicated},
        "status": {"conditions": conditions},
    }
    failed = {"type": "Failed", "lastTransitionTime": "2026-11-02T08:40:00Z"}
    status = {"startTime": times["startTime"], "conditions": [failed]}
    broken = {**single, "metadata": {"name": "broken", **created}, "status": status}
    return {"kind": "List", "items": [single, several, broken, {"kind": "Pod"}]}


@pytest.mark.parametrize("wrong", [7, "x", [7], {"resources": 7}, [{"resources": {"limits": 7}}]])
def test_containers_of_another_kind_have_no_chips(wrong: Any, tmp_path: Path) -> None:
    export = kubernetes()
    export["items"][0]["spec"]["template"] = {"spec": {"containers": wrong}}
    path = tmp_path / "week.json"
    path.write_text(json.dumps(export))
    with pytest.raises(InputError, match="job single: its containers have no limit"):
        cs.queue_jobs(CLUSTER, path)


def test_a_list_of_kubernetes_jobs_is_read_as_kubectl_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "week.json"
    path.write_text(json.dumps(kubernetes()))
    queue = cs.queue_jobs(CLUSTER, path)
    assert [(each.job.name, each.job.chips) for each in queue.jobs] == [
        ("single", 32),
        ("several", 48),
        ("broken", 32),
    ]
    assert [each.job.run_s for each in queue.jobs] == [3600, 1800, 1800]
    assert [each.job.recorded_wait_s for each in queue.jobs] == [600, 1200, 600]
    assert queue.left_out == ("Left out: entries that are no Job or JobSet (1).",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"submit": None}, "job 1: it has no submit"),
        ({"submit": "2026-13-01"}, "submit '2026-13-01' is no date"),
        ({"time": None}, "job 1: it has neither time nor model"),
        ({"time": "0s"}, "time '0s' must be longer than 0"),
        ({"chips": 0}, "chips '0' must be a whole number from 1"),
        ({"chips": 129}, "job 1 needs 129 chips, but trn2-ultraserver:2 has 128"),
        ({"limit": "1min"}, "limit 1min is shorter than the 3,600 s that it runs"),
        ({"priority": "high"}, "priority 'high' must be a whole number"),
        ({"tp": 8}, "job 1: tp needs a model"),
        ({"model": "llama-3.1-8b"}, "it states time and model"),
        ({"submitted": "3s"}, "a job of a queue has no 'submitted'. Did you mean submit"),
        ({"discipline": "backfil"}, r"'backfil' is none of fifo, .*backfill"),
    ],
)
def test_a_job_that_cannot_queue_is_refused(change: dict[str, Any], message: str) -> None:
    stated = {**job(0, 1, 60), **change}
    how = {"discipline": stated.pop("discipline")} if "discipline" in stated else {}
    present = {key: each for key, each in stated.items() if each is not None}
    with pytest.raises(cs.InputError, match=message):
        cs.queue_jobs(CLUSTER, [present], **how)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,submit\n", "there are no jobs in the queue"),
        ("submit,chips,hours\n", "has no 'hours'"),
        ("submit,chips,time\n0s,16,1h\n2026-11-02,16,1h\n", "line 3: submit is a date for some"),
        ("submit,chips,time\n0s,16,1h\n0s,x,1h\n", "line 3: chips 'x' must be a whole number"),
        ("JobID|Submit\n", "no column Start. Export it with sacct --parsable2"),
        (SLURM.replace("|8|", "|eight|"), "line 4: NNodes 'eight' must be a whole number"),
        (SLURM.replace("02:00:00", "2 hours"), "Timelimit '2 hours' is no time"),
        (SLURM.replace("|1-00", f"|{10**400}-00"), "Timelimit '1000.* is no time"),
        (SLURM.replace("|1-00", "|-1-00"), "Timelimit '-1-00:00:00' is no time"),
        (SLURM.replace("T09:30", "T08:20"), "line 4: Submit, start and end do not follow"),
        ("submit,model,steps,dp\n0s,gpt2,9,x\n", "line 2: job 1: dp is 'x'; it must be"),
        ('{"items": 3}', "items is no list of jobs"),
        (json.dumps(kubernetes()).replace("aws.amazon.com/neuron", "cpu"), "have no limit of"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record"
    path.write_text(text)
    with pytest.raises(cs.InputError, match=message):
        cs.queue_jobs(CLUSTER, path)
