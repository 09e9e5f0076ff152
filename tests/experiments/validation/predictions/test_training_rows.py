"""Training rows: what they state moves their prediction, and what they are called does not."""

from dataclasses import replace
from typing import Any

import pytest

from experiments.validation.predictions.training import Steps, filled, question
from experiments.validation.reading.rows import Row, read_text, table, tables
from experiments.validation.validate import as_told, predictor
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.kernels.chip_share import family
from workloads.training.frameworks.framework import framework_of

ROW: dict[str, Any] = {
    "cluster": "dgx-h100", "chips": 8, "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "seq": 4096, "tp": 1, "zero": 3, "precision": "bf16", "recompute": "none", "overlap": "dp",
    "microbatch": 1, "global_batch": 8, "gated_mlp": 1,
}  # fmt: skip


FP8 = {"zero": 1, "precision": "fp8"}


def seconds(**stated: Any) -> float:
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
    part = f"kernels.{family(machine.chip).name}"
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


def renamed(row: Row) -> dict[str, Any]:
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
def test_a_row_as_a_user_tells_it_keeps_its_name_its_machine_and_its_work(
    level, framework, recompute
):
    line = ",".join(map(str, TOLD_ROW.values()))
    rows = read_text("\n".join([",".join(TOLD_ROW), *[line] * 95]), "mine.csv")
    assert len(as_told(rows, level)) == 24  # every fourth, which are at most 30
    cells = as_told(rows, level).rows[0].cells
    hidden = {"framework": framework, "recompute": recompute, "source": "", "date": ""}
    machine = {"variant": "dgx-h100.nic_bandwidth=x", "stated": level}
    stated = {name: str(value) for name, value in TOLD_ROW.items()}
    assert cells == {**stated, **hidden, **machine}
