"""Quotas and reservations of teams in a queue: small cases by hand, and laws of all queues."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.queues import CLUSTER, job
from tests.support.refusals import refused
from workloads.sharing.servers import DISCIPLINES, Servers, Started

OWNED = ("a=32", "b=64", "c=32")  # two, four and two of eight servers


def waits_min(jobs, **options):
    queue = cs.queue_jobs(CLUSTER, jobs, **options)
    return [round(each.wait_s / 60, 6) for each in queue.jobs]


BORROWED = [job(0, 6, 60, team="a"), job(1, 4, 30, team="b"), job(2, 2, 10, team="c")]


@pytest.mark.parametrize(("discipline", "quota", "expected"), [
    ("backfill", (), [0, 59, 0]),
    # What a has borrowed is b's only when a's job ends.
    ("backfill", OWNED, [0, 59, 0]),
    # One whose team owns what it needs comes before one whose team would borrow.
    ("preempt", OWNED, [30, 0, 0]),
    ("preempt", ("a=96", "b=16", "c=16"), [0, 59, 0]),
])  # fmt: skip
def test_owners_wait_for_what_others_borrow_or_take_it_back(discipline, quota, expected):
    options = {"discipline": discipline, "quota": quota, "restart": "0s"}
    queue = cs.queue_jobs(CLUSTER, BORROWED, checkpoint_interval="1s", **options)
    # Stopped at 1 min, a's job waits until b's ends, at 31 min.
    assert [round(each.wait_s / 60, 6) for each in queue.jobs] == expected
    assert [each.preemptions for each in queue.jobs] == [int(expected[0] > 0), 0, 0]


def test_no_owner_gives_way_to_another_whose_room_is_in_parts():
    """Three servers are free, one beside three of a's and two beside two of c's."""
    jobs = [job(0, 3, 60, team="a"), job(1, 2, 60, team="c"), job(2, 3, 9, team="b")]
    quota = ("a=48", "b=48", "c=32")
    assert waits_min(jobs, discipline="preempt", quota=quota, place="domain") == [0, 0, 58]


def test_a_job_within_the_quota_of_its_team_comes_before_an_earlier_one_that_borrows():
    jobs = [job(0, 8, 60, team="a"), job(1, 8, 60, team="a"), job(2, 2, 60, team="b")]
    assert waits_min(jobs, discipline="fifo") == [0, 59, 118]
    assert waits_min(jobs, discipline="fifo", quota=["a=64", "b=64"]) == [0, 119, 58]


def test_chips_beyond_a_quota_are_counted_as_borrowed():
    queue = cs.queue_jobs(CLUSTER, BORROWED, quota=OWNED)
    rows = {each["team"]: each for each in queue.teams}
    assert [rows["a"][key] for key in ("quota_chips", "jobs", "mean_wait_s")] == [32, 1, 0]
    assert rows["a"]["chip_hours"] == pytest.approx(96)
    assert rows["a"]["borrowed_chip_hours"] == pytest.approx(64)
    assert rows["b"]["longest_wait_s"] == 59 * 60
    assert rows["b"]["borrowed_chip_hours"] == rows["c"]["borrowed_chip_hours"] == 0


def cluster_queue(name, chips, cohort="", **limits):
    resource = {"name": "aws.amazon.com/neuron", "nominalQuota": chips, **limits}
    flavors = [{"name": "trn2", "resources": [{"name": "cpu", "nominalQuota": 9}, resource]}]
    spec = {"resourceGroups": [{"flavors": flavors}], **({"cohort": cohort} if cohort else {})}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def exported(path, *items):
    path.write_text(json.dumps({"kind": "List", "items": [*items]}))
    return str(path)


def test_cluster_queues_of_kueue_lend_within_their_cohort_and_limits(tmp_path):
    limited = cluster_queue("a", "32", "science", borrowingLimit=31)  # all but two servers
    alone = cluster_queue("c", 32)
    science = cluster_queue("b", 32, "science")
    queues = [exported(tmp_path / "queues.json", limited, science, alone)]
    jobs = [job(0, 2, 60, team="a"), job(1, 1, 60, team="a"), job(2, 1, 60, team="a")]
    # The third would borrow a second server, and may not, though five are free.
    assert waits_min(jobs, quota=queues) == [0, 0, 58]
    # Of the four of the cohort b takes the last one that a leaves; then its own wait for a's.
    others = [*jobs[:2], job(2, 1, 30, team="b"), job(3, 1, 30, team="b"), job(4, 2, 9, team="c")]
    assert waits_min(others, quota=queues) == [0, 0, 0, 29, 0]
    assert waits_min([job(0, 2, 5, team="c"), job(1, 1, 5, team="c")], quota=queues) == [0, 4]
    assert waits_min(others, quota=queues, discipline="preempt") == [0, 29, 0, 0, 0]


def test_a_team_without_chips_of_its_own_borrows_and_gives_back_first(tmp_path):
    guest, owner = cluster_queue("a", 0, "science"), cluster_queue("b", 128, "science")
    queues = [exported(tmp_path / "queues.json", guest, owner)]
    jobs = [job(0, 4, 60, team="a"), job(1, 8, 30, team="b")]
    assert waits_min(jobs, quota=queues) == [0, 59]
    # Stopped at 1 min, a's job goes on when b's has ended.
    assert waits_min(jobs, quota=queues, discipline="preempt") == [30, 0]
    none = cluster_queue("a", 0, "science", borrowingLimit=0)
    with pytest.raises(cs.InputError, match="team a"):
        cs.queue_jobs(CLUSTER, jobs, quota=[exported(tmp_path / "none.json", none, owner)])


def test_a_reservation_withholds_whole_domains_from_jobs_that_would_not_end_before():
    jobs = [
        job(0, 4, 100, team="a"),
        job(60, 4, 61, team="a"),  # would end within the window, and waits for the other domain
        job(60, 4, 60, team="a"),  # ends as the window begins
        job(120, 4, 40, team="b"),
        job(121, 4, 59, team="a"),
        job(122, 4, 30, team="b"),  # would not end within the window of its team
    ]
    queue = cs.queue_jobs(CLUSTER, jobs, reserve=["b=1@2h+1h"])
    assert [round(each.wait_s / 60) for each in queue.jobs] == [0, 40, 0, 0, 40, 58]
    assert [each.preemptions for each in queue.jobs] == [0] * 6
    (block,) = queue.rights.reservations
    assert (block.domains.tolist(), block.start_s, block.end_s) == ([1], 7200, 10800)


def test_a_job_that_runs_past_its_limit_is_stopped_where_servers_are_reserved(monkeypatch):
    times_s = iter([600.0, 1e9])
    monkeypatch.setattr(Servers, "_next_failure_s", lambda _: next(times_s))
    monkeypatch.setattr("workloads.sharing.queueing.with_ends", lambda queue, *_: queue)
    late = {"failures": "9", "restart": "1h", "checkpoint_interval": "1min"}
    queue = cs.queue_jobs(
        "trn2.48xlarge", [job(0, 1, 100, team="a"), job(0, 1, 5, team="b")],
        reserve=["b=16@2h+1h"], discipline="fifo", **late,
    )  # fmt: skip
    first, second = queue.jobs
    assert (first.failures, first.preemptions) == (1, 1)
    # The second could start as the window begins, and under fifo the first starts after it.
    assert first.end_s > second.end_s
    assert sum(queue.breakdown.values()) == pytest.approx(1)


def test_reserved_chips_come_on_top_of_a_quota_and_dates_are_on_the_clock_of_jobs():
    day = "2026-11-02T"
    jobs = [
        {"submit": f"{day}08:00", "chips": 64, "time": "1h", "team": "a"},
        {"submit": f"{day}09:00", "chips": 128, "time": "1h", "team": "a"},
        {"submit": f"{day}09:00", "chips": 64, "time": "1h", "team": "b"},
    ]
    quota = ["a=64", "b=64"]
    assert waits_min(jobs, quota=quota) == [0, 60, 0]
    assert waits_min(jobs, quota=quota, reserve=[f"a=64@{day}09:00+1h"]) == [0, 0, 60]


def recorded(path, name):
    """Write a list of a job of Kueue, its queue and those of others."""
    pod = {"spec": {"containers": [{"resources": {"limits": {"aws.amazon.com/neuron": 16}}}]}}
    labels = {"kueue.x-k8s.io/queue-name": "users"}
    single = {
        "kind": "Job",
        "metadata": {
            **{"name": "single", "namespace": "physics", "labels": labels},
            "creationTimestamp": "2026-11-02T08:00:00Z",
        },
        "spec": {"template": pod},
        "status": {"startTime": "2026-11-02T08:10:00Z", "completionTime": "2026-11-02T09:10:00Z"},
    }
    local = {"kind": "LocalQueue", "spec": {"clusterQueue": "science"}}
    return exported(path, single, {**local, "metadata": {"name": "users", "namespace": name}})


def test_jobs_of_records_have_the_team_of_their_account_or_queue(tmp_path):
    teams = []
    for name in ("physics", "other"):
        queue = cs.queue_jobs(CLUSTER, recorded(tmp_path / "week.json", name))
        assert queue.left_out == ()
        teams.append(queue.jobs[0].job.team)
    assert teams == ["science", "users"]
    (slurm := tmp_path / "week.txt").write_text(
        "JobID|Submit|Start|End|NNodes|Account\n"
        "7|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|6|physics\n"
    )
    assert cs.queue_jobs(CLUSTER, slurm).teams[0]["team"] == "physics"


TEAMS = st.sampled_from("abc")
TEAM_JOBS = st.lists(
    st.builds(
        job, st.integers(0, 300), st.integers(1, 8), st.integers(1, 100), team=TEAMS,
        priority=st.integers(0, 1),
    ),
    min_size=1, max_size=12,
)  # fmt: skip
BLOCKS = st.lists(
    st.builds("{}=64@{}min+{}min".format, TEAMS, st.integers(0, 300), st.integers(1, 200)),
    max_size=1,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEAM_JOBS, BLOCKS, st.sampled_from([(), OWNED]), st.sampled_from([*DISCIPLINES]))
def test_no_chip_hour_is_lost_and_reservations_hold(monkeypatch, jobs, reserve, quota, discipline):
    def begin(state: Servers, run: Started, taken: Any) -> None:
        """Begin a job, and see that it ends before a window of others, or within its team's."""
        usual(state, run, taken)
        for block in state.teams.reservations:
            in_it = {server // state.per_domain for server in run.on} & {*block.domains.tolist()}
            last_s = block.end_s if block.team == run.job.team else block.start_s
            assert not in_it or state.env.now >= block.end_s or run.until_s <= last_s

    usual = Servers._begin
    with monkeypatch.context() as patch:
        patch.setattr(Servers, "_begin", begin)
        named = {each["team"] for each in jobs}
        blocks = [each for each in reserve if quota or each[0] in named]
        options = {"discipline": discipline, "reserve": blocks, "quota": quota}
        queue = cs.queue_jobs(CLUSTER, jobs, **options)
    assert queue.busy.max() <= 8
    assert sum(queue.breakdown.values()) == pytest.approx(1)
    held_chip_hours = sum(each["chip_hours"] for each in queue.teams)
    assert held_chip_hours == pytest.approx(queue.used * 128 * queue.end_s / 3600)
    for each in queue.teams if quota else ():
        assert 0 <= each["borrowed_chip_hours"] <= each["chip_hours"] + 1e-9


@pytest.mark.parametrize(("options", "message"), [
    ({"quota": ["a=64", "b=65"]}, r"the quotas \(a 64, b 65\) are more than the 128 chips"),
    ({"quota": ["a=64", "a=1"]}, "team a has two quotas"),
    ({"quota": ["a=x"]}, "--quota a: 'x' must be a whole number from 0"),
    ({"quota": ["64"]}, "--quota '64' is no quota. Write team=chips"),
    ({"quota": ["b=64"]}, "job 1: team 'a' is none of b"),
    ({"quota": ["a=16", "b=16"], "reserve": ["bb=16@1h+1h"]}, "'bb' is none of a, b.*mean b"),
    ({"reserve": ["b=16@1h+1h"]}, "--reserve: team 'b' is none of a"),
    ({"reserve": ["a=16@1h"]}, "is no reservation. Write team=chips@start"),
    ({"reserve": ["a=16@1h+0s"]}, "is not from the first arrival on"),
    ({"reserve": ["a=16@2026-11-02T08:00+1h"]}, "is not from the first arrival on"),
    ({"reserve": ["a=0@1h+1h"]}, "chips '0' must be a whole number from 1"),
    ({"reserve": ["a=129@1h+1h"]}, "are 3 whole scale-up domains, and .* 2 of the 2"),
    ({"reserve": ["a=128@1h+2h", "a=64@2h+2h"]},
     "64 chips for a are 1 whole scale-up domains, and beside other reservations 0 of the 2"),
])  # fmt: skip
def test_quotas_and_reservations_that_cannot_be_are_refused(options, message):
    refused(message, cs.queue_jobs, CLUSTER, [job(0, 1, 60, team="a")], **options)


@pytest.mark.parametrize(("item", "message"), [
    (cluster_queue("a", 16), "needs 32 chips, but its team a may have 16 with"),
    ({"kind": "Job"}, "holds no ClusterQueue"),
    (cluster_queue("a", "x"), "ClusterQueue a: nominalQuota 'x' must be a whole number"),
    (cluster_queue("a", 1, borrowingLimit=-1), "borrowingLimit '-1' must be a whole number"),
    (cluster_queue("a", 1, lendingLimit=1), "a lendingLimit is not simulated"),
    ({**cluster_queue("a", 1), "spec": 7}, "it has no quota of nvidia.com/gpu"),
])  # fmt: skip
def test_cluster_queues_that_cannot_be_used_are_refused(item, message, tmp_path):
    queues = [exported(tmp_path / "queues.json", item)]
    refused(message, cs.queue_jobs, CLUSTER, [job(0, 2, 60, team="a")], quota=queues)


def test_jobs_without_a_team_are_refused():
    with pytest.raises(cs.InputError, match="job 1 names no team, and --quota is stated"):
        cs.queue_jobs(CLUSTER, [job(0, 1, 60)], quota=["a=16"])
    refused("no job names one", cs.queue_jobs, CLUSTER, [job(0, 1, 60)], reserve=["a=16@1h+1h"])
