"""Decoders of a few layers with chosen fields."""

from typing import Any

from workloads.models.huggingface import from_fields
from workloads.models.model import Model

SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
    "num_attention_heads": 4, "num_hidden_layers": 4,
}  # fmt: skip
"""Fields of a small decoder."""


def small(**fields: Any) -> Model:
    """A small decoder with these fields."""
    return from_fields({**SMALL, **fields}, "small")
