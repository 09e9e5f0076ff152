"""Kernel times: measured grids, fits, provenance, extrapolation, backward shapes."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from topologies.catalogue.catalogue import chip_family, choose, shipped_catalogue
from workloads.kernels.attention import BLOCK, _compute_s, _core_s
from workloads.kernels.chip_share import rank_of, worst
from workloads.kernels.gemm import (
    _arithmetic_s,
    _traffic_bytes,
    drain_s,
    fill,
    gemm_table,
    interpolate,
    product_s,
    roofline_s,
)
from workloads.kernels.times import (
    AttentionShape,
    attention,
    elementwise,
    gather,
    gemm,
    host_dispatch_s,
    passes,
    seen_by_host,
    unfused_attention,
)

CHIPS = ("a100-80gb", "h100", "h200", "b200", "gb200", "trn1", "trn2", "trn3")
SIDES = st.integers(1, 200_000)


def test_a_measured_shape_takes_its_measured_time_over_the_sustained_share():
    grid = gemm_table("a100", "bf16")
    share = shipped_catalogue().entry("kernels.a100", "gemm_sustained")
    whole = share._replace(exact=Fraction(1), low=None, high=None)
    burst = shipped_catalogue().with_rows([whole])
    shape = grid.m[7], grid.n[8], grid.k[8]
    timing = gemm("a100-80gb", *shape, catalogue=burst)
    assert timing.seconds == pytest.approx(grid.seconds[7, 8, 8], rel=1e-6)
    assert timing.provenance == "measured"
    assert gemm("a100-80gb", *shape).seconds > timing.seconds


@pytest.mark.parametrize("chip", ["gb200", "gb300"])
def test_products_under_a_power_limit_go_by_processors_and_power(chip):
    """At power P, N multiprocessors of clock f draw N f^3: the rate is N^(2/3) P^(1/3)."""
    parts = shipped_catalogue()

    def over_measured(quantity):
        return parts.value(chip, quantity) / parts.value("b200", quantity)

    rate = over_measured("cores") ** (2 / 3) * over_measured("tdp") ** (1 / 3)
    stated = parts.value("kernels.b200", f"gemm_power_{chip}")
    assert stated == pytest.approx(rate / over_measured("bf16_peak"), rel=2e-3)
    sides = 16384, 16384, 16384
    assert gemm("b200", *sides).seconds / gemm(chip, *sides).seconds == pytest.approx(
        rate, rel=0.01
    )


def test_provenance_says_how_far_from_the_grid():
    for chip, m, n, provenance in (
        ("h100", 4096, 4096, "measured"), ("h100", 4096, 5000, "interpolated"),
        ("h100", 10**6, 4096, "extrapolated"), ("h100", 4096, 1, "extrapolated"),
        ("h200", 4096, 4096, "interpolated"), ("trn2", 4096, 4096, "interpolated"),
        ("trn3", 4096, 4096, "assumed"),
    ):  # fmt: skip
        assert gemm(chip, m, n, 4096).provenance == provenance, (chip, m, n)
    assert worst("measured", "assumed", "interpolated") == "assumed"
    assert chip_family("a100-40gb").kernels == "kernels.a100"
    assert (chip_family("gb200").measured_on, chip_family("my-chip").provenance) == (
        "b200",
        "assumed",
    )


def test_held_out_columns_are_met_by_interpolation():
    logs = np.log(gemm_table("h100", "bf16").seconds)
    holed = logs.copy()
    holed[:, 3:-3:4, :] = np.nan
    again = fill(holed)
    hole = np.isnan(holed) & ~np.isnan(logs)
    error = np.abs(np.exp(again[hole] - logs[hole]) - 1)
    assert np.median(error) < 0.05


def test_huge_products_keep_the_asymptotic_efficiency():
    seconds = gemm("h100", [2**15, 2**18], 65536, 65536).seconds
    assert seconds[1] / seconds[0] == pytest.approx(8, rel=0.01)
    rate = 2 * 2**18 * 65536**2 / seconds[1]
    assert 0.5 < rate / shipped_catalogue().value("h100", "bf16_peak") < 0.9


@given(SIDES, SIDES, SIDES, st.sampled_from(CHIPS))
def test_no_product_beats_the_peak_or_the_memory(m, n, k, chip):
    peak, memory = (
        shipped_catalogue().value(chip, rate) for rate in ("bf16_peak", "hbm_bandwidth")
    )
    seconds = gemm(chip, m, n, k).seconds
    assert seconds > 0.99 * 2 * m * n * k / peak
    assert seconds > 0.2 * 2 * (m * k + n * k + m * n) / memory


@given(SIDES, SIDES, SIDES, st.sampled_from(CHIPS))
def test_a_batch_is_no_shorter_than_one_and_arrays_equal_scalars(m, n, k, chip):
    one, many = gemm(chip, m, n, k).seconds, gemm(chip, m, n, k, batch=64).seconds
    assert many >= one
    assert gemm(chip, [m, m], [n, n], k).seconds.tolist() == [one, one]


def test_full_instructions_of_trainium_lose_only_what_issuing_them_takes():
    """512 columns at the peak and 25 lost cycles, at half of the peak in the long run."""
    rank = rank_of("trn2", "bf16", 1, None)
    seconds = _arithmetic_s(rank, np.array(1024.0), np.array(256.0), np.array(384.0), 0.5)
    at_peak_s = 2 * 1024 * 256 * 384 / rank.bf16_flops_per_s
    assert seconds == pytest.approx(2 * at_peak_s * (512 + 25) / 512)


def test_operands_that_fit_are_read_once_and_the_result_is_written_once():
    rank = rank_of("trn2", "bf16", 1, None)
    moved = _traffic_bytes(rank, np.array(256.0), np.array(384.0), np.array(128.0))
    assert moved == 2 * (256 * 128 + 384 * 128 + 256 * 384)


def test_a_shorter_instruction_is_paid_by_its_columns():
    """512 columns move in one instruction of Trainium; fewer take less time for each left out."""
    rank = rank_of("trn3", "fp8", 1, None)
    moved = np.array([256.0, 384.0, 512.0, 512.0 + 256.0])
    first, second, whole, both = _arithmetic_s(rank, moved, np.array(128.0), np.array(128.0), 1.0)
    assert whole - second == pytest.approx(second - first)
    assert both == pytest.approx(whole + first)


def test_the_tensor_engine_wastes_what_does_not_fill_its_tiles():
    rank, one = rank_of("trn2", "bf16", 8, None), np.ones(())
    full, ragged = (
        product_s(rank, one, 8192 * one, columns * one, 1024 * one, 1.0) for columns in (1024, 1025)
    )
    assert ragged > full * 1.05
    rate = 2 * 8192 * 1024 * 1024 / float(full)
    assert 0.3 < rate / 79e12 < 1.0


def test_ranks_share_a_chip():
    whole, half = (gemm("trn1", 8192, 8192, 8192, ranks_per_chip=ranks).seconds for ranks in (1, 2))
    assert 1.9 < half / whole < 2.1
    refused("ranks per chip is 0", gemm, "trn1", 1, 1, 1, ranks_per_chip=0)


def test_attention_grows_with_the_square_of_the_sequence_and_the_backward_is_longer():
    forward = attention("h100", AttentionShape(1, [4096, 16384, 65536], 32, 8, 128)).seconds
    assert 12 < forward[1] / forward[0] < 16
    assert 14 < forward[2] / forward[1] < 16.5
    backward = attention("h100", AttentionShape(1, 4096, 32, 8, 128), "backward")
    assert 2.5 < backward.seconds / forward[0] < 4
    assert backward.provenance == "assumed"
    assert attention("h100", AttentionShape(1, 4096, 32, 8, 128)).provenance == "interpolated"


def test_attention_loses_what_the_last_wave_leaves_idle():
    """Eight blocks of queries a head: eight waves with as many heads as processors."""
    rank = rank_of("h100", "bf16", 1, shipped_catalogue())
    tail = rank.constant("attention_tail")
    for heads, waves in ((132, 8), (1, 8 / 132)):
        sides = tuple(np.array(side) for side in (heads, 1000.0, 1000.0, BLOCK))
        rate = rank.peak_flops_per_s * rank.constant("attention_efficiency")
        expected = 4 * BLOCK * heads * 1000 * 1000 / rate * (waves + tail) / waves
        assert float(_compute_s(rank, sides, causal=False)) == pytest.approx(expected)
        lost = 1 + rank.constant("attention_diagonal") * BLOCK / 1000
        assert float(_compute_s(rank, sides, causal=True)) == pytest.approx(expected / 2 * lost)


def test_attention_moves_each_operand_once_and_twice_on_the_way_back():
    """Queries and result, keys and values, in bf16, beside the arithmetic."""
    rank = rank_of("h100", "bf16", 1, shipped_catalogue())
    shape = AttentionShape(2, 1000, 32, 8, 128, kv_seq=3000)
    sides = tuple(np.array(side) for side in (2.0 * 32, 1000.0, 3000.0, 128.0))
    keys = 2 * 2 * 3000 * 8 * 128 * 2
    once = 2 * 2 * 1000 * 32 * 128 * 2 + keys
    cached = rank.constant("attention_io") * once + rank.constant("attention_cache_io") * keys
    for direction, moved, writes in (
        ("forward", once, False), ("backward", 2 * once, False), ("forward", cached, True),
    ):  # fmt: skip
        core_s = float(_core_s(rank, sides, causal=True, direction=direction))
        expected = rank.constant("attention_launch") + core_s + moved / rank.hbm_bytes_per_s
        timed = attention("h100", shape, direction, writes_cache=writes)
        assert timed.seconds == pytest.approx(expected)


def test_a_product_that_memory_bounds_moves_its_three_matrices():
    rank = rank_of("h100", "bf16", 1, shipped_catalogue())
    m, n, k = (np.array(side) for side in (16.0, 4096.0, 1024.0))
    for width, weights in ((2, None), (1, 1.0)):
        moved = 3 * (2 * m * k + width * n * k + 2 * m * n)
        seconds = roofline_s(rank, np.array(3.0), m, n, k, weight_bytes=weights)
        assert seconds - rank.constant("launch") == pytest.approx(moved / rank.hbm_bytes_per_s)


def test_unfused_attention_moves_the_scores_through_memory():
    fused = attention("a100-80gb", AttentionShape(4, 2048, 8, 8, 96)).seconds
    separate = unfused_attention("a100-80gb", 4, 2048, 8, 96)
    assert separate.seconds > 2 * fused
    assert unfused_attention("a100-80gb", 4, 2048, 8, 96, "backward").seconds > separate.seconds
    # Beside the products each score of 2 bytes is at least written and read once.
    sides = (2048, 2048, 96), (2048, 96, 2048)
    products = sum(gemm("a100-80gb", *each, batch=32).seconds for each in sides)
    moved_s = 4 * 32 * 2048**2 / shipped_catalogue().value("a100-80gb", "hbm_bandwidth")
    assert separate.seconds > products + moved_s


def test_a_slower_host_issues_kernels_in_proportion():
    halved = choose(["h100.host_speed=x0.5"])
    assert host_dispatch_s("h100", catalogue=halved) == 2 * host_dispatch_s("h100")
    assert host_dispatch_s("b200", catalogue=halved) == host_dispatch_s("b200")


def test_streams_and_look_ups():
    assert elementwise("h100", 0).seconds == shipped_catalogue().value("kernels.h100", "launch")
    long = elementwise("h100", 10**10).seconds
    assert 10**10 / long == pytest.approx(0.77 * 3.35e12, rel=0.01)
    assert host_dispatch_s("trn2") < 1e-8 < host_dispatch_s("a100-80gb")
    assert gather("a100-80gb", 10**9).seconds > elementwise("a100-80gb", 10**9).seconds
    assert elementwise("h100", [1, 10**9]).seconds.shape == (2,)
    # the worse of the grades of the chip's products and of the share of its memory's rate
    grades = {chip: gather(chip, 1).provenance for chip in ("h100", "b200", "trn1")}
    assert grades == {"h100": "measured", "b200": "assumed", "trn1": "assumed"}


def test_an_unknown_chip_is_refused_with_a_suggestion():
    refused("h100", gemm, "h10", 1, 1, 1)
    refused("fp8", gemm, "a100-80gb", 128, 128, 128, "fp8")


def test_passes_that_are_counted_do_not_pay_for_missing_fusion():
    eager = shipped_catalogue().with_variants({"kernels.h100.elementwise_efficiency": "eager"})
    assert passes("h100", 10**9, catalogue=eager).seconds == passes("h100", 10**9).seconds
    assert elementwise("h100", 10**9, catalogue=eager).seconds > 2 * passes("h100", 10**9).seconds


def test_tensor_engine_meets_measured_products_of_trainium2():
    alone = shipped_catalogue().with_variants({"kernels.trainium.gemm_sustained": "alone"})
    how, dispatch_s = {"ranks_per_chip": 4, "catalogue": alone}, 48e-6
    for sides, precision, measured_s, near in (
        ((12288, 8192, 8192), "bf16", 11038e-6, 0.03), ((2048, 2048, 2048), "bf16", 192.6e-6, 0.1),
        ((10240, 1024, 8192), "fp32", 4560.6e-6, 0.05), ((4096, 4096, 4096), "fp8", 559.8e-6, 0.05),
    ):  # fmt: skip
        taken_s = dispatch_s + gemm("trn2", *sides, precision=precision, **how).seconds
        assert taken_s == pytest.approx(measured_s, rel=near), sides


def test_only_calls_of_their_own_wait_for_a_large_result_to_drain():
    alone = shipped_catalogue().with_variants({"kernels.trainium.gemm_sustained": "alone"})
    rank = rank_of("trn2", "bf16", 4, alone)
    rows, columns = np.array([1024.0, 10240.0]), np.array([248320.0, 248320.0])
    seconds = gemm("trn2", 10240, 248320, 5120, ranks_per_chip=4, catalogue=alone).seconds
    drained_s = drain_s(rank, rows, columns)
    assert drained_s[0] == 0
    assert seconds + drained_s[1] == pytest.approx(0.366736, rel=0.1)
    # Inside a compiled graph twice the rows take twice as long, however large the result is.
    for precision in ("bf16", "fp8"):
        sizes = 2 ** np.arange(12, 19)
        times = gemm("trn3", sizes, 8192, 1024, precision=precision, ranks_per_chip=4).seconds
        assert (times[1:] <= 2.01 * times[:-1]).all()


def test_attention_wider_than_a_fused_kernel_writes_its_scores():
    fits, wide = (
        attention("trn2", AttentionShape(1, 4096, 24, 4, width), ranks_per_chip=4).seconds
        for width in (128, 256)
    )
    assert wide > 4 * fits
    assert wide == pytest.approx(13.7e-3, rel=0.1)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("heads", [1, 8])
def test_wide_heads_take_no_longer_fused_than_unfused_on_trainium(heads, direction):
    # No kernel takes such heads, so that with keys of their own both are one computation.
    for chip in ("trn1", "trn2", "trn3"):
        unfused = unfused_attention(chip, 2, 2048, 8, 192, direction).seconds
        fused = attention(chip, AttentionShape(2, 2048, 8, heads, 192), direction).seconds
        assert fused == unfused if heads == 8 else 0.95 * unfused < fused < unfused


def test_look_ups_of_short_rows_take_a_descriptor_each():
    short = gather("trn2", 2**20, rows=2**16, ranks_per_chip=4).seconds
    assert short == pytest.approx(2**16 * 36e-9, rel=0.01)
    scattered, looked_up = (
        gather("trn2", 2**30, scattered=way, ranks_per_chip=4).seconds for way in (True, False)
    )
    assert scattered > 5 * looked_up


def test_host_adds_what_its_runtime_takes():
    assert seen_by_host("trn2", 1e-3) == 1e-3
    assert seen_by_host("trn2", 1e-6, "xla") == pytest.approx(650e-6)
    assert seen_by_host("h100", 1e-6, "xla") == 1e-6
    refused(r"runtime .* is none of", seen_by_host, "trn2", 1e-6, "cuda")


def test_a_runtime_may_do_more_for_one_collective_than_for_the_others():
    for runtime, kind, us in (
        ("eager", "all-to-all", 360), ("eager", "all-gather", 108), ("eager", "all-reduce", 108),
        ("xla", "all-gather", 1074), ("xla", "all-reduce", 650),
    ):  # fmt: skip
        taken_s = seen_by_host("trn2", 37e-6, runtime, collective=kind)
        assert taken_s == pytest.approx(us * 1e-6), (runtime, kind)


def test_a_shape_lies_between_its_eight_neighbours_on_the_grid():
    grid = gemm_table("h100", "bf16")
    values = fill(np.log(grid.seconds))
    rng = np.random.default_rng(3)
    axes = (grid.m, grid.n, grid.k)
    shape = [2 ** rng.uniform(np.log2(axis[0]) - 1, np.log2(axis[-1]) + 1, 40) for axis in axes]
    cells = []
    for axis, along in zip(axes, shape, strict=True):
        logs, at = np.log2(axis), np.log2(np.clip(along, axis[0], axis[-1]))
        low = np.clip(np.searchsorted(logs, at, side="right") - 1, 0, len(axis) - 2)
        cells.append((low, (at - logs[low]) / (logs[low + 1] - logs[low])))
    expected = np.zeros(40)
    for corner in np.ndindex(2, 2, 2):
        weight = np.ones(40)
        for (_, part), up in zip(cells, corner, strict=True):
            weight = weight * (part if up else 1 - part)
        places = tuple(low + up for (low, _), up in zip(cells, corner, strict=True))
        expected += weight * values[places]
    assert interpolate(grid, values, *shape).tolist() == expected.tolist()
    alone = [interpolate(grid, values, *map(np.asarray, each)) for each in zip(*shape, strict=True)]
    assert [float(value) for value in alone] == expected.tolist()
