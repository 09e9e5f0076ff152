"""Collectives: what they must achieve, how algorithms achieve it, proofs, bounds and timings."""

from cluster_sim.collectives.algorithms.registry import OPS, algorithms
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.memory_traffic import hbm_bytes, hbm_bytes_per_s
from cluster_sim.collectives.group import Group, whole
from cluster_sim.collectives.lowering.build import build, compose
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.measure import bus_factor, measure, rows
from cluster_sim.collectives.verify.bounds import Bound, lower_bound, lower_bound_ps
from cluster_sim.collectives.verify.proof import ProofError, prove

__all__ = [
    "OPS",
    "Bound",
    "Collective",
    "Group",
    "ProofError",
    "algorithms",
    "build",
    "bus_factor",
    "compose",
    "duration_ps",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "lower_bound",
    "lower_bound_ps",
    "measure",
    "prove",
    "rows",
    "whole",
]
