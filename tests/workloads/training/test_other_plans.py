"""Plans of other tools: fields that carry over, and fields that are named as ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.foreign_plans import DEEPSPEED, MEGATRON, NEMO, NXD, TITAN
from topologies.errors import InputError
from workloads.training.plan.plan_file import read_any_plan


@pytest.mark.parametrize(
    ("name", "text", "tool", "fields", "ignored"),
    [
        ("launch.sh", MEGATRON, "Megatron-LM", {
            "tp": 8, "pp": 4, "vpp": 4, "schedule": "interleaved", "sequence_parallel": True,
            "microbatch": 1, "global_batch": 512, "seq": 4096, "zero": 1,
            "recompute": "selective", "overlap": "dp", "precision": "fp8",
            "fp8_recipe": "blockwise",
        }, {"lr", "num-layers", "nproc-per-node"}),
        ("job.toml", TITAN, "torchtitan", {
            "microbatch": 1, "seq": 8192, "zero": 3, "tp": 8, "pp": 4, "schedule": "interleaved",
            "overlap": "all", "recompute": "full", "precision": "fp8",
        }, {"job.description"}),
        ("nemo.yaml", NEMO, "NeMo", {
            "precision": "fp8", "tp": 4, "pp": 2, "cp": 2, "microbatch": 1, "global_batch": 256,
            "seq": 8192, "sequence_parallel": True, "recompute": "full", "zero": 1,
        }, {
            "trainer.devices", "trainer.num_nodes", "model.optim.lr",
            "model.virtual_pipeline_model_parallel_size = None",
        }),
        ("nxd.yaml", NXD, "NxD Training", {
            "tp": 32, "pp": 4, "zero": 1, "sequence_parallel": True, "microbatch": 1,
            "global_batch": 1024, "seq": 8192, "recompute": "selective", "precision": "bf16",
        }, {"trainer.devices", "trainer.num_nodes", "distributed_strategy.kv_replicator"}),
        ("ds.json", DEEPSPEED, "DeepSpeed", {
            "global_batch": 512, "microbatch": 2, "zero": 3, "overlap": "dp",
            "bucket_bytes": 10**9, "precision": "bf16",
        }, {"gradient_clipping", "zero_optimization.stage3_prefetch_bucket_size"}),
    ],
)  # fmt: skip
def test_a_plan_carries_over(
    tmp_path: Path, name: str, text: str, tool: str, fields: dict[str, Any], ignored: set[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    read = read_any_plan(path)
    assert (read.tool, dict(read.fields)) == (tool, fields)
    assert set(read.ignored) == ignored


def test_a_recipe_of_fp8_without_fp8_is_ignored_by_name(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TITAN.replace("enable_float8_linear = true", 'recipe_name = "rowwise"'))
    read = read_any_plan(path)
    assert "fp8_recipe" not in read.fields
    assert "fp8 recipe rowwise without fp8" in read.ignored


def test_our_own_plan_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("tp: 8\npp: 2\n")
    assert read_any_plan(path).tool == "cluster-sim"
    assert read_any_plan(path).fields == {"tp": 8, "pp": 2}


def test_megatron_as_yaml_with_underscores(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("tensor_model_parallel_size: 4\nsequence_parallel: true\nlr: 0.1\n")
    read = read_any_plan(path)
    assert (read.tool, read.ignored) == ("Megatron-LM", ("lr",))
    assert read.fields == {"tp": 4, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.toml", "[parallelism\n", "is not TOML"),
        ("ds.json", '{"train_batch_size": ', "is not JSON"),
        ("run.sh", "--tensor-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         "needs num-layers"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_any_plan(path)


@pytest.mark.parametrize("stage", ["Infinity", "null", "[1, 2]", '"x"', "1e999"])
def test_a_value_of_which_no_field_can_be_made_is_named(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "deepspeed.json"
    path.write_text(f'{{"train_batch_size": 8, "zero_optimization": {{"stage": {stage}}}}}')
    with pytest.raises(InputError, match=r"zero_optimization\.stage is .* of which no zero can"):
        read_any_plan(path)
