"""Drawings show every chip, switch, rate and layer."""

from io import BytesIO

import pytest
from matplotlib.figure import Figure

from tests.support.small_shapes import GB
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from topologies.drawing import draw
from topologies.shapes.basic import Tier, Tiered

LARGEST_DRAWN_WHOLE = 144
PLAIN = {"bandwidth": "100GB/s", "latency": "1us"}


def texts(figure: Figure) -> list[str]:
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    return words + [text.get_text() for legend in legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", machines(shipped_catalogue()))
def test_every_named_machine_is_drawn_with_the_numbers_of_all_chips(name):
    machine = cluster(f"{name}:3" if shipped_catalogue().has(name, "fabric") else name)
    # A rack of 72 chips side by side is drawn by its first columns.
    if machine.chips_per_domain > LARGEST_DRAWN_WHOLE or name == "trn3-gen2-ualink":
        assert draw(machine).axes
        return
    words = texts(draw(machine))
    if name == "trn2.48xlarge":
        assert words.count("12") == 3  # the chip itself, and the stubs of chips 0 and 15
    assert {str(chip) for chip in range(machine.chips_per_domain)} <= set(words)


@pytest.mark.parametrize(("name", "drawn"), [
    ("ring:2", 2), ("ring:8", 8), ("ring:100", 7), ("torus:1x1", 1), ("torus:3x1x2", 6),
    ("torus:2x2x2x2", 8), ("torus:9x9x9", 64), ("mesh:1", 1), ("mesh:5", 5), ("switch:100", 72),
    ("clos:40:8", 40), ("clos:300:32:3", 64),
])  # fmt: skip
def test_plain_shapes_are_drawn_in_part_where_they_are_large(name, drawn):
    figure = draw(cluster(name, **PLAIN))
    (panel,) = figure.axes
    discs = [len(marks.get_offsets()) for marks in panel.collections if len(marks.get_paths()) == 1]
    assert drawn in discs
    figure.savefig(BytesIO(), format="png", dpi=20)


def test_title_and_legend_give_rate_and_latency_of_each_kind_of_link():
    figure = draw(cluster("trn2-ultraserver:16"))
    title, words = figure.get_suptitle(), texts(figure)
    assert "trn2-ultraserver:16: 1,024 chips, 6,144 directed scale-up links" in title
    assert "640 GB/s scale-up and 25 GB/s scale-out" in title
    assert "diameter 6 hops, mean 3.05; bisection 2.048 TB/s" in title
    assert "Z: 64 GB/s a cable and direction, 300 ns a hop" in words
    assert "X: 128 GB/s a cable and direction, 300 ns a hop" in words
    stub = "stub with a number: cable round to that chip"
    assert (stub in words, stub in texts(draw(cluster("ring:8", **PLAIN)))) == (True, False)


def test_trn3_shows_planes_and_switches():
    figure = draw(cluster("trn3-gen2"))
    words = texts(figure)
    assert words.count("plane 3: 10 switches") == 2
    assert any("every chip\nto the chip in the\nsame position" in text for text in words)
    squares = [len(marks.get_offsets()) for marks in figure.axes[0].collections]
    assert squares.count(10) == 8  # planes of ten switches in two racks of four


def test_rainier_is_a_block_diagram_of_its_layers():
    words = texts(draw(cluster("rainier")))
    assert {
        "31,248 servers of 16 chips, 16 adapters", "7,812 ToR groups, up to 64 chips each",
        "123 leaf groups, up to 4,096 chips each", "7 spine groups, up to 73,728 chips each",
        "one campus group",
    } <= set(words)  # fmt: skip
    assert any("22.5 µs a step" in text for text in words)


@pytest.mark.parametrize(
    ("switches", "ring", "words"),
    [(0, False, "every chip"), (2, False, "2 switches"), (0, True, "a ring")],
)
def test_links_between_racks_are_named_after_their_kind(switches, ring, words):
    across = Tier("pod", 3, 60 * GB, 0, switches, ring)
    below = Tier("rack", 2, 60 * GB, 0), Tier("board", 4, 60 * GB, 0, ring=True)
    drawn = texts(draw(Cluster("own", Tiered((across, *below)))))
    assert any(text.startswith(f"pod: {words}\n") for text in drawn)


@pytest.mark.parametrize("tiers", [(4,), (3, 2), (3, 4, 2), (2, 2, 20, 3)])
@pytest.mark.parametrize("switches", [0, 3])
def test_tiers_of_any_number_are_drawn(tiers, switches):
    shape = Tiered(tuple(Tier(f"tier {k}", n, 60 * GB, 0, switches) for k, n in enumerate(tiers)))
    figure = draw(Cluster("own", shape))
    assert "0" in texts(figure)
    figure.savefig(BytesIO(), format="png", dpi=20)
