"""Small examples of the functions of workloads/models, each with its result."""

from __future__ import annotations

from workloads.models.huggingface import as_model, named, precision, stated_quantization


def test_as_model() -> None:
    assert as_model("llama-3.1-8b") == as_model(named("llama-3.1-8b"))


def test_stated_quantization() -> None:
    decoder, whole = {"quantization_config": None}, {"quantization_config": {"bits": 4}}
    assert stated_quantization(decoder, whole) == {"bits": 4}


def test_precision() -> None:
    assert (precision({"quant_method": "fp8"}, "mine"), precision(None, "mine")) == ("fp8", "bf16")
