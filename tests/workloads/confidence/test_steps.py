"""Intervals of training steps: pools, hulls, what was left out, and the tool that times."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from experiments.validation.reading.rows import read_text
from experiments.validation.validate import validate_each
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.confidence.answers import ONE_PROCESS, collective_shown, kernel_shown
from workloads.confidence.kinds import BARE, FAMILY, FRAMEWORK, PLAN, SHARDED, TENSOR, Prediction
from workloads.confidence.residuals import Residual, Residuals, shipped_residuals
from workloads.confidence.split_conformal import (
    DOUBLED,
    LEAST,
    UNMEASURED,
    half_width,
    interval,
    least_half_width,
    step_ends,
    step_half_width,
    widening,
)


def _row(table: str, residual: float, **other: object) -> Residual:
    fields = {"kind": TENSOR, "chip": "h100", "group": "a", "tp": 8, "cp": 1}
    named = {"ranks": 64, "assumed": False, "framework": "one", "stated": FRAMEWORK}
    return Residual(table=table, log_residual=residual, **{**fields, **named, **other})


def _asked(**other: object) -> Prediction:
    fields = {"tp": 8, "ranks": 64, "framework": "one", "stated": FRAMEWORK}
    return Prediction(TENSOR, "h100", **{**fields, **other})


def test_a_domain_is_drawn_towards_its_framework_and_this_towards_others():
    rows = (_row("a", 0.1), _row("b", 0.2, chip="b200"), _row("c", 0.4, framework="two"))
    half, basis = step_half_width(_asked(), Residuals(rows))
    # The framework's quantile over both chips is 0.2 with two tables; others' is 0.4.
    of_framework = (2 * 0.2 + 0.4) / 3
    assert half == pytest.approx((0.1 + of_framework) / 2)
    assert basis.startswith("1 measured steps of one on such chips, 1 table (")


def test_what_was_told_less_of_has_residuals_of_its_own():
    residuals = Residuals((_row("a", 0.1), _row("a", 0.5, stated=PLAN)))
    for level, half in ((FRAMEWORK, 0.1), (PLAN, 0.5)):
        assert step_half_width(_asked(stated=level), residuals)[0] == pytest.approx(half)


def test_a_row_inside_its_hull_narrows_and_one_outside_widens():
    inside = _row("a", 0.1, below=-0.2, above=0.4)
    outside = _row("a", 0.5, below=-0.2, above=0.4)
    assert inside.score == pytest.approx(-math.sqrt(0.4**2 - 0.1**2))
    assert outside.score == pytest.approx(math.sqrt(0.5**2 - 0.4**2))


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 0.0), st.floats(0.0, 1.0))
def test_the_score_of_a_row_is_the_half_width_that_reaches_it(log_residual, below, above):
    row = _row("a", log_residual, below=below, above=above)
    assume((half := row.score) > 0)
    end = step_ends(_asked(below=below, above=above), half)[log_residual > 0]
    assert end == pytest.approx(log_residual)


def test_a_neuron_chip_without_rows_takes_what_fresh_steps_needed():
    fresh = Prediction(SHARDED, "trn2", tp=8, ranks=16, framework="neuronx", stated=FRAMEWORK)
    _, basis = step_half_width(fresh, shipped_residuals())
    assert half_width(fresh, shipped_residuals()) >= UNMEASURED
    assert "no measured step of neuronx on such a chip" in basis
    on_h100 = Prediction(SHARDED, "h100", framework="unknown", stated=FRAMEWORK)
    assert least_half_width(on_h100, shipped_residuals()) < UNMEASURED


@given(st.floats(-1.0, 0.0), st.floats(0.0, 1.0), st.floats(-0.5, 0.5))
def test_an_interval_contains_the_prediction_and_its_hull(below, above, inside):
    question = _asked(below=below, above=above)
    rows = Residuals((_row("a", inside * above, above=above, below=below),))
    half = half_width(question, rows)
    low, high = step_ends(question, half)
    assert half >= LEAST
    assert low <= min(below, -LEAST)
    assert high >= max(above, LEAST)


def test_unstated_fields_widen_by_the_square_of_their_hull():
    closed, open_ = (interval(1.0, _asked(above=above)) for above in (0.0, math.log(1.3)))
    assert math.log(open_.high) == pytest.approx(math.hypot(math.log(1.3), math.log(closed.high)))
    assert open_.low == closed.low


def test_degrees_of_one_neuron_chip_hold_for_the_next():
    """Trn1's steps at tp 32 spare a plan on Trn2 the widening, and one at tp 64 keeps one step."""
    question = Prediction(TENSOR, "trn2", ranks=64, framework="neuronx", stated=BARE)
    wider = [widening(replace(question, tp=tp), shipped_residuals()) for tp in (4, 32, 64)]
    assert wider == pytest.approx([1.0, 1.0, DOUBLED["tp"]])


@pytest.mark.parametrize(("stated", "least_mean", "most_below_half"), [
    pytest.param("", 0.8, 4, marks=pytest.mark.slow),
    pytest.param(FRAMEWORK, 0.84, 5, marks=pytest.mark.slow),
    (PLAN, 0.84, 6),
    pytest.param(BARE, 0.78, 8, marks=pytest.mark.slow),
])  # fmt: skip
def test_tables_that_were_left_out_are_covered(stated, least_mean, most_below_half):
    """Each table by the residuals of all others, at each level of what was stated.

    The cluster of research code, of healthy and slow nodes, is not part of any level. By the name
    of a framework nobody knows that SimuMax's B200 was throttled, that torch-xla and PaxML are not
    MaxText, or that hosts of GH200 and of a mixture on p5 are slow. By the plan alone nobody knows
    that a network gave ZeRO-3 a third of its rate, or what Pythia's did. Told the least, plans of
    Megatron before fused attention take 40 % longer than predicted, and those of JAX on GPUs and of
    adapters by PEFT are taken for other stacks' too.
    """
    residuals, shares = shipped_residuals(), []
    every = residuals.at_level(stated).rows
    of_level = [row for row in every if FAMILY.get(row.kind) == "training"]
    for table in {row.table for row in of_level} - {"nanotron_h100"}:
        others = residuals.without(table)
        inside = [
            row.score <= half_width(_as_prediction(row), others)
            for row in of_level
            if row.table == table
        ]
        shares.append(float(np.mean(inside)))
    assert least_mean <= np.mean(shares) <= 0.92
    assert sum(share < 0.5 for share in shares) <= most_below_half


def _as_prediction(row: Residual) -> Prediction:
    of_steps = {name: getattr(row, name) for name in ("framework", "stated", "below", "above")}
    return Prediction(row.kind, row.chip, row.tp, row.cp, row.ranks, row.assumed, **of_steps)


def test_calls_behind_one_another_show_at_least_their_distance_and_waiting_for_each_adds_it():
    call, waited = (shipped_catalogue().entry("nccl.pytorch", name) for name in ("call", "waited"))
    short, long, waits = (
        collective_shown(tool, seconds, shipped_catalogue())
        for tool, seconds in (("pytorch", 1e-5), ("pytorch", 1e-3), ("pytorch-waited", 1e-3))
    )
    assert short == (call.value, (1e-5, call.high))
    assert long == (1e-3, (1e-3, 1e-3))
    assert waits.seconds == pytest.approx(1e-3 + waited.value)
    assert waits.ends == pytest.approx([1e-3 + waited.low, 1e-3 + waited.high])


def test_one_process_shows_at_least_the_launches_of_its_chips():
    launch = shipped_catalogue().entry("nccl.one-process", "launch")
    short, few, long = (
        collective_shown(ONE_PROCESS, seconds, shipped_catalogue(), devices=devices)
        for seconds, devices in ((1.8e-5, 8), (1.4e-5, 4), (1e-3, 8))
    )
    assert short.seconds == pytest.approx(8 * launch.value)
    assert short.ends == pytest.approx([8 * launch.low, 8 * launch.high])
    assert few.seconds == pytest.approx(4 * launch.value)
    assert long == (1e-3, (1e-3, 1e-3))


def test_kernels_called_alone_take_a_product_shorter_than_an_element_wise_one():
    product = kernel_shown("pytorch-called", "gemm", 1e-4, shipped_catalogue())
    other = kernel_shown("pytorch-called", "elementwise", 1e-4, shipped_catalogue())
    assert 1e-4 < product.seconds < other.seconds
    assert kernel_shown("nccl", "elementwise", 1e-4, shipped_catalogue()).ends is None


COLLECTIVE = "collective,cluster,chips,ranks,size_bytes,time_s,tool\n"


def test_the_first_nccom_test_shows_its_host_longer_over_servers():
    """The ends of rows of Trn1 hold the range, and one chip waits less."""
    rows = [f"all-reduce,trn1.32xlarge,{chips},{2 * chips},67108864,1e-3" for chips in (1, 32)]
    text = "".join(f"{row},{tool}\n" for row in rows for tool in ("nccom-first", "nccom-test"))
    compared = validate_each([(read_text(COLLECTIVE + text, "rows.csv"), "rows.csv")])[0].rows
    for (through, alone), quantity in zip(
        (compared[:2], compared[2:]), ("within_server", "servers"), strict=True
    ):
        wait = shipped_catalogue().entry("nccom-test.first", quantity)
        assert through["predicted"] == pytest.approx(alone["predicted"] + wait.value)
        assert through["predicted_most"] == pytest.approx(alone["predicted"] + wait.high)
        assert through["provenance"]["host"] == "assumed: timed through the first nccom-test"


KERNEL = "kernel,chip,precision,size_bytes,kernel_s,tool\n"


def test_kernel_of_a_table_timed_through_pytorch_takes_longer():
    row = "elementwise,a100-80gb,bf16,536870912,3.73e-4,"
    text = f"{KERNEL}{row}pytorch-called\n{row}\n"
    called, alone = validate_each([(read_text(text, "rows.csv"), "rows.csv")])[0].rows
    more = shipped_catalogue().value("runtime.pytorch", "elementwise_called")
    assert called["predicted"] == pytest.approx(alone["predicted"] + more)
    assert abs(called["error"]) < abs(alone["error"])
