"""Toy models and plans for the tests of training."""

from dataclasses import replace

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.model import Experts, Indexer, LatentAttention, Model
from workloads.training.layers.steps import RankShapes
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import most_held
from workloads.training.program.groups import group_of, group_ps
from workloads.training.program.program import program

TOY = Model("toy", 8, 1024, 16, 4, 64, 4096, 32_000)

SPARSE = Model(
    "sparse", 8, 1024, 16, 4, 64, 4096, 32_000, experts=Experts(16, 2, 1024, 2048, dense_layers=1)
)
NARROW = replace(SPARSE, name="narrow", experts=Experts(16, 2, 1024, 2048, latent=256))
"""Experts on a narrower hidden state."""
LATENT = Model(
    "latent", 4, 1024, 16, 16, 96, 4096, 32_000,
    experts=Experts(16, 4, 512, 512, dense_layers=1, router_bias=True),
    latent=LatentAttention(256, 128, 64, 32, 64),
)  # fmt: skip
SELECTING = replace(LATENT, name="selecting", window=128, keys="selected", indexer=Indexer(4, 32))


def plan(**changes):
    """A plan of one rank and one short sequence without overlap, but for the changes."""
    usual = {"global_batch": changes.get("dp", 1) * 8, "seq": 1024, "overlap": "none"}
    return ParallelPlan(**{**usual, **changes})


def sixteen(machine="trn2.48xlarge"):
    return cluster(machine)


def toy_program(how, machine, model=TOY, chips=None, iterations=1):
    """The program of an iteration of the toy model."""
    shapes = RankShapes(model, how, machine.chip, machine.catalogue or shipped_catalogue())
    return program(shapes, place(how, machine, chips), iterations)


def exchange_ps(machine, chips, op, size_bytes):
    """Time of one communication of the ranks on these chips [ps]."""
    return group_ps(group_of(machine, chips), op, size_bytes)


def in_flight(how, stage):
    """Count the microbatches whose activations a stage holds at once, summed over its chunks."""
    held = most_held(how.pipeline, how.pp, stage, how.microbatches, how.vpp)
    return int(held.sum(axis=1).max())
