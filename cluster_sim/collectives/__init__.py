"""Collectives: what they must achieve, how algorithms achieve it, proofs, bounds and timings."""

from cluster_sim.collectives.algorithms import OPS, Collective, algorithms, build, compose
from cluster_sim.collectives.group import Group, whole

__all__ = [
    "OPS",
    "Collective",
    "Group",
    "algorithms",
    "build",
    "compose",
    "whole",
]
