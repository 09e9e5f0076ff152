"""Jobs side by side: equal to runs of all ranks, and near runs of all messages."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.toy_training import SPARSE
from tools.shared_jobs import TOY, USUAL, ready, shared_ends, thin_cluster, whole_ends
from topologies.clusters.names import cluster
from workloads.sharing.jobs import jobs_from
from workloads.sharing.sharing import Meeting, Ran, _share, _side_by_side, share
from workloads.training.execution.links import Patterns, folded, side_by_side
from workloads.training.iteration import iteration

EVEN = np.concatenate([np.arange(start, start + 4) for start in range(0, 32, 8)])


@pytest.fixture
def thin():
    return thin_cluster()


def cost_ps(jobs, ends):
    """What jobs take longer side by side than each alone [ps]."""
    return sum(ends(jobs)) - sum(sum(ends([each])) for each in jobs)


def share_found(jobs):
    """Share of what a run of all messages says that sharing costs."""
    true = cost_ps(jobs, partial(whole_ends, as_flows=False))
    assert true > 0
    return cost_ps(jobs, shared_ends) / true


@pytest.mark.parametrize(("machine", "model", "stated", "steps"), [
    ("trn2.48xlarge", TOY, {"tp": 4, "pp": 2, "dp": 2}, 2),
    ("trn2.48xlarge", TOY, {"tp": 2, "pp": 2, "vpp": 2, "cp": 2, "dp": 2, "overlap": "all"}, 1),
    ("trn2.48xlarge:2", SPARSE, {"tp": 2, "dp": 16, "ep": 8}, 1),
    ("trn1.32xlarge", TOY, {"tp": 2, "pp": 2, "dp": 8, "ranks_per_chip": 2}, 1),
])  # fmt: skip
def test_one_job_takes_the_time_of_the_flow_level(machine, model, stated, steps):
    entry = {**USUAL, "model": model, "name": "only", "global_batch": 32, **stated}
    fabric = cluster(machine)
    (job,) = jobs_from([entry], fabric)
    alone = iteration(model, fabric, job.plan, level="flow", iterations=steps, folded=False)
    only = share(fabric, [entry], steps=steps).jobs[0]
    assert only.alone_ps.sum() == only.beside_ps.sum() == alone.trace.total_ps
    assert len(only.beside_ps) == steps


def test_folded_jobs_take_the_times_of_all_ranks(thin):
    """On uplinks, where shares of links are those of the flow level."""
    second = {"tp": 2, "pp": 2, "dp": 4, "global_batch": 8}
    jobs = ready(thin, [{"tp": 4, "dp": 4, "global_batch": 16}, second], [EVEN, EVEN + 4])
    meeting = Meeting(jobs, Patterns())
    assert shared_ends(jobs) == whole_ends(jobs, as_flows=True) == shared_ends(jobs, "reference")
    program, use = folded(meeting.program, meeting.use)
    assert len(program) < len(meeting.program) // 2
    assert violations(run(side_by_side(program, use, meeting.use.links).schedule)) == []


def test_folded_jobs_that_meet_on_a_torus_take_the_times_of_all_ranks():
    jobs = ready(
        cluster("trn2.48xlarge"),
        [{"tp": 2, "dp": 3, "global_batch": 6}, {"dp": 10, "global_batch": 20}],
        [np.arange(3, 9), np.r_[0:3, 9:16]],
    )
    several = sorted({len(each.crossed_by) for each in Meeting(jobs, Patterns()).shared_links()})
    assert several == [2]
    assert shared_ends(jobs) == whole_ends(jobs, as_flows=True)


def test_jobs_over_one_uplink_lose_what_a_run_of_all_messages_says(thin):
    """At least 80 % of what sharing costs is found, and at most a quarter more."""
    stated = [{"tp": 4, "dp": 4, "global_batch": 16}, {"dp": 16, "global_batch": 48}]
    assert 0.8 <= share_found(ready(thin, stated, [EVEN, EVEN + 4], steps=1)) <= 1.25


@pytest.mark.parametrize(
    ("stated", "start", "chips"),
    [([{"tp": 2, "dp": 3}, {"dp": 10}], 3, 6), ([{"tp": 2, "dp": 5}, {"dp": 6}], 1, 10)],
)
def test_jobs_on_one_torus_lose_what_a_run_of_all_messages_says(stated, start, chips):
    """Most of what sharing costs is found, and at most three quarters more."""
    mine = np.arange(start, start + chips)
    others = np.setdiff1d(np.arange(16), mine)
    each_batch = [{**job, "global_batch": 2 * job["dp"]} for job in stated]
    jobs = ready(cluster("trn2.48xlarge"), each_batch, [mine, others])
    assert 0.7 <= share_found(jobs) <= 1.75


def test_a_share_is_of_the_steps_until_the_first_job_ends(thin):
    (mine,) = ready(thin, [{"tp": 4, "dp": 4, "global_batch": 16}], [EVEN])
    alone = Ran([np.array([10, 20, 30])], [{"tp": 0.5, "dp": 1.0}], 0)
    beside = Ran([np.array([9]), np.array([12, 25, 45])], [{}, {"tp": 0.75, "dp": 3.0}], 0)
    part = _share(mine, alone, beside, 1, 44, ("other",))
    assert (part.alone_ps.tolist(), part.beside_ps.tolist()) == ([10, 10], [12, 13])
    assert part.call_changes_s == {"tp": 0.25, "dp": 2.0}
    assert part.slowdown == 25 / 20


def test_symmetrical_jobs_take_equal_times(thin):
    jobs = ready(thin, [{"tp": 4, "dp": 4, "global_batch": 16}] * 2, [EVEN, EVEN + 4])
    answer = _side_by_side(thin, jobs, Patterns(), "", "fast")
    alone = _side_by_side(thin, jobs[:1], Patterns(), "", "fast")
    assert answer.ops == (1 + 1 + 2) * alone.ops  # each alone, and both side by side
    first, second = answer.jobs
    assert first.beside_ps.tolist() == second.beside_ps.tolist()
    assert first.slowdown > 1
    assert first.meets == ("job1",)
    assert {each.kind for each in answer.links} == {"ToR-up", "ToR-down"}
    assert answer.lost() == pytest.approx(1 - 1 / first.slowdown)


def test_unlike_jobs_make_steps_until_the_first_is_done(thin):
    stated = [{"dp": 16, "global_batch": 128}, {"dp": 16, "global_batch": 32}]
    jobs = ready(thin, stated, [EVEN, EVEN + 4], steps=2)
    long, short = _side_by_side(thin, jobs, Patterns(), "", "fast").jobs
    assert len(short.beside_ps) > len(long.beside_ps) >= 1
    assert short.slowdown > long.slowdown > 1
    assert short.slowdowns.min() < short.slowdown < short.slowdowns.max()
    assert sum(short.call_changes_s.values()) > 0


def test_a_study_simulates_every_placement_and_names_the_best(thin):
    first, second = {"tp": 4, "dp": 3, "global_batch": 12}, {"tp": 2, "dp": 2, "global_batch": 8}
    jobs = [{**USUAL, "name": "a", **first}, {**USUAL, "name": "b", **second}]
    answer = share(thin, jobs, placement="spread", study=True, steps=1)
    assert list(answer.placements) == ["spread", "packed", "server", "domain", "rack"]
    assert answer.best != "spread"
    tried = [each for each in answer.placements.values() if not isinstance(each, str)]
    lost = {each.placement: each.lost(answer.best_alone_s) for each in tried}
    assert lost[answer.best] == pytest.approx(min(lost.values()), abs=1e-9)
    assert 0 <= lost[answer.best] <= lost["spread"]


def test_of_placements_that_differ_by_picoseconds_the_first_is_the_best(thin):
    job = {**USUAL, "name": "a", "tp": 4, "dp": 3, "global_batch": 12}
    answer = share(thin, [job], steps=1)
    (alone,) = answer.jobs
    little_ps = int(alone.beside_ps[0] * 3e-10)
    assert little_ps > 0
    both, one = "placements packed and spread lose least", "placement spread loses least"
    cases = ((little_ps, "packed", both), (10 * little_ps, "spread", one))
    for more_ps, best, verdict in cases:
        slower = replace(alone, beside_ps=alone.beside_ps + more_ps)
        first = replace(answer, placement="packed", jobs=(slower,))
        first = replace(first, others={"spread": replace(answer, placement="spread")})
        assert first.best == best
        assert first.verdict == verdict
