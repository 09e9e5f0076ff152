"""Plans of other tools: what is read of them, what is named, and what is written for them."""

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.foreign_plans import DEEPSPEED, MAXTEXT, MEGATRON, NEMO, NXD, TITAN
from tests.support.refusals import refused
from topologies.clusters.names import as_cluster, cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import as_model, named
from workloads.training.plan.other_tools import (
    ABSENT,
    OtherPlan,
    other_plan,
    plan_yaml,
    read_any_plan,
)
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import idle_fields
from workloads.training.usual_plan import complete
from workloads.training.write_other_tools import TOOLS, beside_the_plan, launch_file

Reader = Callable[[str, str], OtherPlan]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Read a plan from a file of a name and a text."""

    def read_file(name: str, text: str) -> OtherPlan:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return read_any_plan(tmp_path / name)

    return read_file


@pytest.mark.parametrize(("name", "text", "tool", "fields", "ignored"), [
    ("launch.sh", MEGATRON, "Megatron-LM", {
        "tp": 8, "pp": 4, "vpp": 4, "schedule": "interleaved", "sequence_parallel": True,
        "microbatch": 1, "global_batch": 512, "seq": 4096, "zero": 1,
        "recompute": "selective", "overlap": "dp", "precision": "fp8",
        "fp8_recipe": "blockwise", "framework": "megatron-core",
    }, {"lr", "num-layers", "nproc-per-node"}),
    ("job.toml", TITAN, "torchtitan", {
        "microbatch": 1, "seq": 8192, "zero": 3, "tp": 8, "pp": 4, "schedule": "interleaved",
        "overlap": "all", "recompute": "full", "precision": "fp8", "microbatches": 1,
        "framework": "torchtitan:eager",
    }, {"job.description"}),
    ("nemo.yaml", NEMO, "NeMo", {
        "precision": "fp8", "tp": 4, "pp": 2, "cp": 2, "vpp": 1,
        "microbatch": 1, "global_batch": 256,
        "seq": 8192, "sequence_parallel": True, "recompute": "full", "zero": 1,
        "framework": "megatron-core",
    }, {
        "trainer.devices", "trainer.num_nodes", "model.optim.lr",
    }),
    ("nxd.yaml", NXD, "NxD Training", {
        "tp": 32, "pp": 4, "zero": 1, "sequence_parallel": True, "microbatch": 1,
        "global_batch": 1024, "seq": 8192, "recompute": "selective", "precision": "bf16",
        "ranks_per_chip": 2, "framework": "neuronx",
    }, {"trainer.num_nodes", "distributed_strategy.kv_replicator"}),
    ("ds.json", DEEPSPEED, "DeepSpeed", {
        "global_batch": 512, "microbatch": 2, "zero": 3, "overlap": "dp",
        "bucket_bytes": 10**9, "precision": "bf16", "framework": "deepspeed",
    }, {"gradient_clipping", "zero_optimization.stage3_prefetch_bucket_size"}),
    ("v5p.sh", MAXTEXT, "MaxText", {
        "tp": 8, "zero": 3, "microbatch": 24, "microbatches": 2, "seq": 2048,
        "recompute": "none", "cp_exchange": "all-gather", "attention": "fused",
        "precision": "bf16", "framework": "maxtext:fetched",
    }, {"XLA flags", "model_name", "remat_policy = minimal", "run_name", "steps"}),
])  # fmt: skip
def test_a_plan_carries_over(read, name, text, tool, fields, ignored):
    plan = read(name, text)
    assert (plan.tool, dict(plan.fields), set(plan.ignored)) == (tool, fields, ignored)


def test_keys_without_effect_are_named(read):
    plan = read("job.toml", TITAN.replace("enable_float8_linear = true", 'recipe_name = "rowwise"'))
    assert "fp8_recipe" not in plan.fields
    assert "fp8 recipe rowwise without fp8" in plan.ignored
    # Control characters are written out.
    assert r"model\ufeff_kind" in read("nxd.yaml", NXD + "\nmodel\ufeff_kind: 1\n").ignored


def test_our_own_plan_is_ours(read):
    plan = read("plan.yaml", "tp: 8\npp: 2\nframework: torchtitan\n")
    assert (plan.tool, plan.implied) == ("cluster-sim", "")
    assert plan.fields == {"tp": 8, "pp": 2, "framework": "torchtitan"}
    written = ParallelPlan(tp=4, pp=2, stage_layers=(9, 7), bucket_bytes=160_000_000)
    text = plan_yaml(written)
    assert ParallelPlan(**read("plan.yaml", text).fields) == written
    assert read("plan.yaml", "bucket_bytes: 160MB").fields == {"bucket_bytes": 160_000_000}


@pytest.mark.parametrize(("text", "stated", "ignored"), [
    ("tensor_model_parallel_size: 4\nsequence_parallel: true\nlr: 0.1\ntrainer: {devices: 1}\n",
     {"sequence_parallel": True}, ("lr", "trainer.devices")),
    ("--tensor-model-parallel-size 4 --bf16\n", {"precision": "bf16"}, ()),
])  # fmt: skip
def test_megatron_in_a_file_called_yaml(read, text, stated, ignored):
    plan = read("args.yaml", text)
    assert (plan.tool, plan.ignored) == ("Megatron-LM", ignored)
    fields = {"tp": 4, "framework": "megatron-core", **stated}
    assert plan.fields == {**ABSENT["Megatron-LM"], **fields}


def test_a_file_of_torchtitan_says_whether_layers_are_compiled(read):
    for section, framework in (
        ("[compile]\nenable = true", "torchtitan"),
        ("[compile]\nenable = false", "torchtitan:eager"),
        ("[parallelism]", "torchtitan:eager"),
    ):
        plan = read("job.toml", f"[activation_checkpoint]\nmode = 'none'\n{section}\n")
        assert (plan.implied, plan.ignored) == (framework, ())


TP = "--tensor-model-parallel-size"
EXPERTS = f"{TP} 2 --expert-model-parallel-size 8"


@pytest.mark.parametrize(("name", "text", "settings", "recompute"), [
    ("a.sh", "--tensor-model-parallel-size 2", "", "none"),
    ("a.sh", EXPERTS, ":alltoall", "none"),
    ("a.sh", f"{EXPERTS} --moe-token-dispatcher-type alltoall", ":alltoall", "none"),
    ("a.sh", f"{EXPERTS} --moe-token-dispatcher-type flex --grad-reduce-in-bf16",
     ":deepep,bf16-gradients", "none"),
    ("a.sh", f"{EXPERTS} --moe-enable-deepep", ":deepep", "none"),
    ("a.sh", f"{EXPERTS} --overlap-moe-expert-parallel-comm", ":alltoall", "none"),
    ("a.yaml", "model: {moe_flex_dispatcher_backend: hybridep, moe_enable_deepep: false,\n"
     " micro_batch_size: 1, expert_model_parallel_size: 8}", ":deepep", None),
    ("a.yaml", "model: {recompute_modules: [moe_act, layernorm], micro_batch_size: 1,\n"
     " recompute_granularity: selective}", ":moe-act,layernorm", "none"),
    ("a.yaml", "model: {recompute_modules: [core_attn, moe_act], micro_batch_size: 1,\n"
     " recompute_granularity: selective}", ":moe-act", "selective"),
])  # fmt: skip
def test_a_file_of_megatron_core_states_its_settings(read, name, text, settings, recompute):
    plan = read(name, text)
    assert plan.fields["framework"] == f"megatron-core{settings}"
    assert (plan.fields.get("recompute"), plan.ignored) == (recompute, ())
    paired = "combined-1f1b" if "--overlap-moe" in text else None
    assert plan.fields.get("schedule") == paired


@pytest.mark.parametrize(("name", "text", "batch"), [
    ("ds.json", '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}', (2, 8)),
    ("ds.json", '{"train_batch_size": 512, "gradient_accumulation_steps": 8}', (4, 8)),
    ("ds.json", '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, '
     '"gradient_accumulation_steps": 8}', (2, 2)),
    ("a.toml", "[training]\nlocal_batch_size = 4\n[parallelism]\n"
     "data_parallel_shard_degree = -1", (4, 1)),
    ("a.toml", "[training]\nbatch_size = 4\nglobal_batch_size = 256\n[parallelism]\nx = 1", (4, 4)),
    ("a.toml", "[training]\nbatch_size = 8\n[activation_checkpoint]\nmode = 'none'\n"
     "[experimental]\npipeline_parallel_degree = 1\n", (8, 1)),
    ("a.sh", "--micro-batch-size 2 --bf16", (2, 1)),
    ("a.sh", "--micro-batch-size 2 --bf16 $MORE", (2, 16)),
])  # fmt: skip
def test_a_batch_left_to_accumulation_is_that_of_the_tool(read, name, text, batch):
    fields = {**read(name, text).fields, "framework": "megatron-core", "zero": 1}
    plan = complete(fields, as_model("llama-3.2-1b"), as_cluster("p5.48xlarge:2"))
    assert (plan.microbatch, plan.microbatches) == batch
    assert "global_batch" not in plan.assumed or "$" in text


@pytest.mark.parametrize(("name", "text", "fields"), [
    ("a.yaml", "language_model: {recompute_granularity: full}\nmodel_parallel: "
     "{tensor_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 2}\n"
     "micro_batch_size: 1\n", {"tp": 4, "vpp": 2, "recompute": "full"}),
    ("a.toml", "[training]\ntensor_parallel_degree = 4\n[experimental]\n"
     "pipeline_parallel_degree = 2\n[activation_checkpoint]\nmode = 'none'",
     {"tp": 4, "pp": 2}),
    ("a.yaml", "distributed_strategy: {pipeline_model_parallel_size: 4}\n"
     "model: {pipeline_cuts: []}\n", {"pp": 4, "stage_layers": ()}),
    ("a.yaml", "distributed_strategy: {context_parallel_size: 2}\n"
     "model: {fusions: {flash_attention: False, ring_attention: True}}\n",
     {"cp": 2, "attention": "fused"}),
    ("a.yaml", "model: {config: {recompute_granularity: full}}\n"
     "trainer:\n  plugins: {_target_: x, precision: bf16-mixed}\n"
     "  strategy: {tensor_model_parallel_size: 4, ddp: {overlap_grad_reduce: true, "
     "use_distributed_optimizer: true}}\n",
     {"tp": 4, "zero": 1, "overlap": "dp", "recompute": "full", "precision": "bf16"}),
    ("a.yml", "base_config: base.yml\nper_device_batch_size: 2.0\nici_pipeline_parallelism: 4\n"
     "num_pipeline_repeats: 2\nnum_pipeline_microbatches: 8\nquantization: te_mxfp8\n"
     "remat_policy: full\ncapacity_factor: -1.0\ndcn_data_parallelism: 1\n",
     {"pp": 4, "vpp": 2, "schedule": "interleaved", "microbatch": 1, "microbatches": 8,
      "precision": "mxfp8", "capacity_factor": 0.0, "seq": 2048}),
    ("a.yml", "apiVersion: v1\nargs:\n- |\n  (python3 -m MaxText.train base.yml "
     "ici_fsdp_parallelism=1 ici_pipeline_parallelism=2 num_pipeline_repeats=1)",
     {"zero": 0, "pp": 2, "schedule": "gpipe", "microbatch": 12, "microbatches": 2}),
    ("a.yml", "base_config: base.yml\nremat_policy: save_dot_except_mlp\n",
     {"recompute": "selective", "microbatch": 12}),
    ("ds.json", '{ // of "us"\n"train_batch_size": 8, # sequences\n/* all */ "path": "a//b"}',
     {"global_batch": 8}),
])  # fmt: skip
def test_other_forms_of_files_are_read(read, name, text, fields):
    plan = read(name, text)
    assert fields.items() <= plan.fields.items()
    assert not plan.may_change_time


PRIMUS = """
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: NAME
    config: pre_trainer.yaml
    overrides:
"""
OF_MEGATRON = """
      micro_batch_size: 2
      global_batch_size: ${PRIMUS_BATCH:64}
      tensor_model_parallel_size: ${PRIMUS_TP:4}
      recompute_granularity: ${PRIMUS_RECOMPUTE:null}
      fp8: hybrid
      use_turbo_deepep: true
"""
OF_TITAN = """
      parallelism: {tensor_parallel_degree: 2, data_parallel_shard_degree: -1}
      training: {local_batch_size: 4, seq_len: 8192}
"""


def test_a_file_of_primus_is_one_of_the_tool_that_it_launches(read, tmp_path):
    megatron = read("primus.yaml", PRIMUS.replace("NAME", "megatron") + OF_MEGATRON)
    assert (megatron.tool, megatron.ignored) == ("Megatron-LM", ())
    assert {
        "tp": 4,
        "global_batch": 64,
        "zero": 1,
        "precision": "fp8",
        "recompute": "none",
    }.items() <= megatron.fields.items()
    with_values = read_any_plan(
        Path(f"PRIMUS_TP=8 PRIMUS_RECOMPUTE=full {tmp_path / 'primus.yaml'}")
    )
    assert (with_values.fields["tp"], with_values.fields["recompute"]) == (8, "full")
    sharded = read(
        "fsdp2.yaml",
        PRIMUS.replace("NAME", "megatron")
        + OF_MEGATRON
        + "      use_torch_fsdp2: true\n      use_distributed_optimizer: false\n",
    )
    assert sharded.fields["zero"] == 3
    titan = read("titan.yaml", PRIMUS.replace("NAME", "torchtitan") + OF_TITAN)
    assert {"tp": 2, "zero": 3, "framework": "torchtitan"}.items() <= titan.fields.items()


@pytest.mark.parametrize(("text", "fields", "ignored"), [
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true, "
     "fsdp_offload_params: false}\nparallelism_config: {parallelism_config_tp_size: 2}",
     {"zero": 3, "recompute": "full", "tp": 2, "framework": "transformers"},
     {"fsdp_config.fsdp_version"}),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, "
     "fsdp_offload_params: true}", {"zero": 2}, {"fsdp_config.fsdp_offload_params = True"}),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}",
     {"zero": 3}, {"fsdp_config.fsdp_sharding_strategy = HYBRID_SHARD"}),
    ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nmixed_precision: bf16",
     {"zero": 3, "precision": "bf16", "framework": "deepspeed"}, set()),
    ("distributed_type: NO\nmixed_precision: no",
     {"zero": 0, "precision": "bf16", "framework": "transformers"}, {"mixed_precision = False"}),
    ("distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_pp_degree: 2}",
     {"pp": 2, "framework": "megatron-core"}, set()),
    ("per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\ncutoff_len: 2048\n"
     "lora_rank: 16\nbf16: true\ndeepspeed: ds.json\nlearning_rate: 1.0e-4",
     {"microbatch": 2, "microbatches": 8, "seq": 2048, "lora_rank": 16, "framework": "deepspeed"},
     {"deepspeed = ds.json", "learning_rate"}),
])  # fmt: skip
def test_files_of_accelerate_and_of_the_trainer_are_read(read, text, fields, ignored):
    plan = read("accelerate.yaml", text)
    assert plan.tool == "Accelerate"
    assert fields.items() <= plan.fields.items()
    assert set(plan.ignored) == ignored


AXOLOTL = """base_model: a/b
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
"""


@pytest.mark.parametrize(("text", "fields", "ignored"), [
    ("", {"zero": 0, "recompute": "none", "microbatches": 4, "framework": "transformers"}, set()),
    ("adapter: lora\nlora_r: 32\nlora_target_linear: true\ngradient_checkpointing: true",
     {"lora_rank": 32, "lora_on": "all", "recompute": "full"}, set()),
    ("adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_modules: [q_proj, v_proj]",
     {"lora_rank": 8, "lora_on": "attention"},
     {"adapter = qlora", "load_in_4bit = True", "lora_target_modules = ['q_proj', 'v_proj']"}),
    ("adapter:\nlora_r: 32\noptimizer: adamw_bnb_8bit", {"optimizer": "adamw"},
     {"adapter = None", "lora_r = 32", "optimizer = adamw_bnb_8bit"}),
    ("dp_shard_size: 4\ndp_replicate_size: 2\ntensor_parallel_size: 2\ncontext_parallel_size: 2",
     {"tp": 2, "cp": 2, "zero": 3}, {"dp_replicate_size = 2"}),
    ("fsdp_config: {reshard_after_forward: false}\nattn_implementation: eager",
     {"zero": 3, "reshard": False, "attention": "unfused"}, set()),
    ("deepspeed: deepspeed_configs/zero2.json\ngradient_checkpointing: offload",
     {"zero": 2, "framework": "deepspeed", "recompute": "full"},
     {"gradient_checkpointing = offload"}),
])  # fmt: skip
def test_files_of_axolotl_are_read(read, text, fields, ignored):
    plan = read("axolotl.yaml", AXOLOTL + text)
    assert plan.tool == "axolotl"
    assert {"seq": 2048, "microbatch": 2, **fields}.items() <= plan.fields.items()
    assert ("lora_rank" in plan.fields) == ("lora_rank" in fields)
    assert set(plan.ignored) == {"base_model", *ignored}


@pytest.mark.parametrize(("text", "fields"), [
    ("finetuning_type: lora\nlora_target: all", {"lora_rank": 8, "recompute": "full"}),
    ("finetuning_type: lora\nlora_rank: 16\ndisable_gradient_checkpointing: true",
     {"lora_rank": 16, "recompute": "none"}),
    ("finetuning_type: full\nlora_rank: 16\ndeepspeed: examples/ds_z0_config.json",
     {"zero": 0, "framework": "deepspeed"}),
    ("finetuning_type: full\ntensor_model_parallel_size: 2\ncutoff_len: 512",
     {"tp": 2, "seq": 512, "microbatch": 2, "microbatches": 4, "framework": "megatron-core"}),
])  # fmt: skip
def test_files_of_llama_factory_are_read(read, text, fields):
    batch = "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    plan = read("llama_factory.yaml", batch + text)
    assert fields.items() <= plan.fields.items()
    assert ("lora_rank" in plan.fields) == ("lora_rank" in fields)


def test_sections_of_megatron_bridge_are_read(read):
    text = "model: {tensor_model_parallel_size: 2, recompute_granularity: null, seq_length: 8192}\n"
    text += "train: {global_batch_size: 8, micro_batch_size: 4}\nmixed_precision: bf16_mixed\n"
    text += "ddp: {use_distributed_optimizer: true, data_parallel_sharding_strategy: optim_grads}\n"
    plan = read("bridge.yaml", text)
    assert plan.fields == {
        "tp": 2, "recompute": "none", "seq": 8192, "global_batch": 8, "microbatch": 4,
        "precision": "bf16", "zero": 1, "framework": "megatron-core",
    }  # fmt: skip
    assert plan.ignored == ("ddp.data_parallel_sharding_strategy = optim_grads",)
    sharded = read("bridge.yaml", text.replace("ddp: {", "ddp: {use_megatron_fsdp: true, "))
    assert sharded.fields["zero"] == 2


RECIPES = """
LENGTH: int = 8192

def _base():
    return Trainer.Config(
        model_spec=registry("8B", converters=[Float8.Config(), MXFP8LinearConverter.Config()]),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * LENGTH, max_context_length=LENGTH
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )

def titan() -> Trainer.Config:
    config = _base()
    config.parallelism = ParallelismConfig(tensor_parallel_degree=1)
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=2)
    config.parallelism.data_parallel_shard_degree = -1
    config.training.num_tokens_per_train_step = config.training.max_context_length
    config.activation_checkpoint = None
    config.compile.enable = True
    return config

def bridge(peft="lora"):
    cfg = _common()
    cfg.model.tensor_model_parallel_size = 2
    cfg.mixed_precision = get_precision("fp8_mx")
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.peft = default_peft_config(peft)
    other.model.context_parallel_size = 4
    _tuned(cfg)
    return cfg

def open(tp=4):
    cfg = _common()
    if tp > 2:
        cfg.model.tensor_model_parallel_size = tp
    return cfg
"""


def test_recipes_in_python_are_read_without_being_run(tmp_path):
    (path := tmp_path / "recipes.py").write_text(RECIPES)
    titan, bridge = (read_any_plan(Path(f"CONFIG={name} {path}")) for name in ("titan", "bridge"))
    assert titan.fields == {
        "precision": "mxfp8", "microbatch": 2, "seq": 8192, "pp": 2, "recompute": "none",
        "zero": 3, "global_batch": 1, "framework": "torchtitan",
    }  # fmt: skip
    assert bridge.fields == {
        "tp": 2, "precision": "mxfp8", "overlap": "all", "lora_rank": 32,
        "framework": "megatron-core",
    }  # fmt: skip
    assert (titan.ignored, bridge.ignored) == ((), ("_common()", "_tuned()"))


def test_a_recipe_that_is_open_or_not_named_is_refused(tmp_path):
    (path := tmp_path / "recipes.py").write_text(RECIPES)
    refused(
        "parallel_size is decided by an if or a loop", read_any_plan, Path(f"CONFIG=open {path}")
    )
    refused("has 3 functions that may be recipes: titan, bridge, open. Name", read_any_plan, path)
    refused("has no function x: titan", read_any_plan, Path(f"CONFIG=x {path}"))
    path.write_text("def plain():\n    return Config(steps=1)")
    refused("states no degree and no batch", read_any_plan, path)
    path.write_text("def half(:")
    refused("is not Python", read_any_plan, path)


def test_layers_of_chunks_are_completed(read):
    fields = read("a.txt", "--pipeline-model-parallel-layout Et*3|(t*3|)*2t*3L "
                           "--pipeline-model-parallel-size 2").fields  # fmt: skip
    plan = complete(fields, as_model("gpt2"), cluster("dgx-h100"))
    assert (plan.stage_layers, plan.vpp) == ((3, 3, 3, 3), 2)


def test_a_launch_by_accelerate_is_compared_with_the_ranks_of_the_plan(read):
    text = "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\n"
    plan, servers = read("accelerate.yaml", text), as_cluster("dgx-h100:2")
    mine = ParallelPlan(dp=16, global_batch=16)
    beside = beside_the_plan(plan, mine, named("llama-3.1-8b"), servers)
    assert (beside.differs, beside.ignored) == (("num_processes is 8, not 16",), ())
    refused("must be one of fsdp, multi_gpu", read, "a.yaml", "distributed_type: TPU")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.yaml", "kind: Job\nspec: 1",
     "no plan of cluster-sim, Megatron-LM.*begins with 'kind', 'spec'"),
    ("job.toml", "[parallelism\n", "is not TOML"),
    ("ds.json", '{"train_batch_size": ', "is not JSON"),
    ("ds.json", '{"train_batch_size": 8, "train_batch_size": 9}', "train_batch_size appears twice"),
    ("a.yaml", "model: {recompute_modules: moe, micro_batch_size: 1}", "a list of core_attn, "),
    ("run.sh", f"{EXPERTS} --moe-token-dispatcher-type nccl", "must be one of alltoall, "),
    ("run.sh", "--tensor-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
     "needs num-layers"),
    *(
        ("ds.json", f'{{"train_batch_size": 8, "zero_optimization": {{"stage": {stage}}}}}',
         r"zero_optimization\.stage is .* which is no valid zero")
        for stage in ("Infinity", "-1", "true", "[1, 2]", '"x"', "1e999")
    ),
    ("run.sh", "--tensor-model-parallel-size four", "four.*whole number"),
    ("run.sh", "--tensor-model-parallel-size 0", "'0'.*whole number"),
    ("run.sh", "--tensor-model-parallel-size 2.5", "2.5.*whole number"),
    ("run.sh", "--tensor-model-parallel-size", "True.*whole number"),
    ("run.sh", "--tensor-model-parallel-size 2 --fp8-format int8", "int8.*one of hybrid, e4m3"),
    ("run.sh", "--micro-batch-size 1 --recompute-granularity most", "most.*one of full"),
    ("run.sh", "--micro-batch-size 1 --bf16=perhaps", "perhaps.*true or false"),
    ("run.sh", "--micro-batch-size 1 --data-parallel-sharding-strategy all", "all.*no_shard"),
    ("ds.json", '{"train_batch_size": -1}', "-1.*whole number"),
    ("ds.json", '{"train_batch_size": true}', "True.*whole number"),
    ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": "on"}}', "'on'.*true or false"),
    ("ds.json", '{"zero_optimization": {"reduce_bucket_size": -5}}', "-5.*number of elements"),
    ("job.toml", "[parallelism]\ntensor_parallel_degree = -1", "-1.*whole number"),
    ("job.toml", "[parallelism]\ndata_parallel_shard_degree = 0", "0.*whole number"),
    ("job.toml", '[parallelism]\npipeline_parallel_schedule = "Best"', "Best.*like one of"),
    ("job.toml", '[activation_checkpoint]\nmode = "some"', "some.*one of full"),
    ("nemo.yaml", "model: {tensor_model_parallel_size: two}", "two.*whole number"),
    ("nemo.yaml", "trainer: {precision: 8, strategy: x}", "8.*one of bf16"),
    ("nemo.yaml", "model: {micro_batch_size: 1, sequence_parallel: maybe}", "true or false"),
    ("a.yml", "remat_policy: some", "some.*one of full, none"),
    ("a.yml", "remat_policy: full\nquantization: int8", "int8.*precision"),
    ("a.yml", "per_device_batch_size: 0.25\nici_tensor_parallelism: 2",
     "0.25.*a replica of 2 devices has 0.5 at once"),
    ("a.yml", "ici_tensor_parallelism: -1", "ici_tensor.* is -1.*whole number"),
    ("a.yml", "ici_sequence_parallelism: 2", "no such axis"),
    ("a.yml", "dcn_pipeline_parallelism: 2", "num_pipeline_repeats"),
    ("nxd.yaml", "trainer: {lnc: 3}\ndistributed_strategy: {x: 1}", "lnc is 3.*1 or 2"),
    ("nxd.yaml", "distributed_strategy: {tensor_model_parallel_size: '${env:TP}'}", "env:TP"),
])  # fmt: skip
def test_a_value_that_cannot_be_read_is_no_default(read, name, text, message):
    refused(message, read, name, text)


@pytest.mark.parametrize(("script", "tp"), [
    ("TP=8\ntrain --tensor-model-parallel-size $TP", 8),
    ("export TP=8; train --tensor-model-parallel-size=${TP}", 8),
    ("TP=${TP:-8}\nA=$TP\ntrain --tensor-model-parallel-size ${A}", 8),
    ("train --tensor-model-parallel-size ${TP:-8}", 8),
    ("A=2\nB=$(( (A + 2) * ${C:-4} / 2 ))\ntrain --tensor-model-parallel-size $B", 8),
    ("A=2\ntrain --tensor-model-parallel-size $(($A+6)) --bf16", 8),
    ("ARGS=(\n # comment's end \\\n --tensor-model-parallel-size 8)\ntrain ${ARGS[@]}", 8),
    ('ARGS=" \\\n --bf16 --tensor-model-parallel-size 8"\ntrain $ARGS', 8),
    ("bash -c 'train --tensor-model-parallel-size 8 --bf16'", 8),
    ("if [ -n a ]; then LR=1; fi\ntrain --lr $LR --tensor-model-parallel-size 8", 8),
    ("train --tensor-model-parallel-size $TP", "TP, which the file does not state"),
    ("train --tensor-model-parallel-size $((64/8))", 8),
    ("train --tensor-model-parallel-size $((64/$N))", r"is \$\(\(64/\$N\)\), which"),
    ("A=$((A+1))\ntrain --tensor-model-parallel-size $A", "does not state as a literal"),
    ("train --tensor-model-parallel-size $((8/0))", "does not state as a literal"),
    ("A=7\ntrain --tensor-model-parallel-size $(( 11 + (A - 14) / 2 ))", 8),
    ("A=7\ntrain --tensor-model-parallel-size $(( 9 + (2 - A) % 4 ))", 8),
    pytest.param(f"train --tensor-model-parallel-size $(({'1+' * 5000}1))",
                 "does not state as a literal", id="sum of 5,001 numbers"),
    ("TP=$1\ntrain --tensor-model-parallel-size $TP", "does not state as a literal"),
    ("TP=1\nTP=2\ntrain --tensor-model-parallel-size $TP", "sets in several ways"),
    ("if a; then TP=2; fi\ntrain --tensor-model-parallel-size $TP", "does not state"),
    ("if a; then train --tensor-model-parallel-size 2; fi", "decided by an if or a case"),
    ("a --tensor-model-parallel-size 2\nb --tensor-model-parallel-size 4", "as 2 and as 4"),
    ("train --tensor-model-parallel-size $TP --seq-length $SEQ", "TP, .*seq-length is .SEQ, "),
    ("train --tensor-model-parallel-size '8", "No closing quotation.*Close its quotes"),
])  # fmt: skip
def test_variables_of_a_script_are_put_in_or_refused(read, script, tp):
    if isinstance(tp, str):
        refused(tp, read, "run.sh", script)
    else:
        assert read("run.sh", script).fields["tp"] == tp


def test_a_flag_takes_no_word_and_options_that_nobody_sees_are_named(read):
    plan = read("run.sh", "train --micro-batch-size 2 --sequence-parallel $EXTRA_ARGS --lr 1")
    assert plan.fields == {"microbatch": 2, "sequence_parallel": True, "framework": "megatron-core"}
    assert plan.ignored == ("$EXTRA_ARGS", "lr")
    script = 'A=(--lr 1)\nB="--bf16 --x"\nC=$1\nrun --micro-batch-size 2 ${A[@]} $B $C'
    assert read("run.sh", script).ignored == ("$C", "lr", "x")


def test_a_training_file_of_nxd_with_compiler_flags(read):
    """It has the form of the examples of Neuron's NxD Training."""
    plan = read(
        "nxd.yaml",
        "trainer: {devices: 64, lnc: 2, gradient_clip_val: 1.0, max_steps: 10}\n"
        "exp_manager: {model_parallel_size: '${multiply:${a.b}, ${c.d}}'}\n"
        "distributed_strategy: {tensor_model_parallel_size: 32, zero1: False}\n"
        "data: {seq_length: '${model.encoder_seq_length}', train_dir: /data}\n"
        "model:\n"
        "  encoder_seq_length: 8192\n"
        "  max_position_embeddings: ${.encoder_seq_length}\n"
        "  fusions: {flash_attention: True}\n"
        "  moe: {capacity_factor: 2.0}\n"
        "model_alignment_strategy: {peft: {lora_rank: 16, target_modules: [qkv_proj]}}\n"
        "precision: {type: fp32}\n"
        "compiler_flags: '--model-type transformer'\n",
    )
    assert (plan.tool, dict(plan.fields)) == ("NxD Training", {
        "tp": 32, "zero": 0, "seq": 8192, "ranks_per_chip": 4, "attention": "fused",
        "capacity_factor": 2.0, "lora_rank": 16, "lora_on": "attention", "precision": "bf16",
        "framework": "neuronx",
    })  # fmt: skip
    assert plan.may_change_time == (
        "compiler_flags", "model_alignment_strategy.peft.target_modules = ['qkv_proj']",
        "precision.type = fp32",
    )  # fmt: skip
    assert plan.sentence == (
        f"The plan is NxD Training's; it has no field for {', '.join(plan.may_change_time)}, which "
        "may change the time, nor for data.train_dir, exp_manager.model_parallel_size, "
        "model.max_position_embeddings, trainer.gradient_clip_val, trainer.max_steps, which cannot "
        "change the time."
    )


def test_a_file_of_nxd_has_the_plan_it_means(read):
    """Sequences as long as the data's, stages as they are cut, and nothing recomputed."""
    text = (
        "distributed_strategy: {pipeline_model_parallel_size: 4}\n"
        "data: {seq_length: 4096}\n"
        "model:\n"
        "  encoder_seq_length: 8192\n"
        "  num_layers: 80\n"
        "  pipeline_cuts: [model.layers.18, model.layers.39, model.layers.60]\n"
        "  activations_checkpoint_granularity: null\n"
        "  optim: {name: adamw_fp32OptState}\n"
    )
    assert dict(read("nxd.yaml", text).fields) == {
        "pp": 4, "vpp": 1, "seq": 4096, "stage_layers": (19, 21, 21, 19), "recompute": "none",
        "optimizer": "adamw", "framework": "neuronx",
    }  # fmt: skip
    lion = text.replace("adamw_fp32OptState", "lion")
    assert "model.optim.name = lion" in read("nxd.yaml", lion).may_change_time
    refused("names of layers in order", read, "nxd.yaml", text.replace("layers.39", "layers.90"))


MODEL = named("llama-3.1-8b")
FRAMEWORK = {
    "megatron": "megatron-core", "nemo": "megatron-core", "torchtitan": "torchtitan",
    "deepspeed": "deepspeed", "nxd": "neuronx", "maxtext": "maxtext",
}  # fmt: skip
DEGREES = st.sampled_from([1, 2, 4])


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a plan, whatever a tool can run of them."""
    pp = draw(DEGREES)
    schedule = draw(st.sampled_from(["1f1b", "interleaved", "gpipe", "zero-bubble"]))
    precision = draw(st.sampled_from(["bf16", "fp8"]))
    recipe = draw(st.sampled_from(["tensorwise", "blockwise"])) if precision == "fp8" else None
    dp, microbatch = draw(DEGREES), draw(DEGREES)
    return {
        "tp": draw(DEGREES), "pp": pp, "dp": dp, "cp": draw(st.sampled_from([1, 2])),
        "schedule": schedule if pp > 1 else "1f1b",
        "vpp": draw(st.sampled_from([2, 4])) if pp > 1 and schedule == "interleaved" else 1,
        "microbatch": microbatch,
        "global_batch": dp * microbatch * pp * draw(st.sampled_from([2, 3])),
        "seq": draw(st.sampled_from([2048, 8192])), "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "reshard": draw(st.booleans()), "sequence_parallel": draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "recompute_every": draw(st.sampled_from([1, 2])),
        "overlap": draw(st.sampled_from(["none", "dp", "all"])),
        "order": draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")])),
        "precision": precision, **({"fp8_recipe": recipe} if recipe else {}),
        "stage_layers": draw(st.sampled_from([(), (17, 15)])) if pp == 2 else (),
        "bucket_bytes": draw(st.sampled_from([0, 2**28])),
        "lora_rank": draw(st.sampled_from([0, 0, 0, 16])),
    }  # fmt: skip


def constructed(fields: dict[str, Any], tool: str) -> ParallelPlan | None:
    """The plan of drawn fields; None where they contradict each other."""
    try:
        return ParallelPlan(**fields, framework=FRAMEWORK[tool])
    except InputError:
        return None


def test_maxtext_is_written_for_whole_slices_alone():
    part = ParallelPlan(tp=4, framework="maxtext")
    message = "slices of 8 chips, and tp 4, cp 1, pp 1 and dp 1 do not. Choose degrees"
    refused(message, launch_file, "maxtext", part, MODEL, cluster("dgx-h100:1"), [])


@pytest.mark.parametrize("tool", ["megatron", "nemo", "torchtitan", "deepspeed", "maxtext"])
@examples(60)
@given(fields=plans())
def test_what_is_written_is_read_as_the_plan(tool, fields):
    plan = constructed(fields, tool)
    if plan is None:
        return
    place = cluster(f"dgx-h100:{max(1, plan.ranks // 8)}")
    if plan.ranks != place.chips:
        return
    try:
        text = launch_file(tool, plan, MODEL, place, ["a remark"])
    except InputError as refusal:
        refused = str(refusal)
    else:
        refused = ""
    assert "\n" not in refused
    if refused:
        return
    read = other_plan(Path(TOOLS[tool].file), text)
    again = complete(read.fields, MODEL, place)
    idle = {*idle_fields(replace(again, assumed=()), MODEL), *idle_fields(plan, MODEL)}
    differing = {name for name in PLAN_FIELDS if getattr(plan, name) != getattr(again, name)}
    assert differing <= idle


WRITTEN = ParallelPlan(tp=2, dp=8, global_batch=64, seq=8192)
SERVERS = cluster("dgx-h100:2")


def test_a_file_of_megatron_has_the_sizes_of_model_and_servers():
    plan = replace(WRITTEN, pp=2, dp=4, stage_layers=(17, 15), framework="megatron-core")
    text = launch_file("megatron", plan, MODEL, SERVERS, ["by a command"])
    lines = [line.rstrip(" \\") for line in text.splitlines()]
    assert lines[:2] == ["#!/bin/bash", "# by a command"]
    assert {
        "  --num-layers 32", "  --num-query-groups 8", "  --swiglu", "  --bf16",
        "  --pipeline-model-parallel-layout 'Et*17|t*15L'", "  --tensor-model-parallel-size 2",
        "  --use-distributed-optimizer", "  --overlap-grad-reduce",
    } <= {*lines}  # fmt: skip
    assert "--nproc-per-node 8 --nnodes 2" in text
    for zero, gathers in ((1, 1), (0, 0)):  # parameters, beside the forward pass
        text = launch_file("megatron", replace(plan, zero=zero), MODEL, SERVERS)
        assert text.count("--overlap-param-gather") == gathers


@pytest.mark.parametrize(
    ("name", "fields", "mesh"),
    [
        ("llama-3.1-8b", {"tp": 2, "zero": 3}, {"ici_tensor": 2, "ici_fsdp": 4, "dcn_fsdp": 4}),
        ("llama-3.1-8b", {"pp": 2, "vpp": 2}, {"ici_data": 8, "dcn_data": 2, "dcn_pipeline": 2}),
        ("llama-3.1-8b", {"zero": 1}, {"ici_data": 8, "dcn_data": 4}),
        ("mixtral-8x7b", {"ep": 8, "zero": 3}, {"ici_expert": 8, "dcn_fsdp": 4}),
    ],
)
def test_a_file_of_maxtext_fills_slices_before_it_crosses_them(name, fields, mesh):
    model, place = named(name), cluster("p5.48xlarge:4")
    plan = complete({"zero": 0, "global_batch": 64, "framework": "maxtext", **fields}, model, place)
    read = other_plan(Path("maxtext.yml"), launch_file("maxtext", plan, model, place))
    degrees = {key: value for key, value in read.values.items() if key.endswith("_parallelism")}
    assert {key: size for key, size in degrees.items() if size > 1} == {
        f"{axis}_parallelism": size for axis, size in mesh.items()
    }
    assert math.prod(degrees.values()) == place.chips
    again = complete(read.fields, model, place)
    assert (again.microbatch, again.global_batch, again.dp) == (plan.microbatch, 64, plan.dp)
    assert again.zero == plan.zero
    assert not [key for key in read.ignored if "parallelism" in key]


@pytest.mark.parametrize("tool", ["megatron", "nemo"])
@pytest.mark.parametrize(
    ("settings", "exchange"), [("", "deepep"), (":deepep", "deepep"), (":alltoall", "alltoall")]
)
def test_a_file_says_how_experts_get_their_tokens(tool, settings, exchange):
    model, place = named("mixtral-8x7b"), cluster("dgx-h100:2")
    plan = replace(WRITTEN, dp=8, ep=8, framework=f"megatron-core{settings}", zero=1)
    read = other_plan(Path(TOOLS[tool].file), launch_file(tool, plan, model, place))
    assert read.fields["framework"] == f"megatron-core:{exchange}"


@pytest.mark.parametrize(("tool", "name", "part"), [
    ("megatron", "gemma-3n-e2b", "layer input, streams, layers of several kinds"),
    ("megatron", "qwen3-next-80b-a3b", "recurrence, layers of several kinds"),
    ("nemo", "deepseek-v2-lite", "latent"),
])  # fmt: skip
def test_a_model_of_which_a_file_has_no_keys_is_refused(tool, name, part):
    plan = complete({"framework": "megatron-core"}, named(name), SERVERS)
    refused(f"no keys for {part} of {name}", launch_file, tool, plan, named(name), SERVERS)


def test_a_file_states_latent_attention_and_the_layers_with_experts():
    model = named("deepseek-v2-lite")
    plan = complete({"ep": 8, "framework": "megatron-core"}, model, SERVERS)
    text = launch_file("megatron", plan, model, SERVERS, ["by a command"])
    for words in (
        "--multi-latent-attention \\", "--kv-lora-rank 512", "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64", "--v-head-dim 128", "--moe-layer-freq '([0]*1+[1]*26)'",
    ):  # fmt: skip
        assert words in text
    small = named("gpt-oss-20b")
    text = launch_file(
        *("nemo", complete({"ep": 8, "framework": "megatron-core"}, small, SERVERS), small),
        *(SERVERS, ["by a command"]),
    )
    assert "# Add what is not stated here: qkv bias, output bias, sinks, window." in text


def test_sizes_of_a_file_are_compared_with_the_model_and_the_servers():
    """Equal ones are not named, and a file of another model or cluster is called one."""
    machine, small = cluster("dgx-h100:2"), named("llama-3.1-8b")
    plan = complete({"tp": 4, "framework": "megatron-core"}, small, machine)
    read = other_plan(Path("launch.sh"), launch_file("megatron", plan, small, machine))
    same = beside_the_plan(read, plan, small, machine)
    assert (same.ignored, same.differs) == (("master-addr", "master-port", "node-rank"), ())
    large, machine = named("llama-3.1-70b"), cluster("dgx-h100:4")
    other = beside_the_plan(read, complete({"tp": 8}, large, machine), large, machine)
    assert "num-layers is 32, not 80" in other.differs
    assert "nnodes is 2, not 4" in other.differs
    assert other.sentence.startswith("The file is of another job, whose ffn-hidden-size is 14336, ")
    assert other.document()["plan_file"]["differs"] == other.differs
    maxtext = "remat_policy: full\nbase_emb_dim: 8192\nmodel_name: "
    for name, text, model, differs in (
        ("a.txt", f"{TP} 4\n--vocab-size 32000\n", small, ("vocab-size is 32000, not 128256",)),
        ("a.toml", '[model]\nflavor = "8B"\n[parallelism]\nx = 1', large,
         ("model.flavor is 8B, not 70B",)),
        ("a.yml", f"{maxtext}llama3.1-70b\n", large, ()),
        ("a.yml", f"{maxtext}llama3-tuned\n", large, ()),
        ("a.yml", f"{maxtext}llama2-70b\n", large,
         ("model_name is llama2-70b, not llama-3.1-70b",)),
    ):  # fmt: skip
        plan = complete({"tp": 8}, model, machine)
        read = other_plan(Path(name), text)
        assert beside_the_plan(read, plan, model, machine).differs == differs


def test_a_file_of_torchtitan_and_one_of_deepspeed():
    sharded = replace(WRITTEN, tp=1, dp=16, zero=3)
    for framework, compiled in (("torchtitan", True), ("torchtitan:eager", False)):
        titan = replace(sharded, precision="fp8", fp8_recipe="rowwise", framework=framework)
        sections = tomllib.loads(launch_file("torchtitan", titan, MODEL, SERVERS))
        assert sections["model"] == {"name": "llama3", "flavor": "8B", "converters": ["float8"]}
        assert sections["parallelism"]["data_parallel_shard_degree"] == -1
        assert sections["compile"] == {"enable": compiled}
    plain = replace(sharded, framework="deepspeed")
    settings_of = json.loads(launch_file("deepspeed", plain, MODEL, SERVERS))
    assert settings_of["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert settings_of["cluster-sim"]["seq"] == 8192


def test_a_file_of_nxd_names_the_cores_of_a_server():
    place = cluster("trn2.48xlarge:2")
    plan = ParallelPlan(
        tp=8, pp=4, dp=4, global_batch=64, seq=8192, ranks_per_chip=4, framework="neuronx",
        stage_layers=(9, 8, 8, 7),
    )  # fmt: skip
    text = launch_file("nxd", plan, MODEL, place)
    read = other_plan(Path("nxd.yaml"), text)
    again = complete(read.fields, MODEL, place)
    assert (again.tp, again.stage_layers, again.ranks_per_chip) == (8, (9, 8, 8, 7), 4)
    assert "devices: 64" in text
    assert "type: mixed_precision" in text
    with pytest.raises(InputError, match=r"one rank a chip\. State --lnc 2"):
        launch_file("nxd", replace(plan, ranks_per_chip=1, dp=1), MODEL, place)


@pytest.mark.parametrize(("tool", "change", "message"), [
    ("torchtitan", {"zero": 2}, "torchtitan has no setting for --zero 2; it would run --zero"),
    ("nemo", {"zero": 3}, "NeMo has no setting for --zero 3; it would run --zero 1"),
    ("megatron", {"lora_rank": 8}, "no setting for --lora-rank 8"),
    ("megatron", {"framework": "fsdp"}, "predicted for framework fsdp.*--framework megatron-c"),
    ("slurm", {}, "tool 'slurm' is none of megatron, nemo"),
])  # fmt: skip
def test_what_a_tool_cannot_run_is_refused(tool, change, message):
    plan = replace(WRITTEN, **{"framework": FRAMEWORK.get(tool, ""), **change})
    refused(message, launch_file, tool, plan, MODEL, SERVERS)


def test_a_launch_may_stand_in_place_of_its_file(tmp_path):
    """A script is read as what it holds; a text with options that is no file, as a command."""
    words = "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 2"
    (script := tmp_path / "launch.sh").write_text(words)
    typed, read = (read_any_plan(Path(f"TP=4 {each}")) for each in (words, script))
    assert (typed.tool, typed.fields) == (read.tool, read.fields)
    assert typed.fields["tp"] == 4
    refused("the command: tensor-model-parallel-size", read_any_plan, Path(words))


def test_tokens_of_maxtext_are_looked_up_as_its_file_says(read):
    """Rows by index are the default of its base.yml, and products with one-hot rows an option."""
    line = "python3 MaxText/train.py MaxText/configs/base.yml per_device_batch_size=2"
    assert read("a.sh", line).fields["framework"] == "maxtext:fetched"
    assert read("a.sh", f"{line} use_iota_embed=true").fields["framework"] == "maxtext"
    over = "ici_sequence_parallelism=16 ici_tensor_parallelism=8 per_device_batch_size=0.0078125"
    refused("ici_sequence_parallelism is '16', .* plans have no such axis", read, "a.sh",
            f"python3 MaxText/train.py base.yml {over}")  # fmt: skip


def test_usual_values_of_a_script_are_read_and_its_own_name_is_refused(read):
    script = ': "${TP:=4}"\n: ${SEQ:=2048}\ntorchrun a.py --tensor-model-parallel-size $TP '
    fields = read("a.sbatch", f"{script}--seq-length ${{SEQ}} --zero-stage 2").fields
    assert [fields[name] for name in ("tp", "seq", "zero")] == [4, 2048, 2]
    refused("a.sh launches none of Megatron-LM, .* with a degree or a batch", read, "a.sh",
            "#!/bin/bash\npython train.py model.size=7b")  # fmt: skip


def test_a_recipe_that_is_launched_where_it_is_made_is_read(read):
    """NeMo 2's own programs set the fields of a recipe of the library and hand it to a launcher."""
    plan = read(
        "a.py",
        """
import nemo_run as run
def main():
    recipe = llm.llama3_70b.pretrain_recipe(name="a", num_nodes=2)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.data.global_batch_size = 128
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    run.run(recipe, name="a")
""",
    )
    assert plan.tool == "NeMo"
    assert plan.fields == {
        "tp": 2, "global_batch": 128, "precision": "fp8", "framework": "megatron-core",
    }  # fmt: skip
    assert plan.ignored == ("name", "num_nodes")


TUNED = """
tensor_parallel_dim: 2
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192}
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_70b, lora_rank: 16,
  apply_lora_to_mlp: True}
batch_size: 2
gradient_accumulation_steps: 4
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
optimizer: {_component_: torch.optim.AdamW}
enable_activation_checkpointing: True
fsdp_cpu_offload: True
dtype: bf16
"""


def test_torchtune_and_picotron_are_read(tmp_path):
    (path := tmp_path / "tuned.yaml").write_text(TUNED)
    read = read_any_plan(path)
    assert (read.tool, dict(read.fields)) == ("torchtune", {
        "tp": 2, "seq": 8192, "lora_rank": 16, "lora_on": "all", "microbatch": 2,
        "microbatches": 4, "optimizer": "adamw", "recompute": "full", "precision": "bf16",
        "zero": 3, "framework": "fsdp",
    })  # fmt: skip
    assert read.may_change_time == ("fsdp_cpu_offload = True",)
    path.write_text(TUNED.replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss"))
    refused("loss 'torchtune.rlhf.loss.DPOLoss' needs more passes", read_any_plan, path)
    (path := tmp_path / "picotron.json").write_text(
        '{"distributed": {"tp_size": 4, "cp_size": 1, "pp_size": 2, "dp_size": 2, '
        '"pp_engine": "afab"}, "training": {"seq_length": 2048, "micro_batch_size": 3, '
        '"gradient_accumulation_steps": 8}}'
    )
    fields = read_any_plan(path).fields
    assert {**fields, "tp": 4, "pp": 2, "dp": 2, "schedule": "gpipe", "seq": 2048} == fields
    assert (fields["microbatch"], fields["microbatches"], fields["zero"]) == (3, 8, 0)


def test_overrides_of_hydra_are_read_as_keys(tmp_path):
    (path := tmp_path / "launch.sbatch").write_text(
        "#!/bin/bash\nTP=4\nsrun python pretrain.py --config-name=gpt "
        "++model.tensor_model_parallel_size=$TP \\\n  +model.sequence_parallel=True "
        "model.micro_batch_size=1 model.global_batch_size=256\n"
    )
    read = read_any_plan(path)
    assert (read.tool, dict(read.fields)) == ("NeMo", {
        "tp": 4, "sequence_parallel": True, "microbatch": 1, "global_batch": 256,
        "framework": "megatron-core",
    })  # fmt: skip


def test_options_of_a_trainer_are_read(tmp_path):
    (path := tmp_path / "launch.sbatch").write_text(
        "srun torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 2 "
        '--gradient_accumulation_steps 4 --bf16 True --fsdp "full_shard auto_wrap"\n'
    )
    read = read_any_plan(path)
    assert (read.tool, dict(read.fields)) == ("Accelerate", {
        "microbatch": 2, "microbatches": 4, "precision": "bf16", "zero": 3,
        "framework": "transformers",
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", "#!/bin/sh\nllamafactory-cli train c/sft.yaml", "but names c/sft.yaml. If that"),
        ("ray.yaml", "entrypoint: axolotl train my.yml\nworking_dir: .", "but names my.yml. If"),
        ("b.sh", "#!/bin/sh\npython3 -m verl.trainer.main_ppo x=1", "launches verl, whose steps"),
    ],
)
def test_a_launch_without_a_plan_says_where_it_is(tmp_path, name, text, message):
    (path := tmp_path / name).write_text(text)
    refused(message, read_any_plan, path)
