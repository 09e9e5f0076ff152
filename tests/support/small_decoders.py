"""Decoders of a few layers with chosen fields."""

from workloads.models.huggingface import from_fields

SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
    "num_attention_heads": 4, "num_hidden_layers": 4,
}  # fmt: skip
"""Fields of a small decoder."""


def small(**fields):
    """A small decoder with these fields."""
    return from_fields({**SMALL, **fields}, "small")
