"""A measured plan that does not fit by the model says by how many gigabytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from experiments.validation.predictions.training import _too_large


def test_bytes_are_shown_in_billions() -> None:
    step: Any = SimpleNamespace(memory=SimpleNamespace(total=123.44e9, capacity=80e9))
    assert _too_large(step) == "it needs 123.4 GB a rank and a rank has 80.0 GB."
