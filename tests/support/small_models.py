"""Fields of ``config.json`` files of models that are small enough for a test."""

import json
from collections.abc import Mapping
from pathlib import Path

TOY_CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 1000,
}  # fmt: skip
"""A Llama of a few million parameters."""
SMALL_CONFIG = {
    **TOY_CONFIG, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "vocab_size": 32000,
}  # fmt: skip
"""A Llama whose ends weigh more than its layers."""


def config_file(path: Path, fields: Mapping[str, object]) -> str:
    """Write the fields of a model as a config file, and return its path."""
    path.write_text(json.dumps(fields))
    return str(path)
