"""Clusters, groups and strategies that the tests of collectives share."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from cluster_sim.collectives import KINDS, CollectiveCall, Group, suitable
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster

RATE, LATENCY = "100GB/s", "1us"
ENGINES = ("reference", "fast")
PLAIN = (
    *("ring:1", "ring:2", "ring:5", "torus:3x4", "torus:2x2x3", "mesh:5", "switch:4"),
    *("clos:16:8", "clos:24:8:3"),
)
REAL = ("trn2.48xlarge", "trn2-ultraserver", "trn2.48xlarge:3", "trn3-gen1")


def named(text: str) -> Cluster:
    """A cluster by name; plain shapes at 100 GB/s and 1 µs a link."""
    return cluster(text, bandwidth=RATE, latency=LATENCY) if text in PLAIN else cluster(text)


def algorithm_names(kind: str, group: Group) -> list[str]:
    """Names of the algorithms that make sense for an operation on a group."""
    return [one.name for one in suitable(CollectiveCall(kind, group, 1))]


@dataclass(frozen=True)
class Case:
    """A collective in plain values, so that a failing one prints short."""

    op: str
    machine: str
    chips: tuple[int, ...]
    ranks_per_chip: int
    size: int
    pick: int
    ideal: bool

    @property
    def group(self) -> Group:
        return Group(named(self.machine), np.array(self.chips), self.ranks_per_chip)

    @property
    def call(self) -> CollectiveCall:
        return CollectiveCall(self.op, self.group, self.size)

    @property
    def algorithm(self) -> str:
        sensible = algorithm_names(self.op, self.group)
        return sensible[self.pick % len(sensible)]


@st.composite
def collectives(draw: st.DrawFn) -> Case:
    """Operation, group in any order, size, algorithm that makes sense there, ideal or not."""
    name = draw(st.sampled_from([*PLAIN, *REAL]))
    chips = named(name).chips
    some = st.lists(st.integers(0, chips - 1), min_size=1, max_size=9, unique=True)
    return Case(
        op=draw(st.sampled_from(KINDS)), machine=name,
        chips=tuple(draw(
            some | st.just(range(min(chips, 16))) | st.permutations(range(min(chips, 20)))
        )),
        ranks_per_chip=draw(st.sampled_from([1, 1, 2])),
        size=draw(st.sampled_from([0, 1, 7, 1000]) | st.integers(0, 2**24)),
        pick=draw(st.integers(0, 15)), ideal=draw(st.booleans()),
    )  # fmt: skip
