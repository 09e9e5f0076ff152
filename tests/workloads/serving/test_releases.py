"""Releases of serving engines, by the month that is told."""

import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import named
from workloads.serving.batching import batching_from, engine_numbers
from workloads.serving.releases import idle_release, release_month, release_variants

OF_GPUS = ("iteration_overhead", "request_iteration")
BEFORE_0_14 = {f"serving.gpu.{name}": "vllm-0.13" for name in OF_GPUS}
BEFORE_0_5_15 = {"serving.gpu.iteration_overhead": "sglang-0.5.14"}
BEFORE_0_4_6 = {f"serving.{part}.scaled_latent_start": "sglang-0.4.5" for part in ("gpu", "mi300x")}
UNFUSED = {"serving.inf2.expert_block_rate": "sdk-2.26"}


@pytest.mark.parametrize(("date", "engine", "chip", "variants"), [
    ("", "vllm", "b200", {}),
    ("2025-10", "", "trn2", {"serving.trn2.expert_block_rate": "sdk-2.26"}),
    ("2025-12", "", "trn2", {}),
    ("2024-07", "", "inf2", UNFUSED),
    ("2024-06", "", "inf2",
     {"kernels.trainium.attention_largest_head_dim": "sdk-2.18", **UNFUSED}),
    ("2025-12", "vllm", "b200", BEFORE_0_14),
    ("2026-01", "vllm", "b200", {}),
    ("2026-06", "sglang", "b200", BEFORE_0_5_15),
    ("2026-07", "sglang", "b200", {}),
    ("2025-05", "sglang", "h200", BEFORE_0_5_15),
    ("2025-04", "sglang", "h200", {**BEFORE_0_5_15, **BEFORE_0_4_6}),
])  # fmt: skip
def test_serving_software_is_told_by_month_and_engine(date, engine, chip, variants):
    assert release_variants(shipped_catalogue(), chip, engine, date) == variants
    shipped_catalogue().with_variants(variants)


@pytest.mark.parametrize(("date", "name", "machine", "acts"), [
    ("2023-01", "llama-3.1-8b", "trn2.48xlarge", False),
    ("2023-01", "qwen3-30b-a3b", "trn2.48xlarge", True),
    ("2025-12", "qwen3-30b-a3b", "trn2.48xlarge", False),
    ("2024-06", "llama-3.1-8b", "inf2.48xlarge", True),
    ("2026-01", "llama-3.1-8b", "p5.48xlarge", True),  # where a month states the engine's own
    ("", "llama-3.1-8b", "trn2.48xlarge", True),
])  # fmt: skip
def test_a_month_that_changes_nothing_is_named(date, name, machine, acts):
    sentences = list(idle_release(named(name), cluster(machine), date))
    assert (sentences == []) == acts
    assert acts or sentences[0].startswith(f"--date {date} changes nothing here: releases for trn2")


def test_numbers_that_a_user_replaced_stay_in_an_older_release():
    mine = shipped_catalogue().with_variants({"serving.gpu.iteration_overhead": "sglang"})
    older = engine_numbers(mine, "vllm", "h100", "2025-12")
    assert older.value("serving.gpu", "iteration_overhead") == 0.2e-3
    assert older.entry("serving.gpu", "request_iteration").variant == "vllm-0.13"


def test_a_token_of_an_older_release_takes_the_longer_time_of_its_host():
    """One user: the host of vLLM before 0.14 takes 0.9 ms and 10 us more of each pass."""
    few = {"concurrency": 1, "count": 2, "prompt": 16, "output": 8, "tp": 1, "scheduler": "vllm"}
    now, before = (
        cs.serve("llama-3.1-8b", "dgx-h100", **few, date=date).tpot_s["p50"]
        for date in ("2026-01", "2025-12")
    )
    assert before - now == pytest.approx(0.91e-3)


@pytest.mark.parametrize(("model", "precision", "layers"), [
    ("deepseek-v3", "fp8", 58),
    ("deepseek-v3", "bf16", 0),
    ("qwen3-235b-a22b", "fp8", 0),
])  # fmt: skip
def test_latent_layers_with_experts_in_8_bits_start_late_before_deepgemm(model, precision, layers):
    """One user of SGLang before 0.4.6: 300 us for each layer with experts of DeepSeek-V3."""
    few = {"concurrency": 1, "count": 2, "prompt": 16, "output": 8, "tp": 8}
    few |= {"scheduler": "sglang", "precision": precision}
    now, before = (
        cs.serve(model, "p6-b300.48xlarge", **few, date=date).tpot_s["p50"]
        for date in ("2025-05", "2025-04")
    )
    assert before - now == pytest.approx(layers * 300e-6)


def test_a_release_needs_its_engine_on_gpus():
    message = "--date 2025-10 is the month of an engine's release, and no engine is stated; add"
    with pytest.raises(InputError, match=message):
        batching_from(cluster("dgx-h100"), date="2025-10")
    assert batching_from(cluster("trn2.48xlarge"), date="2025-10").date == "2025-10"


def test_an_engine_whose_releases_are_not_known_takes_no_month():
    message = "--date 2025-10: releases of tensorrt-llm are not told apart, only those of vllm and"
    with pytest.raises(InputError, match=message):
        batching_from(cluster("dgx-h100"), scheduler="tensorrt-llm", date="2025-10")


def test_a_release_is_told_by_its_month_and_a_year_is_its_january():
    dates = ("2026", "2026-01", "2026-01-31", None)
    assert [release_month(date) for date in dates] == ["2026-01", "2026-01", "2026-01-31", ""]
    with pytest.raises(InputError, match=r"date 'v0\.10' is no month\. Write it as 2024-06\."):
        release_month("v0.10")
