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

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, shown, suggestion
from workloads.confidence.features import serving_features
from workloads.demand import Demand
from workloads.fleet.state.services import Choice, Service, pools_from
from workloads.models.huggingface import model as named_model
from workloads.models.model import Model
from workloads.serving import (
    FILLS,
    Batching,
    Lengths,
    Pools,
    Profile,
    Slo,
    SloMissed,
    Speculation,
    TableRuns,
    azure_lengths,
    batching_from,
    capacity_table,
    fixed_rate,
    parse_pools,
    parse_speculation,
    pools,
    profile,
    rank_ways,
    saturated_rate,
)

AUTO = "auto"
IN_TURN = ("bf16", "fp8")
"""Precisions that ``auto`` tries: BF16, and FP8 where the weights do not fit in BF16."""
KNOWN = (AUTO, *IN_TURN, "mxfp8", "fp4", "mxfp4")
"""Precisions that users may choose."""
LEAST_CACHE = 0.05
"""Share of the memory that weights have to leave to the cache."""
LONG_PROMPT = 4096
"""Length of the prompt for which the groups of experts are chosen [tokens]."""


@dataclass(frozen=True, eq=False)
class Replica:
    """A replica of a model that fits its chips.

    ``served``: memory and times of the replica.
    ``precision``: precision of weights and products.
    """

    served: Profile
    precision: str


def fitting_replicas(
    model: Model, cluster: Cluster, *, tp: int | None = None, precision: str = AUTO
) -> Iterator[Replica]:
    """Yield the replicas that fit a unit, from the fewest chips on.

    One server is tried first, then each larger number of chips that divides a scale-up domain;
    numbers that divide the attention heads as well go before others. The weights have to leave 5 %
    of the memory to the cache. On Trainium, a mixture of experts whose experts fit twice is yielded
    a second time, with the groups of experts that make its prompts shortest. With precision
    ``auto``, BF16 is tried on all sizes, then FP8.

    ``tp``: chips of the replica, instead of the fewest. ``precision``: ``auto``, or a precision of
    the chip.
    """
    catalogue = cluster.catalogue or shipped_catalogue()
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
        yield Replica(served, name)
        divided = _with_divided_experts(model, cluster, size, name)
        if divided is not None:
            yield Replica(divided, name)
    if not fits:
        raise fault or InputError(
            f"{model.name} leaves no memory for a cache on {cluster.name}; choose a smaller "
            "precision."
        )


def _with_divided_experts(
    model: Model, cluster: Cluster, tp: int | None, precision: str
) -> Profile | None:
    """Return the profile whose groups of experts make a long prompt shortest, if any fits.

    Only Neuron's programs hold the experts twice, so that prompts can divide them in another way
    than decode does.
    """
    if not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        return None
    most = model.experts.count if model.experts else 1
    groups = 2 ** np.arange(1, most.bit_length())
    candidates = []
    for ep in groups:
        try:
            served = profile(model, cluster, tp=tp, precision=precision, ep=int(ep))
        except InputError:
            continue
        if _room(served) >= LEAST_CACHE:
            candidates.append(served)
    return min(candidates, key=lambda candidate: candidate.prefill_s(LONG_PROMPT), default=None)


def _room(served: Profile) -> float:
    """Share of the memory that remains for the cache beside the weights."""
    return served.kv_budget_bytes / (served.kv_budget_bytes + served.weights_bytes)


def _sizes(model: Model, cluster: Cluster) -> list[int | None]:
    """Sizes to try, in chips: one server (None), then larger divisors of the scale-up domain."""
    server, domain = cluster.chips_per_server, cluster.chips_per_domain
    larger = [size for size in range(server + 1, domain + 1) if domain % size == 0]
    return [None, *sorted(larger, key=lambda size: (model.heads % size != 0, size))]


DEFAULT_SLO = Slo(ttft_s=6.0, tpot_s=0.175)
"""Limits of MLPerf's server scenario for Llama-3.1-405B."""
USUAL = "auto"
"""Way of running prompts where none is stated."""
WAITS = "separate"
"""Way in which decoding waits for whole prompts."""


@dataclass(frozen=True)
class Serving:
    """Settings of serving on the units of a fleet.

    ``tp``: chips of a replica; by default the fewest that fit, from one server on.
    ``prefill``: processing of prompts: ``chunked``, beside decoding, ``separate``, with which
        decode waits for whole prompts and keeps no tight TPOT, or ``auto``, the usual way of the
        machine (see :func:`workloads.fleet.setup.serving.ways_of`).
    ``chunk_tokens``: tokens of the pieces into which prompts are cut: by default 512, for mixtures
        of experts 8,192. With 0, prompts run whole.
    ``unit_rate_per_s``: requests that a unit serves, instead of a model's capacity [1/s]. There is
        no latency model then: a request that is not queued keeps the SLO.
    ``cache``: folder in which capacity tables are kept.
    ``precision``: precision of weights and products; ``auto``: BF16, or FP8 where the weights do
        not fit in BF16.
    ``prefix_share``: share of every prompt that a replica's prefix cache holds once it has been
        filled.
    ``speculate``: ``TOKENS:ACCEPTANCE[:DRAFT]``, see :func:`workloads.serving.parse_speculation`;
        empty for none.
    ``disaggregate``: ``P:D``, the prefill and decode replicas of a group that serves together;
        empty for those of ``prefill``.
    """

    slo: Slo = DEFAULT_SLO
    tp: int | None = None
    prefill: str = USUAL
    chunk_tokens: int | None = None
    unit_rate_per_s: float | None = None
    cache: Path | None = None
    precision: str = AUTO
    prefix_share: float = 0.0
    speculate: str = ""
    disaggregate: str = ""

    def __post_init__(self) -> None:
        if self.unit_rate_per_s is not None:
            self._check_alone()
        if self.disaggregate and self.chunk_tokens:
            raise InputError(
                f"pieces of {self.chunk_tokens} tokens are for replicas that decode beside a "
                "prompt, and --disaggregate gives prompts replicas of their own. Leave --chunk out."
            )
        if self.disaggregate and self.prefill != USUAL:
            raise InputError(
                f"--prefill {self.prefill} is for replicas that decode as well, and --disaggregate "
                f"{self.disaggregate} gives prompts replicas of their own, where they run whole. "
                "Leave one of them out."
            )
        if self.precision not in KNOWN:
            near = suggestion(self.precision, KNOWN)
            raise InputError(
                f"precision {shown(self.precision)!r} is none of {', '.join(KNOWN)}.{near}"
            )

    def _check_alone(self) -> None:
        """Refuse settings of replicas beside a unit's rate, which holds whatever they are."""
        replicas = {
            "--tp": self.tp is not None,
            "--precision": self.precision != AUTO,
            "--prefill": self.prefill != USUAL,
            "--chunk": self.chunk_tokens is not None,
            "--prefix-cache": bool(self.prefix_share),
            "--speculate": bool(self.speculate),
            "--disaggregate": bool(self.disaggregate),
            "--cache": self.cache is not None,
        }
        stated = [name for name, is_stated in replicas.items() if is_stated]
        if stated:
            verb, names = "changes" if len(stated) == 1 else "change", " and ".join(stated)
            raise InputError(
                f"{names} {verb} nothing beside --unit-rate, as a unit's rate "
                f"holds whatever its replicas are; leave out --unit-rate, or {names}."
            )


def groups_in_units(text: str, cluster: Cluster, served: Profile) -> Pools:
    """Return the pools of a group of prefill and decode replicas that fills units of a cluster.

    Keys and values go over the scale-up links of a unit where the group lies within one, and else
    over the adapters of the replicas' chips.

    ``text``: ``P:D``, the numbers of prefill and decode replicas. ``cluster``: its scale-up domains
    are the units. ``served``: one replica; both kinds are alike.

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


MIXTURE_PIECE_TOKENS = 8192
"""Tokens of a piece of a prompt for a mixture of experts: pieces are long because even one of few
tokens reads most experts."""
MOST_IN_GROUP = 8
"""Most replicas of a group among which a split is searched; a fault takes out the whole group."""
UNITS_IN_GROUP = (2, 4)
"""Units of the groups that are tried where a unit holds a single replica."""


@dataclass(frozen=True)
class Prompts:
    """Way in which the replicas of a unit run prompts.

    Attributes
    ----------
    batching : Batching
        Its pieces of prompts have 0 tokens where prompts run whole.
    apart : Pools, optional
        Prefill and decode replicas of a group; None where every replica does both.
    """

    batching: Batching
    apart: Pools | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas that serve together."""
        return self.apart.prefill + self.apart.decode if self.apart else 1

    def __str__(self) -> str:
        return f"{self.apart.prefill}:{self.apart.decode}" if self.apart else WAITS


def ways_of(serving: Serving, model: Model, cluster: Cluster, served: Profile) -> list[Prompts]:
    """Return the way that settings state, or the ways among which a search may choose.

    The usual way is in pieces beside decoding. On Neuron machines there are several: decoding waits
    for whole prompts, or prompts have replicas of their own, in every split of every group that
    divides a unit. Where a unit holds a single replica, these groups take whole units.
    """
    if serving.disaggregate:
        apart = groups_in_units(serving.disaggregate, cluster, served)
        return [Prompts(batching_from(cluster, "separate"), apart)]
    alone = _alone(serving, model, cluster)
    if not is_usual(serving) or not _is_neuron(cluster):
        return [alone]
    groups = []
    for split in _splits(cluster.chips_per_domain // served.chips):
        # A group of units may be larger than the cluster, or have no fabric between them.
        with suppress(InputError):
            groups.append(Prompts(alone.batching, groups_in_units(split, cluster, served)))
    return [alone, *groups]


def _alone(serving: Serving, model: Model, cluster: Cluster) -> Prompts:
    """Return the way of replicas that both process prompts and decode."""
    if serving.chunk_tokens == 0 or _waits(serving, cluster):
        return Prompts(batching_from(cluster, "separate", serving.chunk_tokens or None))
    batching = batching_from(cluster, "chunked", serving.chunk_tokens)
    if serving.chunk_tokens is None and model.experts:
        return Prompts(replace(batching, chunk_tokens=MIXTURE_PIECE_TOKENS))
    return Prompts(batching)


def _splits(per_unit: int) -> Iterator[str]:
    """Yield the splits of groups that divide a unit's replicas, or that take several units."""
    dividing = [size for size in range(2, MOST_IN_GROUP + 1) if per_unit % size == 0]
    for size in UNITS_IN_GROUP if per_unit == 1 else dividing:
        yield from (f"{prefill}:{size - prefill}" for prefill in range(1, size))


def is_usual(serving: Serving) -> bool:
    """Return whether the way of running prompts is left to the machine."""
    unstated = serving.prefill == USUAL and not serving.disaggregate
    return unstated and serving.chunk_tokens is None


def _waits(serving: Serving, cluster: Cluster) -> bool:
    """Return whether decoding waits for prompts; a stated size of pieces means that it does not."""
    if serving.prefill == USUAL:
        return serving.chunk_tokens is None and _is_neuron(cluster)
    return serving.prefill == "separate"


def _is_neuron(cluster: Cluster) -> bool:
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


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
