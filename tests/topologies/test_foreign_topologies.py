"""Clusters from network files of ASTRA-sim."""

from __future__ import annotations

from pathlib import Path

import pytest

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from topologies.routing import routes
from topologies.shapes.basic import FullMesh, Switch, Tiered, Torus


def _astra(
    tmp_path: Path, topology: str, counts: str, bandwidth: str, latency: str, more: str = ""
) -> Cluster:
    path = tmp_path / "network.yml"
    path.write_text(
        f"topology: [{topology}]\nnpus_count: [{counts}]\nbandwidth: [{bandwidth}]\n"
        f"latency: [{latency}]\n{more}"
    )
    return cluster(str(path))


def test_rings_of_astra_sim_are_a_torus_with_the_first_dimension_fastest(tmp_path: Path) -> None:
    read = _astra(tmp_path, "Ring, Ring", "8, 4", "200.0, 50.0", "50, 500")
    assert isinstance(read.shape, Torus)
    assert read.shape.sizes == (4, 8)
    slow, fast = read.shape.axes
    assert (fast.bandwidth_bytes_per_s, fast.latency_ps) == (200 * 2**30, 50_000)
    assert (slow.bandwidth_bytes_per_s, slow.latency_ps) == (50 * 2**30, 500_000)


@pytest.mark.parametrize(("block", "kind"), [("FullyConnected", FullMesh), ("Switch", Switch)])
def test_single_blocks_of_astra_sim(tmp_path: Path, block: str, kind: type) -> None:
    assert _astra(tmp_path, block, "8", "50.0", "500.0").shape == kind(8, 50 * 2**30, 500_000)


def test_tiers_and_domains_of_astra_sim(tmp_path: Path) -> None:
    values = ("8, 4", "100.0, 50.0", "500, 2000")
    tiers = _astra(tmp_path, "FullyConnected, Switch", *values).shape
    assert isinstance(tiers, Tiered)
    assert [tier.size for tier in tiers.tiers] == [4, 8]
    assert tiers.tiers[1].bandwidth_bytes_per_s == 7 * 100 * 2**30
    domains = _astra(tmp_path, "Ring, Switch", *values)
    assert (domains.domains, domains.chips) == (4, 32)
    assert domains.scale_out is not None
    assert domains.scale_out.bandwidth_bytes_per_s == 50 * 2**30
    assert domains.scale_out.latency_ps == 4_000_000


def test_a_product_of_three_kinds_is_tiers_each_of_its_own(tmp_path: Path) -> None:
    three, rates = "Ring, FullyConnected, Switch", ("100.0, 50.0, 25.0", "500, 700, 1000")
    shape = _astra(tmp_path, three, "4, 2, 3", *rates).shape
    assert isinstance(shape, Tiered)
    gb = 2**30
    assert [(tier.size, tier.link_bytes_per_s // gb, tier.ring) for tier in shape.tiers] == [
        (3, 25, False), (2, 50, False), (4, 100, True),
    ]  # fmt: skip
    assert [tier.switches for tier in shape.tiers] == [1, 0, 0]
    # the far corner: two hops of the ring, one direct link, to the switch and from it
    assert routes(shape, [0], [2 + 4 + 8]).hops.tolist() == [2 + 1 + 2]
    rings = _astra(tmp_path, three, "2, 2, 3", *rates).shape
    assert isinstance(rings, Tiered)
    assert not rings.tiers[2].ring  # two chips have one link, as in ASTRA-sim


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("Rings", "8", "1", "1"), r"topology.0 'Rings': .* 'Ring', 'FullyConnected' or 'Switch'"),
        (("Ring", "8, 2", "1", "1"), r"npus_count 2"),
        (("Ring", "0", "1", "1"), r"npus_count.0 '0': it must be at least 1"),
        (("Ring", "8", ".inf", "1"), r"bandwidth.0 'inf'"),
        (("Ring", "8", "0", "1"), r"bandwidth.0 '0': .* greater than 0"),
        (("Ring", "8", "1", ""), r"latency: it must have at least 1 entry"),
        (("Ring", "8", "1", "1", "x: 1"), r"unknown key x"),
    ],
)
def test_wrong_networks_of_astra_sim_name_the_key(
    tmp_path: Path, columns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        _astra(tmp_path, *columns)
