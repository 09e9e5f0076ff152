"""Empty cells of training rows: what is usual is filled in, and counted."""

import pytest

from experiments.validation.predictions.training import filled, question
from tests.support.validation_rows import training_row
from topologies.errors import InputError
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan


def plan_of(**cells) -> ParallelPlan:
    return question(filled(training_row(**cells)).values)[2]


def test_empty_cells_take_what_is_usual_and_are_counted():
    stated = filled(training_row(tp=2))
    assert stated.values["dp"] == 4
    assert stated.values["ffn"] == 2816
    assert stated.values["kv_heads"] == 16
    assert {"dp", "ffn", "pp"} <= set(stated.assumed)
    assert "tp" not in stated.assumed
    plan = question(stated.values)[2]
    assert {"schedule", "overlap", "zero", "precision", "framework"} <= set(plan.assumed)
    assert not {"tp", "seq"} & set(plan.assumed)
    with pytest.raises(InputError, match="not a multiple of tp 3"):
        filled(training_row(tp=3))


@pytest.mark.parametrize(("cells", "expected"), [
    ({"heads": 25, "hidden": 1600, "tp": 2}, {"heads": 26, "kv_heads": 26, "head_dim": 64}),
    ({"heads": 40, "kv_heads": 10, "tp": 8}, {"kv_heads": 8}),
    ({"heads": 18, "kv_heads": 10, "tp": 8}, {"heads": 24, "kv_heads": 8}),
    ({"heads": 32, "kv_heads": 4, "tp": 8}, {"heads": 32, "kv_heads": 4}),
    ({"ffn": 1365, "tp": 2}, {"ffn": 1366}),
    ({"seq": 1001, "tp": 2, "sequence_parallel": 1}, {"seq": 1001, "sequence_parallel": 0}),
    ({"seq": 1001, "cp": 2}, {"seq": 1004}),
    ({"experts": 60, "moe_ffn": 255, "ep": 8}, {"experts": 64, "ffn": 255}),
    ({"experts": 8, "tp": 2, "ep": 4, "dp": 1}, {"dp": 4}),
    ({"tp": 2, "cp": 2, "dp": 4}, {"dp": 2}),
    ({"dp": 8, "global_batch": 100, "microbatch": 4}, {"global_batch": 96, "microbatch": 4}),
    ({"dp": 8, "global_batch": 32, "microbatch": 64}, {"global_batch": 32, "microbatch": 4}),
    ({"dp": 8, "global_batch": 4}, {"global_batch": 8, "microbatch": None}),
    ({"ffn": 4096}, {"gated_mlp": 0}),
    ({"ffn": 4096, "kv_heads": 4}, {"gated_mlp": 1}),
    ({"kv_heads": 4}, {"ffn": 3584, "gated_mlp": 1}),
    ({"gated_mlp": 0, "cluster": "dgx-a100"}, {"ffn": 4096}),
])  # fmt: skip
def test_a_measured_plan_is_not_refused_for_a_remainder(cells, expected):
    stated = filled(training_row(**cells))
    assert {name: stated.values[name] for name in expected} == expected
    assert set(expected) - set(cells) <= {*stated.assumed, "microbatch", *cells}
    model, machine, plan = question(stated.values)
    assert iteration(model, machine, plan, allow_oversized=True).time_s > 0


@pytest.mark.parametrize(("cells", "expected"), [
    ({}, ("fused", "dp", 1, "1f1b", 1)),
    ({"zero": 3}, ("fused", "dp", 3, "1f1b", 1)),
    ({"framework": "megatron-lm"}, ("unfused", "none", 0, "1f1b", 1)),
    ({"framework": "megatron-lm", "overlap": "dp"}, ("unfused", "dp", 0, "1f1b", 1)),
    ({"framework": "torchtitan"}, ("fused", "dp", 3, "1f1b", 1)),
    ({"framework": "nanotron", "attention": "unfused"}, ("unfused", "dp", 0, "1f1b", 1)),
    ({"pp": 2, "global_batch": 4}, ("fused", "dp", 1, "1f1b", 1)),
    ({"pp": 2, "schedule": "zero-bubble"}, ("fused", "dp", 1, "zero-bubble", 1)),
    ({"pp": 2, "vpp": 2}, ("fused", "dp", 1, "interleaved", 2)),
])  # fmt: skip
def test_what_a_row_leaves_open_is_up_to_its_framework(cells, expected):
    plan = plan_of(**cells)
    assert (plan.attention, plan.overlap, plan.zero, plan.schedule, plan.vpp) == expected


@pytest.mark.parametrize(("cells", "chunks"), [
    ({"global_batch": 2048}, ("interleaved", 2)),
    ({"global_batch": 8192}, ("1f1b", 1)),
    ({"global_batch": 2048, "framework": "fsdp"}, ("1f1b", 1)),
])  # fmt: skip
def test_large_runs_interleave_where_the_bubble_would_be_large(cells, chunks):
    plan = plan_of(chips=2048, pp=2, **cells)
    assert (plan.schedule, plan.vpp) == chunks
    assert {"schedule", "vpp"} <= set(plan.assumed)


MIXTURE = {
    "experts": 8, "experts_per_token": 2, "gated_mlp": 1, "chips": 64, "dp": 8, "zero": 1,
    "layers": 56, "pp": 8, "global_batch": 256,
}  # fmt: skip
LONG = {"ep": 8, "recompute": "none"}


@pytest.mark.parametrize(("cells", "vpp"), [
    ({}, 7),
    ({"schedule": "1f1b"}, 1),
    ({"schedule": "1f1b", "vpp": 1}, 1),
    ({"schedule": "gpipe"}, 1),
    ({"layers": 16, "pp": 16, "chips": 128}, 1),
    ({"schedule": "interleaved", "experts": 0}, 7),
    ({"layers": 96, "schedule": "interleaved", "experts": 0}, 6),
    ({**LONG, "seq": 2048}, 7),
    ({**LONG, "seq": 33792}, 1),  # who lacks memory for chunks does without,
    ({**LONG, "seq": 33792, "vpp": 7}, 7),  # but for those that a row states,
    ({**LONG, "seq": 65536}, 7),  # and where one chunk would not fit either
])  # fmt: skip
def test_pipelines_of_experts_interleave_where_a_row_states_no_chunks(cells, vpp):
    assert plan_of(**MIXTURE | cells).vpp == vpp


@pytest.mark.parametrize(("cells", "taken"), [
    ({}, (1, "selective")),
    ({"hidden": 8192}, (3, "selective")),
    ({"hidden": 4096, "microbatch": 4, "seq": 8192}, (3, "full")),
    ({"hidden": 4096, "microbatch": 4, "seq": 8192, "zero": 1}, (1, "selective")),
    ({"hidden": 4096, "microbatch": 4, "seq": 8192, "recompute": "none"}, (1, "none")),
    ({"hidden": 8192, "tp": 8, "seq": 8192, "microbatch": 2}, (1, "full")),
])  # fmt: skip
def test_open_fields_save_the_memory_that_a_dense_plan_lacks(cells, taken):
    """Sharding comes before recomputation; where nothing suffices the usual values stay."""
    plan = plan_of(**{"layers": 80, "heads": 64, "chips": 64, "global_batch": 256, **cells})
    assert (plan.zero, plan.recompute) == taken
    assert {"zero", "recompute"} - set(cells) <= set(plan.assumed)


def test_stated_fields_and_mixtures_save_no_memory():
    large = {"layers": 80, "hidden": 8192, "heads": 64, "microbatch": 16, "chips": 64}
    stated = plan_of(**large, zero=1, recompute="none")
    assert (stated.zero, stated.recompute) == (1, "none")
    mixture = plan_of(**large, experts=8, experts_per_token=2)
    assert (mixture.zero, mixture.recompute) == (1, "selective")


def test_spellings_of_a_precision_run_at_one_rate():
    spellings = ("fp16 mixed", "BFloat16", "mxfp8", "fp8-hybrid", "fp32")
    rates = [filled(training_row(precision=text)).values["precision"] for text in spellings]
    assert rates == ["bf16", "bf16", "mxfp8", "fp8", "fp32"]


@pytest.mark.parametrize(
    ("name", "value"), [("chips", 2**21), ("layers", 10**6), ("hidden", 10**9), ("seq", 10**9)]
)
def test_rows_beyond_every_machine_and_model_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} {value:,} are over the limit"):
        filled(training_row(**{name: value}))
