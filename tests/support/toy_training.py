"""Toy models and plans for the tests of training."""

from __future__ import annotations

from typing import Any

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from workloads.models.model import Experts, LatentAttention, Model
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.program import Program, program

TOY = Model("toy", 8, 1024, 16, 4, 64, 4096, 32_000)

SPARSE = Model(
    "sparse", 8, 1024, 16, 4, 64, 4096, 32_000, experts=Experts(16, 2, 1024, 2048, dense_layers=1)
)
LATENT = Model(
    "latent", 4, 1024, 16, 16, 96, 4096, 32_000,
    experts=Experts(16, 4, 512, 512, dense_layers=1, router_bias=True),
    latent=LatentAttention(256, 128, 64, 32, 64),
)  # fmt: skip


def plan(**changes: Any) -> ParallelPlan:
    """A plan of one rank and one short sequence without overlap, but for the changes."""
    usual = {"global_batch": changes.get("dp", 1) * 8, "seq": 1024, "overlap": "none"}
    return ParallelPlan(**{**usual, **changes})


def sixteen(machine: str = "trn2.48xlarge") -> Cluster:
    """A cluster of sixteen chips."""
    return cluster(machine)


def toy_program(
    how: ParallelPlan, machine: Cluster, model: Model = TOY, chips: Any = None, iterations: int = 1
) -> Program:
    """The program of an iteration of the toy model."""
    shapes = RankShapes(model, how, machine.chip, machine.catalogue or shipped_catalogue())
    return program(shapes, place(how, machine, chips), iterations)
