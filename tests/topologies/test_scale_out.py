"""Scale-out fabrics, and domains that they join."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by, refused
from tests.support.small_shapes import GB
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.reader import NAME, check_peaks, check_row, domain, is_reference
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.clusters.yaml_file import cluster_from_file
from topologies.routing import clos, scale_out_paths, shared_links
from topologies.shapes.basic import Switch
from topologies.shapes.scale_out import ScaleOut, layers
from topologies.views.graph import edge_table

US = 10**6


def fabric(**changes: object) -> ScaleOut:
    """Radix 8 with ports of 10 GB/s; one adapter a chip at that rate."""
    given_: dict[str, object] = {
        "name": "test", "bandwidth_bytes_per_s": 10 * GB, "latency_ps": 10 * US, "radix": 8,
        "port_bytes_per_s": 10 * GB, "climb_ps": (0, 1 * US, 3 * US),
    }  # fmt: skip
    return ScaleOut(**(given_ | changes))  # type: ignore[arg-type]


def machine(servers: int, chips_each: int = 2, **changes: object) -> Cluster:
    return Cluster(
        f"{servers} servers", Switch(chips_each, 100 * GB, 0), domains=servers,
        scale_out=fabric(**changes), chips_per_server=chips_each,
    )  # fmt: skip


def shape_of(machine: Cluster) -> list[tuple[str, int, int]]:
    return [(layer.name, layer.chips, layer.groups) for layer in clos(machine)[1]]


SEVENTEEN = [("ToR", 4, 9), ("leaf", 16, 3), ("spine", 128, 1)]
RAINIER = [("ToR", 64, 7812), ("leaf", 4096, 123), ("spine", 73_728, 7), ("campus", 516_096, 1)]


@pytest.mark.parametrize(("of_cluster", "expected"), [
    (machine(4), [("ToR", 8, 1)]),  # one switch joins what fits its ports
    (machine(5), [("ToR", 4, 3), ("leaf", 32, 1)]),  # half of them lead to a layer above
    (machine(16), [("ToR", 4, 8), ("leaf", 32, 1)]),
    (machine(17), SEVENTEEN),
    (machine(5, bandwidth_bytes_per_s=20 * GB), [("ToR", 4, 3), ("leaf", 32, 1)]),  # two planes
    (machine(8, bandwidth_bytes_per_s=5 * GB), [("ToR", 16, 1)]),  # chips share a port
    (machine(40, rails=2), [("ToR", 8, 10), ("leaf", 16, 5), ("spine", 128, 1)]),
    (cluster("rainier"), RAINIER),
])  # fmt: skip
def test_layers_of_a_fabric(of_cluster, expected):
    assert shape_of(of_cluster) == expected


def test_more_layers_as_the_cluster_grows():
    assert [name for name, *_ in shape_of(machine(65))] == ["ToR", "leaf", "spine", "campus"]
    assert shape_of(machine(2049))[-2][0] == "region"
    assert shape_of(cluster("rainier:1000000"))[2] == ("spine", 73_728, 14)
    assert fabric(bandwidth_bytes_per_s=20 * GB).planes == 2


@pytest.mark.parametrize(("ratio", "chips", "links"), [(1, 4, 4), (3, 6, 2), (7, 7, 1)])
def test_a_group_has_a_link_up_for_each_port_that_it_fills(ratio, chips, links):
    bottom, *_, top = layers(fabric(oversubscription=Fraction(ratio)), 512, 1)
    assert (bottom.chips, bottom.up_links, bottom.up_bytes_per_s) == (chips, links, links * 10 * GB)
    assert (top.up_links, top.up_bytes_per_s) == (0, 0)


@pytest.mark.parametrize("ports", [1, 2, 4])
def test_a_server_has_an_edge_for_each_port(ports):
    table = edge_table(machine(4, ports))
    assert {kind.tier: kind.links for kind in table.kinds}["server"] == ports


def test_shared_links_by_hand():
    shared = shared_links(machine(5))
    assert shared.kinds == ("adapter-out", "adapter-in", "ToR-up", "ToR-down")
    assert len(shared) == 10 + 10 + 3 + 3
    assert (shared.capacity_bytes_per_s[[0, 10, 20, 23]] / GB).tolist() == [10, 10, 40, 40]
    assert shared.owner[[9, 10, 22, 25]].tolist() == [9, 0, 2, 2]


def test_paths_by_hand():
    cluster = machine(5)  # groups of four chips: 0-3, 4-7, 8-9
    paths = scale_out_paths(cluster, [0, 0, 9, 3], [2, 5, 0, 3])
    links = [paths.link[a:b].tolist() for a, b in zip(paths.ptr, paths.ptr[1:], strict=False)]
    assert links == [[0, 12], [0, 20, 24, 15], [9, 22, 23, 10], []]
    assert paths.latency_ps.tolist() == [10 * US, 11 * US, 11 * US, 0]


def test_latency_grows_with_the_layer_that_a_path_climbs_to():
    paths = scale_out_paths(machine(65), [0, 0, 0, 0], [1, 4, 17, 129])
    assert paths.latency_ps.tolist() == [10 * US, 11 * US, 13 * US, 13 * US]
    assert np.diff(paths.ptr).tolist() == [2, 4, 6, 8]


@given(st.integers(2, 80), st.integers(1, 4), st.sampled_from([1, 3]), st.randoms())
def test_paths_go_up_from_the_source_and_down_to_the_destination(servers, chips_each, over, random):
    cluster = machine(servers, chips_each, oversubscription=Fraction(over))
    shared, (_, tiers) = shared_links(cluster), clos(cluster)
    src, dst = np.divmod(np.arange(0, cluster.chips**2, 7), cluster.chips)
    paths = scale_out_paths(cluster, src, dst)
    for k in range(0, len(paths), 11):
        link = paths.link[paths.ptr[k] : paths.ptr[k + 1]]
        kinds = [shared.kinds[kind] for kind in shared.kind[link]]
        climbed = len(kinds) // 2
        ups = ["adapter-out", *(f"{layer.name}-up" for layer in tiers)][:climbed]
        downs = ["adapter-in", *(f"{layer.name}-down" for layer in tiers)][:climbed]
        assert kinds == [*ups, *downs[::-1]]
        sizes = [1, *(layer.chips for layer in tiers)][:climbed]
        assert shared.owner[link[:climbed]].tolist() == [src[k] // size for size in sizes]
        assert shared.owner[link[climbed:]].tolist() == [dst[k] // size for size in sizes[::-1]]
        if climbed:
            assert src[k] // tiers[climbed - 1].chips == dst[k] // tiers[climbed - 1].chips


FILE = """
chip: {{like: trn2, {value}}}
scale_up: {{shape: switch, size: 4, bandwidth: 1GB/s, latency: 1us}}
"""

PLAIN_RING = cluster("ring:8", bandwidth="1GB/s", latency="1us")


@pytest.mark.parametrize(("make", "message"), [
    (lambda: scale_out_paths(PLAIN_RING, [0], [1]), "ring:8 has no scale-out fabric"),
    (lambda: scale_out_paths(machine(5), [0], [10]), "destination chip 10 is not one of 0 to 9"),
    (lambda: fabric(radix=3), "a radix of 3; a Clos needs at least 4 ports"),
    (lambda: fabric(oversubscription=Fraction(8)),
     "an oversubscription of 8 is not between 1 and 7"),
    (lambda: fabric(rails=5), "a number of rails of 5 is not between 1 and 4"),
    (lambda: Cluster("two", Switch(2, GB, 0), domains=2),
     "2 domains and no scale-out fabric to join them"),
    (lambda: Cluster("odd", Switch(4, GB, 0), chips_per_server=3), "not made of servers of 3"),
])  # fmt: skip
def test_mistakes_are_refused(make, message):
    refused(message, make)


def test_every_shipped_row_lies_in_its_domain():
    for row in shipped_catalogue().rows:
        check_row(row, f"{row.part} {row.quantity}")
    for part in shipped_catalogue().parts():
        check_peaks(shipped_catalogue().entries(part))
    for unit in {row.unit for row in shipped_catalogue().rows} - {NAME}:
        assert domain("a quantity of nobody", unit).least >= 0


def test_a_quantity_of_trainium_that_no_module_names_is_kept_for_reference():
    """What no command reads is marked, so that an alternative of it is refused."""
    root = Path(__file__).parents[2]
    folders = ("cluster_sim", "topologies", "workloads", "experiments")
    modules = [path for folder in folders for path in (root / folder).rglob("*.py")]
    named = {word for path in modules for word in re.findall(r"\w+", path.read_text())}
    put_together = re.compile(r"\w+_(peak|matmul)|copy_\w+")
    rows = [row for row in shipped_catalogue().rows if re.match(r"trn|inf2|rainier", row.part)]
    assert len(rows) > 200
    for row in rows:
        read = row.quantity in named or put_together.fullmatch(row.quantity)
        assert read or is_reference(row.part, row.quantity, row.unit), (row.part, row.quantity)


@pytest.mark.parametrize(("quantity", "number", "unit", "message"), [
    ("bf16_peak", "1", "TFLOP/s", "less than bf16_matmul"),
    ("bf16_matmul", "0", "TFLOP/s", "it must lie between"),
    ("bf16_matmul", "700", "TFLOP/s", "less than bf16_matmul"),
    ("collective_efficiency", "5", "ratio", "it must lie between 0.001 and 1"),
    ("hbm_bandwidth", "1", "B/s", "it must lie between 1e+09 B/s"),
    ("cores", "7.5", "count", "it must be a whole number"),
    ("link_latency", "1e20", "s", "it must lie between"),
])  # fmt: skip
def test_a_value_outside_its_domain_is_refused_in_files(tmp_path, quantity, number, unit, message):
    path, rows = tmp_path / "mine.yaml", tmp_path / "mine.csv"
    stated = number if unit in ("ratio", "count") else number + unit
    path.write_text(FILE.format(value=f"{quantity}: {stated}"))
    row = f"trn2,{quantity},{number},{unit},measured,me"
    rows.write_text(f"part,quantity,value,unit,grade,source\n{row}\n")
    text = refusal_by(cluster_from_file, path, shipped_catalogue())
    assert text.startswith(f"{path}: chip.")
    assert message in text
    refused(re.escape(message), shipped_catalogue().with_overlay, rows)


def test_a_stated_capacity_is_also_what_programs_can_use(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(value="hbm_bytes: 40GB").replace("trn2", "h100"))
    numbers = cluster_from_file(path, shipped_catalogue()).catalogue
    assert numbers.value("h100", "hbm_usable_bytes") == 40e9
