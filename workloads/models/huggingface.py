"""Reader of models from Hugging Face ``config.json`` files: a user's, or a shipped one by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from topologies.support.arguments import fitting
from topologies.support.errors import InputError, check_type, excerpt, shown, suggestion
from topologies.support.files.reading import json_value, read_bytes
from workloads.models.layer_fields import (
    HEADS,
    HIDDEN,
    LAYERS,
    attention,
    feed_forward,
    layer_input,
    layers,
    sizes,
    streams,
)
from workloads.models.model import PREDICTION, Model
from workloads.models.reader import Fields, Reader

LARGEST_CONFIG_BYTES = 2**24  # a quantization can name every expert
CONFIG = "config.json"
SHIPPED = Path(__file__).parent / "configs"  # directory of the shipped models' configs
FACTS = Path(__file__).with_name("families.json")  # facts about families and released models
QUANTIZATION_FILES = {
    "hf_quant_config.json": "quantization",
    "quantize_config.json": None,
    "quant_config.json": None,
}
"""Files of ModelOpt, AutoGPTQ and AutoAWQ that state the quantization beside a config that does
not, with the key of the quantization in the file; None for the whole file."""
TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Fields under which configs of several towers have their decoder."""


def models() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


RESIDUALS = "attention residuals (under 4% of a training step, by their authors)"
"""Sums over the outputs of blocks of layers before each layer (Kimi Team, Attention Residuals)."""
IN_16_BITS = "16 bits of attention, which the quantization leaves as it is and this answer does not"
"""Said where a whole model is served in the few bits that a checkpoint has for its other parts."""


def named(name: str) -> Model:
    """Return a shipped model, or one with the sizes of a shipped one."""
    # Names of the Hub may be given as they are: the owner, capitals, ``-instruct`` and ``-it`` do
    # not count.
    names, plain = models(), name.rpartition("/")[2].lower().removesuffix("-instruct")
    plain = plain.removesuffix("-it")
    shipped = facts()["same_sizes"].get(plain, plain)
    if shipped not in names:
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
    if str(text):  # an empty path would be the folder that one is in
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
    remedy = "Name the config, not the weights."
    content = read_bytes(path, limit_bytes=LARGEST_CONFIG_BYTES, remedy=remedy)
    document = json_value(content, path, "Fetch the file again.")
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no JSON object. Name a model's config.json.")
    return document


def from_fields(fields: Fields, name: str) -> Model:
    """Return the model that the fields of a ``config.json`` describe."""
    # Fields are mapped by their names, whatever the architecture is called; ``families`` adds only
    # the facts that no field states. Towers for images and sound, and layers that predict several
    # tokens, are left out and named in ``Model.left_out``. Raises InputError for a field that is
    # missing or wrong, by name, and for a structure that is not modelled.
    text, left_out = _decoder(fields)
    kind = _kind(text)
    family = families().get(kind, Family(of=()))
    read = Reader({**family.absent, **{k: v for k, v in text.items() if v is not None}}, name)
    structure = facts()["not_modelled_families"].get(kind) or next(
        (f"{words} ({key})" for key, words in facts()["not_modelled"].items() if read.value(key)),
        "",
    )
    if structure:
        raise InputError(
            f"model {read.name}: architecture {kind[:60]!r} has {structure}, which is not "
            "modelled. Use a decoder without it."
        )
    _check_complete(read, family, kind)
    quantization = stated_quantization(text, fields)
    fours = read.value("expert_dtype") == "fp4"  # of routed experts, beside others in fp8
    described = {
        **sizes(read),
        **attention(read),
        **feed_forward(read),
        **layers(read),
        "layer_input": layer_input(read),
        "streams": streams(read),
        "precision": "fp8-mxfp4" if fours else precision(quantization, name),
        **family.fixed,
    }
    read_as = Model(name=name, **described)
    # Layers that predict several tokens, and residuals of blocks of layers, are left out too.
    count = read.count("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)
    predicting = (f"{count} {PREDICTION}{'s' * (count > 1)}",) * (count > 0)
    later = read.value("use_bidirectional_attention") not in (None, False, "vision")
    beside = (
        *predicting,
        *(RESIDUALS,) * read.has("attn_res_block_size"),
        *("attention to later tokens",) * later,
        *("experts beside the next attention (one runs after the other here)",)
        * read.has("zero_expert_num"),
        *(IN_16_BITS,) * (read_as.precision in FLOATS.values() and _leaves_attention(quantization)),
    )
    left_out = (*left_out, *beside, *_unread(read, text), *_beyond(kind, read_as))
    return replace(read_as, left_out=left_out)


def _beyond(kind: str, model: Model) -> tuple[str, ...]:
    """Name what an unknown architecture may have beyond its fields, and how it was read."""
    if kind in families() or kind == NO_KIND:
        return ()
    gated = "gated" if model.gated_mlp else "plain"
    norm = {"rms": "RMS", "layer": "layer", "plain": "plain"}[model.norm]
    windows = sum(layer.window > 0 for layer in model.each_layer)
    limited = f", with windows in {windows} of {model.layers}," * (windows > 0)
    return (
        f"what architecture {shown(kind, 40)}, which is unknown, has beyond its fields (read as "
        f"layers{limited} with {gated} feed-forward parts, {model.norms} {norm} norms and biases "
        f"that it states; compare its parameters with the published ones."
        f"{suggestion(kind, families())})",
    )


def _decoder(fields: Fields) -> tuple[Fields, tuple[str, ...]]:
    """Fields of the decoder, and names of the towers beside it."""
    towers = tuple(
        dict.fromkeys(word for key, word in facts()["towers"].items() if fields.get(key))
    )
    if isinstance(fields.get("thinker_config"), dict):  # Qwen's Omni, whose talker is left out
        text, beside = _decoder(fields["thinker_config"])
        return text, (*towers, *beside, *("talker",) * ("talker_config" in fields))
    part = next((key for key in TEXT_PARTS if isinstance(fields.get(key), dict)), None)
    if part is None:
        return fields, towers
    # Transformers asks the whole model whether it ties its output layer; others ask the decoder.
    tied = {key: fields[key] for key in ("tie_word_embeddings",) if fields.get(key) is not None}
    text = {**tied, **fields[part], **(tied if part == TEXT_PARTS[0] else {})}
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
    return next((kind for kind in families() if kind.replace("_", "") == plain), first)


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
    if kind in families():
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
            f"{', '.join(lacking)}.{suggestion(kind, families())} Add them under these names."
        )


@cache
def _without_time() -> re.Pattern[str]:
    """Return the pattern of fields that set numerics, tokens or what a checkpoint is called."""
    # Fields are among them of which other fields that are read say all.
    stated = facts()["without_time"]
    names = ("|".join(stated[part]) for part in ("whole", "endings", "beginnings"))
    return re.compile("_?({})|.*({})|({})_.*".format(*names))


def _unread(read: Reader, text: Fields) -> tuple[str, ...]:
    """Names of fields that nobody asked for and that may stand for work; none that are off."""
    unread = sorted(
        name
        for name, value in text.items()
        if value
        and name not in read.asked | facts()["towers"].keys()
        and not _without_time().fullmatch(name)
    )
    return tuple(f"the field {shown(name, 40)}, which is not understood" for name in unread)


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
    stored = stored or _of_experts(stated) or _grouped(stated) or _typed(stated)
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


def _of_experts(stated: Mapping[str, Any]) -> str | None:
    """Precision of compressed-tensors' weights of four bits, of routed experts alone (Kimi)."""
    groups = stated.get("config_groups")
    every = groups.values() if isinstance(groups, dict) else ()
    inputs = [isinstance(group, dict) and group.get("input_activations") for group in every]
    if any(inputs) or not _leaves_attention(stated):
        return None
    if str(stated.get("format")).startswith("mxfp4"):
        return "mxfp4"
    return "int4" if _kinds_of_groups(stated) == {("int", 4)} else None


def _leaves_attention(stated: Mapping[str, Any] | None) -> bool:
    """Return whether a quantization names attention among the parts that it leaves."""
    names = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    return any("attn" in str(stated.get(name, "")) for name in names) if stated else False


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
# that needs neither has an empty row, which says that its parameters were compared. Besides, the
# facts name released models with the ``same_sizes`` as a shipped one; ``towers`` beside a decoder,
# as ``Model.left_out`` names them, by field; structures that are ``not_modelled``, by field; and
# families that have one. Fields ``without_time``, by their
# whole name, their ending or their beginning, are not named where nobody reads them. Sources: their
# config.json.


@dataclass(frozen=True)
class Family:
    """Properties of a family of models that its code decides and no field states."""

    of: Sequence[str]  # names of the family, as ``model_type`` has them
    # Values of config fields that a file may leave out
    absent: Mapping[str, Any] = field(default_factory=dict)
    # Attributes of :class:`~workloads.models.model.Model` that hold whatever the fields say
    fixed: Mapping[str, Any] = field(default_factory=dict)


@cache
def facts() -> Mapping[str, Any]:
    """Return the facts about families and released models, by kind."""
    document: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return document


@cache
def families() -> Mapping[str, Family]:
    """Return the families with facts of their own, by ``model_type``."""
    named: dict[str, Family] = {}
    for family in (Family(**row) for row in facts()["families"]):
        if twice := named.keys() & family.of:
            raise ValueError(f"two rows of {FACTS.name} are of {min(twice)}; join them")
        named |= dict.fromkeys(family.of, family)
    return dict(sorted(named.items()))
