"""Uncertainty of a fleet's capacity, and the assumptions behind its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from topologies.catalogue.catalogue import chip_family, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.confidence.interval import Interval
from workloads.confidence.split_conformal import interval
from workloads.fleet.state.services import Choice, Service


def capacity_interval(services: Sequence[Service], capacity: float) -> Interval:
    """Interval of the capacity of a unit: that of its least certain service.

    The number of units needed is inverse to the capacity, and so are the ends of its interval.
    """
    intervals = [
        interval(capacity, service.prediction)
        for service in services
        if service.prediction is not None
    ]
    if not intervals:
        return Interval(capacity, capacity, basis="rate of a unit as given")
    return max(intervals, key=lambda each: each.high)


def replicas_document(services: Sequence[Service]) -> list[dict[str, Any]]:
    """Return the replicas in a unit, one row for each model, for the command line's JSON."""
    models = {service.weights: service for service in services if service.replica_chips}
    return [
        {
            "model": name.partition(" on ")[0],
            "precision": service.precision,
            "chips": service.replica_chips,
            "expert_groups": service.expert_groups,
            "chunk_tokens": service.chunk_tokens,
            "replicas_per_unit": service.replicas,
            **({"cold_cache_s": service.cold_s} if service.cold_s else {}),
            **_apart_document(service),
            **({} if service.choice is None else asdict(service.choice)),
        }
        for name, service in models.items()
    ]


def _apart_document(service: Service) -> dict[str, Any]:
    if service.apart is None:
        return {}
    return {
        "prefill_replicas": service.apart.prefill,
        "decode_replicas": service.apart.decode,
        "groups_per_unit": service.replicas / service.group,
        "kv_transfer_bytes_per_s": service.apart.transfer_bytes_per_s,
    }


def serving_notes(
    cluster: Cluster, services: Sequence[Service], *, is_usual: bool = False
) -> list[str]:
    """Return remarks on how Neuron machines run prompts, and on overheads that are assumed."""
    return [*_prompt_notes(cluster, services, is_usual), *_overhead_notes(cluster, services)]


def _prompt_notes(cluster: Cluster, services: Sequence[Service], is_usual: bool) -> list[str]:
    served = [service for service in services if service.replica_chips]
    if not served or not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        return []
    if pieces := {service.chunk_tokens for service in served if service.chunk_tokens}:
        tokens = " and ".join(f"{size:,}" for size in sorted(pieces))
        return [
            f"prompts run in pieces of {tokens} tokens beside decoding, which no engine of Neuron "
            "does: leave --prefill and --chunk out for a way that Neuron has."
        ]
    if not is_usual:
        return []
    return list(dict.fromkeys(map(_choice_note, served)))


def _choice_note(service: Service) -> str:
    """Return how prompts of a service run by default, what comes next, and what binds."""
    apart, choice = service.apart, service.choice or Choice("")
    way = (
        f"prompts run whole on replicas of their own ({apart.prefill}:{apart.decode})"
        if apart
        else "decoding waits for whole prompts"
    )
    binds = f"; {choice.binds} binds" if choice.binds else ""
    if service.replicas == 1:
        joined = (
            f"; --disaggregate {choice.runner_up} gives prompts replicas of their own in groups of "
            f"units, which serve {choice.runner_up_share:.2f} times as much"
        )
        return (
            f"{way}, as a unit holds one replica and Neuron's engines do not run both at "
            f"once{joined if choice.runner_up else ''}{binds}."
        )
    second = (
        f"; next is {choice.runner_up} with {choice.runner_up_share:.0%} of its requests/s"
        if choice.runner_up
        else ""
    )
    return (
        f"{way}, which serves most within the SLO, as Neuron's engines pause decoding for each "
        f"prompt that they share a replica with{second}{binds}. --disaggregate sets another split, "
        "--prefill separate lets decoding wait."
    )


def _overhead_notes(cluster: Cluster, services: Sequence[Service]) -> list[str]:
    """Return a remark if the serving overheads of the chip are assumed, not measured."""
    catalogue, part = cluster.catalogue or shipped_catalogue(), f"serving.{cluster.chip}"
    modelled = any(service.replica_chips for service in services)
    if not modelled or not catalogue.has(part, "iteration_overhead"):
        return []
    row = catalogue.entry(part, "iteration_overhead")
    if row.grade != "assumed":
        return []
    return [f"serving overheads of {cluster.chip} are assumed: {row.note.partition('.')[0]}."]
