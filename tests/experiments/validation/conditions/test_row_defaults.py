"""Empty cells of training rows: what is usual is filled in, and counted."""

from __future__ import annotations

import pytest

from experiments.validation.conditions.row_defaults import filled
from experiments.validation.predictions.training import fitting, model_of, plan_of
from tests.support.validation_rows import training_row
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.training.iteration import iteration


def test_empty_cells_take_what_is_usual_and_are_counted():
    stated = filled(training_row(tp=2))
    assert stated.values["dp"] == 4
    assert stated.values["ffn"] == 2816
    assert stated.values["kv_heads"] == 16
    assert {"dp", "ffn", "pp", "schedule"} <= set(stated.assumed)
    assert "tp" not in stated.assumed
    with pytest.raises(InputError, match="not a multiple of tp 3"):
        filled(training_row(tp=3))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"heads": 25, "hidden": 1600, "tp": 2}, {"heads": 26, "kv_heads": 26, "head_dim": 64}),
        ({"heads": 40, "kv_heads": 10, "tp": 8}, {"kv_heads": 8}),
        ({"heads": 18, "kv_heads": 10, "tp": 8}, {"heads": 24, "kv_heads": 8}),
        ({"ffn": 1365, "tp": 2}, {"ffn": 1366}),
        ({"seq": 1001, "tp": 2}, {"seq": 1001, "sequence_parallel": 0}),
        ({"seq": 1001, "cp": 2}, {"seq": 1004}),
        ({"experts": 60, "moe_ffn": 255, "ep": 8}, {"experts": 64, "ffn": 255}),
        ({"experts": 8, "tp": 2, "ep": 4, "dp": 1}, {"dp": 4}),
        ({"tp": 2, "cp": 2, "dp": 4}, {"dp": 2}),
        ({"dp": 8, "global_batch": 100, "microbatch": 4}, {"global_batch": 96, "microbatch": 4}),
        ({"dp": 8, "global_batch": 32, "microbatch": 64}, {"global_batch": 32, "microbatch": 4}),
        ({"dp": 8, "global_batch": 4}, {"global_batch": 8, "microbatch": 1}),
        ({"vpp": 2}, {"vpp": 1, "schedule": "1f1b"}),
        ({"pp": 2, "vpp": 2, "schedule": "zero-bubble"}, {"vpp": 1}),
        ({"pp": 2, "global_batch": 4}, {"vpp": 1, "schedule": "1f1b"}),
        ({"ffn": 4096}, {"gated_mlp": 0}),
        ({"ffn": 4096, "kv_heads": 4}, {"gated_mlp": 1}),
        ({"kv_heads": 4}, {"ffn": 3584, "gated_mlp": 1}),
        ({"gated_mlp": 0, "cluster": "dgx-a100"}, {"ffn": 4096, "overlap": "none"}),
        ({"gated_mlp": 0, "cluster": "dgx-h100"}, {"overlap": "dp"}),
    ],
)
def test_a_measured_plan_is_not_refused_for_a_remainder(cells, expected):
    stated = filled(training_row(**cells))
    assert {name: stated.values[name] for name in expected} == expected
    assert set(expected) - set(cells) <= {*stated.assumed, "microbatch", *cells}
    iteration(
        model_of(stated.values), cluster("dgx-h100"), plan_of(stated.values), allow_oversized=True
    )


@pytest.mark.parametrize(("batch", "schedule"), [(2048, "interleaved"), (8192, "1f1b")])
def test_large_runs_interleave_where_the_bubble_would_be_large(batch, schedule):
    stated = filled(training_row(chips=2048, pp=2, global_batch=batch))
    assert stated.values["schedule"] == schedule
    assert {"schedule", "vpp"} <= set(stated.assumed)


MIXTURE = {"experts": 8, "experts_per_token": 2, "gated_mlp": 1, "chips": 128, "dp": 8, "zero": 1}


@pytest.mark.parametrize(
    ("cells", "vpp"),
    [
        ({"layers": 56, "pp": 8}, 7),
        ({"layers": 56, "pp": 8, "schedule": "1f1b"}, 7),
        ({"layers": 56, "pp": 8, "schedule": "1f1b", "vpp": 1}, 1),
        ({"layers": 56, "pp": 8, "schedule": "gpipe"}, 1),
        ({"layers": 16, "pp": 16, "dp": 8}, 1),
        ({"layers": 56, "pp": 8, "schedule": "interleaved", "experts": 0}, 7),
        ({"layers": 96, "pp": 8, "schedule": "interleaved", "experts": 0}, 6),
    ],
)
def test_pipelines_of_experts_interleave_where_a_row_states_no_chunks(cells, vpp):
    assert filled(training_row(**MIXTURE | {"global_batch": 256, **cells})).values["vpp"] == vpp


@pytest.mark.parametrize(("seq", "vpp"), [(2048, 7), (65536, 1)])
def test_who_lacks_memory_for_chunks_does_without(seq, vpp):
    cells = {"layers": 56, "pp": 8, "global_batch": 256, "ep": 8, "recompute": "none", "seq": seq}
    stated = filled(training_row(**MIXTURE | cells))
    assert fitting(stated).values["vpp"] == vpp


def test_a_row_that_ran_takes_what_makes_it_fit():
    dense = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 128256, "microbatch": 16}
    alone = fitting(filled(training_row(**dense)))
    assert (alone.values["zero"], alone.values["recompute"]) == (1, "full")
    large = fitting(filled(training_row(**dense | {"layers": 80, "chips": 64})))
    assert large.values["zero"] == 3
    stated = filled(training_row(**dense | {"layers": 80, "zero": 1, "recompute": "none"}))
    assert fitting(stated) == stated


def test_spellings_of_a_precision_run_at_one_rate():
    spellings = ("fp16 mixed", "BFloat16", "mxfp8", "fp8-hybrid", "fp32")
    rates = [filled(training_row(precision=text)).values["precision"] for text in spellings]
    assert rates == ["bf16", "bf16", "fp8", "fp8", "fp32"]


def test_rows_of_trn1_count_cores_where_dp_is_not_stated():
    assert filled(training_row(cluster="trn1.32xlarge", chips=16, tp=8)).values["dp"] == 4
    assert filled(training_row(cluster="trn2.48xlarge", chips=16, tp=8)).values["dp"] == 2


@pytest.mark.parametrize(
    ("name", "value"), [("chips", 2**21), ("layers", 10**6), ("hidden", 10**9), ("seq", 10**9)]
)
def test_rows_beyond_every_machine_and_model_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} {value:,} are over the limit"):
        filled(training_row(**{name: value}))
