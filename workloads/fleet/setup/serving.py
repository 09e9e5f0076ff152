"""Services from models, with the capacity of one unit by simulating a replica token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.confidence.features import serving_features
from workloads.demand import Demand
from workloads.fleet.setup.replicas import (
    Replica,
    Serving,
    fitting_replicas,
    groups_in_units,
    prompts_of,
)
from workloads.fleet.state.services import Service
from workloads.models.huggingface import model as named_model
from workloads.models.model import Model
from workloads.serving import (
    Lengths,
    Profile,
    SloMissed,
    Speculation,
    TableRuns,
    azure_lengths,
    capacity_table,
    fixed_rate,
    parse_speculation,
    profile,
    saturated_rate,
)

RATE_WITHOUT_MODEL = 1000.0
"""Requests/s of a unit where neither a model nor a rate is given: any rate does for a shape."""
SAME = "one model"
"""Name of the weights of services without a model."""
FILLS = 16
"""Least number of times that the requests of a table's runs fill all slots of decode replicas."""
LONG_ANSWER = 60.0
"""Mean output tokens from which lengths spread as in Azure's conversations, not as in its code."""


def services_from(
    demand: Demand,
    cluster: Cluster,
    models: Sequence[Model],
    serving: Serving,
    *,
    requests: int = TableRuns.requests,
) -> tuple[Service, ...]:
    """Return the services of a demand, each with the capacity of one unit for its lengths.

    Services of one model run on the same replicas. These have the fewest chips on which all the
    services keep the SLO under a low load.

    Parameters
    ----------
    demand : Demand
    cluster : Cluster
    models : sequence of Model
        One for each service of the demand, or none: then only the shape of the demand counts.
    serving : Serving
    requests : int
        Requests of each run behind a capacity table.
    """
    if not models or serving.unit_rate_per_s is not None:
        rate = serving.unit_rate_per_s
        capacity = fixed_rate(RATE_WITHOUT_MODEL if rate is None else rate)
        servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
        names = [model.name for model in models] or [SAME] * len(demand.services)
        return tuple(
            Service(name, capacity, replicas=servers, weights=weights)
            for name, weights in zip(demand.services, names, strict=True)
        )
    services: dict[str, Service] = {}
    for model in {each.name: each for each in models}.values():
        same = [
            demand.only(name)
            for name, each in zip(demand.services, models, strict=True)
            if each.name == model.name
        ]
        services |= {
            service.name: service
            for service in _services_of(model, same, cluster, serving, requests)
        }
    return tuple(services[name] for name in demand.services)


def _services_of(
    model: Model, demands: Sequence[Demand], cluster: Cluster, serving: Serving, requests: int
) -> list[Service]:
    """Return the services of one model on the smallest replica that keeps the SLO for all."""
    missed: list[SloMissed] = []
    refused: list[InputError] = []
    for replica in fitting_replicas(model, cluster, tp=serving.tp, precision=serving.precision):
        if serving.disaggregate and not missed and not refused:
            # The user's split refers to the smallest replica, so an error for this one is raised,
            # while one for a larger replica only rules that replica out.
            groups_in_units(serving.disaggregate, cluster, replica.served)
        try:
            return [_service(each, model, replica, cluster, serving, requests) for each in demands]
        except SloMissed as miss:
            missed.append(miss)
        except InputError as refusal:
            refused.append(refusal)
    if not missed:
        raise refused[0]
    raise _slo_error(model, cluster, serving, missed)


def _slo_error(
    model: Model, cluster: Cluster, serving: Serving, missed: Sequence[SloMissed]
) -> InputError:
    """Return the error for an SLO that no replica keeps, with how near the best one comes."""
    best = max(missed, key=lambda miss: miss.attained)
    tried = best.replica
    if len(missed) > 1:
        tried = f"the best of {len(missed)} replicas that fit a unit, {best.replica},"
    other = "another --tp, " if serving.tp is not None else ""
    return InputError(
        f"{model.name} cannot be served within {serving.slo} on {cluster.name}: {tried} "
        f"keeps that for {best.attained:.1%} of the requests when idle, under "
        f"{serving.slo.share:.4g}. Use {other}a looser --slo, shorter requests or another machine."
    )


def _service(
    demand: Demand,
    model: Model,
    replica: Replica,
    cluster: Cluster,
    serving: Serving,
    requests: int,
) -> Service:
    """Return one service with the capacity table of a unit, from simulated runs of its replicas."""
    if not demand.requests[0].any():
        raise InputError(
            f"service {demand.services[0]} has no requests in this run; choose other days of the "
            "demand, or leave the service out."
        )
    served = replica.served
    replicas = max(1, cluster.chips_per_domain // served.chips)
    prompts = prompts_of(serving, model, cluster, served)
    batching, apart = prompts.batching, prompts.apart
    groups = replicas / (apart.prefill + apart.decode) if apart else replicas
    prompt, output = (
        float(np.average(column[0], weights=demand.requests[0]))
        for column in (demand.prompt_tokens, demand.output_tokens)
    )
    # A demand has mean lengths only; their spread is that of a published trace of the same kind.
    trace_lengths = azure_lengths("conv" if output >= LONG_ANSWER else "code")
    lengths = trace_lengths.with_means(prompt, output)
    decoding = apart.decode * batching.slots if apart else batching.slots
    runs = TableRuns(
        batching=batching,
        requests=max(requests, FILLS * decoding),
        prompt_means=_grid(demand.prompt_tokens[0], prompt),
        output_means=_grid(demand.output_tokens[0], output),
        prefix_share=serving.prefix_share,
        speculation=_speculation(serving, cluster, served.chips),
        pools=apart,
    )
    table = capacity_table(served, lengths, serving.slo, runs, replicas=groups, cache=serving.cache)
    return Service(
        demand.services[0],
        table,
        weights_bytes=replicas * served.weights_bytes,
        replicas=replicas,
        weights=served.name,
        precision=replica.precision,
        replica_chips=served.chips,
        expert_groups=served.expert_groups,
        chunk_tokens=batching.chunk_tokens,
        prediction=serving_features(model, cluster, served.chips, precision=served.precision),
        cold_s=cold_cache_s(served, lengths, runs, table.rate_max_per_s / groups),
        apart=apart,
    )


def _speculation(serving: Serving, cluster: Cluster, chips: int) -> Speculation | None:
    """Return the speculation of a replica, whose draft model runs on the same chips."""
    if not serving.speculate:
        return None
    tp = None if chips == cluster.chips_per_server else chips
    return parse_speculation(
        serving.speculate, lambda name: profile(named_model(name), cluster, tp=tp)
    )


def cold_cache_s(served: Profile, lengths: Lengths, runs: TableRuns, rate_per_s: float) -> float:
    """Time that a replica loses while its prefix cache fills after a change of role [s].

    Hits grow with the number of earlier prompt tokens until the cache is full (see
    :func:`workloads.serving.prefix_cache.share_hits`). So each of the N requests that fill the
    cache takes, in the mean, half of its time without hits, 1/c, and half of that with all hits,
    1/w: the replica loses N (1/c - 1/w) / 2 against one whose cache is full. In a group, the
    prefill replicas have the caches.

    Parameters
    ----------
    served : Profile
    lengths : Lengths
    runs : TableRuns
        Runs of the capacity table, with the share of the prompts that hits the cache.
    rate_per_s : float
        Requests that one replica, or group, with a full cache serves at saturation [1/s].
    """
    if not runs.prefix_share:
        return 0.0
    cold_per_s = saturated_rate(served, lengths, replace(runs, prefix_share=0.0))
    caches = runs.pools.prefill if runs.pools else 1
    filling = caches * served.kv_tokens / float(lengths.prompt.mean())
    return max(0.0, filling * (1 / cold_per_s - 1 / rate_per_s) / 2)


def _grid(values: FloatArray, mean: float) -> FloatArray:
    """Mean lengths to tabulate: least, mean and largest, without ends within 5 % of the mean."""
    points = np.array([values.min(), mean, values.max()])
    kept: FloatArray = np.unique(points[(np.abs(points / mean - 1) > 0.05) | (points == mean)])
    return np.maximum(kept, 1.0)
