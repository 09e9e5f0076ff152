"""Drawing of a cluster: a scale-up domain, and the fabric that joins domains."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topologies.clusters.cluster import Cluster
from topologies.drawing.fabric import draw_scale_out
from topologies.drawing.marks import CHIP, COLOURS, SWITCH, rate_text, time_text
from topologies.drawing.switched import draw_clos, draw_mesh, draw_switch, draw_tiered
from topologies.drawing.torus import draw_torus, has_stubs
from topologies.shapes.basic import FullMesh, Shape, Switch, Torus
from topologies.shapes.clos import Clos
from topologies.shapes.tiered import Tiered
from topologies.views.measures import Measures, measure


def draw(cluster: Cluster) -> Figure:
    """Draw a cluster.

    On the left is one scale-up domain with the numbers of its chips, or parts of a large one; on
    the right, if there is a scale-out fabric, the layers that join all servers. The legend gives
    the rate and latency of each kind of link, the title the totals.

    >>> from topologies.clusters.names import cluster
    >>> draw(cluster("trn2.48xlarge")).axes[0].get_title(loc="left")
    'One scale-up domain: 16 chips'
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
    """Return the colour and the description of each kind of link."""
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
