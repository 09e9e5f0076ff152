"""The highest rate of requests that replicas serve under an SLO, and the best deployments for it.

No deployment serves more than when requests always wait, and a split no more than its prompts' or
its decoding replicas alone: most candidates need no search for their rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.clusters.names import machine
from topologies.support.errors import InputError, check_choice
from workloads.economics import Economics, one_kind_of_price
from workloads.kernels.precision import SERVING
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.options.serving import USUAL_REQUESTS
from workloads.serving.batching import USUAL_CACHE, Batching, batching_from, engine_numbers
from workloads.serving.deployment import (
    Deployed,
    Deployment,
    PromptReplica,
    decoding,
    parse_pools,
    pools,
)
from workloads.serving.profile import Profile, profile
from workloads.serving.requests import (
    DRAWN,
    Lengths,
    Requests,
    drawn_lengths,
    drawn_rate,
    poisson,
    with_prefix_cache,
)
from workloads.serving.served import Slo, SloMissed, attained, attained_alone
from workloads.serving.speculation import Speculation, parse_speculation

LEAST, MOST = 0.05, 0.99  # rates between which the search goes, over the saturated rate
NEAR = 1.01  # ratio of a rate that misses the SLO to one that keeps it at which the search ends
BEYOND = 1.05  # rate at which the binding cause is looked for, over the highest one
FREED = 2  # factor on the memory of the cache, or on the slots, that shows whether it binds
FILLS = 16  # least number of times that the requests of a run fill all slots that decode


@dataclass(frozen=True, eq=False)
class Offered:
    """Requests that are offered to replicas at any rate, as a Poisson process."""

    deployment: Deployment
    lengths: Lengths  # lengths that are drawn
    count: int  # number of requests of each run
    seed: int = 0  # seed of arrivals, lengths and accepted proposals, the same at all rates
    # Returns them with the tokens that a prefix cache holds
    cached: Callable[[Requests], Requests] = field(default=lambda requests: requests)
    demand_per_s: float | None = None  # rate for which replicas are counted [1/s]

    def requests(self, rate_per_s: float) -> Requests:
        """Draw the requests at a rate; all arrive at once where it is infinite."""
        rng = np.random.default_rng(self.seed)
        return self.cached(poisson(rate_per_s, self.count, self.lengths, rng))

    def run(self, rate_per_s: float) -> Deployed:
        """Serve the requests at a rate."""
        return self.deployment.run(self.requests(rate_per_s), self.seed)

    def share(self, rate_per_s: float, slo: Slo) -> float:
        """Return the share of the requests that keep the SLO at a rate."""
        return float(attained(self.run(rate_per_s).served, slo).mean())

    @cached_property
    def saturated_per_s(self) -> float:
        """Requests per second that are finished when some always wait [1/s]."""
        # Without the first and last fifth of completions, in which the batch fills and empties.
        prompt, output = self.lengths.draw(self.count, np.random.default_rng(self.seed))
        requests = Requests(np.zeros(self.count), prompt, output)
        ends = np.sort(self.deployment.run(self.cached(requests), self.seed).served.end_s)
        first, last = self.count // 5, self.count - self.count // 5 - 1
        if not ends[last] > ends[first]:  # one batch of equal requests, which end together
            return float(self.count / ends[last])
        return float((last - first) / (ends[last] - ends[first]))

    def freed(self) -> Iterator[tuple[str, Offered]]:
        """Yield the same replicas with more memory for the cache, and with more slots."""
        deployment, batching = self.deployment, self.deployment.batching
        profile = deployment.profile
        roomy = replace(profile, kv_budget_bytes=FREED * profile.kv_budget_bytes)
        yield "memory", replace(self, deployment=replace(deployment, profile=roomy))
        most = batching.chunk_tokens - 1 if batching.chunk_tokens else FREED * batching.slots
        slots = max(batching.slots, min(FREED * batching.slots, most))
        wide = replace(deployment, batching=replace(batching, slots=slots))
        yield "slots", replace(self, deployment=wide)


def highest_rate(offered: Offered, slo: Slo, *, above_per_s: float = 0.0) -> float:
    """Return the highest rate at which a run keeps the SLO, to one per cent [1/s]."""
    kept = LEAST * offered.saturated_per_s
    missed = MOST * offered.saturated_per_s
    if above_per_s > kept:
        if above_per_s >= missed or offered.share(above_per_s, slo) < slo.share:
            return 0.0
        kept = above_per_s
    elif (share := offered.share(kept, slo)) < slo.share:
        alone = attained_alone(offered.run(kept).served, slo)
        raise SloMissed(offered.deployment.profile.name, slo, share, alone)
    if offered.share(missed, slo) >= slo.share:
        return missed
    return narrowed(offered, slo, kept, missed)[0]


def narrowed(offered: Offered, slo: Slo, kept: float, missed: float) -> tuple[float, float]:
    """Return rates one per cent apart, of which the lower one keeps the SLO, by bisection [1/s]."""
    while missed > NEAR * kept:
        middle = (kept + missed) / 2
        if offered.share(middle, slo) >= slo.share:
            kept = middle
        else:
            missed = middle
    return kept, missed


def at_highest_rate(offered: Offered, slo: Slo, *, least: int | None = None) -> Deployed:
    """Return what replicas serve at an SLO's highest rate, from ``least`` requests on."""
    enough = min(least or offered.count, offered.count)
    while True:
        tried = replace(offered, count=enough)
        rate = highest_rate(tried, slo)
        deployed = tried.run(rate)
        enough = min(math.ceil(FILLS * deployed.at_once(rate)), offered.count)
        if enough <= tried.count:
            return at_rate(tried, slo, rate, deployed)


def at_rate(offered: Offered, slo: Slo, rate_per_s: float, deployed: Deployed) -> Deployed:
    """Return an outcome at the highest rate with what binds and the rate to be served."""
    at_once = deployed.at_once(rate_per_s)
    if at_once > offered.count:  # they arrive within less time than one of them takes
        raise InputError(
            f"--count {offered.count:,} is too few for a highest rate: it would be that of a "
            f"burst, of {at_once:,.0f} requests at once. State {FILLS * offered.count:,} or more, "
            "or leave it out."
        )
    binds = what_binds(offered, slo, rate_per_s)
    return replace(deployed, rate_per_s=rate_per_s, binds=binds, demand_per_s=offered.demand_per_s)


def what_binds(offered: Offered, slo: Slo, rate_per_s: float) -> str:
    """Return what keeps replicas from a higher rate than the highest one."""
    # ``memory`` or ``slots`` if twice as much allows 5 % more, else the limit that more requests
    # miss, ``TTFT`` or ``TPOT``; where few miss any, replicas are always busy: ``throughput``.
    beyond = BEYOND * rate_per_s
    served = offered.run(beyond).served
    late = float(np.mean(served.ttft_s > slo.ttft_s))
    slow = float(np.mean(np.nan_to_num(served.tpot_s, nan=0.0) > slo.tpot_s))
    saturated = late + slow <= 1 - slo.share
    for name, freed in offered.freed():
        enough = freed.saturated_per_s >= BEYOND * offered.saturated_per_s
        if enough if saturated else freed.share(beyond, slo) >= slo.share:
            return name
    if saturated:
        return "throughput"
    return "TTFT" if late >= slow else "TPOT"


PIECES = (512, 2048, 8192)  # tokens of an iteration that are tried where prompts run in pieces
MOST_IN_GROUP = 8
"""Most replicas of a group among which a split is searched; a fault takes out the whole group."""
FIRST_SLOTS, MOST_SLOTS = 64, 1024
"""Requests that decode at once: slots are doubled from the first on while that serves more."""
LEAST_SLOTS = 4  # slots down to which those of a program of Trainium are halved
WORTH = 1.01  # gain in rate for which twice the slots are kept
KEPT = 3  # number of deployments, from the best on, that no candidate without a search can exceed
FRONTIER = (0.02, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 0.99)
"""Rates over the saturated one at which the speed for a user and for a chip are shown."""
MOST_OFFERED = 50_000
"""Most requests of each run of a search for a rate, unless stated."""


@dataclass(frozen=True, eq=False)
class ServingOptions:
    """Options of :mod:`workloads.options.serving`, as text or as what the text describes."""

    batching: Batching | None = None  # by default that of the chip, see ``batching_from``
    ep: int | None = None  # 1, or searched
    attention_dp: int = 1
    cache_precision: str | None = None
    memory_share: float | None = None
    prefix_cache: str | None = None
    speculate: str | Speculation | None = None
    disaggregate: str | tuple[int, int] | None = None
    prefill_cluster: str | Cluster | None = None
    prefill_tp: int | None = None

    @property
    def unlike(self) -> bool:
        """Return whether prefill replicas have a stated cluster or degree of their own."""
        return self.prefill_cluster is not None or self.prefill_tp is not None

    def deployment(
        self, model: Model, cluster: Cluster, *, tp: int | None, precision: str | None
    ) -> Deployment:
        """Return the replicas that serve a model on the first chips of a cluster."""
        batching = (self.batching or batching_from(cluster)).of_groups(self.attention_dp)
        engine = batching.engine, cluster.chip, batching.date, self.attention_dp
        numbers = engine_numbers(cluster.numbers, *engine)
        cache = self.cache_precision or USUAL_CACHE.get(batching.engine)
        sizes: Mapping[str, Any] = {
            "precision": precision, "ep": self.ep or 1, "cache_precision": cache,
            "attention_dp": self.attention_dp, "memory_share": self.memory_share,
            "of_free": batching.engine == "tensorrt-llm",
        }  # fmt: skip
        replica = profile(model, cluster, tp=tp, catalogue=numbers, **sizes)

        def draft(name: str) -> Profile:
            return profile(as_model(name), cluster, tp=tp, catalogue=numbers)

        speculation, apart = self.speculate, self.disaggregate
        if isinstance(speculation, str):
            speculation = parse_speculation(speculation, draft)
        if isinstance(apart, str):
            apart = parse_pools(apart)
        if self.unlike and not apart:
            stated = "--prefill-tp" if self.prefill_cluster is None else "--prefill-cluster"
            raise InputError(
                f"{stated} is for replicas that process prompts alone. State how many there are, "
                "such as --disaggregate 1:3, or leave it out."
            )
        if not apart:
            return Deployment(replica, batching, speculation)
        prompts = None
        if self.prompt_cluster(cluster) != cluster or self.prefill_tp not in (None, tp):
            prompts = self._prompts(model, cluster, batching, sizes)
        return Deployment(replica, batching, speculation, pools(cluster, replica, *apart, prompts))

    def prompt_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster on which prompts are processed."""
        place = self.prefill_cluster
        if isinstance(place, str):
            place = machine(place, catalogue=cluster.catalogue)
        return place or cluster

    def _prompts(
        self, model: Model, cluster: Cluster, batching: Batching, sizes: Mapping[str, Any]
    ) -> PromptReplica:
        """Return a replica of another kind that processes prompts, and the prices of both."""
        place = self.prompt_cluster(cluster)
        how = batching
        if place != cluster:
            how = batching_from(place).of_groups(self.attention_dp)
        catalogue = place.numbers
        numbers = engine_numbers(catalogue, how.engine, place.chip, how.date, self.attention_dp)
        replica = profile(model, place, tp=self.prefill_tp, catalogue=numbers, **sizes)
        named = [machine_of(cluster), machine_of(place)]
        priced, prices = one_kind_of_price(cluster.catalogue or catalogue, named)
        both = [Economics.of(replace(each, catalogue=priced)) for each in (cluster, place)]
        return PromptReplica(replica, how, place, (both[0], both[1]), prices)

    def offered(
        self,
        deployment: Deployment,
        requests: Requests | str,
        *,
        count: int | None = None,
        rate: float | None = None,
        seed: int = 0,
        **lengths: Any,
    ) -> Offered:
        """Return requests, drawn with ``lengths``, that are offered to replicas at any rate."""
        # 2,000 by default, or more where slots and caches need more to be full.
        source = requests if isinstance(requests, str) else "as they are"
        demand_per_s = drawn_rate(source)
        if rate is not None or demand_per_s is None:
            stated = f"--rate {rate:g}" if rate is not None else f"--requests {source}"
            raise InputError(
                f"{stated} states when requests arrive, and the highest rate is searched. Leave it "
                "out; --service, --prompt and --output state lengths, --requests poisson:RATE a "
                "rate for which replicas are counted."
            )
        drawn = drawn_lengths(**lengths)
        enough = min(max(DRAWN, FILLS * deployment.most_at_once(drawn)), MOST_OFFERED)
        replica = deployment.prompt_profile
        return Offered(
            deployment,
            drawn,
            count or enough,
            seed,
            lambda requests: self.cached(requests, replica),
            None if source == USUAL_REQUESTS else demand_per_s,
        )

    def cached(self, requests: Requests, replica: Profile) -> Requests:
        """Return the requests with the tokens of their prompts that a prefix cache holds."""
        if self.prefix_cache is None:
            return requests
        return with_prefix_cache(requests, self.prefix_cache, kv_tokens=replica.kv_tokens)


@dataclass(frozen=True, eq=False)
class Ranked:
    """A deployment and what it serves."""

    words: Mapping[str, Any]  # options of ``cluster-sim serve`` that describe it, by name
    offered: Offered  # its replicas, and the requests that are offered to them
    rate_per_s: float  # highest rate within the SLO, of all its replicas [1/s]

    @property
    def rate_per_chip_s(self) -> float:
        """Highest rate within the SLO for each chip; unlike chips count by their price [1/s]."""
        return self.rate_per_s / self.offered.deployment.weighed_chips

    def row(self) -> dict[str, Any]:
        """Return its numbers by their key in ``cluster-sim serve --search --json``."""
        return {
            "options": _in_words(self.words),
            "chips": self.offered.deployment.chips,
            "max_rate_per_s": self.rate_per_s,
            "max_rate_per_s_per_chip": self.rate_per_chip_s,
        }


def _in_words(words: Mapping[str, Any]) -> str:
    """Options as they are written on the command line."""
    return " ".join(f"--{name} {value}" for name, value in words.items())


@dataclass(frozen=True, eq=False)
class DeploymentQuestion:
    """Requests to be served within an SLO, and what a deployment for them must have."""

    model: Model
    cluster: Cluster
    slo: Slo
    options: ServingOptions  # settings of every deployment
    # batching, drawing: stated keywords of ``batching_from`` and of ``ServingOptions.offered``
    batching: Mapping[str, Any]
    drawing: Mapping[str, Any]
    # tp, precision: where they were stated; of several precisions, such as ``bf16,fp8``, the best
    tp: int | None = None
    precision: str | None = None

    def offered(self, words: Mapping[str, Any]) -> Offered:
        """Return the requests offered to the deployment that some options describe."""
        ways = {"slots": FIRST_SLOTS, **self.batching, **words}
        tp, apart = ways.pop("tp", self.tp), ways.pop("disaggregate", None)
        ep = ways.pop("ep", self.options.ep)
        prefill_tp = ways.pop("prefill-tp", None)
        precision = ways.pop("precision", self.precision)
        batching = batching_from(self.cluster, **ways)
        options = replace(
            self.options, batching=batching, ep=ep, disaggregate=apart, prefill_tp=prefill_tp
        )
        deployment = options.deployment(self.model, self.cluster, tp=tp, precision=precision)
        return options.offered(deployment, **self.drawing)


Candidate = tuple[float, dict[str, Any], Offered]
"""Bound of the rate of a chip [1/s], options, and the requests offered to the replicas."""


@dataclass(frozen=True, eq=False)
class DeploymentSearch:
    """Deployments for a question."""

    question: DeploymentQuestion
    candidates: list[Candidate]  # all that fit
    # Those whose rate was searched, the best first; the first ``KEPT`` are the best of all
    ranked: list[Ranked]

    def best(self) -> Deployed:
        """Return what the best deployment serves at its highest rate."""
        offered, rate = self.ranked[0].offered, self.ranked[0].rate_per_s
        return replace(at_rate(offered, self.question.slo, rate, offered.run(rate)), search=self)

    def summary(self) -> dict[str, Any]:
        """Return the deployments by their keys in ``cluster-sim serve --search --json``."""
        return {
            "options": _in_words(self.ranked[0].words),
            "deployments": [each.row() for each in self.ranked[:KEPT]],
            "candidates": len(self.candidates),
        }

    def frontier(self, watch: Watch = unwatched) -> list[dict[str, Any]]:
        """Return the speed for a user and for a chip, from few requests to saturation."""
        # Of each degree the deployment of the highest bound is run whose replicas do both, and the
        # one with replicas for prompts.
        first: dict[tuple[int, bool], Candidate] = {}
        for candidate in self.candidates:
            _, words, offered = candidate
            first.setdefault((offered.deployment.profile.chips, "disaggregate" in words), candidate)
        rows = []
        for (_, apart), (_, words, offered) in watch(list(first.items()), "the frontier"):
            for load in FRONTIER:
                rate = load * offered.saturated_per_s
                served = offered.run(rate).served
                tokens_per_s = rate * float(served.requests.output.mean())
                rows.append(
                    {
                        "options": _in_words(words),
                        "apart": apart,
                        "rate_per_s": rate,
                        "tokens_per_s_per_user": 1 / float(np.nanmedian(served.tpot_s)),
                        "tokens_per_s_per_chip": tokens_per_s / offered.deployment.chips,
                    }
                )
        return rows


def search_deployments(question: DeploymentQuestion, watch: Watch = unwatched) -> DeploymentSearch:
    """Search for the deployments of most requests a chip within an SLO, which none may keep."""
    candidates = sorted(_candidates(question), key=lambda each: -each[0])
    ranked: list[Ranked] = []
    missed: list[tuple[SloMissed, Mapping[str, Any]]] = []
    for most_per_chip_s, words, offered in watch(candidates, "deployments"):
        least = ranked[KEPT - 1].rate_per_chip_s if len(ranked) >= KEPT else 0.0
        chips = offered.deployment.weighed_chips
        if most_per_chip_s <= least or MOST * offered.saturated_per_s / chips <= least:
            continue
        try:
            better = _at_best_slots(question, words, offered, least * chips)
        except SloMissed as miss:
            missed.append((miss, words))
            continue
        if better:
            ranked.append(better)
            ranked.sort(key=lambda each: -each.rate_per_chip_s)
    if not ranked:
        nearest, words = max(missed, key=lambda each: each[0].attained)
        name = f"{question.model.name} on {question.cluster.name}, at best with {_in_words(words)},"
        raise SloMissed(name, question.slo, nearest.attained, nearest.of_each)
    ranked[:KEPT] = [_with_more_slots(question, each) for each in ranked[:KEPT]]
    return DeploymentSearch(
        question, candidates, sorted(ranked, key=lambda each: -each.rate_per_chip_s)
    )


def _candidates(question: DeploymentQuestion) -> list[Candidate]:
    """Return every deployment that fits, with a rate for each chip that it cannot exceed."""
    stated = question.precision or ""
    several = dict.fromkeys(stated.split(",")) if "," in stated else {}
    for each in several:
        check_choice("--precision", each, SERVING)
    ways = [{"precision": each} for each in several] or [{}]
    candidates: list[Candidate] = []
    first: InputError | None = None
    for way, degree in product(ways, _degrees(question)):
        try:
            candidates += _of_degree(question, degree | way)
        except InputError as mistake:
            first = first or mistake
    if not candidates and first is not None:
        raise first
    return candidates


def _degrees(question: DeploymentQuestion) -> list[dict[str, Any]]:
    """Return the degrees of replicas as options, with those for prompts where these are unlike.

    The experts of a mixture are cut, or divided among all ranks of a replica.
    """
    degrees = _powers(question.cluster, "tp", question.tp)
    if question.model.experts and question.options.ep is None:
        degrees += [{**each, "ep": each["tp"]} for each in degrees if each.get("tp", 1) > 1]
    if not question.options.unlike:
        return degrees
    place = question.options.prompt_cluster(question.cluster)
    others = _powers(place, "prefill-tp", question.options.prefill_tp)
    return [{**degree, **each} for degree in degrees for each in others]


def _powers(cluster: Cluster, name: str, stated: int | None) -> list[dict[str, Any]]:
    """Return the stated degree, or powers of two up to a domain's chips, largest first."""
    # So a refusal names the degree at which the model fits best.
    most = min(cluster.chips, cluster.chips_per_domain)
    if stated is not None or most == 1:
        return [{} if stated is None else {name: stated}]
    return [{name: 2**power} for power in reversed(range(most.bit_length()))]


def _of_degree(question: DeploymentQuestion, degree: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield the deployments of one degree: replicas that do both, and splits of groups."""
    apart, unlike = question.options.disaggregate, question.options.unlike
    for way in [{"disaggregate": apart}] if apart else [] if unlike else _ways(question):
        words = {**degree, **way}
        offered = question.offered(words)
        yield MOST * offered.saturated_per_s / offered.deployment.weighed_chips, words, offered
    stated = question.batching.keys() & {"prefill", "chunk", "scheduler"}
    if not apart and (unlike or not stated):
        yield from _splits(question, degree)


def _ways(question: DeploymentQuestion) -> list[dict[str, Any]]:
    """Return the ways to run prompts in replicas that decode as well."""
    # Neuron compiles programs for whole prompts; elsewhere pieces of several sizes are tried too.
    stated = question.batching
    neuron = chip_family(question.cluster.chip, question.cluster.catalogue).is_neuron
    if neuron or stated.keys() & {"chunk", "scheduler"} or stated.get("prefill") == "separate":
        return [{}]
    pieces = [{"prefill": "chunked", "chunk": tokens} for tokens in PIECES]
    return pieces if stated.get("prefill") == "chunked" else [{"prefill": "separate"}, *pieces]


def _splits(question: DeploymentQuestion, degree: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield splits of groups, each with the rate of its scarcer replicas."""
    alone = {"disaggregate": "1:1"} if question.options.unlike else {}
    one_of_each = question.offered({**degree, **alone})
    prompts_per_s, decoded_per_s = rates_apart(one_of_each)
    chips = one_of_each.deployment.profile.chips
    prompt_chips = one_of_each.deployment.prompt_profile.chips
    place = question.options.prompt_cluster(question.cluster)
    # Not in lowest terms alone: one group of 2:4 queues less than two of 1:2, and may serve more.
    for size in range(2, MOST_IN_GROUP + 1):
        for prefill in range(1, size):
            decode = size - prefill
            room = question.cluster.chips - decode * chips
            if place == question.cluster:
                room -= prefill * prompt_chips
            if room < 0 or prefill * prompt_chips > place.chips:
                continue
            words = {**degree, "disaggregate": f"{prefill}:{decode}"}
            offered = question.offered(words)
            most = min(prefill * prompts_per_s, decode * decoded_per_s)
            yield most / offered.deployment.weighed_chips, words, offered


def rates_apart(offered: Offered) -> tuple[float, float]:
    """Return the rates of a replica of prompts and of one that decodes [1/s]."""
    deployment = offered.deployment
    replica, batching = deployment.prompt_profile, deployment.batching
    padding = deployment.prompts.batching if deployment.prompts else batching
    requests = offered.requests(math.inf)
    held = [requests.held(each) for each in range(len(requests))]
    prompt_s = [
        replica.prefill_s(padding.padded(int(prompt) - cached), cached)
        for prompt, cached in zip(requests.prompt, held, strict=True)
    ]
    alone = replace(deployment, batching=decoding(batching), pools=None)
    return 1 / float(np.mean(prompt_s)), replace(offered, deployment=alone).saturated_per_s


def _at_best_slots(
    question: DeploymentQuestion, words: dict[str, Any], offered: Offered, above_per_s: float
) -> Ranked | None:
    """Return a deployment above a rate, as a program of Trainium with the slots that serve most."""
    # A program runs all its slots, empty ones too, so that one with fewer keeps a shorter limit.
    may_halve = offered.deployment.batching.runs_empty_slots and "slots" not in question.batching
    best: Ranked | None = None
    miss: SloMissed | None = None
    slots = FIRST_SLOTS
    while MOST * offered.saturated_per_s > above_per_s:  # fewer slots do not saturate later
        one_pass_s = offered.deployment.profile.decode_s(slots, 1) if may_halve else 0.0
        rate = 0.0
        try:
            if one_pass_s <= question.slo.tpot_s or slots == LEAST_SLOTS:
                rate = highest_rate(offered, question.slo, above_per_s=above_per_s)
        except SloMissed as missed:
            miss = missed
        if rate:
            best, above_per_s = Ranked(words, offered, rate), rate
        if not may_halve or slots == LEAST_SLOTS or (best and not rate):
            break
        slots //= 2
        words = {**words, "slots": slots}
        offered = question.offered(words)
    if miss and not best:
        raise miss
    return best


def _with_more_slots(question: DeploymentQuestion, best: Ranked) -> Ranked:
    """Return a deployment with as many slots as serve more, if their number was not stated."""
    if "slots" in question.batching:
        return best
    slots = best.words.get("slots", FIRST_SLOTS)
    best = replace(best, words={**best.words, "slots": slots})
    while slots >= FIRST_SLOTS and FREED * slots <= MOST_SLOTS:
        slots *= FREED
        words = {**best.words, "slots": slots}
        try:
            offered = question.offered(words)
        except InputError:  # more than the tokens of an iteration leave room for
            return best
        rate = highest_rate(offered, question.slo, above_per_s=WORTH * best.rate_per_s)
        if not rate:
            return best
        best = Ranked(words, offered, rate)
    return best
