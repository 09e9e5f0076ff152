"""Queues of jobs: cases by hand, closed forms, hazards, records, and laws of every discipline."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.queues import CLUSTER, JOBS, WAITING, job
from tests.support.refusals import refused
from tests.support.small_models import TOY_CONFIG, config_file
from tools.shared_jobs import THIN
from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.clusters.names import cluster
from workloads.job import Recovery, expected_goodput
from workloads.sharing import hazards, queueing, servers
from workloads.sharing.hazards import Neighbours, _renumbered
from workloads.sharing.servers import DISCIPLINES, PLACES
from workloads.sharing.sharing import share

RESUMED = {"discipline": "preempt", "checkpoint_interval": 0.001, "restart": 0}
"""Jobs that go on where they were stopped, for the cost of a millisecond."""


def causes(folder, *rows):
    (path := folder / "causes.csv").write_text("\n".join(["cause,per,mtbf,replaces", *rows]) + "\n")
    return str(path)


def test_a_preempted_job_goes_back_to_its_checkpoint_and_restarts():
    jobs = [job(0, 8, 60), job(30, 8, 10, priority=1)]
    times = {"checkpoint_interval": "20min", "restart": "5min"}
    queue = cs.queue_jobs(CLUSTER, jobs, discipline="preempt", **times)
    # It computes for 30 min, of which 20 are saved, waits 10, restarts in 5 and computes 40.
    assert [round(each.end_s / 60, 6) for each in queue.jobs] == [85, 40]
    first = queue.jobs[0]
    assert (first.wait_s, first.preemptions, first.failures) == (600, 1, 0)
    assert {part: s for part, s in first.parts_s.items() if s} == {"lost_work": 600, "restart": 300}
    assert queue.breakdown["lost_work"] == pytest.approx(10 / 85)


def test_the_last_to_start_of_the_lowest_priority_is_stopped_and_no_more_than_needed():
    running = [job(0, 2, 90, priority=1), job(1, 2, 90), job(2, 2, 90), job(3, 2, 90, priority=1)]
    # Nothing is stopped for a job that would not fit all the same.
    full = [job(0, 4, 60, priority=1), job(0, 4, 60), job(1, 8, 10, priority=1)]
    for jobs, preemptions, wait_min in (
        ([*running, job(10, 2, 10, priority=2)], [0, 0, 1, 0, 0], 0),
        ([*running, job(10, 6, 10, priority=2)], [0, 1, 1, 1, 0], 0),
        (full, [0, 0, 0], 59),
    ):
        queue = cs.queue_jobs(CLUSTER, jobs, **RESUMED)
        assert [each.preemptions for each in queue.jobs] == preemptions
        assert queue.jobs[-1].wait_s == wait_min * 60


def test_mean_waits_of_two_priorities_are_those_of_the_formula():
    """M/G/1 with preemptive-resume priorities, as each job needs all servers (Kleinrock 1976)."""
    rng, run_min = np.random.default_rng(1), (10.0, 60.0)
    load = np.array([0.3, 0.35])  # of the higher and of the lower priority
    jobs = [
        job(minute, 8, run_min[number], priority=1 - number)
        for number in (0, 1)
        for minute in np.cumsum(
            rng.exponential(run_min[number] / load[number], 6_000 if number == 0 else 1_175)
        ).round(3)
    ]
    queue = cs.queue_jobs(CLUSTER, jobs, **RESUMED)
    left = np.cumsum(load * run_min) / 2  # mean rest of the run that an arrival meets
    first = left[0] / (1 - load[0])
    second = run_min[1] * load[0] / (1 - load[0])
    second += left[1] / ((1 - load[0]) * (1 - load.sum()))
    for priority, mean in ((1, first), (0, second)):
        waits = [each.wait_s / 60 for each in queue.jobs if each.job.priority == priority]
        assert np.mean(waits) == pytest.approx(mean, rel=0.08)


def test_a_job_that_fails_takes_the_time_of_the_formula(tmp_path):
    """On its own servers, which software stops and nothing replaces (Daly, FGCS 22, 2006)."""
    stated = causes(tmp_path, "software,server,80h,0")  # 10 h for all eight servers
    times = {"checkpoint_interval": "1h", "restart": "12min"}
    queue = cs.queue_jobs(CLUSTER, [job(0, 8, 60 * 20_000)], failures=stated, **times)
    ended = queue.jobs[0]
    recovery = Recovery.from_catalogue(shipped_catalogue(), 0.0)
    paid = {"checkpoint_s": 0, "restart_s": 720, "detection_s": recovery.detection_s}
    share_useful = expected_goodput(3600, 36_000, **paid)
    assert ended.job.run_s / ended.end_s == pytest.approx(share_useful, rel=0.02)
    assert ended.wait_s == 0


def test_servers_go_to_repair_and_come_back(tmp_path):
    """Each of them is down for the share of the time of a repair, whether a job is on it or not."""
    stated = causes(tmp_path, "host,server,100h,1")
    jobs = [job(0, 4, 60 * 4_000)]
    queue = cs.queue_jobs(CLUSTER, jobs, failures=stated, repair="20h", checkpoint_interval="1min")
    assert queue.breakdown["down"] == pytest.approx(20 / 120, rel=0.1)
    assert queue.jobs[0].failures > 100
    assert int(queue.busy.max()) == 4
    assert (queue.busy + queue.down).max() <= 8


def test_waits_beside_failures_reach_over_runs_of_other_seeds(monkeypatch):
    work_off, seeds = queueing.work_off, []
    monkeypatch.setattr(
        queueing, "work_off", lambda *inputs: seeds.append(inputs[-1].seed) or work_off(*inputs)
    )
    queue = cs.queue_jobs(CLUSTER, [job(0, 8, 600), job(1, 8, 600)], failures=50)
    low_s, high_s = queue.failure_ends_s
    assert low_s <= queue.waits_s.mean() <= high_s
    assert low_s < high_s
    assert len({*seeds}) == len(seeds) == 1 + queueing.RUNS


@given(
    JOBS, st.sampled_from(list(DISCIPLINES)), st.sampled_from(list(PLACES)),
    st.sampled_from([0, 50, 200]), st.integers(0, 99),
)  # fmt: skip
def test_no_time_of_a_job_or_a_server_is_lost(jobs, discipline, place, failures, seed):
    queue = cs.queue_jobs(
        CLUSTER, jobs, discipline=discipline, place=place, failures=failures, seed=seed,
        checkpoint_interval="7min", restart="3min", repair="20min",
    )  # fmt: skip
    assert sum(queue.breakdown.values()) == pytest.approx(1)
    assert min(queue.breakdown.values()) >= -1e-12
    assert (queue.busy + queue.down).max() <= 8
    for each in queue.jobs:
        held_s = each.end_s - each.job.submit_s - each.wait_s
        assert held_s == pytest.approx(each.job.run_s + sum(each.parts_s.values()))
        assert each.parts_s["lost_work"] <= (each.failures + each.preemptions) * 420 + 1e-6
    assert queue.used == pytest.approx(1 - queue.breakdown["down"] - queue.breakdown["idle"])


def test_a_queue_that_would_not_get_on_is_refused(monkeypatch):
    monkeypatch.setattr(servers, "MOST_FAILURES", 1000)
    with pytest.raises(cs.InputError, match="more than 1,000 failures until all jobs have ended"):
        cs.queue_jobs(CLUSTER, [job(0, 8, 600)], failures=1e5)


def trained(tmp_path, **stated):
    model = str(config_file(tmp_path / "config.json", TOY_CONFIG))
    plan = {"model": model, "global_batch": 16, "seq": 512, "overlap": "none"}
    return {**plan, "submit": "0s", "steps": 1000, **stated}


def test_a_stopped_job_with_a_model_pays_what_run_job_says(tmp_path):
    mine = trained(tmp_path, tp=4, chips=32)
    jobs = [mine, job(0.001, 8, 60, priority=1)]
    queue = cs.queue_jobs(CLUSTER, jobs, discipline="preempt", checkpoint_interval=1000)
    first = queue.jobs[0]
    plan = {"tp": 4, "chips": 32, "global_batch": 16, "seq": 512, "overlap": "none"}
    run = cs.run_job(cs.train(mine["model"], CLUSTER, **plan), days=1, runs=1)
    assert first.parts_s["restart"] == pytest.approx(run.job.recovery.restart_s)
    saving = run.job.stall_s / 1000
    computed_s = first.job.run_s + first.parts_s["lost_work"]
    assert first.parts_s["checkpoint"] == pytest.approx(computed_s * saving)
    assert first.held_s == pytest.approx(first.job.run_s + sum(first.parts_s.values()), rel=1e-9)


def test_neighbours_take_as_long_as_share_says(tmp_path):
    """Each has a server below a switch for two, and the others elsewhere."""
    (tmp_path / "thin.yaml").write_text(THIN.replace("radix: 24", "radix: 12"))
    thin = cluster(str(tmp_path / "thin.yaml"))
    plan = {"tp": 4, "dp": 3, "global_batch": 12}
    stated = [trained(tmp_path, **plan), trained(tmp_path, **plan, steps=700)]
    plain, slowed = (cs.queue_jobs(thin, stated, neighbours=on) for on in (False, True))
    fields = [
        {**{key: each[key] for key in each if key not in ("submit", "steps")}, "name": name}
        for name, each in zip("ab", stated, strict=True)
    ]
    beside = share(thin, fields)
    factors = [each.slowdown for each in beside.jobs]
    assert max(factors) > 1.001
    # Both run until the shorter one has ended, and the other alone from then on.
    alone_s = [each.job.run_s for each in plain.jobs]
    ends_s = [each.end_s for each in slowed.jobs]
    number = int(np.argmin(ends_s))
    assert ends_s[number] == pytest.approx(alone_s[number] * factors[number])
    other = 1 - number
    rest_s = alone_s[other] - ends_s[number] / factors[other]
    assert ends_s[other] == pytest.approx(ends_s[number] + rest_s)
    assert slowed.breakdown["neighbours"] > 0


def test_a_neighbour_goes_on_faster_while_the_other_is_stopped(tmp_path, monkeypatch):
    times_s = iter([600.0, 1e9])
    monkeypatch.setattr(servers.Servers, "_next_failure_s", lambda _: next(times_s))
    monkeypatch.setattr(queueing, "with_ends", lambda queue, *_: queue)
    monkeypatch.setattr(Neighbours, "slowdowns", lambda *_: (2.0, 2.0))
    stated = [trained(tmp_path, tp=4, chips=64, steps=10**6)] * 2
    queue = cs.queue_jobs(
        CLUSTER, stated, failures=causes(tmp_path, "software,server,80h,0"), neighbours=True,
        restart="1min", checkpoint_interval="1000h",
    )  # fmt: skip
    goes_on, stopped = sorted(queue.jobs, key=lambda each: each.failures)
    assert (goes_on.failures, stopped.failures) == (0, 1)
    stopped_s = stopped.parts_s["detection"] + 60
    # A second of work takes two beside the other, and one while that is stopped.
    work_s = goes_on.job.run_s
    end_s = 600 + stopped_s + 2 * (work_s - 300 - stopped_s)
    assert goes_on.end_s == pytest.approx(end_s, rel=1e-4)
    assert stopped.parts_s["lost_work"] == pytest.approx(300, rel=1e-4)
    # It ends alone, from when the other has ended.
    rest_s = work_s - (end_s - 600 - stopped_s) / 2
    assert stopped.end_s == pytest.approx(end_s + rest_s, rel=1e-4)


def test_checkpoints_that_cost_nothing_are_taken_once_a_second(tmp_path):
    (path := tmp_path / "catalogue.csv").write_text(
        "part,quantity,variant,value,unit,grade,source,note\n"
        "fleet.training,checkpoint_stall,,0,s,stated,mine,\n"
    )
    machine = cluster(CLUSTER, catalogue=choose((), path))
    jobs = [job(0, 8, 60), job(1.005, 8, 10, priority=1)]
    queue = cs.queue_jobs(machine, jobs, discipline="preempt")
    assert queue.jobs[0].parts_s["lost_work"] == pytest.approx(0.3)


def test_domains_are_renumbered_in_order_of_appearance():
    machine = cluster("trn2-ultraserver:8")
    first, second = np.array([5 * 64 + 3, 2 * 64 + 1]), np.array([2 * 64 + 7, 7 * 64])
    alike = _renumbered(machine, [first, second])
    assert [each.tolist() for each in alike] == [[3, 64 + 1], [64 + 7, 2 * 64]]


def test_a_pair_of_placements_is_simulated_once(monkeypatch):
    simulated = []
    slower = [1.5, 1.25]
    monkeypatch.setattr(hazards, "pair_slowdowns", lambda *pair: simulated.append(pair) or slower)
    beside, job = Neighbours(cluster("trn2-ultraserver:8")), object()
    halves = [np.arange(32) + 64 * domain for domain in range(8)]
    for first in (0, 4):
        chips = [np.concatenate(halves[at : at + 2]) for at in (first, first + 2)]
        assert beside.slowdowns((job, chips[0]), (job, chips[1])) == slower
    assert len(simulated) == 1
    assert beside.slowdowns((job, np.arange(64)), (job, np.arange(64, 128))) == (1.0, 1.0)


TWO_TIMES = [job(0, 8, 60), job(0, 8, 30, priority=1)]
SIX = job(0, 6, 60, limit="90min")
HALVES = [job(0, 4, 60), job(0, 4, 60), job(1, 8, 60), job(2, 4, 60)]
DOMAINS = [job(0, 2, 100), job(0, 3, 60), job(1, 3, 10)]


@pytest.mark.parametrize(("jobs", "discipline", "place", "expected"), [
    # The second needs all servers, so everybody waits behind it.
    (WAITING, "fifo", "any", [0, 59, 118, 117, 116]),
    # The third ends before the second's turn at 60 min; the fourth would delay it; the fifth
    # starts when the third has left its servers.
    (WAITING, "backfill", "any", [0, 59, 0, 117, 28]),
    (WAITING, "shortest", "any", [0, 59, 0, 117, 28]),
    # Of the three free servers, two are left over when the second has its six at 60 min.
    ([job(0, 5, 60), job(1, 6, 60), job(2, 2, 500), job(3, 1, 500)], "backfill", "any",
     [0, 59, 0, 117]),
    # Schedulers count with limits rather than with times.
    ([SIX, job(1, 8, 60), job(2, 2, 60, limit="88min")], "backfill", "any", [0, 61, 0]),
    ([SIX, job(1, 8, 60), job(2, 2, 60, limit="2h")], "backfill", "any", [0, 59, 118]),
    # Jobs of one time are considered together, and priority comes before arrival.
    (TWO_TIMES, "priority", "any", [30, 0]),
    ([*TWO_TIMES, job(1, 8, 10, priority=5)], "priority", "any", [40, 0, 29]),
    # Between the ends of the first two, half of the servers are free, but for no time at all.
    (HALVES, "shortest", "any", [0, 0, 59, 118]),
    # Starts are exact whatever the binary fractions of times.
    ([job(0.1 * number, 1, 0.7) for number in range(8)], "backfill", "any", [0] * 8),
    # A job takes servers of two domains or waits for one, the fullest that has room.
    (DOMAINS, "backfill", "any", [0, 0, 0]),
    (DOMAINS, "backfill", "domain", [0, 0, 59]),
    ([job(0, 3, 60), job(1, 1, 60), job(2, 4, 10)], "fifo", "domain", [0, 0, 0]),
])  # fmt: skip
def test_waits_by_hand(jobs, discipline, place, expected):
    queue = cs.queue_jobs(CLUSTER, jobs, discipline=discipline, place=place)
    assert [round(each.wait_s / 60, 6) for each in queue.jobs] == expected
    assert f"mean wait={queue.waits_s.mean() / 3600:.2f} h" in repr(queue)
    scattered = jobs is DOMAINS and place == "any"
    if jobs is DOMAINS:
        assert [each.domains for each in queue.jobs] == [1, 1, 1 + scattered]
        assert queue.scattered == pytest.approx(scattered / 3)


@given(JOBS, st.sampled_from(list(DISCIPLINES)), st.sampled_from(list(PLACES)))
def test_every_job_runs_once_and_no_server_twice(jobs, discipline, place):
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
def test_backfill_never_delays_the_first_job_that_waits(jobs):
    # All limits are the true times, so the first waiting job starts as under fifo.
    fifo, filled = (cs.queue_jobs(CLUSTER, jobs, discipline=of).jobs for of in ("fifo", "backfill"))
    late = [number for number, each in enumerate(fifo) if each.wait_s > 0]
    if late:
        first = min(late, key=lambda number: (fifo[number].job.submit_s, number))
        assert filled[first].start_s <= fifo[first].start_s


def test_a_study_has_all_other_disciplines_and_places():
    study = cs.queue_jobs(CLUSTER, WAITING, study=True)
    pairs = {(name, place) for name in DISCIPLINES for place in PLACES}
    assert set(study.others) == pairs - {("backfill", "any")}
    alone = cs.queue_jobs(CLUSTER, WAITING, discipline="fifo", place="domain")
    assert study.others["fifo", "domain"].waits_s.tolist() == alone.waits_s.tolist()


def test_a_predicted_job_runs_for_its_steps_and_bounds_the_wait(tmp_path):
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
7|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|6|02:03:04|4294901759
7.batch|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|1||
8|2026-11-02T08:30:00|2026-11-02T09:30:00|2026-11-02T10:00:00|8|1-00:00:00|10
9|2026-11-02T08:40:00|Unknown|Unknown|8|1-00:00:00|10
"""


def test_the_output_of_sacct_is_read_as_slurm_writes_it(tmp_path):
    (path := tmp_path / "week.txt").write_text(SLURM)
    queue = cs.queue_jobs(CLUSTER, path)
    assert [(each.job.name, each.job.chips) for each in queue.jobs] == [("7", 96), ("8", 128)]
    assert [each.job.limit_s for each in queue.jobs] == [7384, 86_400]
    assert [each.wait_s for each in queue.jobs] == [0, 1800]
    assert [each.job.recorded_wait_s for each in queue.jobs] == [0, 3600]
    steps, unended = "job steps (1).", "jobs that never ran or have not ended (1)."
    assert queue.left_out == (f"Left out: {steps}", f"Left out: {unended}")


def test_a_queue_is_a_table_of_its_jobs(tmp_path):
    (path := tmp_path / "week.txt").write_text(SLURM)
    table = cs.queue_jobs(CLUSTER, path).frame()
    assert table["name"].tolist() == ["7", "8"]
    assert table["wait_s"].tolist() == [0, 1800]
    assert (table["end_s"] - table["start_s"]).tolist() == table["run_s"].tolist()


def test_nodes_of_sacct_may_stand_among_trackable_resources(tmp_path):
    tracked = SLURM.replace("NNodes", "AllocTRES").replace("|6|", "|billing=9,gres/gpu=96,node=6|")
    (path := tmp_path / "week.txt").write_text(tracked.replace("|8|1-", "|node=8,gres/gpu=128|1-"))
    assert [each.job.chips for each in cs.queue_jobs(CLUSTER, path).jobs] == [96, 128]


def kubernetes():
    pod = {"spec": {"containers": [{"resources": {"limits": {"aws.amazon.com/neuron": "16"}}}]}}
    times = {"startTime": "2026-11-02T08:10:00Z", "completionTime": "2026-11-02T09:10:00Z"}
    created = {"creationTimestamp": "2026-11-02T08:00:00Z"}
    single = {
        "kind": "Job", "metadata": {"name": "single", **created},
        "spec": {"parallelism": 2, "template": pod}, "status": times,
    }  # fmt: skip
    replicated = [{"replicas": 3, "template": {"spec": {"parallelism": 1, "template": pod}}}]
    conditions = [
        {"type": "Suspended", "lastTransitionTime": "2026-11-02T08:20:00Z"},
        {"type": "Completed", "lastTransitionTime": "2026-11-02T08:50:00Z"},
    ]
    several = {
        "kind": "JobSet", "metadata": {"name": "several", **created},
        "spec": {"replicatedJobs": replicated}, "status": {"conditions": conditions},
    }  # fmt: skip
    failed = {"type": "Failed", "lastTransitionTime": "2026-11-02T08:40:00Z"}
    status = {"startTime": times["startTime"], "conditions": [failed]}
    broken = {**single, "metadata": {"name": "broken", **created}, "status": status}
    unbegun = {**broken, "status": {"conditions": [failed]}}
    return {"kind": "List", "items": [single, several, broken, unbegun, {"kind": "Pod"}]}


@pytest.mark.parametrize("wrong", [7, "x", [7], {"resources": 7}, [{"resources": {"limits": 7}}]])
def test_containers_of_another_kind_have_no_chips(wrong, tmp_path):
    export = kubernetes()
    export["items"][0]["spec"]["template"] = {"spec": {"containers": wrong}}
    (path := tmp_path / "week.json").write_text(json.dumps(export))
    refused("job single: its containers have no limit", cs.queue_jobs, CLUSTER, path)


def test_a_list_of_kubernetes_jobs_is_read_as_kubectl_prints_it(tmp_path):
    (path := tmp_path / "week.json").write_text(json.dumps(kubernetes()))
    queue = cs.queue_jobs(CLUSTER, path)
    chips = [(each.job.name, each.job.chips) for each in queue.jobs]
    assert chips == [("single", 32), ("several", 48), ("broken", 32)]
    assert [each.job.run_s for each in queue.jobs] == [3600, 1800, 1800]
    assert [each.job.recorded_wait_s for each in queue.jobs] == [600, 1200, 600]
    assert {text.removeprefix("Left out: ") for text in queue.left_out} == {
        "entries that are no Job or JobSet (1).", "jobs that never ran or have not ended (1).",
    }  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [
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
])  # fmt: skip
def test_a_job_that_cannot_queue_is_refused(change, message):
    stated = {**job(0, 1, 60), **change}
    how = {"discipline": stated.pop("discipline")} if "discipline" in stated else {}
    present = {key: each for key, each in stated.items() if each is not None}
    refused(message, cs.queue_jobs, CLUSTER, [present], **how)


@pytest.mark.parametrize(("text", "message"), [
    ("name,submit\n", "there are no jobs in .*record. Give"),
    ("submit,chips,hours\n", "has no 'hours'"),
    ("submit,chips,time\n0s,16,1h\n2026-11-02,16,1h\n", "line 3: submit is a date for some"),
    ("submit,chips,time\n0s,16,1h\n0s,x,1h\n", "line 3: chips 'x' must be a whole number"),
    ("JobID|Submit\n", "no column Start. Export it with sacct --parsable2"),
    (SLURM.replace("|8|", "|eight|"), "line 4: NNodes 'eight' must be a whole number"),
    (SLURM.replace("02:03:04", "2 hours"), "Timelimit '2 hours' is no time"),
    (SLURM.replace("|1-00", f"|{10**400}-00"), "Timelimit '1000.* is no time"),
    (SLURM.replace("|1-00", "|-1-00"), "Timelimit '-1-00:00:00' is no time"),
    (SLURM.replace("T09:30", "T08:20"), "line 4: Submit, start and end do not follow"),
    ("submit,model,steps,dp\n0s,gpt2,9,x\n", "line 2: job 1: dp is 'x'; it must be"),
    ('{"items": 3}', "items is no list of jobs"),
    (json.dumps(kubernetes()).replace("aws.amazon.com/neuron", "cpu"), "have no limit of"),
])  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused(tmp_path, text, message):
    (path := tmp_path / "record").write_text(text)
    refused(message, cs.queue_jobs, CLUSTER, path)
