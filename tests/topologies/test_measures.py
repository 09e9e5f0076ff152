"""Closed forms of measures equal brute force and published figures."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.small_shapes import (
    GB,
    closes,
    distances,
    equal_paths,
    shapes,
    smallest_cut,
    tiereds,
    tori,
    torus,
)
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.routing import routes
from topologies.shapes.basic import Clos, FullMesh, Shape, Switch, Tier, Tiered
from topologies.shapes.links import domain_links
from topologies.shapes.measures import (
    all_to_all_bytes_per_s,
    bisection,
    bisections,
    diameter_hops,
    links_per_chip,
    mean_hops,
    scale_up_bytes_per_s,
    switch_hops,
)
from topologies.views.measures import _counts, measure


def trn3(*switches: int) -> Tiered:
    """Two racks of two boards of two chips, at the rates of Trn3."""
    rates = zip((128, 512, 512), switches, strict=True)
    return Tiered(tuple(Tier("", 2, rate * GB, 0, count) for rate, count in rates))


PLAIN = {"bandwidth": "100GB/s", "latency": "1us"}


@given(st.one_of(shapes(), closes(60)))
def test_hops_against_breadth_first_search(shape):
    hops = distances(shape)
    pairs = shape.chips * (shape.chips - 1)
    assert diameter_hops(shape) == hops.max(initial=0)
    assert mean_hops(shape) == pytest.approx(hops.sum() / pairs if pairs else 0.0)


@examples(40)
@given(tori(10))
def test_bisection_of_tori_against_all_halves(shape):
    assert bisection(shape) == smallest_cut(shape)


@examples(40)
@given(tiereds(9))
def test_bisection_of_tiers_against_all_halves(shape):
    if all(size == 1 or size % 2 == 0 for size in shape.sizes):
        assert bisection(shape) == smallest_cut(shape)
    else:
        assert bisection(shape) >= smallest_cut(shape)


@pytest.mark.parametrize(
    "shape", [FullMesh(7, GB, 0), Switch(7, GB, 0), Switch(1, GB, 0), trn3(0, 2, 0), trn3(0, 3, 2)]
)
def test_bisection_against_all_halves(shape):
    assert bisection(shape) == smallest_cut(shape)


def test_cuts_of_a_clos_and_across_each_axis():
    """k-port switches: a leaf has k/2 chips and k/2 uplinks, so every layer has a link a chip."""
    assert bisection(Clos(16, 4, GB, 0)) == 8 * GB
    assert bisection(Clos(18, 4, GB, 0, Fraction(3))) == 3 * GB
    for size, layers in ((8, 1), (32, 2), (128, 3)):
        assert _counts(Clos(size, 8, GB, 0))[1] == 2 * size * layers
    by_axis = {"Z": 2048 * GB, "Y": 4096 * GB, "X": 4096 * GB}
    assert bisections(cluster("trn2-ultraserver").shape) == by_axis
    assert measure(cluster("trn3-gen2")).bisections_bytes_per_s["cross-rack"] == 9216 * GB
    assert bisections(torus(1, 4)) == {"Y": 200 * GB}


def busiest_load(shape: Shape) -> float:
    """Seconds for which uniform traffic of 1 B a pair keeps the busiest link."""
    src, dst = np.divmod(np.arange(shape.chips**2), shape.chips)
    links = domain_links(shape)
    if isinstance(shape, Clos):
        load = np.zeros(len(links))
        for ends in zip(src.tolist(), dst.tolist(), strict=True):
            paths = equal_paths(shape, *ends)
            np.add.at(load, [row for path in paths for row in path], 1 / len(paths))
    else:
        both = [routes(shape, src, dst, tie=tie).link for tie in (1, -1)]
        load = np.bincount(np.concatenate(both), minlength=len(links)) / 2
    return float((load / links.bandwidth_bytes_per_s).max())


@given(shapes(30))
def test_uniform_all_to_all_against_the_load_of_all_routes(shape):
    ceiling = all_to_all_bytes_per_s(shape)
    if shape.chips == 1:
        assert ceiling is None
    elif not isinstance(shape, Clos):
        assert ceiling == pytest.approx((shape.chips - 1) / busiest_load(shape))


FULL = [Clos(6, 8, GB, 0), Clos(16, 4, GB, 0), Clos(18, 4, GB, 0, Fraction(3))]


@pytest.mark.parametrize("shape", FULL)
def test_uniform_all_to_all_of_full_closes(shape):
    assert all_to_all_bytes_per_s(shape) == pytest.approx((shape.chips - 1) / busiest_load(shape))


@given(shapes())
def test_degree_and_rate_are_means_over_the_chips(shape):
    links = domain_links(shape, fold=False)
    from_chip = links.src < shape.chips
    assert links_per_chip(shape) == pytest.approx(np.count_nonzero(from_chip) / shape.chips)
    assert _counts(shape) == (links.nodes - shape.chips, len(links.src))
    rate = links.bandwidth_bytes_per_s[from_chip].sum() / shape.chips
    assert scale_up_bytes_per_s(shape) == pytest.approx(rate, abs=1)


def test_switch_hops_by_distance():
    assert switch_hops(cluster("trn3-gen1").shape) == {"plane": 1, "rack": 2, "cross-rack": 3}
    assert switch_hops(cluster("trn3-gen2").shape) == {"plane": 1, "rack": 3, "cross-rack": 4}
    assert switch_hops(Clos(16, 4, GB, 0)) == {"leaf": 1, "pod": 3, "core": 5}
    assert switch_hops(Switch(4, GB, 0)) == {"switch": 1}
    assert switch_hops(torus(4)) == {}


def test_totals_are_sums_over_the_chips():
    one, many = measure(cluster("trn2-ultraserver")), measure(cluster("trn2-ultraserver:10"))
    assert one.hbm_bytes == 6144 * 2**30
    assert one.hbm_bytes_per_s == 185_600 * GB
    assert one.scale_up_bytes_per_s_per_chip == 640 * GB
    assert one.flops_per_s["bf16"] == pytest.approx(42.7e15, rel=0.001)
    assert one.flops_per_s_per_chip["fp8"] == 1299e12
    assert many.hbm_bytes == 10 * (one.hbm_bytes or 0)
    assert many.flops_per_s["fp8"] == pytest.approx(10 * one.flops_per_s["fp8"])
    assert (many.nics, many.hosts, many.links) == (640, 40, 3840)
    assert many.bisection_bytes_per_s == one.bisection_bytes_per_s
    for name in ("trn1.32xlarge", "trn2.48xlarge", "dgx-h100"):
        assert not {"int8", "sparse", "vector"} & set(measure(cluster(name)).flops_per_s)
    assert measure(cluster("rainier:1000000")).links == 6_000_000


def test_plain_shapes_have_no_memory_and_no_fabric():
    measured = measure(cluster("torus:1x1", **PLAIN))
    assert (measured.hbm_bytes, measured.hbm_bytes_per_s, measured.flops_per_s) == (None, None, {})
    assert (measured.scale_out_links, measured.nics, measured.hosts) == (0, 0, 0)
    assert measured.scale_out_bisection_bytes_per_s == measured.bisection_bytes_per_s == 0
    assert (measured.diameter_hops, measured.mean_hops, measured.links) == (0, 0.0, 0)
    assert measured.all_to_all_bytes_per_s_per_chip is None


def test_oversubscription_thins_the_cut_between_servers():
    thin = shipped_catalogue().with_variants({"efa-v3.oversubscription": "two-to-one"})
    even = measure(cluster("trn2-ultraserver:64"))
    assert even.scale_out_bisection_bytes_per_s == 2048 * 25 * GB
    half = measure(cluster("trn2-ultraserver:64", catalogue=thin))
    assert half.scale_out_bisection_bytes_per_s == 1024 * 25 * GB
