"""Recipes of sources: the software that a training row ran on."""

from __future__ import annotations

import pytest
from experiments.validation.conditions.recipes import recipe, recipes

from experiments.validation.conditions.row_defaults import filled
from experiments.validation.predictions import training
from experiments.validation.predictions.training import plan_of
from experiments.validation.reading.tables import table
from tests.support.validation_rows import training_row
from topologies.catalogue.catalogue import shipped_catalogue


def test_who_overlaps_all_on_a100_runs_newer_software():
    older, newer = (filled(training_row(gated_mlp=0, overlap=how)).values for how in ("dp", "all"))
    assert (plan_of(older).attention, plan_of(newer).attention) == ("unfused", "fused")


def test_a_source_that_repeats_another_gets_the_recipe_of_the_other():
    """``llm-analysis`` carries rows of Megatron-LM in fp16 and of MT-NLG, summed in fp32."""
    sums = {
        row.values["name"]: dict(recipe(row.values).variants)["training.accumulation_bytes"]
        for name in ("megatron_sc21", "megatron_more")
        for row in table(name).rows().rows
        if "llm-analysis" in row.cells["source"]
    }
    assert sums == {"GPT 174.6B": "separate", "GPT 529.6B": "separate", "MT-NLG 530B": "fp32"}


def test_sums_in_fp32_cost_what_two_published_pairs_differ_by():
    """Pairs of BLOOM's trials that differ in fp16 or bf16, and in nothing else."""
    rows = [row.values for row in table("megatron_deepspeed").rows().rows]
    for heads in (64, 96):
        narrow, wide = (
            next(
                row
                for row in rows
                if (row["layers"], row["heads"], row["microbatch"]) == (106, heads, 2)
                and row["source"].endswith(kind)
            )
            for kind in ("fp16", "bf16")
        )
        published = wide["iteration_s"] / narrow["iteration_s"]
        first, second = (training.predict(row).predicted["iteration_s"] for row in (narrow, wide))
        assert second / first == pytest.approx(published, abs=0.012)


def test_launches_that_block_cost_what_ten_servers_lost():
    """BLOOM's authors ran 200B on 80 A100 with and without: 97.20 and 91.04 TFLOP/s."""
    rows = [row.values for row in table("megatron_deepspeed").rows().rows]
    model = {"layers": 80, "hidden": 14400, "ffn": 57600, "heads": 96, "kv_heads": 96}
    job = {"chips": 80, "pp": 10, "dp": 1, "microbatch": 1, "global_batch": 512}
    row = rows[0] | model | job
    # 2,048 sequences took 844.81 s at 98.87 TFLOP/s.
    published_s = [844.81 / 4 * 98.87 / rate for rate in (97.20, 91.04)]
    steps_s = [
        training.predict(row | {"launch_blocking": blocks}).predicted["iteration_s"]
        for blocks in (0, 1)
    ]
    passes = 512 + 10 - 1
    assert (published_s[1] - published_s[0]) / passes == pytest.approx(0.028, abs=0.0005)
    assert (steps_s[1] - steps_s[0]) / passes == pytest.approx(0.028, rel=0.15)


def test_recipes_name_variants_that_exist():
    for one in recipes():
        one.numbers()
    assert recipe({"source": "github VIA-Research/vTrain data"}).attention == "unfused"
    titan = recipe({"source": "pytorch/torchtitan", "cluster": "dgx-h100"}).numbers()
    limited = titan.value("kernels.h100", "gemm_sustained")
    assert limited < shipped_catalogue().value("kernels.h100", "gemm_sustained")


@pytest.mark.parametrize(
    ("cluster_name", "gated", "zero", "attention", "selective"),
    [
        ("dgx-a100", 0, 1, "unfused", "attention"),
        ("dgx-a100", 1, 1, "fused", "attention"),
        ("p4de.24xlarge", 0, 3, "fused", "layers"),
        ("dgx-h100", 1, 3, "fused", "layers"),
        ("dgx-h200", 1, 3, "fused", "layers"),
        ("dgx-h100", 0, 1, "fused", "attention"),
        ("trn2.48xlarge", 1, 3, "fused", "attention"),
    ],
)
def test_rows_of_unknown_sources_get_the_recipe_of_their_kind(
    cluster_name, gated, zero, attention, selective
):
    plain = {"gated_mlp": gated, "zero": zero, "overlap": "none", "source": "mine"}
    used = recipe({"cluster": cluster_name, **plain})
    assert (used.match, used.attention, used.selective) == ("", attention, selective)
