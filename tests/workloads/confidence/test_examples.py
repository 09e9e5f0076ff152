"""Small examples of the functions of workloads/confidence, each with its result."""

from __future__ import annotations

from workloads.confidence.answers import kernels_assumed, vendors_test, weight_width
from workloads.confidence.kinds import kernel_kind
from workloads.confidence.split_conformal import generation, runtime


def test_weight_width() -> None:
    assert (weight_width("mxfp4"), weight_width("bf16")) == ("4 bits", "16 bits")


def test_kernels_assumed() -> None:
    assert (kernels_assumed("h100"), kernels_assumed("trn3")) == (False, True)


def test_kernel_kind() -> None:
    assert (kernel_kind("attention"), kernel_kind("gather")) == (
        "kernel.attention",
        "kernel.memory",
    )


def test_runtime() -> None:
    assert (runtime("trn2"), runtime("h200")) == ("neuron", "nccl")


def test_generation() -> None:
    assert (generation("h200"), generation("trn2")) == ("h100", "trn2")


def test_vendors_test() -> None:
    assert (vendors_test("h100"), vendors_test("trn2")) == ("nccl-tests", "nccom-test")
