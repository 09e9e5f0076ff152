"""Rows of training steps for the experiments that compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.scripts.support.points import step_ends
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.options import setting
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.training.execution.jitter import Disturbance
from workloads.training.iteration import iteration
from workloads.training.program.groups import SharedParts
from workloads.training.usual_plan import complete


@dataclass(frozen=True)
class Replica:
    """Plan of one replica of a model, the same at every scale."""

    tp: int = setting(8, "Tensor-parallel degree of a replica")
    pp: int = setting(1, "Pipeline stages of a replica")
    microbatches: int = setting(4, "Microbatches of a replica in a step")
    microbatch: int = setting(1, "Sequences of a microbatch")
    seq: int = setting(8192, "Tokens of a sequence")
    framework: str = setting("", "Training framework", default="the usual one of the chip")


class Steps:
    """Steps of one model on one cluster, whose programs have parts in common.

    Parameters
    ----------
    model : Model or str
    cluster : Cluster or str
        A cluster whose chips can compute.
    """

    def __init__(self, model: Model | str, cluster: Cluster | str):
        self.model = as_model(model)
        self.cluster = machine(cluster) if isinstance(cluster, str) else cluster
        self._parts = SharedParts()

    def repeated(self, replica: Replica, **fields: Any) -> dict[str, Any]:
        """Return the fields of a plan that repeats a replica over the cluster, and further ones."""
        plan: dict[str, Any] = {
            "tp": replica.tp,
            "pp": replica.pp,
            "microbatch": replica.microbatch,
            "seq": replica.seq,
            **({"framework": replica.framework} if replica.framework else {}),
            **fields,
        }
        dp = complete(plan, self.model, self.cluster).dp
        return {**plan, "global_batch": dp * replica.microbatch * replica.microbatches}

    def row(
        self,
        fields: Mapping[str, Any],
        *,
        disturbed: Disturbance | None = None,
        allow_oversized: bool = True,
    ) -> dict[str, Any]:
        """Simulate a step, and return its plan, time, interval, throughput and parts by column.

        ``fields``: fields of a plan; the others are completed. ``disturbed``: jitter and stragglers
        of the step; by default none. ``allow_oversized``: whether the step may need more memory
        than the chips have.
        """
        model, cluster = self.model, self.cluster
        plan = complete(fields, model, cluster)
        step = iteration(
            *(model, cluster, plan),
            allow_oversized=allow_oversized,
            disturbed=disturbed or Disturbance(),
            shared=self._parts,
        )
        return {
            "model": model.name,
            "cluster": cluster.name,
            "chips": cluster.chips,
            **fields,
            "dp": plan.dp,
            "iteration_s": step.iteration_s,
            **step_ends(step),
            "tokens_per_s": step.tokens_per_s,
            "tokens_per_s_per_chip": step.tokens_per_s / cluster.chips,
            "mfu": step.mfu,
            "fits": step.memory.fits,
            **{f"{part}_s": value for part, value in step.breakdown_s.items()},
        }
