"""Reader of models from Hugging Face ``config.json`` files: a user's, or a shipped one by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topologies.arguments import fitting
from topologies.errors import InputError, check_type, excerpt, shown, suggestion
from topologies.files.reading import check_regular
from workloads.models.layer_fields import (
    HEADS,
    HIDDEN,
    LAYERS,
    Fields,
    Reader,
    attention,
    feed_forward,
    layers,
    sizes,
)
from workloads.models.model import PREDICTION, Model

LARGEST_CONFIG_BYTES = 2**20
CONFIG = "config.json"
SHIPPED = Path(__file__).parent / "configs"  # directory of the shipped models' configs
SAME_SIZES = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "qwen2.5-72b": "qwen2-72b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "glm-4.6": "glm-4.5",
    "glm-4.7": "glm-4.5",
    "glm-5.1": "glm-5",
    "glm-5.3": "glm-5.2",
    "kimi-k2-thinking": "kimi-k2",
    "kimi-k2.5": "kimi-k2",
    "kimi-k2.6": "kimi-k2",
    "minimax-m2.1": "minimax-m2",
    "minimax-m2.5": "minimax-m2",
    "minimax-m2.7": "minimax-m2",
}
"""Released models that have the sizes of a shipped one, and its name."""
QUANTIZATION_FILES = {
    "hf_quant_config.json": "quantization",
    "quantize_config.json": None,
    "quant_config.json": None,
}
"""Files of ModelOpt, AutoGPTQ and AutoAWQ that state the quantization beside a config that does
not, with the key of the quantization in the file; None for the whole file."""
TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Fields under which configs of several towers have their decoder."""
TOWERS = {
    "vision_config": "vision tower",
    "vision_tower": "vision tower",
    "audio_config": "audio tower",
    "speech_config": "audio tower",
    "num_channels": "patch embedding",
}
"""Fields of towers beside the decoder, and their names in ``Model.left_out``."""
NOT_MODELLED = {
    "is_encoder_decoder": "an encoder beside its decoder",
    "type_vocab_size": "the segment embeddings of an encoder",
    "altup_num_inputs": "alternating updates (AltUp)",
    "num_mem_blocks": "attention blocks that several layers share",
    "parallel_attn_mlp_res": "a dense feed-forward part beside its experts",
    "hc_mult": "hyper-connections",
    "lru_width": "linear recurrent units",
    "hidden_size_per_layer_input": "an embedding of its own in every layer",
    "n_mamba_heads": "attention blocks that several layers share",
    "zero_expert_num": "experts that do nothing",
    "keep_window_size": "a dynamic mask",
    "depth_decoder_config": "a second decoder",
    "H_cycles": "layers that are passed in cycles",
    "gated_norm_rank": "gated norms",
    "per_layer_config": "layers of different widths",
    "global_head_dim": "layers of different widths",
    "block_configs": "layers of different widths",
}
"""Fields of structures that the simulator does not model, and the names of the structures."""
NOT_MODELLED_NAMES = {
    "deepseek-v4": "hc_mult",
    "gemma-3n": "altup_num_inputs",
    "gemma-4": "global_head_dim",
}
"""Released models with such a structure, by a part of their names, and the field of it. Sources:
their config.json."""
NOT_MODELLED_FAMILIES = {
    "bert_generation": "the layers of an encoder, with norms behind their parts",
    "git": "images among its tokens",
    "jetmoe": "experts of attention",
}
"""Families with such structures whose config has no field for them."""


def models() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


RESIDUALS = "attention residuals (under 4% of a training step, by their authors)"
"""Sums over the outputs of blocks of layers before each layer (Kimi Team, Attention Residuals)."""


def named(name: str) -> Model:
    """Return a shipped model, or one with the sizes of a shipped one."""
    # Names of the Hub may be given as they are: the owner, capitals and ``-instruct`` do not count.
    names, plain = models(), name.rpartition("/")[2].lower().removesuffix("-instruct")
    shipped = SAME_SIZES.get(plain, plain)
    if shipped not in names:
        for part, field in NOT_MODELLED_NAMES.items():
            if part in plain:
                raise InputError(
                    f"model {name[:80]!r} has {NOT_MODELLED[field]} ({field}), which is not "
                    "modelled. Use one of `cluster-sim list models`."
                )
        near = suggestion(plain, names)
        raise InputError(
            f"unknown model {name[:80]!r}.{near} `cluster-sim list models` shows {len(names)}, "
            "and any config.json is read."
        )
    text = (SHIPPED / f"{shipped}.json").read_text(encoding="utf-8")
    return from_fields(json.loads(text), name)


MODEL_REMEDY = "Pass a name, such as 'llama-3.1-8b', or a Model."
"""Remedy for a model of a wrong type."""


def as_model(model_or_name: Model | str) -> Model:
    """Return the model itself, or the model that a text names; see :func:`model`."""
    if isinstance(model_or_name, str):
        return model(model_or_name)
    check_type("model", model_or_name, Model, MODEL_REMEDY)
    return model_or_name


@fitting("model")
def model(text: str | Path) -> Model:
    """Return the model of a name or path.

    Parameters
    ----------
    text : str
        Name of a shipped model (``cluster-sim list models``), or the path of a Hugging Face
        ``config.json`` or of the directory that holds one.

    Returns
    -------
    Model
        Layers, widths and vocabulary; ``parameters`` counts its weights.

    Raises
    ------
    InputError
        For an unknown name, and for a configuration that cannot be read or is not modelled.

    Examples
    --------
    >>> model("llama-3.1-8b").parameters
    8030261248
    """
    check_type("model", text, (str, Path), "Pass a name, such as 'llama-3.1-8b', or a path.")
    path = Path(text)
    if path.is_dir():
        return from_config(path / CONFIG)
    if path.suffix == ".json" or path.exists():
        return from_config(path)
    return named(str(text))


def from_config(path: str | Path) -> Model:
    """Read a model from a Hugging Face ``config.json``."""
    path = Path(path)
    if path.name != CONFIG:
        return from_fields(_document(path), path.stem)
    return from_fields(_with_quantization(_document(path), path), path.parent.resolve().name)


def _with_quantization(fields: Fields, path: Path) -> Fields:
    """Fields of a config, with the quantization that a file beside it states if there is one."""
    if stated_quantization(fields, *(fields.get(part) for part in TEXT_PARTS)) is not None:
        return fields
    for name, key in QUANTIZATION_FILES.items():
        beside = path.with_name(name)
        if beside.is_file():
            document = _document(beside)
            stated = document.get(key, document) if key else document
            method = {"quant_method": name} if isinstance(stated, dict) else {}
            return {**fields, "quantization_config": {**method, **stated} if method else stated}
    return fields


def _document(path: Path) -> Fields:
    """Object of a JSON file, which may not be larger than a config is."""
    with check_regular(path).open("rb") as stream:
        content = stream.read(LARGEST_CONFIG_BYTES + 1)
    if len(content) > LARGEST_CONFIG_BYTES:
        raise InputError(
            f"{path} is over 1 MiB, more than any config.json. Name the config, not the weights."
        )
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as mistake:
        why = " ".join(str(mistake).split())[:100]
        raise InputError(f"{path} is not JSON ({why}). Fetch the file again.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no JSON object. Name a model's config.json.")
    return document


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, in which no key may stand twice, as one value would be unread."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice, 40)} stands twice")
    return fields


def from_fields(fields: Fields, name: str) -> Model:
    """Return the model that the fields of a ``config.json`` describe."""
    # Fields are mapped by their names, whatever the architecture is called; ``families`` adds only
    # the facts that no field states. Towers for images and sound, and layers that predict several
    # tokens, are left out and named in ``Model.left_out``. Raises InputError for a field that is
    # missing or wrong, by name, and for a structure that is not modelled.
    text, left_out = _decoder(fields)
    kind = _kind(text)
    family = FAMILIES.get(kind, Family())
    read = Reader({**family.absent, **{k: v for k, v in text.items() if v is not None}}, name)
    if kind in NOT_MODELLED_FAMILIES:
        raise InputError(
            f"model {read.name}: architecture {kind!r} has {NOT_MODELLED_FAMILIES[kind]}, which "
            "is not modelled. Use a decoder without it."
        )
    for key, structure in NOT_MODELLED.items():
        if read.value(key):
            raise InputError(
                f"model {read.name}: architecture {kind[:60]!r} has {structure} ({key}), which "
                "is not modelled. Use a decoder without it."
            )
    _check_complete(read, family, kind)
    described = {
        **sizes(read),
        **attention(read),
        **feed_forward(read),
        **layers(read),
        "precision": precision(stated_quantization(text, fields), name),
        **family.fixed,
    }
    read_as = Model(name=name, **described)
    left_out = (*left_out, *_beside_layers(read), *_unread(read, text), *_beyond(kind, read_as))
    return replace(read_as, left_out=left_out)


def _beyond(kind: str, model: Model) -> tuple[str, ...]:
    """Name what an unknown architecture may have beyond its fields, and how it was read."""
    if kind in FAMILIES or kind == NO_KIND:
        return ()
    gated = "gated" if model.gated_mlp else "plain"
    norm = {"rms": "RMS", "layer": "layer", "plain": "plain"}[model.norm]
    return (
        f"what architecture {shown(kind, 40)}, which is unknown, has beyond its fields (read as "
        f"layers with {gated} feed-forward parts, {model.norms} {norm} norms and biases that it "
        f"states; compare its parameters with the published ones.{suggestion(kind, FAMILIES)})",
    )


def _decoder(fields: Fields) -> tuple[Fields, tuple[str, ...]]:
    """Fields of the decoder, and names of the towers beside it."""
    towers = tuple(dict.fromkeys(word for key, word in TOWERS.items() if fields.get(key)))
    part = next((key for key in TEXT_PARTS if isinstance(fields.get(key), dict)), None)
    if part is None:
        return fields, towers
    outer = {key: fields[key] for key in ("tie_word_embeddings",) if key in fields}
    text = {**outer, **fields[part]}
    text.setdefault("model_type", fields.get("model_type"))
    return text, towers


NO_KIND = "none stated"  # name of the architecture of a config that states none


def _kind(fields: Fields) -> str:
    """Name of the architecture, from ``model_type`` or from the name of the model's class."""
    if fields.get("model_type"):
        return str(fields["model_type"]).lower().replace("-", "_")
    stated = fields.get("architectures")
    first = str(stated[0]) if isinstance(stated, list) and stated else NO_KIND
    plain = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    return next((kind for kind in FAMILIES if kind.replace("_", "") == plain), first)


NEEDED = (
    (None, HIDDEN),
    (None, LAYERS),
    (None, (*HEADS, "state_size")),
    (None, ("vocab_size", "padded_vocab_size")),
    ("norm", ("rms_norm_eps", "rms_norm_epsilon", "layer_norm_eps", "layer_norm_epsilon")),
    ("gated_mlp", ("hidden_act", "hidden_activation", "activation_function", "state_size")),
    (None, ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")),
)
"""Fields of which an unknown architecture must state one each, and before them the attribute of
the model whose fixed value makes the field unnecessary."""


def _check_complete(read: Reader, family: Family, kind: str) -> None:
    """Refuse an unknown architecture that lacks fields, with the names of all of them."""
    if kind in FAMILIES:
        return
    lacking = [
        names[0]
        for attribute, names in NEEDED
        if attribute not in family.fixed and not read.has(*names)
    ]
    if lacking:
        stated = read.value("architectures")
        named = excerpt(kind) + (f" ({excerpt(stated)})" if stated else "")
        raise InputError(
            f"model {read.name}: architecture {named} is unknown, and its config lacks "
            f"{', '.join(lacking)}.{suggestion(kind, FAMILIES)} Add them under these names."
        )


WITHOUT_TIME = re.compile(
    r"_?(architectures|model_type|auto_map|name_or_path|attn_implementation|use_cache|is_decoder|"
    r"tokenizer_class|task_specific_params|problem_type|id2label|label2id|gradient_checkpointing|"
    r"pretraining_tp|(sub)?pooling.*|prefix|n_ctx|seq_length|max_sequence_length|max_seq_len|"
    r"max_position_embeddings|model_max_length|original_max_position.*|n_positions|position.*type|"
    r"(use_)?sliding_window.*|max_window_layers|attention_window.*|layer_types|cache_.*|"
    r"norm_topk_prob|scoring_func|topk_method|topk_group|n_group|seq_aux|ep_size|"
    r"hidden_act(ivation)?|activation_function|act_fn|quantization_config|compression_config|"
    r"time_step_.*|rescale_prenorm_residual|residual_in_fp32|summary_.*|dim_model_base|mup_.*|"
    r"query_pre_attn_scalar|logits?_.*|reorder_and_upcast_attn|use_flash_attn|torchscript|"
    r"attn_output_gate|full_attention_interval|qk_(head_dim|norm_type)|n_shared_experts|moe_layer_freq|"
    r"index_share_for_mtp_iteration|index(er)?_(topk_pattern|rope.*)|(use_)?mtp_.*|use_mtp|num_mtp_modules|"
    r"routed_scaling_factor|swiglu_.*|use_gemma_norm|initial_context_length|moe_router_.*|moe_renormalize|moe_shared_expert_overlap|"
    r"num_expert_group|use_grouped_topk|latent_moe_use_norm|mla_use_nope|use_mamba_kernels|mamba_(use_mlp|norm_before_gate)|(mlp|ssm)_multipliers|projectors_bias|(mamba_)?(chunk_size|hidden_act)|"
    r"num_logits_to_keep|num_(beam_groups|return_sequences)|temperature|top_[kp]|do_sample|typical_p|num_beams|(min|max)_length|.*_penalty|moe_shared_width|"
    r"num_kv_heads|parallel_attn|n_embed|(mamba_)?expand|learned_pos_emb|block_ff_dim|(patch|image|num_patch)_.*)|"
    r".*(token_ids?|token_index|dropout|pdrop|_drop|_eps|_epsilon|initializer.*|_init|init_.*|"
    r"rope.*|rotary.*|_loss.*|_coef|softcap.*|scal(e|ing)|multiplier|version|dtype|jitter_noise)|"
    r"(rope|rotary|init|initializer|output|return|scale|partial_rotary|router_(aux|z)_loss)_.*"
)
"""Fields, by their whole name, that set numerics, tokens or what a checkpoint is called, and fields
of which other fields that are read say all."""


def _unread(read: Reader, text: Fields) -> tuple[str, ...]:
    """Names of fields that nobody asked for and that may stand for work; none that are off."""
    unread = sorted(
        name
        for name, value in text.items()
        if value and name not in read.asked | TOWERS.keys() and not WITHOUT_TIME.fullmatch(name)
    )
    return tuple(f"the field {shown(name, 40)}, which is not understood" for name in unread)


def _beside_layers(read: Reader) -> tuple[str, ...]:
    """Names of layers that predict several tokens, and of residuals of blocks of layers."""
    count = read.count("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)
    predicting = (f"{count} {PREDICTION}{'s' * (count > 1)}",) * (count > 0)
    return (*predicting, *(RESIDUALS,) * read.has("attn_res_block_size"))


# Reader of the precision of stored weights from ``quantization_config``; others are refused.

CONFIGS = ("quantization_config", "compression_config")
FLOATS = {8: "fp8", 4: "fp4", 16: "bf16"}
METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "finegrained_fp8": "fp8", "mxfp4": "mxfp4"}
ALGORITHMS = {
    "FP8": "fp8", "FP8_BLOCK": "fp8", "FP8_PB_WO": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "MXFP8": "fp8", "NVFP4": "fp4", "NVFP4_AWQ": "fp4", "W4A16_NVFP4": "fp4",
    "W4A8_NVFP4_FP8": "fp4",
}  # fmt: skip
"""ModelOpt's names of algorithms (``quant_algo``), and the precision of their weights."""
TYPES = (
    (re.compile(r"(mx|nv)?(float|fp)4", re.I), "fp4"),
    (re.compile(r"(mx)?(float|fp)8", re.I), "fp8"),
)
"""Beginnings of torchao's and Quark's names of types, and the precision of each."""
BITS = ("bits", "w_bit", "nbits", "num_bits", "quant_config.weight_quant_params.nbits")


def stated_quantization(*places: Any) -> Any:
    """Return the quantization that the first of these objects states; None if none does."""
    for place in places:
        for name in CONFIGS if isinstance(place, Mapping) else ():
            if place.get(name) not in (None, {}):
                return place[name]
    return None


def precision(stated: Any, model: str) -> str:
    """Return the precision of the stored weights; of those of experts alone for ``mxfp4``."""
    # Matrix products are costed at this precision, even if a config quantizes only the weights.
    # ``stated``: the ``quantization_config`` of a config; None if it has none.
    if stated is None:
        return "bf16"
    if not isinstance(stated, dict):
        raise InputError(f"model {model}: quantization_config is no object. Correct the config.")
    method = str(stated.get("quant_method", "none stated")).lower()
    stored = METHODS.get(method) or ALGORITHMS.get(str(stated.get("quant_algo", "")).upper())
    stored = stored or _grouped(stated) or _typed(stated)
    if stored is None or _is_sparse(stated):
        raise InputError(
            f"model {model}: quantization_config {method[:40]!r}{_details(stated)} is not "
            "modelled; fp8, mxfp4, nvfp4 and compressed floats are. Remove quantization_config to "
            "cost the model in bf16."
        )
    return stored


def _grouped(stated: dict[str, Any]) -> str | None:
    """Precision of compressed-tensors' groups of weights, if all have one floating-point type."""
    kinds = _kinds_of_groups(stated)
    if len(kinds) != 1:
        return None
    kind, bits = kinds.pop()
    return FLOATS.get(bits) if kind == "float" and isinstance(bits, int) else None


def _kinds_of_groups(stated: Mapping[str, Any]) -> set[tuple[Any, Any]]:
    """Type and bits of the weights of each group."""
    groups = stated.get("config_groups")
    return {
        (str(weights.get("type")), weights.get("num_bits"))
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
        if isinstance(weights.get("num_bits"), int)
    }


def _typed(stated: dict[str, Any]) -> str | None:
    """Precision of the types that torchao, Quark and FP-Quant name, if all have the same one."""
    precisions = {
        next((name for pattern, name in TYPES if pattern.match(text)), None)
        for text in _types(stated)
    }
    return precisions.pop() if len(precisions) == 1 else None


def _types(stated: Mapping[str, Any]) -> list[str]:
    """Names of the types in which weights are stored; empty if the config names none."""
    read = Reader(stated, "")
    by_layer = stated.get("layer_quant_config")
    by_layer = by_layer.values() if isinstance(by_layer, dict) else ()
    layers = [read.value("global_quant_config"), *by_layer]
    weights = [layer.get("weight") for layer in layers if isinstance(layer, dict)]
    stages = [stage for part in weights for stage in (part if isinstance(part, list) else [part])]
    names = [stage.get("dtype") for stage in stages if isinstance(stage, dict)]
    ao = read.value("quant_type.default._type", "quant_type")
    names += [name for name in (ao, stated.get("forward_dtype")) if isinstance(name, str)]
    return [str(name).removeprefix("Dtype.") for name in names if name]


def _is_sparse(stated: dict[str, Any]) -> bool:
    """Return whether weights are stored without their zeros, as in 2:4 sparsity."""
    form = Reader(stated, "").value("sparsity_config.format")
    return form is not None and form != "dense"


def _details(stated: dict[str, Any]) -> str:
    """Words for a message on the bits and types of weights that a config states."""
    read = Reader(stated, "")
    bits = read.value(*BITS)
    if bits is None and (read.value("load_in_4bit") or read.value("load_in_8bit")):
        bits = 4 if read.value("load_in_4bit") else 8
    kinds = [f"{bits}-bit {kind}" for kind, bits in sorted(_kinds_of_groups(stated), key=str)]
    algorithm, weights = stated.get("quant_algo"), stated.get("weights")
    words = [*_types(stated), *(str(word) for word in (algorithm, weights) if word), *kinds]
    if _is_sparse(stated):
        words.append("sparse weights")
    shown = f" ({', '.join(words)[:60]})" if words else ""
    return (f" with {str(bits)[:8]} bits" if bits else "") + shown


# Facts about families of models that no field of their config states.
#
# Sizes, biases, norms, windows and experts are read from fields, whatever the family is called. Two
# things are not in the file: the defaults of the family's config class for fields that a file
# leaves out (``absent``), and choices that are fixed in the family's code (``fixed``). A family
# that needs neither has an empty row, which says that its parameters were compared.

BIASED: Mapping[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
GPT: Mapping[str, Any] = {"gated_mlp": False, "norm": "layer"}
COHERE: Mapping[str, Any] = {"gated_mlp": True, "norm": "rms", "parallel": True, "norms": 1}


@dataclass(frozen=True)
class Family:
    """Properties of a family of models that its code decides and no field states."""

    # Values of config fields that a file may leave out
    absent: Mapping[str, Any] = field(default_factory=dict)
    # Attributes of :class:`~workloads.models.model.Model` that hold whatever the fields say
    fixed: Mapping[str, Any] = field(default_factory=dict)


def _family(absent: Mapping[str, Any] | None = None, **fixed: Any) -> Family:
    return Family(absent or {}, fixed)


TIED = {"tie_word_embeddings": True}
SWIGLU = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
LLAMA = _family(SWIGLU)
QWEN2 = _family(SWIGLU, qkv_bias=True)
QWEN3 = _family(SWIGLU, qk_norm=True)
DEEPSEEK = _family({**SWIGLU, "moe_shared_width": "each"})
GEMMA = _family({**TIED, "rms_norm_eps": 1e-6}, gated_mlp=True)
GEMMA2_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 2}
GEMMA3_TEXT = {
    **TIED, "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "sliding_window_pattern": 6, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA3 = _family(GEMMA3_TEXT, gated_mlp=True, norms=4, qk_norm=True)
PERSIMMON = _family({"qk_layernorm": True}, **GPT, **BIASED)
MAMBA = {**TIED, "rms_norm_eps": 1e-5, "use_conv_bias": True, "mamba_version": 1}
MAMBA2 = {"mamba_version": 2, "rms_norm_eps": 1e-5}
LLAMA4_TEXT = {
    **SWIGLU, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
    "sliding_window_pattern": 4, "n_shared_experts": 1, "num_experts_per_tok": 1,
}  # fmt: skip
HYBRID_DELTA = {
    **SWIGLU, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "afmoe": Family(),
    "apertus": _family(
        {"hidden_act": "xielu", "rms_norm_eps": 1e-5}, gated_mlp=False, qk_norm=True
    ),
    "arcee": _family({"rms_norm_eps": 1e-5}, gated_mlp=False),
    "baichuan": LLAMA,
    "bamba": _family({**SWIGLU, **MAMBA2, "mamba_expand": 2, "attn_layer_indices": []}),
    "biogpt": _family({**TIED, "learned_positions": True, "position_offset": 2}, **GPT, **BIASED),
    "bitnet": _family(TIED, gated_mlp=True),
    "bloom": _family(TIED, **GPT, **BIASED, embedding_norm=True),
    "chatglm": _family({"add_qkv_bias": False, "rmsnorm": True}, gated_mlp=True, norm="rms"),
    "codegen": _family(**GPT, mlp_bias=True, head_bias=True, parallel=True, norms=1),
    "cohere": _family(
        {**TIED, "qk_norm_shape": "wide"}, gated_mlp=True, norm="rms", parallel=True, norms=1
    ),
    "cohere2": _family({**TIED, "sliding_window_pattern": 4}, **COHERE),
    "dbrx": _family({"tie_word_embeddings": False}, gated_mlp=True, norm="rms"),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "dots1": QWEN3,
    "ernie4_5": _family({**SWIGLU, **TIED}),
    "ernie4_5_moe": _family({**SWIGLU, **TIED}),
    "exaone": _family({"rms_norm_eps": 1e-5}, gated_mlp=True),
    "exaone4": QWEN3,
    "falcon": _family({**TIED, "parallel_attn": True}, **GPT),
    "falcon_h1": _family({**SWIGLU, **MAMBA2, "mamba_rms_norm": False}),
    "falcon_mamba": _family({**MAMBA, "tie_word_embeddings": False}),
    "fuyu": PERSIMMON,
    "gemma": GEMMA,
    "gemma2": _family({**TIED, **GEMMA2_WINDOWS, "rms_norm_eps": 1e-6}, gated_mlp=True, norms=4),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "glm": _family(SWIGLU, output_bias=False),
    "glm4": _family(SWIGLU, output_bias=False, norms=4),
    "glm4_moe": _family(SWIGLU, output_bias=False),
    "glm_moe_dsa": DEEPSEEK,
    "got": QWEN2,
    "gpt2": _family({**TIED, "learned_positions": True}, **GPT, **BIASED),
    "gpt_bigcode": _family(
        {**TIED, "multi_query": True, "learned_positions": True}, **GPT, **BIASED
    ),
    "gpt_neo": _family({**TIED, "learned_positions": True}, **GPT, output_bias=True, mlp_bias=True),
    "gpt_neox": _family(
        {"attention_bias": True, "use_parallel_residual": True}, **GPT, mlp_bias=True, norms=2
    ),
    "gpt_oss": _family(
        {
            **SWIGLU,
            "attention_bias": True,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "expert_bias": True,
            "router_bias": True,
        },
        sinks=True,
    ),
    "gptj": _family(**GPT, mlp_bias=True, head_bias=True, parallel=True, norms=1),
    "granite": LLAMA,
    "granitemoe": LLAMA,
    "granitemoehybrid": _family({**SWIGLU, **MAMBA2, **TIED}),
    "granitemoeshared": LLAMA,
    "hunyuan_v1_dense": _family({**SWIGLU, **TIED}, qk_norm=True),
    "hunyuan_v1_moe": _family({**SWIGLU, **TIED}, qk_norm=True),
    "internlm2": LLAMA,
    "jamba": _family({**SWIGLU, "mamba_version": 1, "mamba_conv_bias": True, "mamba_norms": True}),
    "kimi_k2": DEEPSEEK,
    "kimi_linear": _family({**SWIGLU, "router_bias": True}),
    "lfm2": _family(
        {**TIED, "hidden_act": "silu", "block_auto_adjust_ff_dim": True}, qk_norm=True, norm="rms"
    ),
    "llama": LLAMA,
    "llama4": _family(LLAMA4_TEXT, qk_norm=False),
    "llama4_text": _family(LLAMA4_TEXT, qk_norm=False),
    "mamba": _family(MAMBA),
    "mamba2": _family({**MAMBA2, "tie_word_embeddings": False}),
    "minicpm3": LLAMA,
    "minimax": LLAMA,
    "minimax_m2": _family(SWIGLU, qk_norm_wide=True),
    "minimax_m3": Family(),
    "minimax_text_01": LLAMA,
    "ministral": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "mpt": _family({**TIED, "no_bias": True, "expansion_ratio": 4}, gated_mlp=False, norm="rms"),
    "nemotron": _family(gated_mlp=False, norm="layer"),
    "nemotron_h": _family({**MAMBA2, "one_part_a_layer": True}, gated_mlp=False),
    "olmo": _family({"hidden_act": "silu"}, norm="plain"),
    "olmo2": _family(SWIGLU, qk_norm_wide=True),
    "olmo3": _family({**SWIGLU, "sliding_window_pattern": 4}, qk_norm_wide=True),
    "olmoe": _family(SWIGLU, qk_norm_wide=True),
    "open_llama": _family({**SWIGLU, "shared_input_output_embedding": True}, embedding_norm=True),
    "opt": _family(
        {**TIED, "learned_positions": True, "position_offset": 2, "enable_bias": True}, **GPT
    ),
    "orion": _family({"hidden_act": "silu"}, norm="layer"),
    "persimmon": PERSIMMON,
    "phi": _family(**GPT, **BIASED, head_bias=True, parallel=True, norms=1),
    "phi3": LLAMA,
    "phi3small": _family(TIED, **BIASED, gated_mlp=True, norm="layer"),
    "phimoe": _family(
        {"hidden_act": "silu", "attention_bias": True, "lm_head_bias": True}, norm="layer"
    ),
    "qwen2": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": QWEN2,
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_5_text": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_moe": QWEN3,
    "qwen3_next": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_vl_moe_text": QWEN3,
    "qwen3_vl_text": QWEN3,
    "seed_oss": _family({**SWIGLU, "attention_bias": True, "attention_out_bias": False}),
    "smollm3": _family({**SWIGLU, **TIED}),
    "solar": LLAMA,
    "stablelm": _family({"hidden_act": "silu", "qk_norm_shape": "wide"}, norm="layer"),
    "starcoder2": _family(
        {**TIED, "use_bias": True, "norm_epsilon": 1e-5}, gated_mlp=False, norm="layer"
    ),
    "vaultgemma": _family({**TIED, **GEMMA2_WINDOWS, "rms_norm_eps": 1e-6}, gated_mlp=True),
}
"""Families with facts of their own, by ``model_type``."""
