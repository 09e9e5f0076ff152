"""Jobs that start at stated times or end after stated steps."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by
from tools.shared_jobs import USUAL, thin_cluster
from workloads.sharing.periods import Period, periods
from workloads.sharing.sharing import share


def found(starts_s, steps, last_steps=4):
    """Periods of jobs whose steps take as many seconds as jobs run."""
    return list(
        periods(starts_s, steps, lambda _, jobs: [float(len(jobs))] * len(jobs), last_steps)
    )


@pytest.mark.parametrize(("starts_s", "steps", "expected"), [
    ([0], [3], [(0, 3, (0,))]),
    ([2], [3], [(2, 5, (0,))]),
    ([0, 0], [1, 2], [(0, 2, (0, 1)), (2, 3, (1,))]),
    ([0, 5], [3, 3], [(0, 3, (0,)), (5, 8, (1,))]),  # nothing runs between
    ([0, 3], [3, 3], [(0, 3, (0,)), (3, 6, (1,))]),  # one ends as the other starts
    ([4, 0], [3, 10], [(0, 4, (1,)), (4, 10, (0, 1)), (10, 13, (1,))]),
    ([0], [math.inf], [(0, 4, (0,))]),
    ([0, 10], [math.inf, math.inf], [(0, 10, (0,)), (10, 18, (0, 1))]),
    ([0, 1], [math.inf, 1], [(0, 1, (0,)), (1, 3, (0, 1)), (3, 5, (0,))]),
    ([0, 1], [math.inf, 9], [(0, 1, (0,)), (1, 19, (0, 1))]),  # no time is left to run on
])  # fmt: skip
def test_periods_end_where_a_job_starts_or_has_made_its_steps(starts_s, steps, expected):
    assert [each[:3] for each in found(starts_s, steps)] == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=5))
def test_every_job_makes_its_steps_and_overlaps_slow(jobs):
    starts_s, steps = zip(*jobs, strict=True)
    several = found(starts_s, steps)
    steps_made = [sum(each.steps(number) for each in several) for number in range(len(jobs))]
    assert steps_made == pytest.approx(steps)
    for before, after in pairwise(several):
        assert before.end_s <= after.begin_s
    for number, (start_s, count) in enumerate(jobs):
        mine = [each for each in several if number in each.running]
        assert mine[0].begin_s == start_s
        beside = any(len(each.running) > 1 for each in mine)
        assert (mine[-1].end_s - start_s > count + 1e-9) == beside


def test_jobs_that_end_together_leave_no_splinter_of_a_period():
    """Ten steps of 0.3 s and two of 1 s, each a tenth longer beside the other, end after 3.2 s."""
    step_times = ({(0,): (0.3,), (1,): (1.0,), (0, 1): (0.33, 1.1)}).__getitem__
    several = list(periods([0, 1], [10, 2], lambda _, running: step_times(running), 4))
    assert [each.running for each in several] == [(0,), (0, 1)]
    assert several[-1].end_s == pytest.approx(3.2)


def test_a_period_says_what_a_job_makes_in_it():
    period = Period(2.0, 8.0, (1, 3), (2.0, 3.0))
    assert [period.steps(number) for number in range(4)] == [0.0, 3.0, 0.0, 2.0]


ONE = {**USUAL, "name": "one", "tp": 4, "dp": 4, "global_batch": 16}
OTHER = {**USUAL, "name": "other", "tp": 4, "dp": 4, "global_batch": 16}


@pytest.fixture(scope="module")
def together():
    """Both jobs over thin uplinks, from the beginning on."""
    return share(thin_cluster(), [ONE, OTHER], placement="spread", steps=2)


def stated(one, other, **how):
    """Answer for both jobs with further keys."""
    jobs = [{**ONE, **one}, {**OTHER, **other}]
    return share(thin_cluster(), jobs, placement="spread", steps=2, **how)


def test_jobs_that_do_not_overlap_in_time_do_not_slow_each_other(together):
    assert together.jobs[0].slowdown > 1
    apart = stated({"steps": 10}, {"starts_at": "1h", "steps": 5})
    assert [each.slowdown for each in apart.jobs] == [1.0, 1.0]
    assert [each.meets for each in apart.jobs] == [(), ()]
    assert (apart.links, apart.lost()) == ((), 0.0)
    assert apart.periods[0].end_s == pytest.approx(10 * together.jobs[0].alone_s)
    # The second finds the chips of the first free.
    assert np.array_equal(apart.jobs[0].chips, apart.jobs[1].chips)


def test_jobs_that_overlap_lose_in_the_time_for_which_both_run(together):
    alone_s, beside_s = together.jobs[0].alone_s, together.jobs[0].beside_s
    late = stated({"steps": 10}, {"starts_at": f"{4 * alone_s * 1e6:.6f}us", "steps": 100})
    first, second = late.jobs
    assert [each.running for each in late.periods] == [(0,), (0, 1), (1,)]
    assert [each.steps(0) for each in late.periods] == pytest.approx([4, 6, 0])
    assert first.beside_s == pytest.approx((4 * alone_s + 6 * beside_s) / 10)
    assert second.slowdown == pytest.approx((6 * together.jobs[0].slowdown + 94) / 100)
    assert (first.meets, second.meets) == (("other",), ("one",))
    assert late.links == together.links
    assert late.ran_s(0) == pytest.approx(10 * first.beside_s)


def test_jobs_that_start_together_and_run_on_are_one_period(together):
    (only,) = stated({"starts_at": "1s"}, {"starts_at": "1s"}).periods
    assert only.step_s == tuple(each.beside_s for each in together.jobs)
    assert only.length_s == pytest.approx(2 * max(only.step_s))
    assert together.periods == ()


def test_a_job_that_finds_no_chips_when_it_starts_is_refused():
    large = {"tp": 4, "dp": 5, "global_batch": 20}
    text = refusal_by(stated, large, {**large, "starts_at": "1ms"})
    assert text.startswith("1 ms after the beginning: the jobs use 40 chips (other 20, one 20)")
    after = stated({**large, "steps": 1}, {**large, "starts_at": "10s"})
    assert [each.running for each in after.periods] == [(0,), (1,)]
