"""What a search chooses, and a plan of one's own beside it."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.refusals import refused
from tests.support.toy_training import TOY, sixteen
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.front import train
from workloads.models.huggingface import named
from workloads.remarks import remarks
from workloads.search import choice, sizes
from workloads.search.choice import (
    FREE,
    QUICK,
    faster_neighbour,
    searched_plan,
    usual_batch,
    usual_or_searched,
)
from workloads.search.search import estimates, own_plan, search, single_changes
from workloads.search.sizes import fewest_in_time
from workloads.training.iteration import iteration
from workloads.training.plan.plan import SEARCHED, ParallelPlan
from workloads.training.usual_plan import BATCH_TOKENS, complete, differing, is_open

SMALL, WHERE = named("llama-3.1-8b"), cluster("trn2.48xlarge:4")


@given(
    st.sets(st.integers(1, 300), min_size=1),
    st.sets(st.integers(1, 300), max_size=2),
    st.integers(1, 400),
    st.integers(1, 64),
)
def test_the_fewest_units_that_end_a_job_in_time_are_found(counts, halved, needed, start):
    """Numbers of units without a plan are passed over, and few are tried."""
    tried, without = [], {count >> times for count in halved for times in range(9)}

    def days_on(count):
        tried.append(count)
        if count in without:
            raise InputError(f"{count} units have no plan")
        return needed / count

    usable = counts - without
    if usable:
        fewest = min((count for count in usable if count >= needed), default=None)
        assert fewest_in_time(days_on, 1.0, sorted(counts), start)[0] == fewest
        assert len(tried) == len(set(tried)) <= 10
    else:
        refused("units have no plan", fewest_in_time, days_on, 1.0, sorted(counts), start)


DAYS = {
    1: 4.18, 2: 2.48, 3: 4.21, 4: 1.61, 6: 2.79, 8: 1.63, 12: 2.07, 16: 1.31, 24: 1.77, 32: 1.53,
    48: 2.46, 64: 1.58, 96: 2.5, 128: 1.68, 192: 2.6, 256: 1.8, 512: 2.0, 1024: 3.38,
}  # fmt: skip
"""Days of a job of GPT-2 with a batch of 64 on numbers of trn2.48xlarge, in hundredths."""


@pytest.mark.parametrize("start", [1, 4, 64])
@pytest.mark.parametrize("limit", [4.2, 2.5, 2.2, 1.7, 1.5, 1.3, 1.0, 0.2, 0.001])
def test_fewest_units_are_found_where_times_rise_again_and_are_uneven(limit, start):
    tried = []
    fewest, _ = fewest_in_time(lambda count: tried.append(count) or DAYS[count], limit, [*DAYS],
                               start)  # fmt: skip
    assert fewest == min((count for count, days in DAYS.items() if days <= limit), default=None)
    assert len(tried) < sizes.MOST_TRIES
    assert fewest or 16 in tried  # the fastest


def test_where_more_units_hardly_help_those_that_were_not_tried_are_named():
    counts = list(range(1, 100_001))
    fewest, untried = fewest_in_time(lambda count: 1 + 1 / count, 1.001, counts, 1)
    assert fewest > 1000
    assert untried[0] <= 1000 <= untried[-1] < fewest
    assert fewest_in_time(lambda count: 1.01, 0.4, counts, 1)[0] is None
    assert fewest_in_time(lambda _: float("inf"), 0.5, counts[:6], 4) == (None, [1, 2, 3, 5])


def test_numbers_too_many_for_the_batch_lead_to_those_between():
    counts, tried = list(range(1, 100_001)), []

    def days_on(count):
        tried.append(count)
        if count > 10:
            raise InputError("the batch has no sequence for each of them.")
        return 100 / count

    assert fewest_in_time(days_on, 11, counts, 4) == (10, [])
    assert fewest_in_time(days_on, 12, counts, 1) == (9, [])
    tried.clear()
    assert fewest_in_time(days_on, 8, counts, 4)[0] is None
    assert 8 in tried  # the fastest of odd part 1


def test_a_deadline_that_no_number_meets_names_the_fastest(monkeypatch):
    step = SimpleNamespace(plan=SimpleNamespace(tokens=1), iteration_s=86400.0, chips=8)
    monkeypatch.setattr(sizes, "_row", lambda *_, **__: {"days": 10.0})
    weighed = SimpleNamespace(first_step=lambda: step)
    with pytest.raises(InputError, match=r"^days is 9.9, and 10 tokens .* 10 days, on \d+ of "
                                         r"p5\.48xlarge\. More units are no faster"):  # fmt: skip
        sizes.Offer(lambda _: weighed, cluster("p5.48xlarge"), "p5.48xlarge", 8, 9.9).in_time(10)
    one = cluster("p5.48xlarge:1")
    with pytest.raises(
        InputError, match=r"40 tokens .* at least 40 days, on 1 of .* more days, units"
    ):
        sizes.Offer(lambda _: weighed, one, "p5.48xlarge:1", 8, 9).in_time(40)


def test_the_next_smaller_number_of_units_is_that_below_the_fewest(monkeypatch):
    """A job of 24 days on one unit, or 30 at the high end, in powers of two."""
    step = SimpleNamespace(plan=SimpleNamespace(tokens=1), iteration_s=1.0)
    weighed = SimpleNamespace(first_step=lambda: step)
    days_of = {"days": 24, "days_high": 30}
    monkeypatch.setattr(
        *(sizes, "_row"), lambda each, *_, **__: {key: days_of[key] / each for key in days_of}
    )
    for days, numbers in ((24.0, (1, 2, 0)), (6.0, (4, 8, 2))):
        sized = sizes.Offer(
            lambda _: weighed, cluster("p5.48xlarge"), "p5.48xlarge", 8, days,
            finish=lambda _: SimpleNamespace(first=step),
        ).in_time(1)  # fmt: skip
        assert (sized.fewest, sized.sure, sized.next_smaller) == numbers


@pytest.mark.parametrize(("usd", "tried", "most"), [
    (10, [1], 1), (29_000, [2, 1], 2), (1_000_000, [32, 16, 8], 16),
    (4_000_000, [128, 64, 32, 16, 8], 16),
])  # fmt: skip
def test_half_as_many_units_are_tried_while_they_train_more(usd, tried, most, monkeypatch):
    """More than 16 units are slower, and more than 32 have no plan."""
    seen = []

    def weigh(name):
        seen.append(int(name.partition(":")[2]))
        return SimpleNamespace(first_step=lambda: None)

    def row(count, *_, **length):
        if count > 32:
            raise InputError("the batch has no sequence for each of them.")
        return {"tokens": count if count <= 16 else 15}

    monkeypatch.setattr(sizes, "_row", row)
    where = weigh, cluster("trn2.48xlarge"), "trn2.48xlarge", 8, 30.0
    offer = sizes.Offer(*where, finish=lambda _: SimpleNamespace(first=None))
    units = offer.most_tokens(str(usd))
    assert (seen, units.fewest) == (tried, most)


def test_the_chosen_plan_has_the_least_estimate():
    """The same as the search's first finalists, whose simulation is spared."""
    choice = searched_plan({"seq": 8192}, SMALL, WHERE)
    stated = {**QUICK, "seq": 8192, "overlap": "dp", "attention": "fused"}
    free = {"finalists": 2, "memory_margin": FREE}
    finalists = search(SMALL, WHERE, WHERE.chips, stated=stated, **free).finalists
    best, second = sorted(finalists, key=lambda each: each.estimate_s)
    assert choice.best == best.plan
    assert choice.others[0].ratio == pytest.approx(second.estimate_s / best.estimate_s)
    assert all(other.ratio >= 1 for other in choice.others)


def test_a_stated_degree_makes_the_plan_the_users_own():
    assert is_open({"zero": 3, "seq": 8192, "tp": None, "framework": ""})
    assert not any(is_open({name: value}) for name, value in (("tp", 1), ("stage_layers", (9, 7))))
    assert train("llama-3.1-8b", "trn2.48xlarge", tp=4).choice is None


def test_a_default_that_costs_more_than_a_tenth_is_compared_at_its_own_batch():
    """ZeRO-1 over several servers of Trn1 has a fixed time, which gpt2's step mostly is."""
    model, where = named("gpt2"), cluster("trn1.32xlarge:8")
    plan, choice = usual_or_searched({}, model, where, search="compared")
    assert plan == complete({}, model, where)
    assert choice.default_ratio > 4
    assert choice.best.zero == 0
    assert choice.best.global_batch == plan.global_batch


def test_a_plan_is_searched_where_the_default_does_not_fit_or_divide():
    model, where = named("llama-3.1-70b"), cluster("p5.48xlarge:8")
    for stated in ({}, {"global_batch": 24}):
        plan, choice = usual_or_searched(stated, model, where)
        assert plan == choice.best
        assert plan.tp * plan.pp * plan.zero > 1
        assert plan.global_batch == stated.get("global_batch", 64)
        assert {"seq", "overlap"} <= set(plan.assumed)
        assert not {*SEARCHED} & {*plan.assumed}
        assert ("global_batch" in plan.assumed) == (not stated)


def test_stated_fields_and_those_of_a_named_framework_are_kept():
    model, where = named("llama-3.1-70b"), cluster("p5.48xlarge:4")
    stated = {"precision": "fp8", "microbatch": 2, "framework": "fsdp", "recompute": "selective"}
    best = searched_plan(stated, model, where).best
    assert (best.precision, best.microbatch, best.framework) == ("fp8", 2, "fsdp")
    assert (best.zero, best.recompute, best.recompute_every) == (3, "full", 2)


def test_the_default_batch_is_a_sequence_a_chip_up_to_a_limit():
    assert usual_batch(1024, 4096) == 1024
    assert usual_batch(499_968, 8192) == 499_968 // 64
    assert 499_968 // 64 * 8192 <= BATCH_TOKENS < 2 * 499_968 // 64 * 8192
    assert usual_batch(3, BATCH_TOKENS) == 3  # an odd number is not halved


@pytest.mark.parametrize(
    ("size", "stated", "remedy"),
    [
        ("405b", {}, "more chips"),
        ("405b", {"tp": 16}, "more chips or fewer stated fields"),
        ("70b", {"seq": 262_144}, "more chips or a shorter --seq"),
    ],
)
def test_a_model_that_fits_in_no_way_is_refused_with_a_remedy(size, stated, remedy):
    """Weights alone are too large for 16 chips at 405B; at 70B only the sequence is."""
    with pytest.raises(InputError, match=rf"none of .* fits on trn2\.48xlarge: .* Use {remedy}\."):
        usual_or_searched(stated, named(f"llama-3.1-{size}"), cluster("trn2.48xlarge"))


def test_a_searched_plan_leaves_memory_free_where_one_does():
    """On fewer servers only fuller plans fit, and on fewer still only those of a sparing stack."""
    used = []
    for name in ("p5.48xlarge:4", "p5.48xlarge:2"):
        step = train("llama-3.1-70b", name)
        assert step.plan == step.choice.best
        used.append(step.memory.total / step.memory.capacity)
    assert used[0] <= 1 - FREE < used[1]
    whole = train("llama-3.1-70b", "p5.48xlarge:4", allow_oversized=True)
    assert (whole.choice, whole.plan.dp) == (None, 32)


MODEL, PLACE = cs.model("llama-3.1-8b"), cs.cluster("dgx-h100:2")
STATED = {"tp": 2, "pp": 1, "global_batch": 64, "seq": 4096, "recompute": "selective"}


def test_needless_recomputation_and_degrees_are_named():
    def changed(**stated):
        plan = complete({**STATED, **stated}, MODEL, PLACE)
        best = faster_neighbour(MODEL, plan, PLACE)
        return differing(best[0], plan) if best else {}

    assert "recompute" not in changed()
    assert changed(recompute="full") == {"recompute": "none"}
    assert changed(tp=8) == {"tp": 4, "dp": 4}


def test_a_neighbour_is_faster_when_it_is_simulated():
    plan = complete({**STATED, "tp": 8, "recompute": "full"}, MODEL, PLACE)
    best, step = faster_neighbour(MODEL, plan, PLACE), cs.train(MODEL, PLACE, plan)
    other, ratio = best
    assert cs.train(MODEL, PLACE, other).time_s / step.time_s == pytest.approx(ratio, rel=0.03)
    (sentence,) = (text for text in remarks(step) if "By an estimate" in text)
    assert f"a step takes {1 - ratio:.0%} less with " in sentence


@pytest.mark.parametrize(
    ("seq", "quick"),
    [(4096, (None, 1)), (8192, (None, None)), (32_768, (None, None)), (65_536, (1, None))],
)
def test_long_sequences_are_divided_and_short_ones_put_together(seq, quick, monkeypatch):
    tried = []

    def refuse(_model, _cluster, _batch, fields, *_):
        """Note the fields that are searched first, and refuse them all."""
        tried.append(fields)
        raise InputError("nothing fits.")

    monkeypatch.setattr(choice, "_best", refuse)
    refused("nothing fits", searched_plan, {"seq": seq}, SMALL, WHERE)
    first, second = tried
    assert (first.get("microbatch"), first.get("cp")) == quick
    assert not {"microbatch", "cp"} & second.keys()


def test_without_memory_or_a_whole_machine_there_is_none():
    large = cs.model("llama-3.1-70b")
    plan = complete({"tp": 8, "pp": 2, "global_batch": 64, "recompute": "full"}, large, PLACE)
    best = faster_neighbour(large, plan, PLACE)
    assert best is None or not {"recompute", "tp"} & differing(best[0], plan).keys()
    part = complete({**STATED, "dp": 2}, MODEL, PLACE, chips=4)
    assert faster_neighbour(MODEL, part, PLACE) is None
    for tp, assumed, flips in ((2, (), 1), (1, (), 0), (2, ("sequence_parallel",), 0)):
        changes = choice._single_changes(ParallelPlan(tp=tp, assumed=assumed))
        assert sum("sequence_parallel" in each for each in changes) == flips


@pytest.fixture(scope="module")
def searched():
    """A search whose finalists are all plans that fit."""
    return search(TOY, sixteen(), 16, stated={"seq": 1024, "pp": 1}, finalists=10_000)


def test_each_plan_of_a_search_has_its_own_place(searched):
    times = [one.iteration_s for one in searched.finalists]
    best, middle, slowest = (searched.finalists[at] for at in (0, len(times) // 2, -1))
    for one in (best, middle, slowest):
        mine = own_plan(searched, one.plan)
        assert mine.rank == 1 + sum(seconds < one.iteration_s for seconds in times)
        assert mine.finalist.iteration_s == one.iteration_s
    mine = own_plan(searched, best.plan)
    assert (mine.rank, mine.change, mine.changed) == (1, {}, None)
    # No single change of the slowest gains more than the one that is named, but by its estimate.
    mine = own_plan(searched, slowest.plan)
    assert mine.changed.plan == replace(slowest.plan, **mine.change)
    one_apart = set()
    for change in single_changes(slowest.plan, searched.plans):
        with suppress(InputError):
            one_apart.add(replace(slowest.plan, **change))
    gained = [each.iteration_s for each in searched.finalists if each.plan in one_apart]
    assert mine.changed.iteration_s <= min(gained) * 1.01
    assert mine.changed.iteration_s < mine.finalist.iteration_s


def test_a_plan_slower_than_the_finalists_has_the_place_of_its_estimate():
    few = search(TOY, sixteen(), 16, stated={"seq": 1024, "pp": 1}, finalists=2)
    slowest = few.plans[int(few.estimate_s.argmax())]
    faster = int((few.estimate_s < few.estimate_s.max()).sum())
    assert own_plan(few, slowest).rank == 1 + faster > 3
    step = estimates(TOY, sixteen(), 16, stated={"seq": 1024, "pp": 1}).first_step()
    assert step.iteration_s == next(
        one.iteration_s for one in few.finalists if one.estimate_s == few.estimate_s.min()
    )


def test_python_ranks_a_plan_and_refuses_one_that_does_not_fit():
    plan = cs.Plan(tp=8, dp=8, global_batch=64)
    beside = cs.search_plans(
        "llama-3.1-70b", "trn2-ultraserver", 64, tp=8, finalists=2, beside=plan, quiet=True
    )
    alone = iteration(beside.model, cs.cluster("trn2-ultraserver"), plan)
    assert beside.own_plan.finalist.iteration_s == alone.iteration_s
    refused("the plan needs", own_plan, beside, replace(plan, tp=1, dp=64))


def test_replicas_make_up_for_a_changed_degree():
    plan = ParallelPlan(tp=2, pp=2, dp=4, global_batch=16)
    tried = [replace(plan, tp=tp, dp=dp) for tp, dp in ((1, 8), (4, 2), (3, 1))]
    tried += [replace(plan, pp=pp, dp=dp) for pp, dp in ((1, 8), (8, 1))]
    assert list(single_changes(plan, tried)) == [
        {"tp": 1, "dp": 8},
        {"tp": 4, "dp": 2},
        {"pp": 1, "dp": 8, "vpp": 1, "schedule": "1f1b"},
        {"pp": 8, "dp": 1},
    ]
