"""Conditions that a validation row may state change its prediction, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from experiments.validation.conditions.recipes import recipe

from experiments.validation.conditions.conditions import chosen
from experiments.validation.predictions.training import predict
from experiments.validation.reading.machines import machines_for
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.kernels.chip_share import family

ROW: dict[str, Any] = {
    "cluster": "dgx-h100", "chips": 8, "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "seq": 4096, "tp": 1, "zero": 3, "precision": "bf16", "recompute": "none", "overlap": "dp",
    "microbatch": 1, "global_batch": 8, "gated_mlp": 1,
}  # fmt: skip


def seconds(**stated: Any) -> float:
    return predict({**ROW, **stated}).predicted["iteration_s"]


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"attention": "unfused"}, {"attention": "fused"}),
        ({"compiled": 0}, {"compiled": 1}),
        ({"zero": 1, "tp": 8, "graphs": 0}, {"zero": 1, "tp": 8, "graphs": 1}),
        ({"tp": 8, "launch_blocking": 1}, {"tp": 8, "launch_blocking": 0}),
        ({"tp": 8, "parallel_layers": 0}, {"tp": 8, "parallel_layers": 1}),
        ({"power_limit_w": 500}, {"power_limit_w": 700}),
        ({"precision": "fp8", "date": "2023-05"}, {"precision": "fp8", "date": "2023-11"}),
        ({"precision": "fp8", "date": "2023-11"}, {"precision": "fp8", "date": "2024-11"}),
    ],
)
def test_each_condition_moves_the_time(slower: dict[str, Any], faster: dict[str, Any]) -> None:
    assert seconds(**slower) > 1.01 * seconds(**faster)


def test_a_source_of_mlperf_says_when_it_was() -> None:
    source = "github mlcommons/training_results_v3.0 NVIDIA/results"
    assert chosen({"source": source}, "h100") == chosen({"date": "2023-06"}, "h100")
    assert chosen({"source": source}, "a100-80gb") == {}


def test_what_a_row_states_counts_before_its_recipe() -> None:
    """Torchtitan's H100s were limited to 500 W; a row of it that was not says so."""
    limited = {"cluster": "dgx-h100", "source": "github pytorch/torchtitan", "zero": 3}
    variants = [dict(recipe(row).variants) for row in (limited, {**limited, "power_limit_w": 700})]
    assert "kernels.h100.gemm_sustained" in variants[0]
    assert "kernels.h100.gemm_sustained" not in variants[1]


def test_exchanges_of_experts_may_be_in_fp8_and_once_for_a_server() -> None:
    sparse = {"chips": 16, "global_batch": 16, "experts": 64, "experts_per_token": 8, "ep": 16}
    usual = seconds(**sparse)
    assert seconds(**sparse, fp8_exchange=1) < usual
    assert seconds(**sparse, routed_nodes=1) < usual
    assert seconds(**sparse, capacity_factor=1.25) > usual


def test_scales_of_rows_cost_more_than_of_blocks_and_of_tensors() -> None:
    times = [
        seconds(precision="fp8", fp8_recipe=recipe)
        for recipe in ("tensorwise", "blockwise", "rowwise")
    ]
    assert times[0] < times[1] < times[2]
    assert times[0] == seconds(precision="fp8")


def test_a_row_may_name_a_shipped_model() -> None:
    """Its own layers and width are taken, which those of the row must equal."""
    llama = {
        **ROW,
        "layers": 32,
        "kv_heads": 8,
        "vocab": 128256,
        "ffn": 14336,
        "cluster": "dgx-h100",
    }
    named = predict({**llama, "model": "llama-3.1-8b"}).predicted["iteration_s"]
    assert named == pytest.approx(predict(llama).predicted["iteration_s"], rel=1e-3)
    with pytest.raises(InputError, match=r"layers is 4, but llama-3.1-8b has 32"):
        predict({**ROW, "model": "llama-3.1-8b"})


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"date 'soon' is no month"):
        chosen({"date": "soon"}, "h100")


def test_software_of_later_years_has_fused_attention() -> None:
    """A GPT of unknown framework on A100 is Megatron-LM before 2023, unless its source is later."""
    row = {"cluster": "dgx-a100", "gated_mlp": 0, "zero": 1, "overlap": "none"}
    sources = ("", "arXiv 2104.04473", "arXiv 2402.15627; Table 2")
    assert [recipe({**row, "source": source}).attention for source in sources] == [
        "unfused", "unfused", "fused",
    ]  # fmt: skip
    assert recipe({**row, "date": "2024"}).attention == "fused"


def test_gpt_over_a_whole_server_of_trn1_has_separate_attention() -> None:
    row = {"cluster": "trn1.32xlarge", "gated_mlp": 0}
    assert [recipe({**row, "tp": tp}).attention for tp in (8, 32)] == ["fused", "unfused"]


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200", "gb200-nvl72"])
def test_adapters_of_mlperf_run_in_captured_graphs(name: str) -> None:
    row = {"cluster": name, "zero": 1, "source": "mlcommons NVIDIA/results/llama2_70b_lora"}
    part = f"kernels.{family(machines_for(name, 1).chip).name}"
    eager, captured = (
        catalogue.value(part, "host_dispatch")
        for catalogue in (shipped_catalogue(), recipe(row).numbers())
    )
    assert captured < eager / 10
    assert recipe({**row, "graphs": 0}).numbers().value(part, "host_dispatch") == eager
