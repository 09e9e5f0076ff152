"""Collectives: what they must achieve, how algorithms achieve it, proofs, bounds and timings."""

from cluster_sim.collectives.algorithms.named import OPS, algorithms
from cluster_sim.collectives.bounds import Bound, lower_bound, lower_bound_ps
from cluster_sim.collectives.compose import build, compose
from cluster_sim.collectives.composed import Collective
from cluster_sim.collectives.group import Group, whole
from cluster_sim.collectives.memory import hbm_bytes, hbm_bytes_per_s
from cluster_sim.collectives.proof import ProofError, prove
from cluster_sim.collectives.table import bus_factor, measure, rows
from cluster_sim.collectives.timing import duration_ps

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
