"""Drawing of a cluster: a scale-up domain, and the fabric that joins domains."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topologies.clusters.cluster import Cluster
from topologies.drawing.domain import (
    draw_clos,
    draw_mesh,
    draw_switch,
    draw_tiered,
    draw_torus,
    has_stubs,
)
from topologies.drawing.marks import CHIP, COLOURS, QUIET, SWITCH, box, note, rate_text, time_text
from topologies.routing.scale_out import clos
from topologies.shapes.basic import Clos, FullMesh, Shape, Switch, Tiered, Torus
from topologies.shapes.scale_out import Layer, ScaleOut
from topologies.views.measures import Measures, measure


def draw(cluster: Cluster) -> Figure:
    """Draw a cluster.

    On the left is one scale-up domain with the numbers of its chips, or parts of a large one; on
    the right, if there is a scale-out fabric, the layers that join all servers. The legend gives
    the rate and latency of each kind of link, the title the totals.
    """
    sizes = measure(cluster)
    wide = 6.0 if cluster.scale_out else 0.0
    figure = Figure(figsize=(11.0 + wide, 8.5), layout="constrained")
    ratios = [11.0, wide] if cluster.scale_out else [1.0]
    panels = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
    for panel in panels:
        panel.set_axis_off()
    figure.suptitle(_title(sizes), fontsize=13, linespacing=1.4)
    _draw_domain(panels[0], cluster.shape)
    chips = f"{cluster.chips_per_domain:,} chip{'s' * (cluster.chips_per_domain > 1)}"
    panels[0].set_title(f"One scale-up domain: {chips}", loc="left", fontsize=12)
    _legend(panels[0], cluster.shape)
    if cluster.scale_out:
        draw_scale_out(panels[1], cluster)
    return figure


def _title(sizes: Measures) -> str:
    rates = f"{rate_text(sizes.scale_up_bytes_per_s_per_chip)} scale-up"
    if sizes.scale_out_bytes_per_s_per_chip:
        rates += f" and {rate_text(sizes.scale_out_bytes_per_s_per_chip)} scale-out"
    plural = "" if sizes.diameter_hops == 1 else "s"
    return (
        f"{sizes.cluster}: {sizes.chips:,} chips, {sizes.links:,} directed scale-up links\n"
        f"per chip and direction {rates}; "
        f"diameter {sizes.diameter_hops} hop{plural}, mean {sizes.mean_hops:.2f}; "
        f"bisection {rate_text(sizes.bisection_bytes_per_s)} one direction"
    )


def _draw_domain(axes: Axes, shape: Shape) -> None:
    if isinstance(shape, Torus):
        draw_torus(axes, shape)
    elif isinstance(shape, Switch):
        draw_switch(axes, shape)
    elif isinstance(shape, FullMesh):
        draw_mesh(axes, shape)
    elif isinstance(shape, Clos):
        draw_clos(axes, shape)
    else:
        draw_tiered(axes, shape)


def _legend(axes: Axes, shape: Shape) -> None:
    """Write a legend with an entry for each kind of link (rate, latency) and each kind of node."""
    marks = [Line2D([], [], marker="o", color=CHIP, markersize=10, ls="", label="chip")]
    if isinstance(shape, Switch | Clos) or (isinstance(shape, Tiered) and shape.switches):
        marks.append(
            Line2D([], [], marker="s", color=SWITCH, mec=CHIP, markersize=9, ls="", label="switch")
        )
    for colour, text in _kinds(shape):
        marks.append(Line2D([], [], color=colour, lw=2.4, label=text))
    if isinstance(shape, Torus) and has_stubs(shape):
        text = "stub with a number: cable round to that chip"
        marks.append(Line2D([], [], color="none", label=text))
    axes.legend(
        handles=marks,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=2,
        frameon=False,
        fontsize=9.5,
    )


def _kinds(shape: Shape) -> list[tuple[str, str]]:
    if isinstance(shape, Torus):
        drawn = [axis for axis in shape.axes[::-1] if axis.size > 1][: len(COLOURS)]
        return [
            (
                COLOURS[list(shape.axes[::-1]).index(axis) % len(COLOURS)],
                f"{axis.name}: {rate_text(axis.bandwidth_bytes_per_s)} a cable and direction, "
                f"{time_text(axis.latency_ps)} a hop",
            )
            for axis in drawn
        ]
    if isinstance(shape, FullMesh | Switch | Clos):
        end = "chip" if isinstance(shape, Switch) else "link"
        rate = f"{rate_text(shape.bandwidth_bytes_per_s)} a {end} and direction"
        text = f"{rate}, {time_text(shape.latency_ps)} a hop"
        if not isinstance(shape, Clos):
            return [(COLOURS[0], text)]
        layers = ("chip to leaf", "leaf to spine", "spine to core")[: shape.layers]
        return [(COLOURS[level], f"{name}: {text}") for level, name in enumerate(layers)]
    return [
        (
            COLOURS[number],
            f"{tier.name}: {rate_text(tier.bandwidth_bytes_per_s)} a chip and direction, "
            f"{time_text(tier.latency_ps)} a hop",
        )
        for number, tier in enumerate(shape.tiers[::-1][: len(COLOURS)])
        if tier.size > 1
    ]


# Distance between layers, and width of a row, in units of the axes.
_STEP = 2.0
_WIDTH = 8.0


def draw_scale_out(axes: Axes, cluster: Cluster) -> None:
    """Draw the groups of each layer, and the rate at which a group can send upwards."""
    fabric, layers = clos(cluster)
    each = f"{cluster.chips_per_server} chip{'s' * (cluster.chips_per_server > 1)}"
    servers = f"{_count(cluster.servers, 'server')} of {each}, {_adapters(fabric)}"
    _row(axes, 0, cluster.servers, servers, "white")
    for number, layer in enumerate(layers):
        _row(axes, number + 1, layer.groups, _layer_text(fabric, layer, number, cluster), SWITCH)
        _arrow(axes, number, _rise_text(fabric, layers, number, cluster))
    axes.set_title(f"Scale-out fabric: {fabric.name}", loc="left", fontsize=12)
    middle = len(layers) * _STEP / 2 - 0.5
    half = max(5.2, len(layers) * _STEP / 2 + 1.6)
    axes.set_xlim(-0.2, _WIDTH + 0.2)
    axes.set_ylim(middle - half, middle + half)
    note(
        axes,
        (_WIDTH / 2, -1.4),
        "Traffic is spread evenly over all parallel links and switches, so each box\n"
        "stands for all the switches of its group. Rates are one direction.",
        fontsize=8.5,
    )


def _row(axes: Axes, level: int, count: int, text: str, face: str) -> None:
    """Draw one box for each group, at most six of them."""
    y = level * _STEP
    boxes = min(count, 6)
    width = min(1.05, 0.82 * _WIDTH / max(boxes, 1))
    left = (_WIDTH - boxes * 1.25) / 2 + 0.625
    for k in range(boxes):
        last = k == boxes - 1 and count > boxes
        label = "" if last or count == 1 else str(k)
        box(axes, (left + 1.25 * k, y), width, 0.5, "…" if last else label, face=face)
    note(axes, (_WIDTH / 2, y - 0.48), text, color=CHIP)


def _arrow(axes: Axes, level: int, text: str) -> None:
    low, high = level * _STEP + 0.35, (level + 1) * _STEP - 0.75
    axes.annotate(
        "",
        (_WIDTH / 2, high),
        (_WIDTH / 2, low),
        arrowprops={"arrowstyle": "<->", "color": QUIET, "lw": 2.2},
    )
    note(axes, (_WIDTH / 2 + 0.25, (low + high) / 2), text, ha="left", fontsize=8.5)


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count > 1)}"


def _adapters(fabric: ScaleOut) -> str:
    return _count(fabric.adapters_per_server, "adapter")


def _layer_text(fabric: ScaleOut, layer: Layer, number: int, cluster: Cluster) -> str:
    below = min(layer.chips, cluster.chips)
    rails = f" of {fabric.rails} rails" if number == 0 and fabric.rails > 1 else ""
    if layer.groups == 1:
        return f"one {layer.name} group{rails}"
    return f"{layer.groups:,} {layer.name} groups{rails}, up to {below:,} chips each"


def _rise_text(fabric: ScaleOut, layers: tuple[Layer, ...], number: int, cluster: Cluster) -> str:
    """Describe the links that lead up into layer ``number``, and the time of a step over it."""
    climb_ps = fabric.climb_ps[min(number, len(fabric.climb_ps) - 1)]
    step = f"{time_text(fabric.latency_ps + climb_ps)} a step"
    if number == 0:
        server = rate_text(fabric.bandwidth_bytes_per_s * cluster.chips_per_server)
        return f"{rate_text(fabric.bandwidth_bytes_per_s)} a chip, {server} a server\n{step}"
    below = layers[number - 1]
    return f"{rate_text(below.up_bytes_per_s)} a group over {below.up_links:,} links\n{step}"
