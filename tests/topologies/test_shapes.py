"""Shapes describe themselves correctly and refuse impossible sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.small_shapes import GB, torus
from topologies.clusters.names import plain_shape
from topologies.errors import InputError
from topologies.shapes.basic import Axis, Clos, FullMesh, Switch, Tier, Tiered, Torus


@pytest.mark.parametrize(("size", "wrap", "cables"), [(1, True, 0), (2, True, 2), (3, True, 3)])
def test_a_wrapping_axis_has_as_many_cables_as_chips_but_none_alone(
    size: int, wrap: bool, cables: int
) -> None:
    assert Axis("X", size, GB, 0, wrap).cables == cables


def test_an_open_axis_has_one_cable_less() -> None:
    assert [Axis("X", size, GB, 0, wrap=False).cables for size in (1, 2, 5)] == [0, 1, 4]


def test_sizes_multiply() -> None:
    assert torus(4, 3, 2).chips == 24
    assert torus(4, 3, 2).sizes == (4, 3, 2)


def test_trn3_gen2_has_184_switches_a_rack() -> None:
    tiers = (Tier("cross", 2, 128, 0), Tier("rack", 18, 512, 0, 10), Tier("sled", 4, 512, 0, 8))
    shape = Tiered(tiers)
    assert shape.planes == (0, 8, 36)
    assert shape.switches == 2 * 184


def test_a_tier_divides_its_rate_over_its_links() -> None:
    assert Tier("rack", 18, 512 * GB, 0, 10).link_bytes_per_s == 51_200_000_000
    assert Tier("mesh", 5, 100, 0).link_bytes_per_s == 25
    assert Tier("alone", 1, 100, 0, 3).fan == 0


def test_the_fat_tree_of_radix_four() -> None:
    shape = Clos(16, 4, GB, 0)
    assert (shape.layers, shape.switches, shape.leaves_per_pod) == (3, (8, 8, 4), 2)


def test_a_clos_has_no_more_layers_than_it_needs() -> None:
    assert [Clos(size, 8, GB, 0).layers for size in (1, 8, 9, 32, 33, 128)] == [1, 1, 2, 2, 3, 3]


def test_oversubscription_divides_the_ports_of_a_leaf() -> None:
    shape = Clos(64, 8, GB, 0, Fraction(3))
    assert (shape.down, shape.up) == (6, 2)
    most = Clos(9, 4, GB, 0, Fraction(3))  # one port of a leaf leads up
    assert (most.down, most.up) == (3, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Axis("X", 0, GB, 0), "axis X: a size of 0 is not between 1 and 16,777,216"),
        (lambda: Axis("X", 4, 0, 0), "axis X: a bandwidth of 0 B/s is not between 1 and 2^53 B/s"),
        (lambda: Axis("X", 4, GB, -1), "axis X: a latency of -1 ps is not between 0 and 2^62 ps"),
        (lambda: Torus(()), "a torus needs at least one axis"),
        (lambda: torus(4096, 4097), "torus 4096x4097 has 16,781,312 chips; at most 16,777,216"),
        (lambda: FullMesh(4097, GB, 0), "full mesh: a size of 4,097 is not between 1 and 4,096"),
        (lambda: Switch(-3, GB, 0), "switch: a size of -3 is not"),
        (lambda: Tiered(()), "a tiered shape needs at least one tier"),
        (lambda: Tier("rack", 4, GB, 0, -1), "tier rack: -1 switches; at least 0"),
        (lambda: Tier("rack", 4, GB, 0, 3, ring=True), "tier rack: a ring with 3 switches"),
        (lambda: Tier("rack", 2, GB, 0, ring=True), "tier rack: a ring with 2 chips; a ring joins"),
        (lambda: Tier("rack", 4, 2, 0, 3), "link of tier rack: a bandwidth of 0 B/s"),
        (lambda: Clos(16, 2**16 + 2, GB, 0), "a radix of 65538 is not an even number from 4"),
        (lambda: Clos(16, 5, GB, 0), "a radix of 5 is not an even number from 4 to 65,536"),
        (lambda: Clos(17, 4, GB, 0), "more than three layers of switches of 4 ports; at most 16"),
        (lambda: Clos(9, 4, GB, 0, Fraction(4)), "an oversubscription of 4 is not between 1 and 3"),
    ],
)
def test_refusals_name_the_thing_and_the_limit(make: object, message: str) -> None:
    with pytest.raises(InputError) as mistake:
        make()  # type: ignore[operator]
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_plain_shapes_from_text() -> None:
    shape = plain_shape("torus:2x3x4", "100GB/s", "1us")
    assert isinstance(shape, Torus)
    assert [(axis.name, axis.size) for axis in shape.axes] == [("Z", 2), ("Y", 3), ("X", 4)]
    assert {axis.bandwidth_bytes_per_s for axis in shape.axes} == {100 * GB}
    assert {axis.latency_ps for axis in shape.axes} == {10**6}
    assert plain_shape("ring:8", "1GB/s", "0us") == Torus((Axis("X", 8, GB, 0),))
    assert plain_shape("mesh:8", "1GB/s", "1us") == FullMesh(8, GB, 10**6)
    assert plain_shape("switch:64", "1GB/s", "1us") == Switch(64, GB, 10**6)
    assert plain_shape("clos:64:8:3", "1GB/s", "1us") == Clos(64, 8, GB, 10**6, Fraction(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring:0", "ring:0: a size of 0 is not between 1"),
        ("torus:4x0", "torus:4x0: a size of 0"),
        ("ring:-4", "sizes must be whole numbers of 1 to 16,777,216, as ring:8"),
        ("ring:4.5", "sizes must be whole numbers"),
        ("ring:", "sizes must be whole numbers"),
        ("ring", "sizes must be whole numbers"),
        ("ring:8:2", "sizes must be whole numbers"),
        ("ring:٣", "sizes must be whole numbers"),
        ("mesh:4x4", "a mesh has one size, as mesh:8"),
        ("torus:" + "x".join("2" * 7), "7 dimensions; at most 6"),
        ("torus:999999999x999999999", "a size of 999,999,999 is not between"),
        ("torus:" + "9" * 300, "sizes must be whole numbers"),
        ("clos:64", "as clos:64:16"),
        ("mesh:5000", "full mesh: a size of 5,000"),
    ],
)
def test_bad_plain_shapes_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as mistake:
        plain_shape(text, "1GB/s", "1us")
    assert message in str(mistake.value)
    assert len(str(mistake.value)) < 250


def test_plain_shapes_need_bandwidth_and_latency() -> None:
    with pytest.raises(InputError, match="ring:8 needs the bandwidth and latency"):
        plain_shape("ring:8", None, "1us")
    with pytest.raises(InputError, match="bandwidth '100' has no unit"):
        plain_shape("ring:8", "100", "1us")
