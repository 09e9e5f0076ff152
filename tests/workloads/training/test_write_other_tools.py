"""Plans written for other tools: each file is read back as the plan, or the plan is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.training.plan.other_tools import other_plan
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import idle_fields
from workloads.training.usual_plan import complete
from workloads.training.write_other_tools import TOOLS, beside_the_plan, launch_file

MODEL = named("llama-3.1-8b")
FRAMEWORK = {
    "megatron": "megatron-core", "nemo": "megatron-core", "torchtitan": "torchtitan",
    "deepspeed": "deepspeed", "nxd": "neuronx",
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


@pytest.mark.parametrize("tool", ["megatron", "nemo", "torchtitan", "deepspeed"])
@examples(60)
@given(fields=plans())
def test_what_is_written_is_read_as_the_plan(tool: str, fields: dict[str, Any]) -> None:
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
    assert read is not None
    again = complete(read.fields, MODEL, place)
    idle = {*idle_fields(replace(again, assumed=()), MODEL), *idle_fields(plan, MODEL)}
    differing = {name for name in PLAN_FIELDS if getattr(plan, name) != getattr(again, name)}
    assert differing <= idle


@examples(40)
@given(
    fields=plans(),
    order=st.sampled_from([("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")]),
    zero=st.sampled_from([0, 1, 3]),
)
def test_what_megatron_has_options_for_is_never_refused(
    fields: dict[str, Any], order: tuple[str, ...], zero: int
) -> None:
    usual = {"order": order, "zero": zero, "reshard": True, "recompute_every": 1, "lora_rank": 0}
    schedule = "interleaved" if fields["vpp"] > 1 else "1f1b"
    stated = {**fields, **usual, "schedule": schedule, "bucket_bytes": 0}
    plan = constructed(stated, "megatron")
    place = cluster("dgx-h100:16")
    if plan is None or plan.ranks > place.chips:
        return
    dp = place.chips // (plan.ranks // plan.dp)
    filling = replace(plan, dp=dp, global_batch=dp * plan.microbatch * plan.pp * 2)
    assert launch_file("megatron", filling, MODEL, place).startswith("#!/bin/bash")


PLAN = ParallelPlan(tp=2, dp=8, global_batch=64, seq=8192)
PLACE = cluster("dgx-h100:2")


def test_a_file_of_megatron_has_the_sizes_of_model_and_servers() -> None:
    plan = replace(PLAN, pp=2, dp=4, stage_layers=(17, 15), framework="megatron-core")
    text = launch_file("megatron", plan, MODEL, PLACE, ["by a command"])
    lines = [line.rstrip(" \\") for line in text.splitlines()]
    assert lines[:2] == ["#!/bin/bash", "# by a command"]
    assert {
        "  --num-layers 32", "  --num-query-groups 8", "  --swiglu", "  --bf16",
        "  --pipeline-model-parallel-layout 'Et*17|t*15L'", "  --tensor-model-parallel-size 2",
        "  --use-distributed-optimizer", "  --overlap-grad-reduce",
    } <= {*lines}  # fmt: skip
    assert "--nproc-per-node 8 --nnodes 2" in text


@pytest.mark.parametrize("tool", ["megatron", "nemo"])
@pytest.mark.parametrize(
    ("settings", "exchange"), [("", "deepep"), (":deepep", "deepep"), (":alltoall", "alltoall")]
)
def test_a_file_says_how_experts_get_their_tokens(tool: str, settings: str, exchange: str) -> None:
    model, place = named("mixtral-8x7b"), cluster("dgx-h100:2")
    plan = replace(PLAN, dp=8, ep=8, framework=f"megatron-core{settings}", zero=1)
    read = other_plan(Path(TOOLS[tool].file), launch_file(tool, plan, model, place))
    assert read is not None
    assert read.fields["framework"] == f"megatron-core:{exchange}"


def test_sizes_of_a_file_are_compared_with_the_model_and_the_servers() -> None:
    """Equal ones are not named, and a file of another model or cluster is called one."""
    machine, small = cluster("dgx-h100:2"), named("llama-3.1-8b")
    plan = complete({"tp": 4, "framework": "megatron-core"}, small, machine)
    read = other_plan(Path("launch.sh"), launch_file("megatron", plan, small, machine))
    assert read is not None
    same = beside_the_plan(read, plan, small, machine)
    assert (same.ignored, same.differs) == (("master-addr", "master-port", "node-rank"), ())
    large, machine = named("llama-3.1-70b"), cluster("dgx-h100:4")
    other = beside_the_plan(read, complete({"tp": 8}, large, machine), large, machine)
    assert "num-layers is 32, not 80" in other.differs
    assert "nnodes is 2, not 4" in other.differs
    assert other.sentence.startswith("The file is of another job, whose ffn-hidden-size is 14336, ")
    assert other.document()["plan_file"]["differs"] == other.differs
    vocab = other_plan(Path("a.txt"), "--tensor-model-parallel-size 4\n--vocab-size 32000\n")
    assert vocab is not None
    assert beside_the_plan(vocab, plan, small, machine).differs == (
        "vocab-size is 32000, not 128256",
    )
    titan = other_plan(Path("a.toml"), '[model]\nflavor = "8B"\n[parallelism]\nx = 1')
    assert titan is not None
    titan = beside_the_plan(titan, complete({"tp": 8}, large, machine), large, machine)
    assert titan.differs == ("model.flavor is 8B, not 70B",)
    for name, differs in (("llama3.1-70b", 0), ("llama2-70b", 1), ("llama3-tuned", 0)):
        keys = f"remat_policy: full\nmodel_name: {name}\nbase_emb_dim: 8192\n"
        maxtext = other_plan(Path("a.yml"), keys)
        assert maxtext is not None
        maxtext = beside_the_plan(maxtext, complete({"tp": 8}, large, machine), large, machine)
        assert maxtext.differs == (f"model_name is {name}, not llama-3.1-70b",) * differs


def test_a_file_of_torchtitan_and_one_of_deepspeed() -> None:
    sharded = replace(PLAN, tp=1, dp=16, zero=3, precision="fp8", fp8_recipe="rowwise")
    titan = replace(sharded, framework="torchtitan")
    sections = tomllib.loads(launch_file("torchtitan", titan, MODEL, PLACE))
    assert sections["model"] == {"name": "llama3", "flavor": "8B", "converters": ["float8"]}
    assert sections["parallelism"]["data_parallel_shard_degree"] == -1
    assert sections["compile"] == {"enable": True}
    eager = replace(titan, framework="torchtitan:eager")
    sections = tomllib.loads(launch_file("torchtitan", eager, MODEL, PLACE))
    assert sections["compile"] == {"enable": False}
    plain = replace(PLAN, tp=1, dp=16, zero=3, framework="deepspeed")
    settings_of = json.loads(launch_file("deepspeed", plain, MODEL, PLACE))
    assert settings_of["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert settings_of["cluster-sim"]["seq"] == 8192


def test_a_file_of_nxd_names_the_cores_of_a_server() -> None:
    place = cluster("trn2.48xlarge:2")
    plan = ParallelPlan(
        tp=8, pp=4, dp=4, global_batch=64, seq=8192, ranks_per_chip=4, framework="neuronx",
        stage_layers=(9, 8, 8, 7),
    )  # fmt: skip
    text = launch_file("nxd", plan, MODEL, place)
    read = other_plan(Path("nxd.yaml"), text)
    assert read is not None
    again = complete(read.fields, MODEL, place)
    assert (again.tp, again.stage_layers, again.ranks_per_chip) == (8, (9, 8, 8, 7), 4)
    assert "devices: 64" in text
    assert "type: mixed_precision" in text
    with pytest.raises(InputError, match=r"one rank a chip\. State --lnc 2"):
        launch_file("nxd", replace(plan, ranks_per_chip=1, dp=1), MODEL, place)


@pytest.mark.parametrize(
    ("tool", "change", "message"),
    [
        ("torchtitan", {"zero": 2}, "torchtitan has no setting for --zero 2; it would run --zero"),
        ("nemo", {"zero": 3}, "NeMo has no setting for --zero 3; it would run --zero 1"),
        ("megatron", {"lora_rank": 8}, "no setting for --lora-rank 8"),
        ("megatron", {"framework": "fsdp"}, "predicted for framework fsdp.*--framework megatron-c"),
        ("slurm", {}, "tool 'slurm' is none of megatron, nemo"),
    ],
)  # fmt: skip
def test_what_a_tool_cannot_run_is_refused(tool: str, change: dict[str, Any], message: str) -> None:
    plan = replace(PLAN, **{"framework": FRAMEWORK.get(tool, ""), **change})
    with pytest.raises(InputError, match=message):
        launch_file(tool, plan, MODEL, PLACE)


@pytest.mark.parametrize(("name", "norm"), [("llama-3.1-8b", "rmsnorm"), ("gpt2", "layernorm1p")])
def test_a_file_of_nemo_names_the_model_s_norm(name: str, norm: str) -> None:
    model = named(name)
    text = launch_file("nemo", complete({"framework": "megatron-core"}, model, PLACE), model, PLACE)
    assert text.count(norm) == 1
