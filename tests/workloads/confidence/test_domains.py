"""Intervals of collectives, serving and kernels: their domains, left-out coverage, and words."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.left_out import Cover, cover, folds
from topologies.clusters.names import cluster
from workloads.confidence.answers import collective_interval, of_first_token, serving_features
from workloads.confidence.kinds import FAMILY, NAMES, SERVING, Prediction
from workloads.confidence.residuals import Residual, Residuals, shipped_residuals
from workloads.confidence.split_conformal import HIGHEST, LEAST, domain_half_width, interval
from workloads.models.huggingface import named

OTHERS = sorted(kind for kind in NAMES if FAMILY[kind] != "training")
"""Kinds whose intervals follow from domains."""


def _row(table: str, residual: float, **other: object) -> Residual:
    fields = {"kind": SERVING, "chip": "h100", "group": "a", "tp": 1, "cp": 1, "ranks": 8}
    return Residual(table=table, assumed=False, log_residual=residual, **{**fields, **other})


def _many(table: str, residual: float, **other: object) -> list[Residual]:
    return [_row(table, residual, **other) for _ in range(10)]


def _half(prediction: Prediction, *rows: Residual) -> float:
    return domain_half_width(prediction, Residuals(rows))[0]


KNOWN = Prediction(SERVING, "h100", tool="vllm", family="dense")


def test_a_domain_is_drawn_towards_its_tool_and_others():
    """A pool has the weight of its tables beside that of the pool around it, which has one."""
    domain_rows = _many("a", 0.1, tool="vllm")
    same = _many("b", 0.2, chip="b200", tool="vllm")
    others = _many("c", 0.4, tool="sglang")
    # The tool has two tables, its quantile is 0.2; with the rows of others, all are at 0.4.
    tool = math.exp((2 * math.log(0.2) + math.log(0.4)) / 3)
    assert _half(KNOWN, *domain_rows, *same, *others) == pytest.approx(math.sqrt(0.1 * tool))


def test_a_tool_that_nobody_measured_is_as_sure_as_others_were():
    rows = [*_many("a", 0.1, tool="vllm"), *_many("b", 0.4, tool="sglang")]
    half, basis = domain_half_width(replace(KNOWN, tool="a new one"), Residuals(tuple(rows)))
    assert half == pytest.approx(0.4)
    assert basis == (
        "serving: no measured row of a new one on such chips, so it is as sure as 20 others "
        "(2 tables) were"
    )


def test_one_odd_source_of_many_widens_no_interval():
    """Of 13 tables quantiles are at 0.8 x 14/13, which one of them does not reach."""
    agreed = [row for table in "abcdefghijkl" for row in _many(table, 0.1, tool="vllm")]
    assert _half(KNOWN, *agreed, *_many("odd", 1.0, tool="vllm")) == pytest.approx(0.1)


def test_few_rows_count_in_part():
    """One lucky row makes no domain measured."""
    others = _many("b", 0.4, tool="sglang", family="experts")
    lucky = _row("a", 0.0, tool="vllm", family="dense")
    one, ten = _half(KNOWN, lucky, *others), _half(KNOWN, *[lucky] * 10, *others)
    assert ten < 0.6 * one


def test_runs_of_one_configuration_differ_by_the_least():
    assert _half(KNOWN, *_many("a", 0.0, tool="vllm", family="dense")) == pytest.approx(LEAST)
    assert HIGHEST < 1


@given(st.floats(1e-9, 1e9), st.sampled_from(OTHERS), st.floats(-2, 0), st.floats(0, 2))
def test_an_interval_contains_the_prediction_and_what_tools_show(value, kind, below, above):
    ends = interval(value, Prediction(kind, "h100", below=below, above=above))
    assert ends.low < value * math.exp(below) <= value * math.exp(above) < ends.high


@pytest.mark.parametrize("kind", OTHERS)
def test_more_ranks_and_new_chips_are_never_refused(kind):
    for chip in ("h100", "trn3", "tpu7x", "no such chip"):
        half, basis = domain_half_width(Prediction(kind, chip, ranks=2**20), shipped_residuals())
        assert LEAST <= half < 10
        assert basis.startswith(NAMES[kind])


def test_a_collective_of_more_ranks_than_measured_is_less_sure():
    question = Prediction("collective.large", "h100", ranks=64, tool="nccl-tests", crosses=True)
    half, of_many = (
        domain_half_width(replace(question, ranks=ranks), shipped_residuals())[0]
        for ranks in (64, 4096)
    )
    assert of_many > 1.3 * half


def test_a_bare_question_holds_what_every_tool_shows():
    """PyTorch issues calls of NCCL 42 to 60 us apart or waits for each; a graph does not."""
    machine = cluster("dgx-h100")
    bare, inside = (
        collective_interval(machine, 8, 2**16, 18e-6, tool=tool) for tool in ("", "nccl-tests")
    )
    assert inside.high < 40e-6  # one process that drives eight GPUs takes 31 to 42 us
    assert bare.high > 60e-6
    assert bare.low < 18e-6
    assert "18 us to 60 us by the tool that times it" in bare.basis
    large = collective_interval(machine, 8, 2**30, 5e-3)
    assert large.high < 1.2 * 5e-3


def test_collectives_between_servers_have_measurements_of_their_own():
    two = cluster("trn1.32xlarge:2")
    within, between = (collective_interval(two, ranks, 2**30, 1.0) for ranks in (16, 64))
    assert "between servers" in between.basis
    assert "between servers" not in within.basis
    assert between.factor > within.factor


def test_small_collectives_are_less_sure_than_large_ones():
    where = cluster("p5.48xlarge")
    small = collective_interval(where, 8, 1024, 1.0, tool="nccl-tests")
    assert small.factor > collective_interval(where, 8, 2**30, 1.0, tool="nccl-tests").factor


def test_dense_models_are_surer_than_mixtures_and_later_tokens_than_first():
    machine, model = cluster("dgx-b200"), named("llama-3.1-70b")

    def features(model, tp, engine="vllm"):
        return serving_features(model, machine, tp, precision="fp8", engine=engine)

    dense, mixture = (
        interval(0.01, features(*answer)) for answer in ((model, 2), (named("deepseek-v3"), 8))
    )
    assert dense.factor < 1.35 < mixture.factor
    assert dense.basis == "serving: 28 measured rows of vllm on such chips, 2 tables"
    assert "(engine not stated)" in interval(0.01, features(model, 2, engine="")).basis
    assert interval(0.1, of_first_token(features(model, 2))).factor > dense.factor


def _covers(name: str) -> dict[str, list[Cover]]:
    """Coverage of what is left out under a name, by family of kinds."""
    rows, answers = shipped_residuals().rows, {}
    for fold in folds(rows):
        of_interest = fold.family != "training" and fold.name.startswith(f"{name} ")
        if of_interest and (covered := cover(fold, rows)):
            answers.setdefault(fold.family, []).append(covered)
    return answers


@pytest.mark.parametrize(("left_out", "least", "widest"), [
    pytest.param("table", {"serving": 0.8, "first_token": 0.78, "collective": 0.8,
                           "kernel": 0.8}, 1.35, marks=pytest.mark.slow),
    pytest.param("tool", {"serving": 0.75, "first_token": 0.75, "collective": 0.8,
                          "kernel": 0.82}, 1.2, marks=pytest.mark.slow),
    ("family", {"serving": 0.84, "first_token": 0.82, "kernel": 0.8}, 1.3),
])  # fmt: skip
def test_what_was_left_out_is_covered(left_out, least, widest):
    covers = _covers(left_out)
    for family, share in least.items():
        of_family = covers[family]
        assert share <= float(np.mean([each.mean for each in of_family])) <= 0.93, family
        assert float(np.median([each.width for each in of_family])) <= widest, family
