"""Errors of predictions, their summaries, the constant predictor and the scatter."""

import numpy as np
import pandas as pd
import pytest

from experiments.figures.validation import scatter
from experiments.validation import comparison
from experiments.validation.predictions.collectives import predict as predict_collective
from experiments.validation.reading.rows import Outcome, infeasible
from tests.support.validation_rows import COLLECTIVES, rows_of
from topologies.support.errors import InputError
from workloads.confidence import kinds


def test_errors_and_their_summary_are_exact():
    text = COLLECTIVES + "".join(f"all-reduce,dgx-h100,8,1024,{t},x\n" for t in (1, 2, 4, 8))
    answers = iter([Outcome({"time_s": v}) for v in (1.1, 2.0, 3.0)] + [infeasible("too big")])
    compared = comparison.compare(rows_of(text), lambda values: next(answers))
    assert [row["error"] for row in compared] == pytest.approx([0.1, 0.0, -0.25, None])
    numbers = comparison.summary(compared)
    counts = (numbers["rows"], numbers["ok"], numbers["unsupported"], numbers["infeasible"])
    assert counts == (4, 3, 0, 1)
    assert numbers["median_abs_error"] == pytest.approx(0.1)
    assert numbers["mean_abs_error"] == pytest.approx(0.35 / 3)
    assert numbers["p90_abs_error"] == pytest.approx(np.quantile([0.1, 0, 0.25], 0.9))
    assert numbers["bias"] == pytest.approx(-0.05)
    assert numbers["kendall_tau"] == pytest.approx(1.0)
    assert comparison.summary([])["median_abs_error"] is None


def test_mistakes_of_rows_and_of_models_are_reported_by_line():
    def fails(values):
        if values["chips"] == 4:
            raise InputError("4 chips are too few. Use 8.")
        raise ZeroDivisionError("oops")

    lines = ("all-reduce,dgx-h100,4,1,1,", "all-reduce,dgx-h100,8,1,1,", ",dgx-h100,8,1,1,")
    read = rows_of(COLLECTIVES + "\n".join(lines))
    why = [row["why"] for row in comparison.compare(read, fails)]
    assert why[0] == "line 2: 4 chips are too few. Use 8."
    assert "line 3: internal fault, ZeroDivisionError" in why[1]
    assert why[2] == "line 4: collective is empty. State it."


def test_of_several_published_values_the_first_counts_and_the_others_stand_beside():
    text = "model,cluster,prompt_tokens,output_tokens,ttft_s,tpot_s\nm,dgx-h100,10,10,2.0,0.1\n"
    outcome = Outcome({"ttft_s": 3.0, "tpot_s": 0.11})
    row = comparison.compare(rows_of(text), lambda values: outcome)[0]
    assert row["quantity"] == "tpot_s"
    assert row["error"] == pytest.approx(0.1)
    assert row["error_ttft_s"] == pytest.approx(0.5)
    both = [residual.log_residual for residual in comparison.residuals({"mine": [row]})]
    assert both == pytest.approx([-np.log(1.1), -np.log(1.5)])
    alone = {**row, "quantity": "ttft_s", "error": 0.5}
    assert [each.log_residual for each in comparison.residuals({"mine": [alone]})] == [-np.log(1.5)]


def test_a_row_without_a_measurement_is_predicted_without_an_error():
    read = rows_of("collective,cluster,chips,size_bytes\nall-reduce,dgx-h100,8,1024\n")
    row = comparison.compare(read, predict_collective)[0]
    assert row["predicted"] > 0
    assert row["published"] is None
    assert row["error"] is None
    assert comparison.row_interval({**row, "status": "unsupported"}, None) is None


def test_intervals_cover_what_is_published_between_their_ends():
    ends = {"low": 1.0, "high": 3.0, "predicted": 2.0, "error": 0.1}
    rows = [{**ends, "published": value} for value in (0.9, 1.0, 2.0, 3.0, 3.1)]
    wide = {**ends, "published": 8.0, "high": 9.0}
    none = {"published": 1.0, "error": None, "low": 0.0, "high": 2.0, "predicted": 1.0}
    assert comparison.coverage([*rows, none]) == {"coverage": 0.6, "median_half_width": 0.5}
    mostly = {"coverage": 2 / 3, "median_half_width": 2.0}
    assert comparison.coverage([*rows[:1], wide, wide]) == mostly
    assert comparison.coverage([none])["coverage"] is None


def test_sizes_that_are_slower_are_named_as_a_range_where_none_between_is_usual():
    rows = {"size_bytes": [2**20, 2**21, 2**22, 2**23], "time_s": 1.0, "lower_bound_s": 0.5}
    for normal, named in (
        (["usual", "slower", "slower", "slower"], "From 2 MiB to 8 MiB look at what sets bandw"),
        (["slower", "usual", "slower", "slower"], "At 1 MiB, 4 MiB, 8 MiB look at what sets b"),
    ):
        sentence = comparison.verdict(pd.DataFrame({**rows, "normal": normal}), crosses=True)
        longer = "3 of 4 times are longer than nine of ten such machines take."
        assert sentence.startswith(f"{longer} {named}")


def test_the_constant_predictor_is_right_at_the_median_of_its_own_table():
    lines = (f"all-gather,dgx-h100,8,{8 * 2**20},{t},\n" for t in (1.0, 2.0, 4.0))
    read = rows_of(COLLECTIVES + "".join(lines))
    compared = comparison.compare(read, lambda values: Outcome({"time_s": 1.0}))
    errors = comparison.baseline(read, compared)
    assert errors["median_abs_error"] == pytest.approx(0.5)
    assert errors["bias"] == pytest.approx((1.0 + 0.0 - 0.5) / 3)


def test_work_is_counted_as_published():
    dense = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200}
    values = {**dense, "gated_mlp": 0, "global_batch": 1536, "chips": 1024}
    narayanan = 72 * 1536 * 2048 * 96 * 12288**2 / 1024
    assert comparison.training_work(values) == pytest.approx(narayanan * 1.05, rel=0.03)
    experts = {**values, "experts": 8, "experts_per_token": 2, "moe_ffn": 49152}
    assert comparison.training_work(experts) > 1.5 * comparison.training_work(values)
    ring = {"collective": "all-reduce", "ranks": 8, "size_bytes": 800}
    assert comparison.wire_bytes(ring) == 1400


COUNTED = {
    "kv_heads": 8, "head_dim": 64, "ffn": 2048, "moe_ffn": 2048, "gated_mlp": 0, "vocab": 0,
    "shared_experts": 0, "dense_layers": 0, "global_batch": 1, "chips": 1,
}  # fmt: skip
"""Fields of a row whose work is that of a row without them."""


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("more", [{}, {"experts": 8, "experts_per_token": 2}])
def test_a_field_that_a_row_leaves_out_counts_as_what_it_stands_for(name, more):
    stated = {"layers": 4, "hidden": 512, "heads": 8, "seq": 128, **COUNTED, **more}
    left_out = {key: value for key, value in stated.items() if key != name}
    assert comparison.training_work(left_out) == comparison.training_work(stated)


@pytest.mark.parametrize(("row", "kind"), [
    ({"quantity": "tpot_s"}, kinds.SERVING),
    ({"quantity": "tokens_per_s"}, kinds.SERVING),
    ({"quantity": "requests_per_s", "concurrency": 8}, kinds.SERVING),
    ({"quantity": "ttft_s"}, kinds.FIRST_TOKEN),
    ({"quantity": "ttft_s", "concurrency": 8}, kinds.FIRST_TOKEN),
    ({"quantity": "tpot_s", "model": "mixtral-8x7b"}, kinds.SERVING_EXPERTS),
    ({"quantity": "ttft_s", "model": "mixtral-8x7b"}, kinds.FIRST_TOKEN_EXPERTS),
    ({"quantity": "kernel_s", "kernel": "gemm"}, comparison.PRODUCT),
    ({"quantity": "time_s", "collective": "all-to-all", "library": "deepep"}, kinds.EXCHANGE),
    ({"quantity": "memory_bytes"}, None),
])  # fmt: skip
def test_what_a_row_measures_chooses_the_residuals_of_its_interval(row, kind):
    usual = {"cluster": "dgx-h100", "chips": 8, "predicted": 1.0}
    prediction = comparison.prediction_of({**usual, **row})
    assert (prediction and prediction.kind) == kind


@pytest.mark.parametrize(("row", "mixed"), [
    ({"chips": 256}, False),
    ({"chips": 64, "variant": "p5.48xlarge.nic_bandwidth=research"}, False),
    ({"chips": 256, "variant": "p5.48xlarge.nic_bandwidth=research"}, True),
    ({"chips": 64, "pp": 2, "variant": "p5.48xlarge.nic_bandwidth=research"}, True),
])  # fmt: skip
def test_large_and_pipelined_runs_on_mixed_nodes_leave_no_residual(row, mixed):
    assert comparison.is_mixed(row) == mixed


def test_the_scatter_draws_every_predicted_row():
    rows = rows_of(f"{COLLECTIVES}all-reduce,dgx-h100,8,1024,1e-5,a\n,dgx-h100,8,1,1,b\n")
    compared = comparison.compare(rows, lambda values: Outcome({"time_s": 2e-5}))
    plane = scatter(compared, "title").axes[0]
    assert plane.collections[0].get_offsets().tolist() == [[1e-5, 2e-5]]
    assert scatter([], "nothing").axes
