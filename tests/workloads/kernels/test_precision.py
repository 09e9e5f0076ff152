"""Precisions: the chips that have them, the bytes of an element, and their effect on answers."""

import pytest

from tests.support.refusals import refused
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.attention import decode_attention
from workloads.kernels.gemm import gemm
from workloads.kernels.precision import (
    ELEMENT_BYTES,
    TRAINING,
    Format,
    precisions_of,
    served_formats,
)
from workloads.models.huggingface import named
from workloads.serving import profile
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

TWO, FOUR = ("bf16", "fp8"), ("bf16", "fp8", "mxfp8", "mxfp4")
HAVE = {
    "trn1": TWO, "trn2": TWO, "trn3": FOUR, "a100-80gb": ("bf16",), "h100": TWO, "b200": FOUR,
    "gb300": FOUR, "mi300x": TWO,
}  # fmt: skip
MACHINE = {"trn3": "trn3-gen1", "b200": "dgx-b200"}
SIZE = 8192


def _without_casts(chip, m, n, k, precision):
    return gemm(chip, m, n, k, Format(precision, precision, casts=False))


@pytest.mark.parametrize("chip", HAVE)
def test_chips_have_what_the_catalogue_says(chip):
    assert precisions_of(chip, shipped_catalogue(), TRAINING) == HAVE[chip]


@pytest.mark.parametrize("chip", MACHINE)
def test_products_take_the_rate_of_their_precision(chip):
    took = {one: gemm(chip, SIZE, SIZE, SIZE, one).seconds for one in HAVE[chip]}
    assert took["bf16"] > 1.5 * took["mxfp8"]
    assert took["mxfp8"] == pytest.approx(took["fp8"], rel=0.05)
    assert took["mxfp4"] <= 1.05 * took["mxfp8"]


@pytest.mark.parametrize("chip", ["h100", "b200"])
@pytest.mark.parametrize("side", [512, 2048, SIZE])
def test_products_in_fp8_without_casts_are_those_of_half_the_inner_length(chip, side):
    """The grid agrees once the casts that it contains are taken off, at 3 or 5 B an element."""
    whole, alone = (
        timed(chip, side, side, side, "fp8").seconds for timed in (gemm, _without_casts)
    )
    rate, launches_s = {"h100": 2.0e12, "b200": 3.9e12}[chip], 10.5e-6
    cast_s = launches_s + (5 if side == SIZE else 3) * side**2 / rate
    assert alone < whole == pytest.approx(alone + cast_s, rel=0.15)


def test_casts_are_those_of_fp8_on_gpus_alone():
    for chip, precision in (("h100", "bf16"), ("trn2", "fp8"), ("b200", "mxfp4")):
        shape = chip, SIZE, SIZE, SIZE, precision
        assert gemm(*shape) == _without_casts(*shape)


@pytest.mark.parametrize(("machine", "precision", "message"), [
    ("trn2.48xlarge", "mxfp8", "cannot train in mxfp8 on trn2; it computes in bf16, fp8"),
    ("dgx-h100", "mxfp4", "cannot train in mxfp4 on h100; it computes in bf16, fp8"),
    ("p4de.24xlarge", "fp8", "cannot train in fp8 on a100-80gb; it computes in bf16"),
])  # fmt: skip
def test_a_chip_without_it_refuses_with_the_list(machine, precision, message):
    plan = ParallelPlan(tp=8, global_batch=8, microbatch=4, seq=4096, precision=precision)
    refused(message, iteration, named("llama-3.1-8b"), cluster(machine), plan, partial=True)


def test_weights_and_cache_of_a_replica_follow_the_precision():
    model, machine = named("llama-3.1-70b"), cluster("trn3-gen1")
    replicas = [profile(model, machine, tp=4, precision=one) for one in FOUR]
    each = [held.weights_bytes / model.parameters for held in replicas]
    assert each == [ELEMENT_BYTES[one] for one in FOUR]
    bf16, _, mxfp8, mxfp4 = replicas
    assert mxfp4.kv_tokens > mxfp8.kv_tokens > bf16.kv_tokens
    assert mxfp4.decode_s(1, 1000) < mxfp8.decode_s(1, 1000)
    assert mxfp8.kv_bytes_per_token == bf16.kv_bytes_per_token / 2


OSS = named("gpt-oss-120b")
WIDE, MIXED = Format("bf16", "bf16"), Format("mxfp4", "mxfp8")


@pytest.mark.parametrize(("chip", "precision", "stored", "formats"), [
    ("trn2", "mxfp4", "mxfp4", (WIDE, WIDE)),
    ("trn3", "mxfp4", "mxfp4", (WIDE, MIXED)),
    ("b200", "mxfp4", "mxfp4", (WIDE, MIXED)),
    ("h100", "mxfp4", "mxfp4", (WIDE, Format("mxfp4", "bf16"))),
    ("a100-80gb", "fp8", "bf16", (Format("fp8", "bf16"),) * 2),
    ("h100", "fp8", "bf16", (Format("fp8", "fp8"),) * 2),
    ("b200", "mxfp4", "bf16", (Format("mxfp4", "mxfp4"),) * 2),
    ("trn2", "bf16", "mxfp4", (WIDE, WIDE)),
])  # fmt: skip
def test_weights_and_products_have_the_formats_of_engines(chip, precision, stored, formats):
    assert served_formats(precision, stored, chip, shipped_catalogue()) == formats


@pytest.mark.parametrize(("name", "gibibytes"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_experts_in_four_bits_make_the_published_size_of_a_checkpoint(name, gibibytes):
    """Sizes are those of table 1 of OpenAI's model card (arXiv 2508.10925)."""
    held = profile(named(name), cluster("dgx-h100"), tp=1)
    assert held.weights_bytes == pytest.approx(gibibytes * 2**30, rel=0.002)
    assert "products with them are in bf16; all others are in bf16" in held.weights_text


def test_weights_that_are_widened_when_loaded_are_those_of_bf16():
    loaded, stated = (
        profile(OSS, cluster("trn2.48xlarge"), tp=16, precision=one) for one in (None, "bf16")
    )
    assert loaded.weights_bytes == 2 * OSS.parameters
    assert (loaded.linear_s == stated.linear_s).all()
    assert loaded.precision == "bf16"
    assert "widened to bf16 when they are loaded" in loaded.weights_text
    assert not stated.weights_text


def test_a_cache_has_the_width_of_the_products():
    model, machine = named("llama-3.1-8b"), cluster("p4de.24xlarge")
    widened, plain = (profile(model, machine, tp=1, precision=one) for one in ("fp8", "bf16"))
    assert widened.kv_bytes_per_token == plain.kv_bytes_per_token
    assert widened.weights_bytes == plain.weights_bytes / 2


@pytest.mark.parametrize("chip", ["h100", "a100-80gb"])
def test_widening_saves_reading_weights_and_costs_a_tenth_of_the_arithmetic(chip):
    few, many = (1, 2**15, 2**15), (2**14, 2**13, 2**13)
    for sides, ratio in ((few, 0.53125 / 2), (many, 1 / 0.9)):
        plain, widened = (
            gemm(chip, *sides, Format(one, "bf16")).seconds for one in ("bf16", "mxfp4")
        )
        assert widened / plain == pytest.approx(ratio, rel=0.03)


def test_a_precision_that_a_chip_or_nobody_has_is_refused():
    for machine, precision, message in (
        ("trn2.48xlarge", "mxfp8", "cannot serve in mxfp8 on trn2; it computes in"),
        ("dgx-a100", "FP8", r"--precision 'FP8' is none of bf16, .*Did you mean fp8"),
    ):
        refused(message, profile, named("llama-3.1-8b"), cluster(machine), precision=precision)


def test_decode_attention():
    seconds = decode_attention("trn2", 16, [4096, 8192], 8, 128, ranks_per_chip=4).seconds
    assert bool(1.2 < seconds[1] / seconds[0] < 1.6)
    # keys and values of all sequences and heads, in bf16, at a share of an A100's 2.04 TB/s
    empty_s, full_s = decode_attention("a100-80gb", 16, [0, 4096], 8, 128).seconds
    share = shipped_catalogue().value("kernels.a100", "elementwise_efficiency")
    assert (full_s - empty_s) * share * 2.039e12 == pytest.approx(4 * 16 * 4096 * 8 * 128, rel=1e-3)
