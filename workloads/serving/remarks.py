"""Remarks on a replica that served: what a reader should know before believing the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from topologies.support.units import format_seconds
from workloads.models.model import Model
from workloads.serving.batching import engine_numbers
from workloads.serving.deployment import Deployed, Deployment
from workloads.serving.profile import profile
from workloads.serving.releases import idle_release

LATE = 0.1  # wait of the last requests, over the time of all arrivals, at which they pile up
FULL = 0.75  # mean share of the slots in use from which users of a closed loop queue for one
STEADY = 8  # requests over those in work at once, from which a highest rate changes little
SOONER = 2  # times as fast, from which prompts with experts in groups are named
NAMED = 0.1  # share of the time per token from which an earlier release's host is named
SAYS_NOTHING = 0.9  # width of the interval of a share from which a sentence takes its place
FEW = 1 / 16  # share of the slots below which so few requests decode that a token's price is high


def serving_remarks(
    model: Model, cluster: Cluster, deployed: Deployed, document: Mapping[str, Any]
) -> list[str]:
    """Return the remarks on an answer, a sentence each.

    ``document``: its numbers with intervals, by their key in ``cluster-sim serve --json``.
    """
    batching = deployed.deployment.batching
    engine = "" if batching.date else batching.engine
    older = _older(cluster, engine, document["tpot_s"]["p50"])
    grouped = _in_groups(model, cluster, deployed, document["prompt_tokens_mean"])
    share = _raised_shares(deployed.deployment)
    requests = _of_requests(deployed, document)
    dated = idle_release(model, cluster, batching.date)
    return [*dated, *share, *grouped, *requests, *older, *unsure_share(document)]


def _raised_shares(deployment: Deployment) -> Iterator[str]:
    """Say which replicas have weights that need more memory than the engine takes by itself."""
    memory_of = {deployment.prompt_profile: "chip's memory, where prompts run alone,"}
    memory_of[deployment.profile] = "chip's memory"  # of both where they are alike
    for replica, memory in memory_of.items():
        if share := replica.raised_share:
            yield (
                f"SGLang's own share of a {memory} does not hold the weights; {share:g} of it is "
                f"taken (assumed), so launch it with --mem-fraction-static {share:g}, or state "
                "another as --memory-share."
            )


def _of_requests(deployed: Deployed, document: Mapping[str, Any]) -> Iterator[str]:
    """Name free proposals, users in step or in a queue, an overload, and what a price is of."""
    requests, served = deployed.served.requests, deployed.served
    if (proposed := deployed.deployment.speculation) and proposed.draft == 0:
        yield proposed.free_remark
    if deployed.other_precision:
        sentence = deployed.other_precision.sentence
        yield f"{sentence[0].upper()}{sentence[1:]}"
    count, first, last = len(requests), requests.arrival_s[0], requests.arrival_s[-1]
    if count < STEADY * (at_once := document.get("requests_at_once") or 0):
        yield (
            f"{count:,} requests are {count / at_once:.2g} times those in work at once, too few "
            f"for a steady highest rate, which takes {STEADY} times or more: state a larger "
            "--count, or leave it out."
        )
    # Of a replica that keeps up, the last requests wait no longer than others.
    alike = len(set(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True))) == 1
    if alike and (deployed.concurrency or 1) > 1:
        yield (
            "All requests are alike, so those of a closed loop end together and wait for each "
            "other's prompts. A load generator that draws lengths is --shortest-lengths."
        )
    users, slots = deployed.concurrency or 0, document["slots"]
    if users > slots and document["batch_mean"] > FULL * slots:
        rate = count / (served.end_of_run_s - first)
        yield (
            f"{users:,} users share {slots:,} slots, so most of a time to first token is the wait "
            f"for one. State more --slots, or fewer users; --search --requests poisson:{rate:.2g}, "
            "the rate that they reach here, finds the replica that serves most."
        )
    waits_s = min(served.ttft_s[-max(1, count // 10) :])
    if deployed.concurrency is None and waits_s > LATE * (last - first) > 0:
        arrive, answered = count / (last - first), count / (served.end_of_run_s - first)
        yield (
            f"It is overloaded: {arrive:.3g} requests/s arrive and {answered:.3g} are answered, so "
            f"each waits longer than the one before. About {math.ceil(arrive / answered)} replicas "
            "keep up; --max-rate says how many keep the SLO, --search which replica serves most."
        )
    elif deployed.concurrency is None and not deployed.binds:
        yield waiting_sentence(document) or (
            "Prices and energy of a token are those at this rate, at which the replica may be idle "
            "for a part of the time; --max-rate answers for the highest rate within the SLO."
        )


def _in_groups(
    model: Model, cluster: Cluster, deployed: Deployed, prompt_tokens: float
) -> Iterator[str]:
    """Name the groups of ranks among which experts are divided, where prompts take half as long."""
    replica, apart = deployed.deployment.profile, deployed.deployment.pools
    # A search has tried the groups itself.
    if model.experts is None or replica.expert_groups > 1 or apart or deployed.search:
        return
    groups, tokens = math.gcd(replica.chips, model.experts.count), round(prompt_tokens)
    sizes: dict[str, Any] = {
        "precision": replica.precision,
        "cache_precision": replica.cache_precision,
    }
    try:
        other = profile(model, cluster, tp=replica.chips, ep=groups, **sizes)
    except InputError:
        return  # on Trainium the experts' weights are held twice
    alone_s, grouped_s = replica.prefill_s(tokens), other.prefill_s(tokens)
    if SOONER * grouped_s <= alone_s:
        yield (
            f"With --ep {groups}, which divides the experts among the ranks, a prompt of "
            f"{tokens:,} tokens takes {format_seconds(grouped_s)} alone, not "
            f"{format_seconds(alone_s)}."
        )


def _older(cluster: Cluster, engine: str, tpot_s: float | None) -> Iterator[str]:
    """Name the host's time in earlier releases of an engine, where it makes a token a tenth later.

    Its variant is the engine's name and the last release of which it holds, as ``vllm-0.13``.
    """
    if not engine or not tpot_s:
        return
    where = ("serving.gpu", "iteration_overhead")
    now = engine_numbers(cluster.numbers, engine).entry(*where)
    for row in cluster.numbers.variants(*where) if now.variant == engine else ():
        name, _, release = row.variant.rpartition("-")
        if name == engine and row.value - now.value > NAMED * tpot_s:
            yield (
                f"The host takes {format_seconds(now.value)} of an iteration, as in {engine} after "
                f"{release}; before, it took {format_seconds(row.value)}: --date states the month "
                "of a release."
            )


def unsure_share(document: Mapping[str, Any]) -> Iterator[str]:
    """Say that the speed decides whether requests keep the SLO, where it does for nearly all."""
    ends = document["slo_attainment_interval"]
    if ends["high"] - ends["low"] >= SAYS_NOTHING:
        edge = "The highest rate leaves no room for a slower replica. " * ("binds" in document)
        yield (
            f"{edge}Whether requests keep the SLO is a matter of speed: on a replica as slow as "
            f"its interval allows, {ends['low']:.0%} do; on one as fast, {ends['high']:.0%}."
        )


def waiting_sentence(document: Mapping[str, Any]) -> str:
    """Say that a replica at a stated rate mostly waits, so that its prices are no machine's."""
    waits = document.get("utilisation", 1) < 0.5 or document["batch_mean"] < FEW * document["slots"]
    if not waits:
        return ""
    one, prompts = "a replica that waits", ""
    if "prefill_utilisation" in document:
        one = "replicas that wait"
        prompts = f"replicas for prompts are {document['prefill_utilisation']:.0%} busy, and "
    return (
        f"At this rate {prompts}{document['batch_mean']:.2g} of {document['slots']:,} requests "
        f"decode in the mean, so price and energy of a token are those of {one}; --max-rate "
        "gives those at the highest rate within the SLO."
    )
