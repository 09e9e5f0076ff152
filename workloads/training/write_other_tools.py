"""Writer of a plan as the file that another tool launches, checked by reading the file back."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError, check_choice
from topologies.support.files.tool_files import Unknown
from workloads.models.model import Model
from workloads.options.tool_keys import written
from workloads.training.frameworks.framework import framework, framework_of
from workloads.training.plan import other_tools
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import DEFAULTS, idle_fields
from workloads.training.usual_plan import complete

Keys = Mapping[str, Any]


class Tool(NamedTuple):
    """A tool for which plans are written."""

    name: str  # name by which its files are read
    file: str  # name of the file in a folder
    form: Callable[[Keys, Sequence[str]], str]  # text of a file with keys and comments
    # Keys that no plan has; DeepSpeed's files have none.
    beside: Callable[[ParallelPlan, Model, Cluster], dict[str, Any]] = lambda *_: {}
    # Fields of a model that the keys state; empty where a file leaves the model to the tool.
    states: tuple[str, ...] = ()


def launch_file(
    name: str, plan: ParallelPlan, model: Model, cluster: Cluster, about: Sequence[str] = ()
) -> str:
    """Return the text of a tool's file that runs a plan, which fills the cluster."""
    # ``about``: lines of comment at the top, where the form of the file allows comments. Raises
    # InputError for a plan that the tool has no settings for, or for the framework of another one.
    tool = tool_named(name)
    stated = {each: getattr(plan, each) for each in (*PLAN_FIELDS, "microbatches")}
    plan_keys = written(other_tools.TABLES[tool.name], stated)
    keys = {
        key: None if key in other_tools.NULLS and value == other_tools.NULLS[key] else value
        for key, value in {**tool.beside(plan, model, cluster), **plan_keys}.items()
    }
    back = other_tools.other_plan(Path(tool.file), tool.form(keys, about))
    try:
        read = complete(back.fields if back else {}, model, cluster)
    except InputError as mistake:
        raise InputError(f"{tool.name} would run another plan than {plan!r}: {mistake}") from None
    differing = [each for each in PLAN_FIELDS if getattr(plan, each) != getattr(read, each)]
    _check_same(tool, plan, read, model, cluster)
    idle = [
        f"{each} {_text(getattr(plan, each))} changes nothing in this plan, which is read as "
        f"{_text(getattr(read, each))}."
        for each in differing
        if each != "framework"
    ]
    return tool.form(keys, [*about, *idle, *_not_stated(tool, model)])


def beside_the_plan(
    filed: other_tools.OtherPlan, plan: ParallelPlan, model: Model, cluster: Cluster
) -> other_tools.OtherPlan:
    """Return a file's plan, its sizes of model and servers compared with the simulated ones."""
    # What agrees is not worth naming. Words such as those of norms and activations have many forms,
    # so that only numbers tell that the file is of another job.
    sizes = {
        "Accelerate": _processes,
        **{tool.name: tool.beside for tool in TOOLS.values()},
        "MaxText": _maxtext,  # meshes of other forms may be the same plan
    }
    try:
        ours = sizes[filed.tool](plan, model, cluster) if filed.tool in sizes else {}
        # Of Megatron-LM's files, those of others state the vocabulary; ours leave it to the data.
        ours = {"vocab-size": model.vocab, **ours} if filed.tool == "Megatron-LM" else ours
    except InputError:
        return filed  # the tool does not launch such a plan
    kept, differs = [], []
    for key in filed.ignored:
        value, mine = filed.values.get(key), ours.get(key)
        same = _released if key == "model_name" else lambda text: str(text).lower()
        agrees = mine is not None and same(value) == same(mine)
        settings = other_tools.cannot_change_time(key) or re.search(
            "recompute|checkpoint|^parallelism", key
        )
        named = key == "model.flavor" or (same is _released and same(value) and same(mine))
        is_open = isinstance(value, Unknown)
        if (type(mine) is int or named) and not (agrees or settings or is_open):
            differs.append(f"{key} is {str(value)[:40]}, not {mine}")
        elif not agrees:
            kept.append(key)
    return replace(filed, ignored=tuple(kept), differs=tuple(differs))


def _processes(plan: ParallelPlan, _model: Model, cluster: Cluster) -> dict[str, Any]:
    """Return the sizes of a launch by Accelerate."""
    chips = -(-plan.ranks // plan.ranks_per_chip)
    return {"num_processes": plan.ranks, "num_machines": -(-chips // cluster.chips_per_server)}


def _released(name: Any) -> tuple[str, str] | None:
    """Family and size of a model by its name, such as llama3 and 70b; None for one without size."""
    plain = re.sub(r"[^a-z0-9.]", "", str(name).lower())
    parts = re.match(r"([a-z]+\d?)[\d.]*", plain)
    size = re.search(r"\d+(x\d+)?b", str(name).lower())
    return (parts[1], size[0]) if parts and size else None


def tool_named(name: str) -> Tool:
    """Return the tool of a name on the command line."""
    check_choice("tool", name, TOOLS)
    return TOOLS[name]


def own_framework(name: str, cluster: Cluster) -> str:
    """Return the framework that a tool's files stand for, which must train on the cluster."""
    stack = framework(other_tools.FRAMEWORKS[tool_named(name).name])
    stack.check_chip(cluster)
    return stack.text


def _check_same(
    tool: Tool, plan: ParallelPlan, read: ParallelPlan, model: Model, cluster: Cluster
) -> None:
    """Refuse a plan that the tool would run in another way."""
    stack, other = (framework_of(each, cluster) for each in (plan, read))
    if stack.name != other.name or stack.on(cluster, model) != other.on(cluster, model):
        raise InputError(
            f"the plan is predicted for framework {stack.text}, and a file of {tool.name} stands "
            f"for {other.text}. State --framework {other.text}, or leave it out."
        )
    # Fields that change nothing in a plan take their defaults.
    mine, theirs = (
        replace(each, **{name: getattr(DEFAULTS, name) for name in idle_fields(each, model)})
        for each in (replace(plan, assumed=()), replace(read, assumed=()))
    )
    lacking = {
        each: (getattr(mine, each), getattr(theirs, each))
        for each in PLAN_FIELDS
        if each != "framework" and getattr(mine, each) != getattr(theirs, each)
    }
    if lacking:
        words, instead = (
            " ".join(_option(each, values[place]) for each, values in lacking.items())
            for place in (0, 1)
        )
        raise InputError(f"{tool.name} has no setting for {words}; it would run {instead}.")


def _not_stated(tool: Tool, model: Model) -> list[str]:
    """Name what a file leaves out of a model; refuse one of which whole parts are left out."""
    left = {
        each.name.replace("_", " "): getattr(model, each.name)
        for each in fields(Model) if tool.states
        if each.name not in (*tool.states, *BESIDE) and getattr(model, each.name) != each.default
    }  # fmt: skip
    if tool.states and any(layer.window for layer in model.each_layer):
        left.setdefault("window", True)  # of some layers
    parts = [name for name, value in left.items() if is_dataclass(value)]
    kinds = {replace(layer, window=0, keys="last", experts=False) for layer in model.each_layer}
    parts += ["layers of several kinds"] * (bool(tool.states) and len(kinds) > 1)
    if parts:
        raise InputError(
            f"a file of {tool.name} has no keys for {', '.join(parts)} of {model.name}. Write the "
            "plan alone, with --best, and launch the model in your own way."
        )
    return [f"Add what is not stated here: {', '.join(left)}."] if left else []


def _option(field: str, value: Any) -> str:
    """Field and value as an option of the command line."""
    name = field.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value)) or "as even as possible"
    return str(value)


# Keys beside those of the plan, which a launch needs: sizes of the model and of the servers.


def _megatron(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    experts = model.experts
    sizes = {
        "num-layers": model.layers, "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn or (experts.ffn if experts else 0),
        "num-attention-heads": model.heads, "kv-channels": model.head_dim,
        "group-query-attention": model.kv_heads < model.heads,
        "num-query-groups": model.kv_heads if model.kv_heads < model.heads else None,
        "max-position-embeddings": model.positions or plan.seq,
        "normalization": "RMSNorm" if model.norm == "rms" else None,
        "swiglu": model.gated_mlp, "disable-bias-linear": not model.mlp_bias,
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        "position-embedding-type": "learned_absolute" if model.positions else "rope",
    }  # fmt: skip
    if experts:
        sizes |= {
            "num-experts": experts.count, "moe-router-topk": experts.per_token,
            "moe-ffn-hidden-size": experts.ffn, "moe-grouped-gemm": True,
            **_exchange(plan, model, cluster),
            "moe-shared-expert-intermediate-size": experts.shared_ffn or None,
            "moe-latent-size": experts.latent or None,
        }  # fmt: skip
        runs = [(kind, len([*run])) for kind, run in groupby(_with_experts(model))]
        if len(runs) > 1:
            sizes["moe-layer-freq"] = f"({'+'.join(f'[{kind}]*{count}' for kind, count in runs)})"
    if latent := model.latent:
        sizes |= {
            "multi-latent-attention": True, "q-lora-rank": latent.query_rank or None,
            "kv-lora-rank": latent.kv_rank, "qk-head-dim": latent.nope_dim,
            "qk-pos-emb-head-dim": latent.rope_dim, "v-head-dim": latent.value_dim,
        }  # fmt: skip
    if plan.recompute == "full":
        sizes |= {"recompute-method": "uniform", "recompute-num-layers": plan.recompute_every}
    if plan.zero > 1:
        sizes |= {"use-megatron-fsdp": True, "no-gradient-accumulation-fusion": True}
    beside = plan.overlap != "none"
    return {
        "nproc-per-node": cluster.chips_per_server, "nnodes": cluster.servers,
        **sizes, "bf16": True, "overlap-grad-reduce": beside,
        "overlap-param-gather": beside and plan.zero > 0,
    }  # fmt: skip


def _with_experts(model: Model) -> list[int]:
    """Return 1 for each layer with experts and 0 for each other one."""
    return [int(layer.experts) for layer in model.each_layer]


def _exchange(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    """Keys of Megatron-Core that say how experts get their tokens."""
    on_stack = framework_of(plan, cluster).on(cluster, model)
    if not on_stack.numbers.integer("training", "token_exchange"):
        return {"moe-token-dispatcher-type": "alltoall"}
    return {"moe-token-dispatcher-type": "flex", "moe-enable-deepep": True}


def _nemo(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    experts = model.experts
    nodes = {"devices": cluster.chips_per_server, "num_nodes": cluster.servers}
    sizes: dict[str, Any] = {
        "num_layers": model.layers, "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn or (experts.ffn if experts else 0),
        "num_attention_heads": model.heads, "num_query_groups": model.kv_heads,
        "kv_channels": model.head_dim, "max_position_embeddings": model.positions or plan.seq,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "activation": "fast-swiglu" if model.gated_mlp else "gelu",
        "normalization": "rmsnorm" if model.norm == "rms" else "layernorm1p",
    }  # fmt: skip
    if experts:
        sizes |= {"num_moe_experts": experts.count, "moe_router_topk": experts.per_token}
        exchange = _exchange(plan, model, cluster)
        sizes |= {key.replace("-", "_"): value for key, value in exchange.items()}
        sizes["moe_ffn_hidden_size"] = experts.ffn
        if experts.shared_ffn:
            sizes["moe_shared_expert_intermediate_size"] = experts.shared_ffn
        if 0 in (kinds := _with_experts(model)):
            sizes["moe_layer_freq"] = kinds
    if plan.recompute == "full":
        method, every = (f"activations_checkpoint_{word}" for word in ("method", "num_layers"))
        sizes |= {method: "uniform", every: 1}
    return {
        **{f"trainer.{key}": value for key, value in nodes.items()},
        **{f"model.{key}": value for key, value in sizes.items()},
    }


def _nxd(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    if plan.ranks_per_chip == 1 and cluster.numbers.has(cluster.chip, "ranks_per_chip"):
        raise InputError(
            f"NxD Training runs a rank on each logical core of {cluster.chip}, and the plan has "
            "one rank a chip. State --lnc 2, or --ranks-per-chip."
        )
    cores = cluster.chips_per_server * plan.ranks_per_chip
    sizes = {
        key: value
        for key, value in _nemo(plan, model, cluster).items()
        if key.rpartition(".")[2] in NXD_SIZES
    }
    nodes = {"trainer.devices": cores, "trainer.num_nodes": cluster.servers}
    return {**nodes, **sizes, "model.encoder_seq_length": plan.seq}


NXD_SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
    "max_position_embeddings", "share_embeddings_and_output_weights",
)  # fmt: skip
"""Sizes of a model that NxD Training names as NeMo does."""


def _titan(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    del cluster
    name, _, flavor = model.name.rpartition("-")
    keys: dict[str, Any] = {}
    if name.startswith("llama-3"):
        keys |= {"model.name": "llama3", "model.flavor": flavor.upper()}
    if plan.pp > 1:
        keys["training.local_batch_size"] = plan.global_batch // plan.dp
    if plan.recompute == "full" and plan.recompute_every == 2:
        keys["activation_checkpoint.selective_ac_option"] = "2"
    return {
        **keys,
        "parallelism.data_parallel_replicate_degree": 1 if plan.zero else plan.dp,
        "compile.enable": plan.framework.partition(":")[2] != "eager",
    }


def _maxtext(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    del plan, cluster
    return {
        "model_name": model.name, "head_dim": model.head_dim, "base_emb_dim": model.hidden,
        "base_num_decoder_layers": model.layers, "base_mlp_dim": model.ffn,
        "base_num_query_heads": model.heads, "base_num_kv_heads": model.kv_heads,
    }  # fmt: skip


def _maxtext_launch(plan: ParallelPlan, model: Model, cluster: Cluster) -> dict[str, Any]:
    """Keys of MaxText's mesh, whose axes take a slice (ICI) before they cross to others (DCN)."""
    pipelined = plan.microbatches if plan.pp > 1 else 1
    axes = {
        "tensor": plan.tp, "context": plan.cp, "expert": plan.ep,
        "fsdp" if plan.zero == 3 else "data": plan.dp // plan.ep, "pipeline": plan.pp,
    }  # fmt: skip
    keys: dict[str, Any] = {"base_config": "base.yml", **_maxtext(plan, model, cluster)}
    keys["use_iota_embed"] = "fetched" not in plan.framework
    keys |= {f"{net}_{axis}_parallelism": 1 for axis in ("fsdp", "data") for net in ("ici", "dcn")}
    room = cluster.chips_per_domain
    for axis, degree in axes.items():
        inside = math.gcd(degree, room)
        keys |= {f"ici_{axis}_parallelism": inside, f"dcn_{axis}_parallelism": degree // inside}
        room //= inside
    if room > 1:
        chips = cluster.chips_per_domain
        raise InputError(
            f"MaxText's mesh fills slices of {chips} chips, and tp {plan.tp}, cp {plan.cp}, pp "
            f"{plan.pp} and dp {plan.dp} do not. Choose degrees whose product is a multiple of "
            f"{chips}, or another tool."
        )
    devices = plan.tp * plan.cp * plan.pp
    if plan.pp > 1:
        keys |= {"num_pipeline_microbatches": pipelined, "num_pipeline_repeats": plan.vpp}
    return keys | {
        "gradient_accumulation_steps": plan.microbatches // pipelined,
        "per_device_batch_size": plan.microbatch * pipelined / devices,
    }


# Forms of files.


def _script(keys: Keys, about: Sequence[str]) -> str:
    """Shell script that starts Megatron-LM on one server; what its user adds follows."""
    torchrun = " ".join(f"--{key} {keys[key]}" for key in ("nproc-per-node", "nnodes"))
    words = []
    for key, value in keys.items():
        if key in ("nproc-per-node", "nnodes") or value is None or value is False:
            continue
        flag = value is True or key in other_tools.MEGATRON_FLAGS
        words.append(f"--{key}" if flag else f"--{key} {shlex.quote(str(value))}")
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in about),
        "# Run it on every server; data, tokenizer, learning rate and paths follow as arguments.",
        f'torchrun {torchrun} --node-rank "${{NODE_RANK:-0}}" \\',
        '  --master-addr "${MASTER_ADDR:-localhost}" --master-port 6000 pretrain_gpt.py \\',
        *(f"  {word} \\" for word in words),
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _sections(keys: Keys) -> dict[str, Any]:
    """Nested sections of dotted keys."""
    document: dict[str, Any] = {}
    for key, value in keys.items():
        *path, name = key.split(".")
        section = document
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return document


def _yaml(keys: Keys, about: Sequence[str]) -> str:
    text = yaml.safe_dump(_sections(keys), sort_keys=False, default_flow_style=False)
    return "".join(f"# {line}\n" for line in [*about, REST]) + str(text)


def _toml(keys: Keys, about: Sequence[str]) -> str:
    lines = [f"# {line}" for line in [*about, REST]]
    for name, section in _sections(keys).items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _json(keys: Keys, about: Sequence[str]) -> str:
    del about  # JSON has no comments
    return json.dumps(_sections(keys), indent=2) + "\n"


SIZES = (
    "name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated_mlp",
    "tied_embeddings", "positions", "norm", "mlp_bias", "experts",
)  # fmt: skip
"""Fields of a model that the keys of Megatron-LM and NeMo state."""
BESIDE = ("layout", "precision", "prediction_heads", "left_out")
"""Fields that follow from others, or that no step of these tools reads."""
REST = "Data, tokenizer, learning rate and paths are yours to add."
TOOLS = {
    "megatron": Tool("Megatron-LM", "launch.sh", _script, _megatron, (*SIZES, "latent")),
    "nemo": Tool("NeMo", "nemo.yaml", _yaml, _nemo, SIZES),
    "torchtitan": Tool("torchtitan", "torchtitan.toml", _toml, _titan),
    "deepspeed": Tool("DeepSpeed", "deepspeed.json", _json),
    "nxd": Tool("NxD Training", "nxd.yaml", _yaml, _nxd),
    "maxtext": Tool("MaxText", "maxtext.yml", _yaml, _maxtext_launch),
}
"""Tools for which plans are written, by their names on the command line."""
