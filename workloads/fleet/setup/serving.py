"""Services from models: the replicas that fit a unit, how they run prompts, and their capacity.

Prompts run in pieces, whole, or whole on replicas of their own; :func:`ways_of` is the one place
that decides. Engines of GPUs run pieces of prompts beside decoding; those of Neuron pause decoding
for every prompt, and so their prompts may have replicas of their own where a unit holds several.
Sources: AWS Neuron documentation, ``nxd-inference/developer_guides/vllm-user-guide-v1.rst``
("Chunked prefill is not supported on Neuron"), and ``neuron-scheduler.md`` and
``disaggregated-inference.md`` in ``vllm-neuron/docs/design/vllm``.

A group is the deployment of ``serve --disaggregate P:D``: P replicas process prompts, D replicas
decode, and keys and values move from the former to the latter. A unit holds whole groups, or a
group takes whole units; any other division would leave chips without work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from topologies.support.units import parse_share
from workloads.confidence.answers import serving_features
from workloads.confidence.interval import Interval
from workloads.confidence.split_conformal import interval
from workloads.demand import Demand
from workloads.fleet.state.services import Choice, Service, pools_from
from workloads.models.huggingface import model as named_model
from workloads.models.model import Model
from workloads.options.fleet import AUTO, FleetInputs
from workloads.serving import (
    FILLS,
    Batching,
    Deployment,
    Lengths,
    Pools,
    Profile,
    SloMissed,
    Speculation,
    TableRuns,
    azure_lengths,
    batching_from,
    capacity_table,
    fixed_rate,
    parse_pools,
    parse_slo,
    parse_speculation,
    pools,
    profile,
    rank_ways,
    saturated_rate,
)
from workloads.serving.deployment_search import MOST_IN_GROUP
from workloads.serving.other_precision import FP8, OtherPrecision, gained, may_gain, smaller_sizes
from workloads.serving.tables import Capacity, Ranking

IN_TURN = ("bf16", "fp8")
"""Precisions that ``auto`` tries: BF16, and FP8 where the weights do not fit in BF16."""
LEAST_CACHE = 0.05  # share of the memory that weights have to leave to the cache
LONG_PROMPT = 4096  # length of the prompt for which the groups of experts are chosen [tokens]


def fitting_replicas(
    model: Model, cluster: Cluster, *, tp: int | None = None, precision: str = AUTO
) -> Iterator[Profile]:
    """Yield the replicas that fit a unit, from the fewest chips on."""
    # One server is tried first, then each larger number of chips that divides a scale-up domain;
    # numbers that divide the attention heads as well go before others. The weights have to leave 5
    # % of the memory to the cache. On Trainium, a mixture of experts whose experts fit twice is
    # yielded a second time, with the groups of experts that make its prompts shortest. With
    # precision ``auto``, BF16 is tried on all sizes, then FP8.
    catalogue = cluster.numbers
    precisions = IN_TURN if precision == AUTO else (precision,)
    offered = [
        name
        for name in precisions
        if precision != AUTO or catalogue.has(cluster.chip, f"{name}_peak")
    ]
    least = 0.0 if tp is not None else LEAST_CACHE
    fault: InputError | None = None
    fits = False
    for name, size in product(offered, [tp] if tp is not None else _sizes(model, cluster)):
        try:
            served = profile(model, cluster, tp=size, precision=name)
        except InputError as refusal:
            fault = fault or refusal
            continue
        if _room(served) < least:
            continue
        fits = True
        yield served
        if _is_neuron(cluster):
            # Only Neuron's programs hold the experts twice, so that prompts can divide them in
            # another way than decode does.
            most = model.experts.count if model.experts else 1
            groups = [2**power for power in range(1, most.bit_length())]
            divided = [{"tp": size, "precision": name, "ep": ep} for ep in groups]
            roomy = _with_room(model, cluster, divided)
            yield from sorted(roomy, key=lambda each: each.prefill_s(LONG_PROMPT))[:1]
    if not fits:
        raise fault or InputError(
            f"{model.name} leaves no memory for a cache on {cluster.name}; choose a smaller "
            "precision."
        )


def _with_room(
    model: Model, cluster: Cluster, stated: Iterable[Mapping[str, Any]]
) -> list[Profile]:
    """Return those replicas, as :func:`profile` takes them, that leave room for a cache."""
    result = []
    for words in stated:
        with suppress(InputError):
            served = profile(model, cluster, **words)
            if _room(served) >= LEAST_CACHE:
                result.append(served)
    return result


def _room(served: Profile) -> float:
    """Share of the memory that remains for the cache beside the weights."""
    return served.kv_budget_bytes / (served.kv_budget_bytes + served.weights_bytes)


def _sizes(model: Model, cluster: Cluster) -> list[int | None]:
    """Sizes to try, in chips: one server (None), then larger divisors of the scale-up domain."""
    server, domain = cluster.chips_per_server, cluster.chips_per_domain
    larger = [size for size in range(server + 1, domain + 1) if domain % size == 0]
    return [None, *sorted(larger, key=lambda size: (model.heads % size != 0, size))]


WAITS = "separate"  # way in which decoding waits for whole prompts


def groups_in_units(text: str, cluster: Cluster, served: Profile) -> Pools:
    """Return the pools of a group of prefill and decode replicas that fills units of a cluster.

    Keys and values go over the scale-up links of a unit where the group lies within one, and else
    over the adapters of the replicas' chips.

    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> from workloads.serving import profile
    >>> fleet = cluster("trn2-ultraserver:8")
    >>> group = groups_in_units("1:3", fleet, profile(named("llama-3.1-70b"), fleet))
    >>> group.prefill, group.decode, group.transfer_bytes_per_s / 1e9
    (1, 3, 10240.0)
    """
    group = pools(cluster, served, *parse_pools(text))
    size, per_unit = group.prefill + group.decode, cluster.chips_per_domain // served.chips
    if per_unit % size and size % per_unit:
        sizes = [count for count in range(2, per_unit + 1) if per_unit % count == 0]
        sizes = sizes or [2 * per_unit]
        splits = ", ".join(f"1:{count - 1}" for count in sizes)
        raise InputError(
            f"--disaggregate {text}: groups of {size} replicas of {served.chips} chips leave chips "
            f"of a unit of {cluster.chips_per_domain} idle. Use a split of as many replicas as "
            f"divide a unit's {per_unit}, or of whole units, such as {splits}."
        )
    return group


def block_of(services: Sequence[Service]) -> int:
    """Return the number of units that change role together so that every group stays whole."""
    block = max((service.units_together for service in services), default=1)
    if block > 1 and len(pools_from(services)) > 1:
        raise InputError(
            f"--disaggregate with groups of {block} units serves one model, and the fleet serves "
            f"{len(pools_from(services))}. Choose a split that fits into a unit, or one --model."
        )
    return block


UNITS_IN_GROUP = (2, 4)  # units of the groups that are tried where a unit holds a single replica


@dataclass(frozen=True)
class Prompts:
    """Way in which the replicas of a unit run prompts."""

    batching: Batching  # its pieces of prompts have 0 tokens where prompts run whole
    # Prefill and decode replicas of a group; None where every replica does both
    apart: Pools | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas that serve together."""
        return self.apart.prefill + self.apart.decode if self.apart else 1

    def __str__(self) -> str:
        if self.apart:
            return f"{self.apart.prefill}:{self.apart.decode}"
        return "chunked" if self.batching.chunk_tokens else WAITS


def ways_of(serving: FleetInputs, cluster: Cluster, served: Profile) -> list[Prompts]:
    """Return the way that settings state, or the ways among which a search may choose."""
    # The usual way is in pieces beside decoding. On Neuron machines there are several: decoding
    # waits for whole prompts, or prompts have replicas of their own, in every split of every group
    # that divides a unit. Where a unit holds a single replica, these groups take whole units.
    if serving.disaggregate:
        apart = groups_in_units(serving.disaggregate, cluster, served)
        return [Prompts(batching_from(cluster, "separate", slots=serving.slots), apart)]
    prefill = serving.prefill
    if serving.chunk == 0:
        prefill = "separate"
    elif serving.chunk is not None and prefill == AUTO:
        prefill = "chunked"  # a stated size of pieces means that decoding does not wait
    alone = Prompts(batching_from(cluster, prefill, serving.chunk or None, serving.slots))
    if not serving.is_usual or not _is_neuron(cluster):
        return [alone]
    groups = []
    for split in _splits(cluster.chips_per_domain // served.chips):
        # A group of units may be larger than the cluster, or have no fabric between them.
        with suppress(InputError):
            groups.append(Prompts(alone.batching, groups_in_units(split, cluster, served)))
    return [alone, *groups]


def _splits(per_unit: int) -> Iterator[str]:
    """Yield the splits of groups that divide a unit's replicas, or that take several units."""
    # Not in lowest terms alone: one group of 6:2 queues less than two of 3:1, and may serve more.
    dividing = [size for size in range(2, MOST_IN_GROUP + 1) if per_unit % size == 0]
    for size in UNITS_IN_GROUP if per_unit == 1 else dividing:
        yield from (f"{prefill}:{size - prefill}" for prefill in range(1, size))


def _is_neuron(cluster: Cluster) -> bool:
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


RATE_WITHOUT_MODEL = 1000.0
"""Requests/s of a unit where neither a model nor a rate is given: any rate does for a shape."""
SAME = "one model"  # name of the weights of services without a model
LONG_ANSWER = 60.0
"""Mean output tokens from which lengths spread as in Azure's conversations, not as in its code."""


def services_from(
    demand: Demand,
    cluster: Cluster,
    models: Sequence[Model],
    serving: FleetInputs,
    *,
    requests: int = TableRuns.requests,
) -> tuple[Service, ...]:
    """Return the services of a demand, each with the capacity of one unit for its lengths."""
    # Services of one model run on the same replicas. These have the fewest chips on which all the
    # services keep the SLO under a low load.
    if not models or serving.unit_rate is not None:
        rate = serving.unit_rate
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
        task = _Task(model, same, cluster, serving, requests)
        services |= {service.name: service for service in _services_of(task)}
    return tuple(services[name] for name in demand.services)


@dataclass(frozen=True, eq=False)
class _Task:
    """Services that one model answers on units of a cluster, and how they are to be served."""

    model: Model
    demands: Sequence[Demand]  # one service each
    cluster: Cluster
    serving: FleetInputs
    requests: int  # requests that are simulated for each point of a capacity table

    @cached_property
    def kinds(self) -> list[tuple[Lengths, float]]:
        """Lengths of each service, and its share of the requests."""
        lengths = map(_lengths, self.demands)
        counts = [float(demand.requests.sum()) for demand in self.demands]
        return [(each, count / sum(counts)) for each, count in zip(lengths, counts, strict=True)]


def _services_of(task: _Task) -> list[Service]:
    model, cluster, serving = task.model, task.cluster, task.serving
    missed: list[SloMissed] = []
    refused: list[InputError] = []
    for replica in fitting_replicas(model, cluster, tp=serving.tp, precision=serving.precision):
        first = not missed and not refused
        if serving.disaggregate and first:
            # The user's split refers to the smallest replica, so an error for this one is raised,
            # while one for a larger replica only rules that replica out.
            groups_in_units(serving.disaggregate, cluster, replica)
        smaller: list[Profile] = []
        if first and serving.tp is None and replica.chips == cluster.chips_per_server:
            # A small model on the chips of a whole server waits for collectives.
            parts = [size for size in range(1, replica.chips) if replica.chips % size == 0]
            words = [{"tp": size, "precision": replica.precision} for size in parts]
            smaller = _with_room(model, cluster, words)
        try:
            return _on_replica(task, [*smaller, replica])
        except SloMissed as miss:
            missed.append(miss)
        except InputError as refusal:
            refused.append(refusal)
    if not missed:
        raise refused[0]
    best = max(missed, key=lambda miss: miss.attained)
    tried = best.replica
    if len(missed) > 1:
        tried = f"the best of {len(missed)} replicas that fit a unit, {best.replica},"
    slo = parse_slo(serving.slo)
    other = "another --tp, " if serving.tp is not None else ""
    raise InputError(
        f"{model.name} cannot be served within {slo} on {cluster.name}: {tried} "
        f"keeps that for {best.attained:.1%} of the requests at 5% of its full rate, under "
        f"{slo.share:.4g}. Use {other}a looser --slo, shorter requests or another machine."
    )


def _on_replica(task: _Task, replicas: Sequence[Profile]) -> list[Service]:
    """Return the services on that one of some replicas, in that way of prompts, that is best."""
    cluster, kinds, slo = task.cluster, task.kinds, parse_slo(task.serving.slo)
    ways = _ways(task, replicas)
    way, choices = _choice(task, ways)
    served, prompts, runs = ways[way]
    per_unit = max(1, cluster.chips_per_domain // served.chips)
    groups = per_unit / prompts.replicas
    tables = [
        capacity_table(served, each, slo, run, replicas=groups, cache=task.serving.cache)
        for (each, _), run in zip(kinds, runs, strict=True)
    ]
    other = _other_precision(task, tables, ways[way])
    features = serving_features(task.model, cluster, served.chips, precision=served.precision)
    return [
        Service(
            demand.services[0],
            table,
            weights_bytes=per_unit * served.weights_bytes,
            replicas=per_unit,
            weights=served.name,
            precision=served.precision,
            replica_chips=served.chips,
            expert_groups=served.expert_groups,
            chunk_tokens=run.batching.chunk_tokens,
            prediction=features,
            cold_s=cold_cache_s(served, each, run, table.rate_max_per_s / groups),
            apart=run.pools,
            choice=choice,
            other_precision=other,
        )
        for demand, (each, _), run, choice, table in zip(
            task.demands, kinds, runs, choices, tables, strict=True
        )
    ]


Way = tuple[Profile, Prompts, Sequence[TableRuns]]  # a replica, its prompts, a run for each kind


def _ways(task: _Task, replicas: Sequence[Profile]) -> list[Way]:
    """Return the ways to run prompts on each of some replicas."""
    serving, cluster, prefix = task.serving, task.cluster, task.serving.prefix_cache
    ways: list[Way] = []
    for replica in replicas:
        usual = TableRuns(
            prefix_share=0.0 if prefix is None else parse_share(prefix, "--prefix-cache"),
            speculation=_speculation(serving, cluster, replica.chips),
        )
        # A stated split fits the last replica, and may leave chips idle with smaller ones.
        with suppress(InputError) if replica is not replicas[-1] else nullcontext():
            for way in ways_of(serving, cluster, replica):
                runs = [
                    _runs(usual, demand, way, task.requests, replica) for demand in task.demands
                ]
                ways.append((replica, way, runs))
    return ways


def _other_precision(task: _Task, tables: Sequence[Capacity], way: Way) -> OtherPrecision | None:
    """Return what FP8 would serve in the same way of prompts, where it is worth naming."""
    (served, prompts, _), serving, cluster = way, task.serving, task.cluster
    if serving.precision != AUTO or not may_gain(served, cluster):
        return None
    sizes = [served.chips] if serving.tp is not None else smaller_sizes(served.chips)
    words = [{"tp": size, "precision": FP8} for size in sizes]
    replicas = _with_room(task.model, cluster, words)[::-1]
    others = [each for each in _ways(task, replicas) if str(each[1]) == str(prompts)]
    rates: list[tuple[int, float]] = []  # chips of the best of them, and its rate within the SLO
    with suppress(SloMissed):
        if others:
            best, rate = _ranked(task, others).best[0]
            rates = [(others[best][0].chips, rate)]
    shares = zip(tables, task.kinds, strict=True)
    times = (share / table.rate_slo_per_s for table, (_, share) in shares)
    unit_chips = max(1, cluster.chips_per_domain // served.chips) * served.chips
    return gained(iter(rates), 1 / sum(times) / unit_chips)


def _ranked(task: _Task, ways: Sequence[Way]) -> Ranking:
    """Rank ways by what they serve within the SLO; its first two have their rates."""
    runs = [(replica, each) for replica, _, each in ways]
    return rank_ways(task.kinds, parse_slo(task.serving.slo), runs, cache=task.serving.cache)


def _choice(task: _Task, ways: Sequence[Way]) -> tuple[int, list[Choice | None]]:
    """Return the number of the best way whose groups fit into a unit, and why for each kind."""
    # Where a unit holds a single replica, the groups of units are only the runners-up: they would
    # change role together, and serve one model alone.
    if len(ways) == 1:
        return 0, [None] * len(task.kinds)
    unit_chips = task.cluster.chips_per_domain
    fitting = [
        number
        for number, (replica, prompts, _) in enumerate(ways)
        if prompts.replicas * replica.chips <= max(unit_chips, replica.chips)
    ]
    ranking = _ranked(task, [ways[number] for number in fitting])
    (best, rate), *others = [(fitting[place], rate) for place, rate in ranking.best]
    if not others:
        with suppress(SloMissed):
            if larger := [number for number in range(len(ways)) if number not in fitting]:
                of_units = _ranked(task, [ways[number] for number in larger])
                others = [(larger[place], rate) for place, rate in of_units.best]
    if not others:
        return best, [Choice(cause) for cause in ranking.binds]
    number, other = others[0]
    (replica, prompts, _), (chosen, way, _) = ways[number], ways[best]
    words = [] if replica.chips == chosen.chips else [f"--tp {replica.chips}"]
    words += [] if str(prompts) == str(way) else [str(prompts)]
    return best, [Choice(cause, ", ".join(words), other / rate) for cause in ranking.binds]


def _lengths(demand: Demand) -> Lengths:
    """Return the lengths of a demand, spread as those of a published trace of the same kind."""
    if not demand.requests[0].any():
        raise InputError(
            f"service {demand.services[0]} has no requests in this run; choose other days of the "
            "demand, or leave the service out."
        )
    prompt, output = demand.mean_lengths()
    return azure_lengths("conv" if output >= LONG_ANSWER else "code").with_means(prompt, output)


def _runs(
    usual: TableRuns, demand: Demand, way: Prompts, requests: int, served: Profile
) -> TableRuns:
    prompt, output = demand.mean_lengths()
    replicas = Deployment(served, way.batching, usual.speculation, way.apart)
    return replace(
        usual,
        batching=way.batching,
        requests=max(requests, FILLS * replicas.most_at_once(_lengths(demand))),
        prompt_means=_grid(demand.prompt_tokens[0], prompt),
        output_means=_grid(demand.output_tokens[0], output),
        pools=way.apart,
    )


def _speculation(serving: FleetInputs, cluster: Cluster, chips: int) -> Speculation | None:
    """Return the speculation of a replica, whose draft model runs on the same chips."""
    if not serving.speculate:
        return None
    tp = None if chips == cluster.chips_per_server else chips
    return parse_speculation(
        serving.speculate, lambda name: profile(named_model(name), cluster, tp=tp)
    )


def cold_cache_s(served: Profile, lengths: Lengths, runs: TableRuns, rate_per_s: float) -> float:
    """Time that a replica loses while its prefix cache fills after a change of role [s]."""
    # Hits grow with the number of earlier prompt tokens until the cache is full (see
    # ``share_hits``). So each of the N requests that fill the cache takes, in the mean, half of its
    # time without hits, 1/c, and half of that with all hits, 1/w: the replica loses N (1/c - 1/w) /
    # 2 against one whose cache is full. In a group, the prefill replicas have the caches.
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


def capacity_interval(services: Sequence[Service], capacity: float) -> Interval:
    """Interval of the capacity of a unit: that of its least certain service."""
    # The number of units needed is inverse to the capacity, and so are the ends of its interval.
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
    rows = []
    models = {service.weights: service for service in services if service.replica_chips}
    for name, service in models.items():
        row: dict[str, Any] = {
            "model": name.partition(" on ")[0],
            "precision": service.precision,
            "chips": service.replica_chips,
            "expert_groups": service.expert_groups,
            "chunk_tokens": service.chunk_tokens,
            "replicas_per_unit": service.replicas,
        }
        if service.cold_s:
            row["cold_cache_s"] = service.cold_s
        if apart := service.apart:
            row |= {
                "prefill_replicas": apart.prefill,
                "decode_replicas": apart.decode,
                "groups_per_unit": service.replicas / service.group,
                "kv_transfer_bytes_per_s": apart.transfer_bytes_per_s,
            }
        row |= {} if service.choice is None else asdict(service.choice)
        row |= service.other_precision.document() if service.other_precision else {}
        rows.append(row)
    return rows


def serving_notes(cluster: Cluster, services: Sequence[Service], serving: FleetInputs) -> list[str]:
    """Return remarks on the size of replicas, on their prompts, and on overheads assumed."""
    served = [service for service in services if service.replica_chips]
    notes = [_choice_note(service, cluster, serving) for service in served]
    if served and (proposed := _speculation(serving, cluster, served[0].replica_chips)):
        notes += [] if proposed.draft else [proposed.free_remark]
    notes += [each.other_precision.sentence for each in served if each.other_precision]
    return [*dict.fromkeys(filter(None, notes)), *_overhead_notes(cluster, services)]


def _choice_note(service: Service, cluster: Cluster, serving: FleetInputs) -> str:
    """Return the size of a replica and its way of prompts by default, what is next, what binds."""
    choice, tokens = service.choice or Choice(""), service.chunk_tokens
    chips, server = service.replica_chips, cluster.chips_per_server
    words: list[str] = []
    if serving.tp is None and service.choice is not None:
        of = f" of a server's {server}" if chips < server else ""
        words = [f"a replica takes {chips}{of} chips"]
    binds = f"; {choice.binds} bind{'s' * (choice.binds != 'slots')}" if choice.binds else ""
    option = "--prefill " * (choice.runner_up == "separate")
    second = (
        f"; next is {option}{choice.runner_up} with {choice.runner_up_share:.0%} of its requests/s"
        if choice.runner_up
        else ""
    )
    if not _is_neuron(cluster) or not serving.is_usual:
        size = f"{words[0]}{second}{binds}. --tp sets another size." if words else ""
        if tokens and _is_neuron(cluster):
            return (
                f"prompts run in pieces of {tokens:,} tokens beside decoding, which no engine of "
                "Neuron does: leave --prefill and --chunk out for a way that Neuron has. "
                f"{size[:1].upper()}{size[1:]}"
            ).rstrip()
        return size
    way = (
        "prompts run whole on replicas of their own "
        f"({service.apart.prefill}:{service.apart.decode})"
        if service.apart
        else "decoding waits for whole prompts"
    )
    way = " and ".join([*words, way])
    if service.replicas == 1 and not choice.runner_up.startswith("--tp"):
        joined = (
            f"; --disaggregate {choice.runner_up} gives prompts replicas of their own in groups of "
            f"units, which serve {choice.runner_up_share:.2f} times as much"
        )
        return (
            f"{way}, as a unit holds one replica and Neuron's engines do not run both at "
            f"once{joined if choice.runner_up else ''}{binds}."
        )
    return (
        f"{way}, which serves most within the SLO, as Neuron's engines pause decoding for each "
        f"prompt that they share a replica with{second}{binds}. --disaggregate sets another split, "
        "--tp another size, --prefill separate lets decoding wait."
    )


def _overhead_notes(cluster: Cluster, services: Sequence[Service]) -> list[str]:
    """Return a remark if the serving overheads of the chip are assumed, not measured."""
    catalogue, part = cluster.numbers, f"serving.{cluster.chip}"
    modelled = any(service.replica_chips for service in services)
    if not modelled or not catalogue.has(part, "iteration_overhead"):
        return []
    row = catalogue.entry(part, "iteration_overhead")
    if row.grade != "assumed":
        return []
    return [f"serving overheads of {cluster.chip} are assumed: {row.note.partition('.')[0]}."]
