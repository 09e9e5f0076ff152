"""Rates across cuts, computed from stretches of an axis, equal those summed link by link."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives.verify import bounds
from topologies.clusters.names import cluster
from topologies.shapes.links import coordinates, domain_links

SHAPES = ("ring:7", "ring:2", "torus:4x3x5", "torus:2x2x2", "torus:8x8", "torus:1x6", "torus:3x2")


@pytest.mark.parametrize("shape", SHAPES)
def test_stretches_of_an_axis_are_left_at_the_rate_of_their_links(shape: str) -> None:
    torus = cluster(shape, bandwidth="100GB/s", latency="1us").shape
    links, place = domain_links(torus), coordinates(torus, np.arange(torus.chips))
    for axis, size in enumerate(torus.sizes):
        for width in {1, size // 2} - {0, size}:
            rates = bounds._outward_by_start(links, place[axis], size, width)
            expected = [
                bounds._outward(links, (place[axis] - start) % size < width)
                for start in range(size)
            ]
            assert rates.tolist() == expected
