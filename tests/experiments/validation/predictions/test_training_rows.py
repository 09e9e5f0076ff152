"""Training rows: what they state, what is filled in, and what PyTorch on Neuron issued."""

from dataclasses import replace

import pytest

from experiments.validation.predictions.collectives import beside_s, predict, time_s
from experiments.validation.predictions.training import Steps, filled, question
from experiments.validation.reading.rows import machines_for, read_text, table, tables
from experiments.validation.validate import as_told, predictor
from tests.support.refusals import refused
from tests.support.validation_rows import training_row
from topologies.catalogue.catalogue import chip_family, shipped_catalogue
from topologies.support.errors import InputError
from workloads.kernels.times import elementwise
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import iteration

ROW = {
    "cluster": "dgx-h100", "chips": 8, "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "seq": 4096, "tp": 1, "zero": 3, "precision": "bf16", "recompute": "none", "overlap": "dp",
    "microbatch": 1, "global_batch": 8, "gated_mlp": 1,
}  # fmt: skip

FP8 = {"zero": 1, "precision": "fp8"}


def seconds(**stated):
    return Steps().predict({**ROW, **stated}).predicted["iteration_s"]


@pytest.mark.parametrize(("slower", "faster"), [
    ({"attention": "unfused"}, {"attention": "fused"}),
    ({"compiled": 0}, {"compiled": 1}),
    ({"zero": 1, "tp": 8, "graphs": 0}, {"zero": 1, "tp": 8, "graphs": 1}),
    ({"tp": 8, "launch_blocking": 1}, {"tp": 8, "launch_blocking": 0}),
    ({"tp": 8, "parallel_layers": 0}, {"tp": 8, "parallel_layers": 1}),
    ({"power_limit_w": 500}, {"power_limit_w": 700}),
    ({"framework": "torchtitan:500-watt"}, {"framework": "torchtitan"}),
    ({"framework": "fsdp"}, {"framework": "torchtitan"}),
    ({**FP8, "date": "2023-05"}, {**FP8, "date": "2023-11"}),
    ({**FP8, "date": "2023-11"}, {**FP8, "date": "2024-11"}),
    ({"variant": "kernels.h100.norm_efficiency=eager", "zero": 1}, {"zero": 1}),
])  # fmt: skip
def test_what_a_row_states_moves_its_time(slower, faster):
    assert seconds(**slower) > 1.003 * seconds(**faster)


@pytest.mark.parametrize(("stated", "dp", "etp"), [
    ({"tp": 2, "ep": 4}, 8, 2),
    ({"tp": 2, "ep": 16}, 8, 1),  # of 16 ranks, fewer than 16 experts at tp 2
    ({"tp": 1, "ep": 4}, 16, 0),
    ({"tp": 2, "ep": 4, "cp": 2}, 4, 2),
    ({"tp": 2, "ep": 4, "dp": 2}, 8, 2),  # counted without ep
])  # fmt: skip
def test_replicas_fill_the_chips_and_experts_are_divided_as_layers_are(stated, dp, etp):
    row = {**ROW, "chips": 16, "global_batch": 16, "experts": 64, "experts_per_token": 8}
    plan = question(filled({**row, **stated}).values)[2]
    assert (plan.dp, plan.etp) == (dp, etp)


def test_a_condition_adds_to_the_settings_of_the_stated_framework():
    plan = question(filled({**ROW, "framework": "torchtitan:500-watt", "compiled": 0}).values)[2]
    assert plan.framework == "torchtitan:500-watt,eager"
    with pytest.raises(InputError, match="graphs is no condition of framework llm-foundry"):
        seconds(framework="llm-foundry", graphs=1)


def test_exchanges_of_experts_may_be_in_fp8_and_once_for_a_server():
    sparse = {"chips": 16, "global_batch": 16, "experts": 64, "experts_per_token": 8, "ep": 16}
    usual = seconds(**sparse)
    assert seconds(**sparse, fp8_exchange=1) < usual
    assert seconds(**sparse, routed_nodes=1) < usual
    assert seconds(**sparse, capacity_factor=1.25) > usual


def test_scales_of_rows_cost_more_than_of_blocks_and_of_tensors():
    recipes = ("tensorwise", "blockwise", "rowwise")
    times = [seconds(precision="fp8", fp8_recipe=scales) for scales in recipes]
    assert times[0] < times[1] < times[2]
    assert times[0] == seconds(precision="fp8")


def test_a_row_may_name_a_shipped_model():
    """Its own layers and width are taken, which those of the row must equal."""
    llama = {**ROW, "layers": 32, "vocab": 128256, "ffn": 14336}
    named = Steps().predict({**llama, "model": "llama-3.1-8b"}).predicted["iteration_s"]
    assert named == pytest.approx(Steps().predict(llama).predicted["iteration_s"], rel=1e-3)
    with pytest.raises(InputError, match=r"layers is 4, but llama-3.1-8b has 32"):
        Steps().predict({**ROW, "model": "llama-3.1-8b"})


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200", "gb200-nvl72"])
def test_adapters_of_mlperf_run_in_captured_graphs(name):
    rows = table("mlperf_lora").rows().rows
    row = next(row.values for row in rows if row.values["cluster"] == name)
    model, machine, plan = question(filled(row).values)
    part = chip_family(machine.chip).kernels
    catalogue = framework_of(plan, machine).on(machine, model).catalogue
    assert catalogue is not None
    eager = shipped_catalogue().value(part, "host_dispatch")
    assert catalogue.value(part, "host_dispatch") < eager / 10


def test_rows_of_one_source_have_the_framework_of_each_row():
    """Megatron-LM summed gradients in fp16, MT-NLG's framework in fp32, in one collection."""
    sums = {}
    for name in ("megatron_sc21", "megatron_more"):
        for row in table(name).rows().rows:
            if "llm-analysis" in row.cells["source"]:
                _, machine, plan = question(filled(row.values).values)
                stack = framework_of(plan, machine)
                variants = stack.variants(machine.chip, shipped_catalogue(), dense=True)
                sums[row.values["name"]] = variants["training.accumulation_bytes"]
    assert sums == {"GPT 174.6B": "separate", "GPT 529.6B": "separate", "MT-NLG 530B": "fp32"}


def renamed(row):
    """Values of a row without what says where it is from, and under another name."""
    return {**row.values, "source": "", "name": "row", "quality": None}


def test_no_question_of_a_training_row_depends_on_its_source_or_its_name():
    """A question is the model, cluster and plan, which decide everything that follows."""
    questions = 0
    for each in tables().values():
        read = each.rows()
        if read.kind.name != "training":
            continue
        for row in [row for row in read.rows if not row.mistakes][::25]:
            model, machine, plan = question(filled(row.values).values)
            plain, place, how = question(filled(renamed(row)).values)
            assert (plan, machine, plan.assumed) == (how, place, how.assumed), row
            assert replace(model, name="") == replace(plain, name="")
            questions += 1
    assert questions > 50


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if number % 15 else [])
    for number, name in enumerate(tables())
])  # fmt: skip
def test_no_prediction_depends_on_a_source_or_a_name(name):
    """The quickest row of every table is predicted as its unnamed copy is."""
    read = table(name).rows()
    sizes = ("global_batch", "size_bytes", "requests", "chips")
    whole = [row for row in read.rows if not row.mistakes]
    quickest = min(whole, key=lambda row: [float(row.values.get(s) or 0) for s in sizes])
    predict_row = predictor(read.kind)
    named, plain = (predict_row(values, None) for values in (quickest.values, renamed(quickest)))
    assert (named.status, named.predicted) == (plain.status, plain.predicted)


TOLD_ROW = {
    "name": "mine", "cluster": "dgx-h100", "chips": 8, "layers": 4, "hidden": 1024, "heads": 16,
    "seq": 1024, "tp": 2, "global_batch": 8, "iteration_s": 1.0, "note": "kept",
    "framework": "torchtitan:eager", "recompute": "full", "source": "me", "date": "2024-05",
    "variant": "dgx-h100.nic_bandwidth=x;nccl.h100.step=y",
}  # fmt: skip


@pytest.mark.parametrize(
    ("level", "framework", "recompute"),
    [("framework", "torchtitan", "full"), ("plan", "", "full"), ("bare", "", "")],
)
def test_a_row_as_a_user_tells_it_keeps_its_name_machine_and_work(level, framework, recompute):
    line = ",".join(map(str, TOLD_ROW.values()))
    rows = read_text("\n".join([",".join(TOLD_ROW), *[line] * 95]), "mine.csv")
    assert len(as_told(rows, level)) == 24  # every fourth, which are at most 30
    cells = as_told(rows, level).rows[0].cells
    hidden = {"framework": framework, "recompute": recompute, "source": "", "date": ""}
    machine = {"variant": "dgx-h100.nic_bandwidth=x", "stated": level}
    stated = {name: str(value) for name, value in TOLD_ROW.items()}
    assert cells == {**stated, **hidden, **machine}


MIB = 2**20


def row(**cells):
    usual = {
        "collective": "all-reduce", "cluster": "trn2.48xlarge", "chips": 4, "ranks": 16,
        "algorithm": None, "size_bytes": 64 * MIB, "runtime": "pytorch",
    }  # fmt: skip
    return {**usual, **cells}


def beside(op, size_bytes=64 * MIB, chips=4):
    return beside_s(op, size_bytes, chips, 4 * chips, "trn2", shipped_catalogue())


def test_every_call_over_several_chips_copies_the_longer_buffer_once():
    copy_s = float(elementwise("trn2", 2 * 64 * MIB, ranks_per_chip=4).seconds)
    assert beside("all-reduce") == beside("all-gather") == pytest.approx(copy_s)
    assert beside("all-reduce", chips=1) == 0
    assert beside("all-to-all") == pytest.approx(3 * copy_s, rel=0.02)
    assert beside("broadcast") == pytest.approx(1.5 * copy_s, rel=0.02)


def test_a_stated_call_takes_the_place_of_the_range_of_the_host():
    stated, usual = predict(row(call_s=2e-3)), predict(row())
    call = shipped_catalogue().entry("runtime.neuron", "pytorch_collective_added")
    assert stated.ends is None
    added = stated.predicted["time_s"] - usual.predicted["time_s"]
    assert added == pytest.approx(2e-3 - call.value)
    low, high = usual.ends
    assert high - low == pytest.approx(call.high - call.low)


def test_a_group_may_lie_on_the_first_chips_of_two_servers():
    two = machines_for("trn2.48xlarge", 17)
    across = time_s("all-reduce", two, 2, 8, 64 * MIB, place="0,16")
    assert across > 2 * time_s("all-reduce", two, 2, 8, 64 * MIB)
    named = predict(row(chips=2, ranks=8, group="0,16", runtime=None))
    assert named.predicted["time_s"] == pytest.approx(across)
    refused("has 3 chips, not 2", predict, row(chips=2, ranks=8, group="0,16,17"))


def plan_of(**cells):
    return question(filled(training_row(**cells)).values)[2]


def test_empty_cells_take_what_is_usual_and_are_counted():
    stated = filled(training_row(tp=2))
    assert (stated.values["dp"], stated.values["ffn"], stated.values["kv_heads"]) == (4, 2816, 16)
    assert {"dp", "ffn", "pp"} <= set(stated.assumed)
    assert "tp" not in stated.assumed
    plan = question(stated.values)[2]
    assert {"schedule", "overlap", "zero", "precision", "framework"} <= set(plan.assumed)
    assert not {"tp", "seq"} & set(plan.assumed)
    refused("not a multiple of tp 3", filled, training_row(tp=3))


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
    refused(f"{name} {value:,} are over the limit", filled, training_row(**{name: value}))
