"""Services from models, with the capacity of one unit by simulating a replica token by token."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.confidence.answers import serving_features
from workloads.demand import Demand
from workloads.fleet.setup.replicas import (
    Prompts,
    Replica,
    Serving,
    fitting_replicas,
    groups_in_units,
    ways_of,
)
from workloads.fleet.state.services import Choice, Service
from workloads.models.huggingface import model as named_model
from workloads.models.model import Model
from workloads.serving import (
    FILLS,
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
    rank_ways,
    saturated_rate,
)

RATE_WITHOUT_MODEL = 1000.0
"""Requests/s of a unit where neither a model nor a rate is given: any rate does for a shape."""
SAME = "one model"
"""Name of the weights of services without a model."""
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

    ``models``: one for each service of the demand, or none: then only the shape of the demand
    counts. ``requests``: requests of each run behind a capacity table.
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
            return _on_replica(demands, model, replica, cluster, serving, requests)
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


def _on_replica(
    demands: Sequence[Demand],
    model: Model,
    replica: Replica,
    cluster: Cluster,
    serving: Serving,
    requests: int,
) -> list[Service]:
    """Return the services on one kind of replica, in the way of running prompts that is best."""
    served = replica.served
    per_unit = max(1, cluster.chips_per_domain // served.chips)
    lengths = [_lengths(demand) for demand in demands]
    total = sum(float(demand.requests.sum()) for demand in demands)
    kinds = [
        (each, float(demand.requests.sum()) / total)
        for demand, each in zip(demands, lengths, strict=True)
    ]
    usual = TableRuns(
        prefix_share=serving.prefix_share, speculation=_speculation(serving, cluster, served.chips)
    )
    ways = ways_of(serving, model, cluster, served)
    runs = [[_runs(usual, demand, way, requests) for demand in demands] for way in ways]
    way, choices = _choice(served, kinds, serving, list(zip(ways, runs, strict=True)), per_unit)
    groups = per_unit / ways[way].replicas
    services = []
    for demand, each, run, choice in zip(demands, lengths, runs[way], choices, strict=True):
        table = capacity_table(served, each, serving.slo, run, replicas=groups, cache=serving.cache)
        services.append(
            Service(
                demand.services[0],
                table,
                weights_bytes=per_unit * served.weights_bytes,
                replicas=per_unit,
                weights=served.name,
                precision=replica.precision,
                replica_chips=served.chips,
                expert_groups=served.expert_groups,
                chunk_tokens=run.batching.chunk_tokens,
                prediction=serving_features(
                    model, cluster, served.chips, precision=served.precision
                ),
                cold_s=cold_cache_s(served, each, run, table.rate_max_per_s / groups),
                apart=run.pools,
                choice=choice,
            )
        )
    return services


def _choice(
    served: Profile,
    kinds: Sequence[tuple[Lengths, float]],
    serving: Serving,
    ways: Sequence[tuple[Prompts, Sequence[TableRuns]]],
    per_unit: int,
) -> tuple[int, list[Choice | None]]:
    """Return the number of the best way whose groups fit into a unit, and why for each kind.

    Where a unit holds a single replica, the groups of units are only the runners-up: they would
    change role together, and serve one model alone.
    """
    if len(ways) == 1:
        return 0, [None] * len(kinds)

    def ranked(numbers: Sequence[int]) -> tuple[list[tuple[int, float]], tuple[str, ...]]:
        runs = [ways[number][1] for number in numbers]
        ranking = rank_ways(served, kinds, serving.slo, runs, cache=serving.cache)
        return [(numbers[place], rate) for place, rate in ranking.best], ranking.binds

    fitting = [number for number, (way, _) in enumerate(ways) if way.replicas <= per_unit]
    ((best, rate), *others), binds = ranked(fitting)
    with suppress(SloMissed):
        if larger := [number for number in range(len(ways)) if number not in fitting]:
            others, _ = ranked(larger)
    if not others:
        return best, [Choice(cause) for cause in binds]
    number, other = others[0]
    return best, [Choice(cause, str(ways[number][0]), other / rate) for cause in binds]


def _lengths(demand: Demand) -> Lengths:
    """Return the lengths of a demand, spread as those of a published trace of the same kind."""
    if not demand.requests[0].any():
        raise InputError(
            f"service {demand.services[0]} has no requests in this run; choose other days of the "
            "demand, or leave the service out."
        )
    prompt, output = _means(demand)
    return azure_lengths("conv" if output >= LONG_ANSWER else "code").with_means(prompt, output)


def _means(demand: Demand) -> tuple[float, float]:
    """Mean tokens of the prompt and of the output of a request."""
    columns = demand.prompt_tokens, demand.output_tokens
    prompt, output = (float(np.average(each[0], weights=demand.requests[0])) for each in columns)
    return prompt, output


def _runs(usual: TableRuns, demand: Demand, way: Prompts, requests: int) -> TableRuns:
    """Return the runs of a capacity table of one way, for the lengths of one demand."""
    prompt, output = _means(demand)
    decoding = way.batching.slots * (way.apart.decode if way.apart else 1)
    return replace(
        usual,
        batching=way.batching,
        requests=max(requests, FILLS * decoding),
        prompt_means=_grid(demand.prompt_tokens[0], prompt),
        output_means=_grid(demand.output_tokens[0], output),
        pools=way.apart,
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
