"""Drawing of a scale-out fabric as boxes: servers below, the layers of the Clos above them."""

from __future__ import annotations

from matplotlib.axes import Axes

from topologies.clusters.cluster import Cluster
from topologies.drawing.marks import CHIP, QUIET, SWITCH, box, note, rate_text, time_text
from topologies.routing.scale_out import clos
from topologies.shapes.scale_out import Layer, ScaleOut

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
