"""Intervals: exact quantiles, each step of widening, ties, coverage, and small examples."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.reader import COLUMNS
from topologies.clusters.names import cluster
from workloads.confidence import answers
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import (
    FAMILY,
    NAMES,
    TENSOR,
    Prediction,
    Slowing,
    collective_kind,
    kernel_kind,
    mixture_ends,
    slowing,
    training_kind,
)
from workloads.confidence.residuals import Residual, Residuals, csv_lines, parse, shipped_residuals
from workloads.confidence.split_conformal import (
    ASSUMED,
    DOUBLED,
    MOST,
    generation,
    half_width,
    interval,
    margin,
    ratio_half_width,
    runtime,
    step_tails,
    widening,
)
from workloads.models.huggingface import named
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import training_features, training_interval


def _row(table: str, residual: float, **other: object) -> Residual:
    fields = {"kind": TENSOR, "chip": "h100", "group": "a", "tp": 8, "cp": 1, "ranks": 64}
    return Residual(table=table, assumed=False, log_residual=residual, **{**fields, **other})


def _two_tables() -> Residuals:
    """A hundred rows that err by 0.1 and one that errs by 0.3: tables of equal weight."""
    return Residuals((*(_row("large", 0.1) for _ in range(100)), _row("small", -0.3)))


def test_every_table_has_the_same_weight():
    question = Prediction(TENSOR, "h100", 8, 1, 64)
    assert step_tails(question, _two_tables()) == (0.3, 0.1)
    assert step_tails(question, _two_tables().without("small")) == (0.0, 0.1)


@pytest.mark.parametrize(("prediction", "factor"), [
    (Prediction(TENSOR, "h100", 8, 1, 64), 1.0),
    (Prediction(TENSOR, "h100", 32, 1, 64), DOUBLED["tp"] ** 2),
    (Prediction(TENSOR, "h100", 8, 2, 128), DOUBLED["cp"] * DOUBLED["ranks"]),
    (Prediction(TENSOR, "h100", 8, 1, 64, assumed=True), ASSUMED),
    (Prediction(TENSOR, "h100", 2**40, 2**40, 2**40), MOST),
])  # fmt: skip
def test_each_step_away_from_what_was_measured_widens(prediction, factor):
    assert widening(prediction, _two_tables()) == pytest.approx(factor)


def test_a_degree_measured_under_the_framework_by_name_does_not_widen():
    """Steps of experts at tp 8, where the framework's dense steps were measured at tp 8."""
    sparse = _row("sparse", 0.1, kind="training.experts", framework="mine", tp=1)
    residuals = Residuals((sparse, _row("dense", 0.1, framework="mine")))
    step_of_experts = Prediction("training.experts", "h100", 8, 1, 64, framework="mine")
    for changes, factor in (
        ({}, 1.0),
        ({"stated": "framework"}, 1.0),
        ({"stated": "plan"}, DOUBLED["tp"] ** 3),
        ({"framework": "theirs"}, DOUBLED["tp"] ** 3),
    ):
        expected = pytest.approx(min(MOST, factor))
        assert widening(replace(step_of_experts, **changes), residuals) == expected


def test_the_basis_names_measurements_and_reasons():
    ends = interval(10.0, Prediction(TENSOR, "h100", 16, 1, 64, framework="mine"), _two_tables())
    assert "101 measured steps, 2 tables, none of mine on such a chip" in ends.basis
    assert "×1.40 for tp 16 beyond 8" in ends.basis


def test_residuals_survive_their_file():
    residuals = _two_tables()
    again = parse("\n".join(csv_lines(residuals.rows)))
    assert [row.table for row in again.rows] == [row.table for row in residuals.rows]
    assert again.rows[-1] == residuals.rows[-1]


def test_every_kind_has_a_name_and_a_family_with_measurements():
    assert set(FAMILY) == set(NAMES)
    families = {FAMILY[row.kind] for row in shipped_residuals().rows}
    assert families >= set(FAMILY.values())


def test_a_ratio_is_surer_than_a_value_and_widens_as_it_does():
    rows = (_row("a", 0.30), _row("a", 0.32), _row("b", -0.2), _row("b", -0.25))
    residuals, seen = Residuals(rows), Prediction(TENSOR, "h100", 8, 1, 64)
    assert ratio_half_width(TENSOR, residuals) == pytest.approx(0.05)
    assert margin(seen, seen, residuals) == pytest.approx(0.05)
    larger = Prediction(TENSOR, "h100", 16, 1, 64)
    wider = pytest.approx(DOUBLED["tp"] * 0.05)
    assert margin(seen, larger, residuals) == margin(larger, seen, residuals) == wider


@pytest.mark.parametrize("kind", [kind for kind in NAMES if FAMILY[kind] == "training"])
def test_shipped_ratios_are_surer_than_shipped_values(kind):
    plan = Prediction(kind, "h100", 8, 1, 64, framework="megatron-core", filled=0.8)
    assert 0 < ratio_half_width(kind) <= half_width(plan, shipped_residuals())


def test_a_ratio_of_which_no_pair_was_measured_is_no_surer_than_a_value():
    seen, alone = Prediction(TENSOR, "h100", 8, 1, 64), Residuals((_row("a", 0.3),))
    assert margin(seen, seen, alone) == half_width(seen, alone)


def test_plain_shapes_are_the_model_itself():
    ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    basis = "rates and latencies as given, no machine behind"
    assert answers.collective_interval(ring, 8, 2**20, 1.0) == Interval(1.0, 1.0, basis=basis)
    real = cluster("trn2.48xlarge")
    assert answers.collective_interval(real, 16, 2**20, 1.0, ideal=True).high == 1.0
    assert answers.collective_interval(real, 16, 2**20, 1.0).high > 1.0
    alone = answers.collective_interval(real, 1, 2**20, 0.0)
    assert (alone.low, alone.high) == (0.0, 0.0)
    ends = ((2, 20), (5, 40))
    assert [Interval(low, high, value=10).factor for low, high in ends] == [5, 4]


@pytest.mark.parametrize(
    ("size", "kind"), [(0, "small"), (2**16 - 1, "small"), (2**16, "medium"), (2**22, "large")]
)
def test_collectives_are_told_apart_by_size(size, kind):
    assert collective_kind(size) == f"collective.{kind}"


def test_training_is_told_apart_by_what_dominates_its_error():
    assert training_kind(experts=True, zero=3) == "training.experts"
    assert training_kind(experts=False, zero=3) == "training.sharded"
    assert training_kind(experts=False, zero=2) == TENSOR
    assert training_kind(experts=False, zero=2, unfused=True) == "training.unfused"


def test_a_step_on_a_chip_without_training_rows_is_less_sure():
    model, plan = named("llama-3.1-8b"), ParallelPlan(tp=8, dp=8, global_batch=64)
    measured = training_interval(model, plan, cluster("dgx-h100:8"), 1.0)
    unknown = training_interval(model, plan, cluster("mi300x-platform:8"), 1.0)
    assert unknown.factor > measured.factor


def test_a_catalogue_of_the_user_says_whose_kernels_are_measured(tmp_path):
    """Rows of the user count in both directions, and in every kind of answer about kernels."""
    row = "{},kernel_times,,{},name,stated,me,,,\n".format
    file, columns = tmp_path / "mine.csv", ",".join(COLUMNS)
    file.write_text(f"{columns}\n{row('trn3', 'measured')}{row('h100', 'assumed')}")
    catalogue = shipped_catalogue().with_overlay(file)
    model, plan = named("llama-3.1-8b"), ParallelPlan(tp=8, dp=8, global_batch=64)
    for name, better in (("trn3-gen1", True), ("dgx-h100:8", False)):
        shipped, own_rows = cluster(name), cluster(name, catalogue=catalogue)
        assert training_features(model, plan, shipped).assumed == better
        assert training_features(model, plan, own_rows).assumed == (not better)
        before = training_interval(model, plan, shipped, 1.0)
        after = training_interval(model, plan, own_rows, 1.0)
        assert (after.factor <= before.factor) == better


def test_more_mixed_nodes_are_less_sure():
    """The chance of a slow node grows with their number, and the interval with it."""
    few, many = (
        interval(1.0, Prediction("training.research", "h100", ranks=chips,
                                 slow=slowing(chips, 16, pipelined=True)), shipped_residuals())
        for chips in (8, 64)
    )  # fmt: skip
    assert few.high < many.high
    assert "a slow node in 18% of runs adds 22.4 s" in many.basis
    alone, in_line = (slowing(64, 16, pipelined=pipelined) for pipelined in (False, True))
    assert alone.share < in_line.share


@given(st.floats(1e-3, 1e3), st.floats(0, 1e3), st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_ends_of_a_mixture_leave_a_tenth_outside_of_each(value, more, share, half):
    low, high = mixture_ends(value, Slowing(share, more), half)
    spread = half / NormalDist().inv_cdf(0.9)

    for end, below in ((low, 0.1), (high, 0.9)):
        usual, slow = (
            NormalDist(math.log(centre), spread).cdf(math.log(end))
            for centre in (value, value + more)
        )
        assert (1 - share) * usual + share * slow == pytest.approx(below, abs=1e-9)


@pytest.mark.parametrize(("share", "centre"), [(0.0, 10.0), (1.0, 40.0)])
def test_a_mixture_of_one_part_is_that_part(share, centre):
    ends = mixture_ends(10.0, Slowing(share, 30.0), 0.2)
    assert ends == pytest.approx((centre * math.exp(-0.2), centre * math.exp(0.2)))


@pytest.mark.parametrize(("named_by", "names"), [
    (answers.weight_width, {"mxfp4": "4 bits", "bf16": "16 bits"}),
    (answers.kernels_assumed, {"h100": False, "trn3": True}),
    (kernel_kind, {"attention": "kernel.attention", "gather": "kernel.memory"}),
    (runtime, {"trn2": "neuron", "h200": "nccl"}),
    (generation, {"h200": "h100", "trn2": "trn2"}),
    (answers.vendors_test, {"h100": "nccl-tests", "trn2": "nccom-test"}),
])  # fmt: skip
def test_domains_are_named(named_by, names):
    assert {name: named_by(name) for name in names} == names


def test_times_of_different_kinds_share_nothing_that_was_measured():
    tensor = Prediction(TENSOR, "h100", 8, 1, 64)
    sharded = Prediction("training.sharded", "h100", 1, 1, 64)
    alone = max(half_width(each, shipped_residuals()) for each in (tensor, sharded))
    assert margin(tensor, sharded) == margin(sharded, tensor) == alone
