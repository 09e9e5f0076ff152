"""Communication of a stage's rank with its replicas: gradients, parameters, shards of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from topologies.arrays import IntArray
from workloads.kernels.chip_share import Timing
from workloads.training.layers.data_parallel import (
    buckets,
    clip,
    gather_parameters,
    orthogonalized,
    reduce_gradients,
    tie,
    update,
)
from workloads.training.layers.host import sharded_bytes_per_s, start_s
from workloads.training.layers.stage_parameters import NOTHING, StageParameters
from workloads.training.layers.steps import ENGINE, LayerOp, kernel
from workloads.training.plan.parameters import WEIGHT_BYTES, Share, total
from workloads.training.plan.plan import ParallelPlan


class Stretch(NamedTuple):
    """Consecutive layers of a pass, and the reduction that starts when the last of them is done."""

    layers: IntArray  # (layers,)
    # Reduction of the layers' gradients if they fill a bucket; empty if they do not
    leaving: list[LayerOp]


@dataclass(frozen=True, eq=False)
class ReplicaExchange:
    """Steps in which one rank of a stage communicates with ranks that hold the same parameters."""

    parameters: StageParameters  # parameters that the rank holds and trains
    job: ParallelPlan  # plan of the whole job, of which the stage's shapes may show a part

    @property
    def _plan(self) -> ParallelPlan:
        return self.parameters.shapes.plan

    def stretches(self, layers: IntArray, *, reduces: bool) -> tuple[list[Stretch], Share]:
        """Divide layers into stretches, each of which ends with a bucket of gradients."""
        # Under ZeRO-2 and 3 every layer is a bucket, as no rank has memory for the gradients of
        # more. ``layers`` (layers,) are in the order of the pass. The second result are the
        # parameters whose gradients fill no bucket.
        plan, shares = self._plan, self.parameters.trained(layers)
        least = 1 if plan.sharding >= 2 else self.parameters.bucket
        runs = [range(len(layers))]
        if reduces or plan.sharding == 3:
            runs = buckets([share.total for share in shares], least)
        stretches, left = [], NOTHING
        for run in runs:
            bucket, leaving = total(shares[run.start : run.stop]), list[LayerOp]()
            if reduces and bucket.total >= least:
                leaving = reduce_gradients(self.parameters.shapes, "bucket", bucket)
            else:
                left = bucket
            stretches.append(Stretch(layers[run.start : run.stop], leaving))
        return stretches, left

    def reduced(self, left: Share, *, edges: bool) -> list[LayerOp]:
        """Reduce the gradients that fill no bucket, with embedding and output layer if ``edges``.

        Without overlap the next pass waits for this reduction.
        """
        rest = total([left, self.parameters.trained_edges if edges else NOTHING])
        steps = reduce_gradients(self.parameters.shapes, "bucket", rest)
        waits = steps and self._plan.overlap == "none"
        return [*steps, kernel("gradients.wait", Timing(0.0, "measured"))] if waits else steps

    def gathered(self, layers: IntArray) -> list[LayerOp]:
        """Gather the parameters of a stretch of layers."""
        # Under ZeRO-1 and 2 only updated parameters differ between ranks, so frozen ones are not
        # gathered.
        parameters = self.parameters
        shares = parameters.held if self._plan.sharding == 3 else parameters.trained
        return gather_parameters(parameters.shapes, "bucket", total(shares(layers)))

    def gathered_edges(self) -> list[LayerOp]:
        """Gather what the stage holds of embedding, final norm and output layer."""
        return gather_parameters(self.parameters.shapes, "rest", self.parameters.edges)

    def gathers_ahead(self) -> bool:
        """Return whether a step begins by gathering the parameters that the step before updated."""
        return self._plan.overlap != "none" and self._plan.sharding in (1, 2)

    def updated(self) -> list[IntArray]:
        """Return the stretches of layers, each a bucket, whose updated parameters are gathered."""
        parameters = self.parameters
        return [
            layers[run.start : run.stop]
            for layers in parameters.chunks
            for run in buckets(
                [weights.total for weights in parameters.held(layers)], parameters.bucket
            )
        ]

    def waits(self, layers: IntArray, *, gathers: bool, reduces: bool) -> list[LayerOp]:
        """Return the time for which kernels wait for shards of other ranks, as a step."""
        parameters = self.parameters
        rate_bytes_per_s = sharded_bytes_per_s(parameters.shapes, self.job)
        if not rate_bytes_per_s or not len(layers):
            return []
        gradient_bytes = parameters.shapes.catalogue.integer("training", "reduced_bytes")
        exchanged = gathers * WEIGHT_BYTES * self._from_others(total(parameters.held(layers)))
        exchanged += reduces * gradient_bytes * self._from_others(total(parameters.trained(layers)))
        waiting_s = exchanged / rate_bytes_per_s
        return [kernel("shards.wait", Timing(waiting_s, "assumed"), "dp")] if waiting_s else []

    def _from_others(self, share: Share) -> float:
        """Parameters of a share that other ranks hold: (r - 1) / r of those of r replicas."""
        plan = self._plan
        dense = share.dense * (1 - 1 / plan.replicas)
        return dense + share.experts * (1 - 1 / plan.expert_replicas)

    def finish(self) -> list[LayerOp]:
        """Return the end of an iteration: reduce, clip, update, and gather updated parameters."""
        # Gradients that were reduced beside the backward pass, and parameters that the next
        # iteration gathers beside its forward pass, are not exchanged here again.
        plan, shapes, owned = self._plan, self.parameters.shapes, self.parameters.owned
        reduced, gathered = list[LayerOp](), list[LayerOp]()
        if plan.overlap == "none" and plan.sharding < 2:
            reduced = reduce_gradients(shapes, "all", owned)
        if plan.overlap == "none" and plan.sharding < 3:
            gathered = gather_parameters(shapes, "all", owned)
        tied = tie(shapes, self.parameters.stage)
        edges = self.parameters.trained_edges
        layers = sum(len(chunk) for chunk in self.parameters.chunks)
        if waited_s := start_s(shapes, layers, "update"):
            gathered = [LayerOp("host.update", "host", ENGINE, waited_s), *gathered]
        updated = [*orthogonalized(shapes, owned, edges), update(shapes, owned, edges)]
        return [*tied, *reduced, *clip(shapes, owned), *updated, *gathered]
