"""Rows of experiments: points of their work on all cores, intervals, training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.reports.formatting import values_of
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.support.options import setting
from workloads.confidence.answers import collective_interval
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.training.execution.jitter import disturbance
from workloads.training.iteration import iteration
from workloads.training.program.groups import SharedParts
from workloads.training.usual_plan import complete

if TYPE_CHECKING:
    import pandas as pd


def with_collective_ends(
    frame: pd.DataFrame, cluster: Cluster, *, ideal: bool = False
) -> pd.DataFrame:
    """Add ``low_s`` and ``high_s`` to a cluster's rows; those of the α–β model are points [s]."""
    calls = zip(*(frame[name].tolist() for name in ("ranks", "size_bytes", "time_s")), strict=True)
    ends = [collective_interval(cluster, *call, ideal=ideal) for call in calls]
    return frame.assign(low_s=[end.low for end in ends], high_s=[end.high for end in ends])


def relative(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ``efficiency``: speed of a chip relative to the first size of its overlap and jitter."""
    each = frame.groupby(["overlap", "jitter"], sort=False)["tokens_per_s_per_chip"]
    return frame.assign(efficiency=frame["tokens_per_s_per_chip"] / each.transform("first"))


def chips_kept(frame: pd.DataFrame) -> str:
    """Sentence with the share of a chip's speed that remains at the largest size."""
    kept = frame.groupby(["overlap", "jitter"], sort=False).efficiency.last()
    shares = dict.fromkeys(f"{share:.0%}" for share in (kept.min(), kept.max()))
    return (
        f"On {frame.chips.max():,} chips each is {' to '.join(shares)} as fast as on "
        f"{frame.chips.min():,}"
    )


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
    """Steps of one model on one cluster that computes, whose programs have parts in common."""

    def __init__(self, model: Model | str, cluster: Cluster | str):
        self.model = as_model(model)
        self.cluster = machine(cluster) if isinstance(cluster, str) else cluster
        self._parts = SharedParts()

    def repeated(self, replica: Replica, **fields: Any) -> dict[str, Any]:
        """Return the fields of a plan that repeats a replica over the cluster, and further ones."""
        plan: dict[str, Any] = {
            **values_of(replica, "tp", "pp", "microbatch", "seq"),
            **({"framework": replica.framework} if replica.framework else {}),
            **fields,
        }
        dp = complete(plan, self.model, self.cluster).dp
        return {**plan, "global_batch": dp * replica.microbatch * replica.microbatches}

    def row(
        self,
        fields: Mapping[str, Any],
        *,
        jitter: str = "",
        stragglers: Sequence[str] = (),
        steps: int = 1,
        seed: int = 0,
        allow_oversized: bool = True,
    ) -> dict[str, Any]:
        """Simulate a step of a plan; returns plan, time, interval and parts by column."""
        model, cluster = self.model, self.cluster
        plan = complete(fields, model, cluster)
        uneven = disturbance(jitter, seed, stragglers)
        step = iteration(
            *(model, cluster, plan),
            allow_oversized=allow_oversized,
            disturbed=uneven,
            iterations=steps if uneven.causes else 1,
            shared=self._parts,
        )
        return {
            "model": model.name,
            "cluster": cluster.name,
            "chips": cluster.chips,
            **fields,
            "dp": plan.dp,
            "iteration_s": step.iteration_s,
            "low_s": step.interval.low,
            "high_s": step.interval.high,
            **({f"p{q}_s": step.uneven.quantile_s(q) for q in (90, 99)} if step.uneven else {}),
            "jitter": jitter or "0",
            "tokens_per_s": step.tokens_per_s,
            "tokens_per_s_per_chip": step.tokens_per_s / cluster.chips,
            "mfu": step.mfu,
            "fits": step.memory.fits,
            **{f"{part}_s": value for part, value in step.breakdown_s.items()},
        }
