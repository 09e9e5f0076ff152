"""Models that rows name: shipped ones are read once, a user's file at each call."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from experiments.validation.reading.machines import model_for


def test_a_shipped_model_is_read_once() -> None:
    for name in ("llama-3.1-8b", "trinity-nano"):
        assert model_for(name) is model_for(name)


def test_a_users_model_is_read_at_each_call(tmp_path: Path) -> None:
    shipped = files("workloads") / "models" / "configs" / "llama-3.1-8b.json"
    fields = json.loads(shipped.read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    for layers in (2, 3):
        path.write_text(json.dumps({**fields, "num_hidden_layers": layers}), encoding="utf-8")
        assert model_for(str(path)).layers == layers
