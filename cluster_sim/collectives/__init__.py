"""Collective operations: calls, algorithms, schedules, proofs, lower bounds and times."""

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, suitable
from cluster_sim.collectives.builder import Collective, collective, compose
from cluster_sim.collectives.call import KINDS, CollectiveCall
from cluster_sim.collectives.duration.duration import (
    CollectiveTime,
    duration_ps,
    hbm_bytes,
    hbm_bytes_per_s,
)
from cluster_sim.collectives.group import Group, whole
from cluster_sim.collectives.results import bus_factor, measure, rows
from cluster_sim.collectives.verify.bounds import Bound, lower_bound
from cluster_sim.collectives.verify.proof import ProofError, prove

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "Algorithm",
    "Bound",
    "Collective",
    "CollectiveCall",
    "CollectiveTime",
    "Group",
    "ProofError",
    "bus_factor",
    "collective",
    "compose",
    "duration_ps",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "lower_bound",
    "measure",
    "prove",
    "rows",
    "suitable",
    "whole",
]
