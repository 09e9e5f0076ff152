"""Rows of training steps for the experiments that compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topologies.options import option

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model
    from workloads.training.execution.jitter import Disturbance
    from workloads.training.program.shared_parts import SharedParts


@dataclass(frozen=True)
class Replica:
    """Plan of one replica of a model, the same at every scale."""

    tp: int = field(default=8, metadata=option("Tensor-parallel degree of a replica"))
    pp: int = field(default=1, metadata=option("Pipeline stages of a replica"))
    microbatches: int = field(default=4, metadata=option("Microbatches of a replica in a step"))
    microbatch: int = field(default=1, metadata=option("Sequences of a microbatch"))
    seq: int = field(default=8192, metadata=option("Tokens of a sequence"))

    @property
    def degrees(self) -> dict[str, int]:
        """Fields of a plan that a replica sets."""
        return {"tp": self.tp, "pp": self.pp, "microbatch": self.microbatch, "seq": self.seq}

    def batch(self, chips: int) -> int:
        """Return the sequences of a step of as many replicas as fit on some chips."""
        return chips // (self.tp * self.pp) * self.microbatch * self.microbatches


def training_row(
    model: Model,
    cluster: Cluster,
    plan: Mapping[str, Any],
    *,
    disturbed: Disturbance | None = None,
    shared: SharedParts | None = None,
) -> dict[str, Any]:
    """Simulate a step, and return its plan, time, interval, throughput and parts by column.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    plan : mapping
        Fields of a plan; the others are completed.
    disturbed : Disturbance, optional
        Jitter and stragglers of the step; by default none.
    shared : SharedParts, optional
        Parts of programs that several rows on this cluster have in common.
    """
    from experiments.scripts.support.intervals import step_ends
    from workloads.training.execution.jitter import Disturbance
    from workloads.training.iteration import iteration
    from workloads.training.plan.plan_file import complete

    whole = complete(plan, model, cluster)
    step = iteration(
        *(model, cluster, whole),
        allow_oversized=True,
        disturbed=disturbed or Disturbance(),
        shared=shared,
    )
    return {
        "model": model.name,
        "cluster": cluster.name,
        "chips": cluster.chips,
        **dict(plan),
        "dp": whole.dp,
        "iteration_s": step.iteration_s,
        **step_ends(step),
        "tokens_per_s": step.tokens_per_s,
        "tokens_per_s_per_chip": step.tokens_per_s / cluster.chips,
        "mfu": step.mfu,
        "fits": step.memory.total <= step.memory.capacity,
        **{f"{part}_s": value for part, value in step.breakdown_s.items()},
    }
