"""Training frameworks: files, settings, releases, conditions, and what each gives to a plan."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.refusals import refused
from tests.support.toy_training import TOY
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from workloads.confidence.sensitivity import COUNTS
from workloads.front import train
from workloads.models.model import Model
from workloads.remarks import assumed_sentences
from workloads.training.frameworks.conditions import Conditions
from workloads.training.frameworks.framework import (
    OF_THE_CHIP,
    framework,
    framework_of,
    names,
    usual_framework,
)
from workloads.training.iteration import iteration
from workloads.training.memory.memory import Stack
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import complete

ON = {"nccl": "dgx-h100", "rccl": "mi300x-platform", "neuron": "trn2.48xlarge"}
"""A machine of each runtime that has servers."""
WIDE = Model("wide", 4, 4096, 32, 8, 128, 14336, 32_000)
"""A model whose kernels, rather than launches, take the time."""


def seconds(machine: str = "dgx-h100", catalogue: Catalogue | None = None, **stated: Any) -> float:
    """Time of a step of a wide model on one server [s]."""
    where = cluster(machine, catalogue=catalogue)
    fields = {"seq": 4096, "microbatch": 1, "global_batch": 2 * where.chips, **stated}
    return train(WIDE, where, **fields).time_s


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    """Path of a framework's file with the text."""
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("name", names())
def test_a_shipped_framework_names_variants_that_some_chip_has(name):
    stack, base = framework(name), shipped_catalogue()
    chips = {cluster(machine).chip for machine in machines(base)}
    trains_on = [chip for chip in chips if chip_family(chip).runtime in stack.runtimes]
    periods = [variants for _, variants, _ in stack.releases]
    for variants in (stack.numbers, *stack.settings.values(), *periods):
        for path, variant in variants.items():
            paths = {path.replace(OF_THE_CHIP, f"{chip_family(chip).kernels}.") for chip in chips}
            variants_there = {
                row.variant
                for part, _, quantity in (each.rpartition(".") for each in paths)
                if base.has(part, quantity)
                for row in base.variants(part, quantity)
            }
            assert variant in variants_there, path
    assert all((trains_on, stack.title, stack.assumes, stack.source))


def test_what_frameworks_switch_is_no_uncertain_count():
    # Memory has ranges of its counts: those of other stacks, which bound what a plan may need.
    stacks, base = [framework(name) for name in names()], shipped_catalogue()
    kernels = {chip_family(cluster(machine).chip).kernels for machine in machines(base)}
    switched = {
        path.replace(OF_THE_CHIP, f"{each}.")
        for stack in stacks
        for variants in (
            *(stack.numbers, stack.dense_numbers, *stack.settings.values()),
            *(variants for _, variants, _ in stack.releases),
        )
        for path in variants
        for each in kernels
    }
    counts = [
        row
        for row in base.rows
        if row.unit in COUNTS and f"{row.part}.{row.quantity}" in switched
        and row.quantity not in Stack._fields
    ]  # fmt: skip
    assert {"again_to_the_end", "gathered_weights", "expert_passes_gb200"} <= {
        row.quantity for row in counts
    }
    for row in counts:
        assert row.low == row.value == row.high, row[:3]


@pytest.mark.parametrize("name", names())
def test_a_shipped_framework_runs_a_small_plan_on_each_of_its_chips(name):
    for machine in ON.values():
        where = cluster(machine)
        if chip_family(where.chip).runtime not in framework(name).runtimes:
            continue
        stated = {"framework": name, "seq": 1024, "global_batch": 2 * where.chips}
        plan = complete(stated, TOY, where)
        expected = framework(name).plan
        assert {field: getattr(plan, field) for field in expected} == expected
        assert set(expected) <= set(plan.assumed)
        assert "framework" not in plan.assumed
        assert iteration(TOY, where, plan).time_s > 0


def test_a_plan_that_names_no_framework_gets_the_usual_one_of_its_chips_and_kind():
    for machine, stated, name in (
        ("dgx-h100", {}, "megatron-core"),
        ("dgx-h100", {"dp": 1, "tp": 8}, "megatron-core"),
        ("dgx-h100", {"dp": 1}, "transformers"),
        ("dgx-h100", {"chips": 1}, "transformers"),
        ("dgx-h100", {"lora_rank": 8, "zero": 3}, "transformers"),
        ("dgx-h100", {"lora_rank": 8, "zero": 3, "precision": "fp8"}, "fsdp"),
        ("dgx-h100", {"lora_rank": 8, "tp": 2}, "megatron-core"),
        ("dgx-h100", {"zero": 3}, "fsdp"),
        ("dgx-h100", {"zero": 3, "pp": 2}, "torchtitan"),
        ("dgx-a100", {"attention": "unfused"}, "megatron-lm"),
        ("trn2.48xlarge", {"zero": 3}, "axlearn"),
        ("trn1.32xlarge", {"runtime": "xla"}, "torch-neuronx"),
        ("tpu-v6e-pod", {}, "maxtext"),
    ):
        assert usual_framework(cluster(machine), stated) == name, (machine, stated)
    for named, stated in (("fsdp", {"zero": 3}), ("megatron-core", {"tp": 8})):
        assert seconds(**stated, framework=named) == seconds(**stated)


def test_a_schedule_that_no_usual_framework_has_is_timed_and_said():
    stated = {"tp": 4, "pp": 2, "schedule": "zero-bubble", "seq": 1024}
    step = train(TOY, "trn2.48xlarge", **stated)
    assert list(step.framework.lacks(step.plan)) == [("schedule", "zero-bubble")]
    sentences = assumed_sentences(step)
    assert "neuronx has no schedule zero-bubble; it is timed as if it had." in sentences
    assert not any("has no" in each for each in assumed_sentences(train(TOY, "trn2.48xlarge")))


MEGATRON_LM = {"zero": 0, "overlap": "none", "attention": "unfused"}
OTHERWISE = {"zero": 1, "overlap": "dp", "attention": "fused"}


@pytest.mark.parametrize(("machine", "name", "stated", "expected"), [
    ("dgx-a100", "megatron-lm", {}, MEGATRON_LM),
    ("dgx-a100", "megatron-lm", OTHERWISE, OTHERWISE),
    ("dgx-h100", "megatron-core", {"recompute": "selective"}, {"recompute_every": 1}),
    ("dgx-h100", "axlearn", {"recompute": "selective"}, {"recompute_every": 1}),
    ("dgx-h100", "torchtitan", {"recompute": "selective"},
     {"recompute": "full", "recompute_every": 2}),
    ("dgx-h100", "axlearn:2024-05", {}, {"attention": "unfused"}),
    ("dgx-h100", "axlearn:2024-07", {}, {"attention": "fused"}),
    # It gathers a stage's parameters once where there are stages, and zero is 1.
    ("dgx-h100", "fsdp", {"pp": 2}, {"zero": 1, "reshard": False}),
    ("dgx-h100", "fsdp", {"pp": 2, "zero": 3}, {"zero": 3, "reshard": False}),
])  # fmt: skip
def test_a_framework_gives_what_is_not_stated(machine, name, stated, expected):
    completed = complete({"framework": name, **stated}, TOY, cluster(machine))
    assert {field: getattr(completed, field) for field in expected} == expected
    assert not {"framework", *stated} & set(completed.assumed)


@pytest.mark.parametrize(("machine", "slower", "faster", "stated"), [
    ("dgx-h100", "torchtitan:eager", "torchtitan", {}),
    ("dgx-h100", "fsdp", "fsdp:compiled", {}),
    ("dgx-h100", "fsdp", "fsdp:2026-06", {"seq": 8192}),
    ("gb300-nvl72", "fsdp:2025-10", "fsdp", {"seq": 8192}),
    ("gb300-nvl72", "megatron-core:flash-2", "megatron-core", {"seq": 8192}),
    ("dgx-h100", "torchtitan:500-watt", "torchtitan", {}),
    ("dgx-h100", "megatron-core:2023-05", "megatron-core:2023-11", {"precision": "fp8"}),
    ("dgx-h100", "megatron-core:2023-11", "megatron-core:2024-11", {"precision": "fp8"}),
    ("dgx-h100", "megatron-core", "megatron-core:graphs", {"tp": 8}),
    ("dgx-h100", "megatron-core:blocking", "megatron-core", {"tp": 8}),
    ("dgx-h100", "nanotron", "megatron-core", {"tp": 8}),
    ("dgx-a100", "megatron-lm:2020-08", "megatron-lm:2021-04", {}),
    ("dgx-a100", "megatron-lm:2021-04", "megatron-lm:2022-05", {}),
    ("dgx-a100", "megatron-lm:2022-09,separate-sums", "megatron-lm:2022-09", {}),
    ("dgx-a100", "megatron-deepspeed:2021-12", "megatron-deepspeed:2022-12", {}),
    ("dgx-a100", "megatron-deepspeed", "megatron-deepspeed:fused-sums", {}),
    ("dgx-a100", "megatron-lm", "megatron-core", {}),
])  # fmt: skip
def test_settings_and_releases_move_the_time(machine, slower, faster, stated):
    times = [seconds(machine, framework=text, **stated) for text in (slower, faster)]
    assert times[0] > 1.001 * times[1]


@pytest.mark.parametrize(("words", "variant"), [
    # A release lasts until the month before the next.
    ("2023", "early-2023"), ("2023-08-31", "early-2023"), ("2023-09", None), ("2024-02", None),
    ("2024-03", "late-2024"), ("2031-01", "late-2024"),
    # It comes before what is chosen, whatever the order of the words.
    ("2024-11,500-watt", "500-watt"), ("500-watt,2024-11", "500-watt"),
])  # fmt: skip
def test_a_date_and_settings_choose_numbers(words, variant):
    chosen = framework(f"megatron-core:{words}").variants("h100", shipped_catalogue(), dense=True)
    assert chosen.get("kernels.h100.gemm_sustained_fp8") == variant


def test_a_variant_that_a_user_chose_stays():
    """``--variant`` counts before the framework, for what the framework chooses and restores."""
    path = "kernels.h100.attention_efficiency"
    with_triton = shipped_catalogue().with_variants({path: "triton"})
    on = framework("torchtitan").on(cluster("dgx-h100", catalogue=with_triton), TOY).catalogue
    of = ("kernels.h100", "attention_efficiency")
    assert on.value(*of) == with_triton.value(*of) != shipped_catalogue().value(*of)
    stays = seconds(framework="torchtitan", catalogue=with_triton)
    assert stays > seconds(framework="torchtitan")


def test_a_framework_of_a_users_own_is_a_file_with_the_same_keys(tmp_path):
    """A copy under another name gives equal numbers; an edit moves them."""
    folder = Path(__file__).parents[3] / "workloads/training/frameworks"
    text = (folder / "fsdp.yaml").read_text(encoding="utf-8")
    copy = written(tmp_path, text, "cloned.yaml")
    for stated in ({}, {"precision": "fp8"}, {"recompute": "selective"}):
        assert seconds(framework=copy, **stated) == seconds(framework="fsdp", **stated)
    assert seconds(framework=f"{copy}:compiled") == seconds(framework="fsdp:compiled")
    assert framework_of(ParallelPlan(framework=copy), cluster("dgx-h100")).name == copy
    ours = written(tmp_path, "title: ours\nruntimes: [nccl]\nplan: {zero: 0, overlap: none}\n")
    plan = complete({"framework": ours}, TOY, cluster("dgx-h100"))
    assert (plan.zero, plan.overlap) == (0, "none")


GOOD = "title: ours\nruntimes: [nccl]\n"


@pytest.mark.parametrize(("text", "message"), [
    (GOOD + "kernel: fast\n", r"mine.yaml: a framework has no 'kernel'. .*It takes title,"),
    (GOOD + "runs: {zero: 1}\n", r"runs is \{'zero': 1\} .*a mapping, each value a sequence\."),
    (GOOD + "runs: [1f1b]\n", r"mine.yaml: runs is \['1f1b'\] .*mapping, each value a seq"),
    (GOOD + "plan: 4\n", r"mine.yaml: plan is 4 .*Pass a mapping\."),
    (GOOD + "settings: {fast: 2}\n", r"settings .*a mapping, each value a mapping, each value"),
    (GOOD + "releases: 3\n", r"mine.yaml: a release has before and numbers\."),
    (GOOD + "releases: [{before: 2024}, 7]\n", "a release has before and numbers"),
    ("title: ours\nruntimes: nccl\n", r"runtimes is 'nccl' .*Pass a sequence, each text\."),
    (GOOD + "runs: {seq: [4096]}\n", r"mine.yaml: runs has no 'seq'"),
    (GOOD + "runs: {schedule: [1f1c]}\n", "1f1c"),
    (GOOD + "selectiv: layers\n", r"has no 'selectiv'. Did you mean selective\?"),
    ("runtimes: [nccl]\n", r"mine.yaml: a framework needs title. Add it"),
    ("title: ours\n", r"mine.yaml: a framework needs runtimes. Add it"),
    (GOOD + "plan: {zeros: 3}\n", r"mine.yaml: a plan has no 'zeros'. Did you mean zero"),
    (GOOD + "plan: {zero: 7}\n", r"zero"),
    (GOOD + "plan: {overlap: some}\n", r"overlap"),
    (GOOD + "selective: half\n", r"mine.yaml: selective is attention or layers. Correct it"),
    ("- a\n- b\n", r"mine.yaml"),
    ("title: [\n", r"mine.yaml"),
])  # fmt: skip
def test_a_file_that_is_no_framework_is_refused(tmp_path, text, message):
    refused(message, framework, written(tmp_path, text))


@pytest.mark.parametrize(("machine", "name", "stated", "message"), [
    # names and settings that are unknown
    ("dgx-h100", "megatron", {}, "'megatron' is none of automodel, .*Did you mean megatron-"),
    ("dgx-h100", "nemo2", {}, "Did you mean automodel or megatron-core"),
    ("trn2.48xlarge", "NxD", {}, "Did you mean neuronx"),
    ("dgx-h100", "torchtitan:egaer", {}, "no setting 'egaer'. Did you mean eager"),
    ("trn2.48xlarge", "torch-neuronx:compiled", {}, "'compiled'. It has none but a date"),
    ("dgx-h100", "megatron-core:2024-13", {}, "no setting '2024-13'"),
    ("dgx-h100", "none-such.yaml", {}, "none-such.yaml"),
    # plans that a framework cannot run
    ("trn2.48xlarge", "neuronx", {"tp": 4, "pp": 2, "schedule": "zero-bubble"},
     "framework neuronx cannot run schedule zero-bubble, only 1f1b or interleaved"),
    ("trn2.48xlarge", "neuronx", {"zero": 3}, "zero 3, only 0 or 1. axlearn"),
    ("dgx-h100", "fsdp", {"pp": 2}, "fsdp cannot run pp 2, only 1. "),
    # chips that it does not train on, or has no numbers for
    ("trn2.48xlarge", "torchtitan", {}, "does not train on .* Use one of axlearn, neu"),
    ("dgx-h100", "neuronx", {}, "does not train on .* Use one of automodel, "),
    ("mi300x-platform", "nanotron", {}, r"nanotron does not .* Use one of deepspeed, fsdp, "),
    ("tpu-v6e-pod", "megatron-core", {}, "not train on .* Use one of axlearn, maxtext, paxml"),
    ("dgx-a100", "torchtitan:500-watt", {},
     "setting 500-watt of framework torchtitan changes nothing on a100-80gb"),
    ("dgx-a100", "megatron-core:graphs", {},
     "setting graphs of framework megatron-core changes nothing on a100-80gb"),
    ("mi300x-platform", "megatron-core:flash-2", {}, "flash-2 .* changes nothing on mi300x"),
    # conditions that it lacks
    ("dgx-a100", "megatron-lm", {"graphs": True}, "graphs is no condition of"),
    ("dgx-h100", None, {"compiled": True}, "compiled is no condition of framework megatr"),
    ("trn2.48xlarge", None, {"launch_blocking": True}, "launch_blocking is no condition of"),
    ("dgx-a100", None, {"power_limit_w": 300.0}, "power_limit_w is 300, but kernels of a100"),
    ("dgx-b200", None, {"power_limit_w": 700.0}, "power_limit_w is 700, but kernels of b200"),
    ("dgx-h100", None, {"power_limit_w": 399}, "500 W, which holds from 400 W to below 600 W"),
    ("dgx-h100", None, {"power_limit_w": 650}, "and without a limit, at 700 W. State one of these"),
    ("dgx-h100", None, {"power_limit_w": 1e9}, "above the 700 W that h100 takes"),
    ("dgx-h100", None, {"date": "soon"}, "date is 'soon', no month. Write it as 2024-06"),
    ("dgx-h100:2", None, {"chips": 17}, "chips 17 must be a whole number from 1 to the 16"),
])  # fmt: skip
def test_what_a_framework_has_not_is_refused(machine, name, stated, message):
    refused(message, train, TOY, machine, **stated, **{"framework": name} if name else {})


@pytest.mark.parametrize(("condition", "stated", "text"), [
    ({"graphs": True}, {}, ":graphs"),
    ({"compiled": True}, {"zero": 3}, ":compiled"),
    ({"compiled": False}, {"zero": 3}, ""),
    ({"compiled": False}, {"framework": "fsdp:compiled"}, "fsdp"),
    ({"compiled": True}, {"framework": "torchtitan:eager"}, "torchtitan"),
    ({"compiled": True}, {"framework": "torchtitan"}, "torchtitan"),
    ({"compiled": False}, {"framework": "torchtitan:500-watt"}, "torchtitan:500-watt,eager"),
    ({"date": "2024-06", "graphs": True}, {}, ":2024-06,graphs"),
    ({"graphs": False, "power_limit_w": 700.0}, {}, ""),
    ({"graphs": False}, {"framework": "megatron-core:graphs,2024-06"}, "megatron-core:2024-06"),
    ({"launch_blocking": False}, {"framework": "megatron-lm:2020,blocking"}, "megatron-lm:2020"),
    ({"power_limit_w": 700.0}, {"framework": "torchtitan:500-watt"}, "torchtitan"),
    ({"date": "2021"}, {"framework": "megatron-lm:2020-06"}, "megatron-lm:2021"),
])  # fmt: skip
def test_a_condition_stands_for_a_setting(condition, stated, text):
    assert Conditions(**condition).framework_text(stated, cluster("dgx-h100")) == text


def test_a_condition_names_no_framework():
    """Who states a power limit is as unsure of the framework, each of which then has the limit."""
    usual = train(WIDE, "dgx-h100", zero=3, global_batch=64)
    limited = train(WIDE, "dgx-h100", zero=3, global_batch=64, power_limit_w=500)
    steps = usual, limited
    assert limited.framework.text == "fsdp:500-watt"
    assert "framework" in limited.plan.assumed
    others, limited_others = (
        {other.value for other in step.alternatives if other.field == "framework"} for step in steps
    )
    assert limited_others == {f"{name}:500-watt" for name in others}
    width, limited_width = (each.interval.high / each.interval.low for each in steps)
    assert limited_width > 0.9 * width


@pytest.mark.parametrize("name", [each for each in names() if "nccl" in framework(each).runtimes])
@pytest.mark.parametrize("lora_rank", [0, 16])
def test_sharding_over_one_replica_costs_nothing(name, lora_rank):
    """Nobody has a part of the parameters to gather, whatever a stack does to gather one."""
    stated = {"chips": 1, "seq": 2048, "global_batch": 1, "lora_rank": lora_rank, "framework": name}
    sharded, whole = (train(WIDE, "dgx-h100", zero=zero, **stated).time_s for zero in (3, 0))
    assert sharded == whole
