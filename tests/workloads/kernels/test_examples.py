"""Small examples of the functions of workloads/kernels, each with its result."""

from __future__ import annotations

import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from workloads.kernels.attention import decode_attention
from workloads.kernels.gemm import gemm, sustained_flops_per_s
from workloads.kernels.precision import Format, element_width


def test_decode_attention() -> None:
    seconds = decode_attention("trn2", 16, [4096, 8192], 8, 128, ranks_per_chip=4).seconds
    assert bool(1.2 < seconds[1] / seconds[0] < 1.6)
    # keys and values of all sequences and heads, in bf16, at a share of an A100's 2.04 TB/s
    empty_s, full_s = decode_attention("a100-80gb", 16, [0, 4096], 8, 128).seconds
    share = shipped_catalogue().value("kernels.a100", "elementwise_efficiency")
    assert (full_s - empty_s) * share * 2.039e12 == pytest.approx(4 * 16 * 4096 * 8 * 128, rel=1e-3)


def test_gemm() -> None:
    seconds = gemm("h100", 8192, 8192, 8192).seconds
    assert 0.65 < 2 * 8192**3 / seconds / 989.5e12 < 0.85


def test_gemm_without_casts() -> None:
    shape = ("h100", 1024, 1024, 1024)
    bare = gemm(*shape, Format("fp8", "fp8", casts=False)).seconds
    assert gemm(*shape, "fp8").seconds > 2.5 * bare


def test_sustained_flops_per_s() -> None:
    assert round(sustained_flops_per_s("trn2", "bf16", shipped_catalogue()) / 1e12) == 588


def test_element_width() -> None:
    assert (element_width("mxfp4"), element_width("bf16")) == ("fp4", "bf16")
