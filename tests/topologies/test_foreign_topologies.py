"""Clusters from network files of ASTRA-sim."""

from __future__ import annotations

from pathlib import Path

import pytest

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from topologies.routing import routes
from topologies.shapes.basic import FullMesh, Switch, Tiered, Torus


def _astra(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "network.yml"
    path.write_text(text)
    return cluster(str(path))


def test_rings_of_astra_sim_are_a_torus_with_the_first_dimension_fastest(tmp_path: Path) -> None:
    read = _astra(
        tmp_path,
        "topology: [Ring, Ring]\nnpus_count: [8, 4]\n"
        "bandwidth: [200.0, 50.0]\nlatency: [50, 500]\n",
    )
    assert isinstance(read.shape, Torus)
    assert read.shape.sizes == (4, 8)
    slow, fast = read.shape.axes
    assert (fast.bandwidth_bytes_per_s, fast.latency_ps) == (200 * 2**30, 50_000)
    assert (slow.bandwidth_bytes_per_s, slow.latency_ps) == (50 * 2**30, 500_000)


@pytest.mark.parametrize(("block", "kind"), [("FullyConnected", FullMesh), ("Switch", Switch)])
def test_single_blocks_of_astra_sim(tmp_path: Path, block: str, kind: type) -> None:
    read = _astra(
        tmp_path, f"topology: [{block}]\nnpus_count: [8]\nbandwidth: [50.0]\nlatency: [500.0]\n"
    )
    assert read.shape == kind(8, 50 * 2**30, 500_000)


def test_tiers_and_domains_of_astra_sim(tmp_path: Path) -> None:
    values = "npus_count: [8, 4]\nbandwidth: [100.0, 50.0]\nlatency: [500, 2000]\n"
    tiers = _astra(tmp_path, "topology: [FullyConnected, Switch]\n" + values).shape
    assert isinstance(tiers, Tiered)
    assert [tier.size for tier in tiers.tiers] == [4, 8]
    assert tiers.tiers[1].bandwidth_bytes_per_s == 7 * 100 * 2**30
    domains = _astra(tmp_path, "topology: [Ring, Switch]\n" + values)
    assert (domains.domains, domains.chips) == (4, 32)
    assert domains.scale_out is not None
    assert domains.scale_out.bandwidth_bytes_per_s == 50 * 2**30
    assert domains.scale_out.latency_ps == 4_000_000


THREE = (
    "topology: [Ring, FullyConnected, Switch]\nnpus_count: [4, 2, 3]\n"
    "bandwidth: [100.0, 50.0, 25.0]\nlatency: [500, 700, 1000]\n"
)


def test_a_product_of_three_kinds_is_tiers_each_of_its_own(tmp_path: Path) -> None:
    shape = _astra(tmp_path, THREE).shape
    assert isinstance(shape, Tiered)
    gb = 2**30
    assert [(tier.size, tier.link_bytes_per_s // gb, tier.ring) for tier in shape.tiers] == [
        (3, 25, False), (2, 50, False), (4, 100, True),
    ]  # fmt: skip
    assert [tier.switches for tier in shape.tiers] == [1, 0, 0]
    # the far corner: two hops of the ring, one direct link, to the switch and from it
    assert routes(shape, [0], [2 + 4 + 8]).hops.tolist() == [2 + 1 + 2]
    rings = _astra(tmp_path, THREE.replace("[4, 2, 3]", "[2, 2, 3]")).shape
    assert isinstance(rings, Tiered)
    assert not rings.tiers[2].ring  # two chips have one link, as in ASTRA-sim


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "topology: [Rings]\nnpus_count: [8]\nbandwidth: [1]\nlatency: [1]\n",
            r"topology.0 'Rings': .* 'Ring', 'FullyConnected' or 'Switch'",
        ),
        ("topology: [Ring]\nnpus_count: [8, 2]\nbandwidth: [1]\nlatency: [1]\n", r"npus_count 2"),
        (
            "topology: [Ring]\nnpus_count: [0]\nbandwidth: [1]\nlatency: [1]\n",
            r"npus_count.0 '0': it must be at least 1",
        ),
        (
            "topology: [Ring]\nnpus_count: [8]\nbandwidth: [.inf]\nlatency: [1]\n",
            r"bandwidth.0 'inf'",
        ),
        (
            "topology: [Ring]\nnpus_count: [8]\nbandwidth: [0]\nlatency: [1]\n",
            r"bandwidth.0 '0': .* greater than 0",
        ),
        ("topology: [Ring]\nnpus_count: [8]\nbandwidth: [1]\n", r"latency is missing"),
        ("topology: [Ring]\nnpus_count: [8]\nx: 1\n", r"unknown key x"),
    ],
)
def test_wrong_networks_of_astra_sim_name_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _astra(tmp_path, text)
