"""Links of a Clos of individual switches, and routes over one or all of its equal paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray
from topologies.shapes.clos import LAYER_NAMES, Clos


@dataclass(frozen=True, eq=False)
class SplitRoutes:
    """Links over which the traffic of each pair of chips is split.

    ``ptr`` (pairs + 1,): links of pair k are ``link[ptr[k]:ptr[k + 1]]``.
    ``link`` (crossings,): rows of :func:`topologies.shapes.links.domain_links`.
    ``weight`` (crossings,): number of the pair's paths that cross the link: it carries ``weight /
        whole`` of the traffic.
    ``whole`` (pairs,): number of equal paths of each pair.
    """

    ptr: IntArray
    link: IntArray
    weight: IntArray
    whole: IntArray


def clos_ends(shape: Clos) -> tuple[IntArray, IntArray, IntArray, int]:
    """Return source, destination and layer of every link, and the number of nodes.

    Links are in order of layer from the chips upwards; in a layer first all links that lead up,
    then those that lead down in the same order.
    """
    counts = shape.switches
    first = np.cumsum([shape.size, *counts])
    chip = np.arange(shape.size)
    pairs = [(chip, first[0] + chip // shape.chips_per_leaf)]
    if shape.layers > 1:
        leaf = np.repeat(np.arange(counts[0]), shape.up)
        spine = leaf // shape.leaves_per_pod * shape.up + np.arange(len(leaf)) % shape.up
        pairs.append((first[0] + leaf, first[1] + spine))
    if shape.layers > 2:
        half = shape.radix // 2
        spine = np.repeat(np.arange(counts[1]), half)
        core = spine % shape.up * half + np.arange(len(spine)) % half
        pairs.append((first[1] + spine, first[2] + core))
    src = np.concatenate([end for low, high in pairs for end in (low, high)])
    dst = np.concatenate([end for low, high in pairs for end in (high, low)])
    layer = np.repeat(np.arange(len(pairs)), [2 * len(low) for low, _ in pairs])
    return src.astype(np.int32), dst.astype(np.int32), layer.astype(np.int8), int(first[-1])


def layer_names(shape: Clos) -> tuple[str, ...]:
    """Return the names of the layers of switches, from the leaves upwards."""
    return LAYER_NAMES[: shape.layers]


def split_routes(shape: Clos, src: npt.ArrayLike, dst: npt.ArrayLike) -> SplitRoutes:
    """Split the traffic of each pair evenly over all its shortest paths.

    A chip has no path to itself.

    Examples
    --------
    Two chips of different leaves below two spines: half of the traffic over either.

    >>> routed = split_routes(Clos(8, 4, 10**9, 0), [0], [2])
    >>> routed.weight.tolist(), routed.whole.tolist()
    ([2, 1, 1, 1, 1, 2], [2])
    """
    starts, ends = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
    levels, fans = _levels(shape, starts, ends), _fans(shape)
    # The first layer is crossed by one link each way, a layer above by one for each path up to it.
    paths = np.cumprod(fans)
    ptr = np.zeros(len(starts) + 1, np.int64)
    crossings = np.concatenate([[0], 2 * np.cumsum(paths)])
    np.cumsum(crossings[levels], out=ptr[1:])
    link = np.empty(int(ptr[-1]), np.int32)
    weight = np.empty(len(link), np.int32)
    whole = paths[np.maximum(levels - 1, 0)]
    for layer in range(shape.layers):
        pair = np.flatnonzero(levels > layer)
        path = np.arange(paths[layer])
        up, down = _path_links(shape, layer, starts[pair, None], ends[pair, None], path)
        offset = int(crossings[layer] // 2)
        # Links up stand from the front of the pair's list on, links down from its back.
        row_up = ptr[pair, None] + offset + path
        row_down = ptr[pair + 1, None] - offset - int(paths[layer]) + path
        link[row_up], link[row_down] = up, down
        weight[row_up] = weight[row_down] = (whole[pair] // paths[layer])[:, None]
    return SplitRoutes(ptr, link, weight, whole.astype(np.int32))


def single_routes(shape: Clos, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
    """Return pointers and links of one path for each pair, chosen by the destination's number."""
    levels, paths = _levels(shape, src, dst), np.cumprod(_fans(shape))
    ptr = np.zeros(len(src) + 1, np.int64)
    np.cumsum(2 * levels, out=ptr[1:])
    link = np.empty(int(ptr[-1]), np.int32)
    for layer in range(shape.layers):
        pair = np.flatnonzero(levels > layer)
        whole = paths[levels[pair] - 1]
        path = dst[pair] % whole // (whole // paths[layer])
        up, down = _path_links(shape, layer, src[pair], dst[pair], path)
        link[ptr[pair] + layer] = up
        link[ptr[pair + 1] - 1 - layer] = down
    return ptr, link


def _levels(shape: Clos, src: IntArray, dst: IntArray) -> IntArray:
    """Return how many layers each pair's paths climb: 0 for a chip and itself, 1 in a leaf, …"""
    leaf = shape.chips_per_leaf
    pod = leaf * shape.leaves_per_pod
    apart = [src != dst, src // leaf != dst // leaf, src // pod != dst // pod]
    levels: IntArray = np.sum(apart, axis=0, dtype=np.int64)
    return levels


def _fans(shape: Clos) -> IntArray:
    """Return the number of links up from a chip, from a leaf and from a spine."""
    return np.array([1, shape.up, shape.radix // 2][: shape.layers])


def _path_links(
    shape: Clos, layer: int, src: IntArray, dst: IntArray, path: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the links up into a layer, and down from it, of numbered paths.

    ``layer``: 0 for links between chips and leaves, 1 for those between leaves and spines, and so
    on. ``src, dst``: chips at both ends. ``path``: number of the path among those from the chip up
    to this layer.
    """
    counts = (shape.size, shape.switches[0] * shape.up, 0)
    half = shape.radix // 2
    begin = 2 * sum(counts[:layer])
    if layer == 0:
        return src + 0 * path, begin + shape.size + dst + 0 * path
    leaves = [end // shape.chips_per_leaf for end in (src, dst)]
    if layer == 1:
        up, down = (leaf * shape.up + path for leaf in leaves)
        return begin + up, begin + counts[1] + down
    spines = [leaf // shape.leaves_per_pod * shape.up + path // half for leaf in leaves]
    up, down = (spine * half + path % half for spine in spines)
    return begin + up, begin + shape.switches[1] * half + down
