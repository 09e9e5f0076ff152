"""Parameters of one rank of a pipeline stage: those that it holds, and those that are trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.arrays import IntArray
from workloads.training.layers.adapters import trained_share, whole
from workloads.training.layers.data_parallel import bucket_parameters, edges_of
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.parameters import Share, kind_shares
from workloads.training.plan.stage_layers import chunk_layers, is_kept, layer_kinds

NOTHING = Share(0, 0)


@dataclass(frozen=True, eq=False)
class StageParameters:
    """Parameters of a rank of a stage, each count computed once for all passes of the stage."""

    shapes: RankShapes
    stage: int

    @cached_property
    def chunks(self) -> list[IntArray]:
        """Layers of each of the stage's chunks."""
        return chunk_layers(self.shapes.model, self.shapes.plan, self.stage)

    @cached_property
    def kinds(self) -> IntArray:
        """Number of the kind of every layer of the model, int64 (layers,)."""
        return layer_kinds(self.shapes.model, np.arange(self.shapes.model.layers))

    @cached_property
    def kept(self) -> IntArray:
        """1 for every layer whose activations full recomputation keeps, else 0, int64 (layers,)."""
        return is_kept(self.shapes.plan, np.arange(self.shapes.model.layers))

    @cached_property
    def bucket(self) -> int:
        """Least number of parameters whose gradients are reduced together as a bucket."""
        return bucket_parameters(self.shapes)

    @cached_property
    def owned(self) -> Share:
        """All parameters of the stage that have gradients and optimizer state."""
        return trained_share(self.shapes.model, self.shapes.plan, self.stage)

    @cached_property
    def edges(self) -> Share:
        """Parameters that the stage holds of embedding, final norm and output layer."""
        return edges_of(self.shapes, self.stage)

    @cached_property
    def trained_edges(self) -> Share:
        """Parameters of ``edges`` that are trained."""
        if self.shapes.plan.train_only == "output":
            return self.owned
        return self.edges if whole(self.shapes.plan) else NOTHING

    @cached_property
    def _of_kinds(self) -> tuple[Share, ...]:
        return kind_shares(self.shapes.model, self.shapes.plan)

    def held(self, layers: IntArray) -> list[Share]:
        """Parameters of each of these layers."""
        return [self._of_kinds[kind] for kind in self.kinds[layers].tolist()]

    def trained(self, layers: IntArray) -> list[Share]:
        """Parameters of each of these layers that are trained."""
        if whole(self.shapes.plan):
            return self.held(layers)
        # What is trained of a stage is the same part of each of its layers.
        in_layers = NOTHING if self.shapes.plan.train_only == "output" else self.owned
        count = max(1, sum(len(chunk) for chunk in self.chunks))
        return [Share(in_layers.dense // count, in_layers.experts // count)] * len(layers)
