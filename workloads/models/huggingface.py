"""Models from Hugging Face ``config.json`` files: a user's, or a named one that is shipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from topologies.errors import InputError, suggestion
from workloads.models.model import Experts, LatentAttention, Model

LARGEST_CONFIG_BYTES = 2**20
LARGEST_NUMBER = 10**9
CONFIG = "config.json"

Fields = Mapping[str, Any]


def models() -> list[str]:
    """Names of the shipped models."""
    found = (files("workloads") / "models" / "configs").iterdir()
    return sorted(item.name[:-5] for item in found if item.name.endswith(".json"))


def named(name: str) -> Model:
    """Return a shipped model.

    Raises
    ------
    InputError
        For an unknown name, with the nearest one.

    Examples
    --------
    >>> named("llama-3.1-8b").parameters
    8030261248
    """
    known = models()
    if name not in known:
        near = suggestion(name, known)
        raise InputError(
            f"unknown model {name[:80]!r}.{near} There are {', '.join(known)}, and any config.json."
        )
    text = (files("workloads") / "models" / "configs" / f"{name}.json").read_text(encoding="utf-8")
    return from_fields(json.loads(text), name)


def model(text: str) -> Model:
    """Return the model that a user means: a shipped name, a ``config.json`` or its directory."""
    path = Path(text)
    if path.is_dir():
        return from_config(path / CONFIG)
    if path.suffix == ".json" or path.exists():
        return from_config(path)
    return named(text)


def from_config(path: str | Path) -> Model:
    """Read a model from a Hugging Face ``config.json``.

    Raises
    ------
    InputError
        When the file is missing, over 1 MiB, not JSON, of an unknown architecture, or lacks or
        contradicts a field.
    """
    path = Path(path)
    return from_fields(
        _document(path), path.parent.resolve().name if path.name == CONFIG else path.stem
    )


def _document(path: Path) -> Fields:
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_CONFIG_BYTES + 1)
    except OSError as mistake:
        raise InputError(f"{path} cannot be read: {mistake.strerror}.") from None
    if len(content) > LARGEST_CONFIG_BYTES:
        raise InputError(
            f"{path} is over 1 MiB, more than any config.json. Name the config, not the weights."
        )
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as mistake:
        why = " ".join(str(mistake).split())[:100]
        raise InputError(f"{path} is not JSON ({why}). Fetch the file again.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no JSON object. Name a model's config.json.")
    return document


def from_fields(fields: Fields, name: str) -> Model:
    """Return the model that the fields of a ``config.json`` describe.

    Examples
    --------
    >>> gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
    ...         "n_positions": 1024, "vocab_size": 50257}
    >>> from_fields(gpt2, "mine").parameters
    124439808
    """
    kind = str(fields.get("model_type") or _of_architecture(fields))
    if kind not in FAMILIES:
        stated = fields.get("architectures")
        shown = f"{kind[:60]!r}" + (f" ({str(stated)[:80]})" if stated else "")
        raise InputError(
            f"model {name}: architecture {shown} is not supported.{suggestion(kind, FAMILIES)} "
            f"Supported: {', '.join(FAMILIES)}."
        )
    return FAMILIES[kind](_Reader(fields, name))


def _of_architecture(fields: Fields) -> str:
    stated = fields.get("architectures")
    first = str(stated[0]) if isinstance(stated, list) and stated else "none stated"
    plain = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    return next((kind for kind in FAMILIES if kind.replace("_", "") == plain), first)


class _Reader:
    """Fields of one config, each checked as it is read."""

    def __init__(self, fields: Fields, name: str):
        self.fields = fields
        self.name = name

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first of these names that is there and not null."""
        field = next((one for one in names if self.fields.get(one) is not None), None)
        if field is None:
            if default is None:
                raise InputError(f"model {self.name}: the config has no {names[0]}. Add it.")
            return default
        value = self.fields[field]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value <= LARGEST_NUMBER:
            raise InputError(
                f"model {self.name}: {field} is {str(value)[:40]!r}; it must be a whole number "
                f"from {least} to {LARGEST_NUMBER:.0e}. Correct the config."
            )
        return int(value)

    def flag(self, field: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.fields.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"model {self.name}: {field} is {str(value)[:40]!r}; it must be true or false."
            )
        return value

    def dropout(self, *names: str) -> bool:
        """Whether any of these rates is above zero."""
        return any(isinstance(v := self.fields.get(one), int | float) and v > 0 for one in names)


def _base(read: _Reader, *, tied: bool = False, **more: Any) -> dict[str, Any]:
    """What all rotary families name alike; ``tied`` is what a config that does not say means."""
    hidden = read.count("hidden_size")
    heads = read.count("num_attention_heads")
    if read.fields.get("head_dim") is None and hidden % heads:
        raise InputError(
            f"model {read.name}: hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}. Correct the config or add head_dim."
        )
    return {
        "name": read.name,
        "layers": read.count("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": read.count("num_key_value_heads", default=heads),
        "head_dim": read.count("head_dim", default=hidden // heads),
        "ffn": read.count("intermediate_size"),
        "vocab": read.count("vocab_size"),
        "tied_embeddings": read.flag("tie_word_embeddings", default=tied),
        "dropout": read.dropout("attention_dropout", "hidden_dropout"),
        **more,
    }


def _llama(read: _Reader) -> Model:
    bias = read.flag("attention_bias")
    return Model(**_base(read, qkv_bias=bias, output_bias=bias, mlp_bias=read.flag("mlp_bias")))


def _gemma(read: _Reader) -> Model:
    bias = read.flag("attention_bias")
    return Model(**_base(read, tied=True, qkv_bias=bias, output_bias=bias))


def _mistral(read: _Reader) -> Model:
    return Model(**_base(read, window=read.count("sliding_window", default=0)))


def _qwen_window(read: _Reader) -> int:
    return read.count("sliding_window", default=0) if read.flag("use_sliding_window") else 0


def _qwen2(read: _Reader) -> Model:
    return Model(**_base(read, qkv_bias=True, window=_qwen_window(read)))


def _qwen3(read: _Reader) -> Model:
    bias = read.flag("attention_bias")
    more: dict[str, Any] = {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "window": _qwen_window(read),
    }
    return Model(**_base(read, **more))


def _gpt2(read: _Reader) -> Model:
    hidden, heads = read.count("n_embd"), read.count("n_head")
    if hidden % heads:
        raise InputError(f"model {read.name}: n_embd {hidden} is not a multiple of n_head {heads}.")
    return Model(
        name=read.name,
        layers=read.count("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.count("n_inner", default=4 * hidden),
        vocab=read.count("vocab_size"),
        gated_mlp=False,
        tied_embeddings=read.flag("tie_word_embeddings", default=True),
        positions=read.count("n_positions", "n_ctx"),
        norm="layer",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dropout=read.dropout("resid_pdrop", "attn_pdrop"),
    )


def _gpt_neox(read: _Reader) -> Model:
    bias = read.flag("attention_bias", default=True)
    more: dict[str, Any] = {
        "gated_mlp": False,
        "norm": "layer",
        "qkv_bias": bias,
        "output_bias": bias,
    }
    return Model(**_base(read, mlp_bias=True, **more))


def _sparse(read: _Reader, dense_layers: int = 0) -> int:
    """Leading dense layers of a config whose other layers all have experts; others are refused."""
    step = read.count("decoder_sparse_step", "moe_layer_freq", default=1)
    if step != 1 or read.fields.get("mlp_only_layers"):
        raise InputError(
            f"model {read.name}: experts in every layer after the dense ones are supported, not "
            f"decoder_sparse_step {step} or mlp_only_layers."
        )
    return dense_layers


def _mixtral(read: _Reader) -> Model:
    experts = Experts(
        count=read.count("num_local_experts"),
        per_token=read.count("num_experts_per_tok"),
        ffn=read.count("intermediate_size"),
    )
    window = read.count("sliding_window", default=0)
    return Model(**_base(read, experts=experts, window=window))


def _qwen_experts(read: _Reader, shared_ffn: int) -> Experts:
    return Experts(
        count=read.count("num_experts", "n_routed_experts"),
        per_token=read.count("num_experts_per_tok"),
        ffn=read.count("moe_intermediate_size"),
        shared_ffn=shared_ffn,
        shared_gate=shared_ffn > 0,
        dense_layers=_sparse(read),
    )


def _qwen2_moe(read: _Reader) -> Model:
    experts = _qwen_experts(read, read.count("shared_expert_intermediate_size", least=0))
    return Model(**_base(read, qkv_bias=True, experts=experts, window=_qwen_window(read)))


def _qwen3_moe(read: _Reader) -> Model:
    bias = read.flag("attention_bias")
    more: dict[str, Any] = {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "window": _qwen_window(read),
    }
    return Model(**_base(read, experts=_qwen_experts(read, 0), **more))


def _deepseek(read: _Reader) -> Model:
    ffn = read.count("moe_intermediate_size")
    experts = Experts(
        count=read.count("n_routed_experts"),
        per_token=read.count("num_experts_per_tok"),
        ffn=ffn,
        shared_ffn=ffn * read.count("n_shared_experts", default=0, least=0),
        dense_layers=_sparse(read, read.count("first_k_dense_replace", default=0, least=0)),
        router_bias=read.fields.get("topk_method") == "noaux_tc",
    )
    latent = LatentAttention(
        query_rank=read.count("q_lora_rank", default=0),
        kv_rank=read.count("kv_lora_rank"),
        nope_dim=read.count("qk_nope_head_dim"),
        rope_dim=read.count("qk_rope_head_dim"),
        value_dim=read.count("v_head_dim"),
    )
    width = latent.nope_dim + latent.rope_dim
    return Model(**{**_base(read, experts=experts, latent=latent), "head_dim": width})


FAMILIES: Mapping[str, Callable[[_Reader], Model]] = {
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _mistral,
    "gemma": _gemma,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""Supported values of ``model_type``, and how each one's fields are read."""
