"""The highest rate that keeps an SLO, and the deployment that has it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.refusals import refused
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import model
from workloads.serving import (
    Pools,
    Profile,
    ServingOptions,
    Slo,
    SloMissed,
    TableRuns,
    deployment_search,
    rank_ways,
)
from workloads.serving.batching import Batching
from workloads.serving.deployment_search import (
    FILLS,
    KEPT,
    MOST,
    NEAR,
    DeploymentQuestion,
    DeploymentSearch,
    Offered,
    at_highest_rate,
    highest_rate,
    search_deployments,
    what_binds,
)
from workloads.serving.requests import Lengths, fixed_lengths

TOKENS = np.array([1.0, 10_000.0])
REPLICA = Profile("a", 4, TOKENS, 0.01 + TOKENS * 1e-4, 1e-9, 0.0, 0.0, 1e9, 1.0, 1e9)
"""An iteration takes 10 ms and 0.1 ms a token; the cache has room for all requests."""
ONE_TOKEN = fixed_lengths(900, 1)
"""A prompt of 100 ms, and no more than its first token."""


def offered(lengths: Lengths = ONE_TOKEN, replica: Profile = REPLICA, **runs: object) -> Offered:
    how = TableRuns(**{"requests": 1500, **runs})  # type: ignore[arg-type]
    return how.offered(replica, lengths)


@pytest.mark.parametrize("least", [20, 500])
def test_requests_fill_the_slots_in_use_and_no_more(least):
    """Slots that stay empty at the highest rate change neither the run nor its length."""
    queues = (offered(batching=Batching(slots), requests=30_000) for slots in (500, 5000))
    few, many = (at_highest_rate(queue, Slo(1.0), least=least) for queue in queues)
    assert few.rate_per_s == many.rate_per_s
    served = few.served
    at_once = few.rate_per_s * float((served.end_s - served.requests.arrival_s).mean())
    enough = max(least, FILLS * at_once)
    assert enough <= len(served.requests) == len(many.served.requests) < 1.5 * enough


@pytest.mark.parametrize("limit_s", [0.25, 0.4, 1.0])
def test_the_rate_is_that_of_a_queue_of_equal_prompts(limit_s):
    """Lindley's recursion gives each wait; the rate is the highest of a fine scan that keeps 99 %.

    Its arrivals are those of the runs: one draw, stretched to each rate.
    """
    queue, slo = offered(), Slo(ttft_s=limit_s)
    assert queue.saturated_per_s == pytest.approx(10.0)
    gaps = np.diff(queue.run(1.0).served.requests.arrival_s)

    def kept(rate_per_s: float) -> float:
        wait, waits = 0.0, [0.0]
        for gap in gaps:
            wait = max(0.0, wait + 0.1 - gap / rate_per_s)
            waits.append(wait)
        return float((np.array(waits) + 0.1 <= limit_s).mean())

    scan = np.geomspace(0.5, 9.9, 400)
    best = max(rate for rate in scan if kept(rate) >= slo.share)
    highest = highest_rate(queue, slo)
    assert highest == pytest.approx(best, rel=NEAR - 1)
    assert queue.share(highest, slo) >= slo.share
    assert what_binds(queue, slo, highest) == "TTFT"


def test_without_limits_replicas_are_always_busy_and_an_slo_that_idle_ones_miss_is_refused():
    queue = offered()
    highest = highest_rate(queue, Slo())
    assert highest == MOST * queue.saturated_per_s
    assert what_binds(queue, Slo(), highest) == "throughput"
    with pytest.raises(SloMissed, match=r"a keeps ttft 90 ms for only 0\.0%"):
        highest_rate(queue, Slo(ttft_s=0.09))


@pytest.mark.parametrize(("replica", "slots", "slo", "cause"), [
    (REPLICA, 64, Slo(tpot_s=0.012), "TPOT"),
    (REPLICA, 2, Slo(ttft_s=1.0), "slots"),
    (replace(REPLICA, kv_budget_bytes=450.0), 64, Slo(ttft_s=1.0), "memory"),
    (replace(REPLICA, kv_budget_bytes=450.0), 64, Slo(), "memory"),
])  # fmt: skip
def test_the_cause_is_what_would_let_more_through(replica, slots, slo, cause):
    """Prompts of 20 ms, and answers of 100 tokens that need a slot and room in the cache."""
    queue = offered(fixed_lengths(100, 100), replica, batching=Batching(slots=slots))
    assert what_binds(queue, slo, highest_rate(queue, slo)) == cause


LONG, SHORT = fixed_lengths(9900, 2), fixed_lengths(100, 200)
SPLITS = [None, *(Pools(p, size - p, 1e12) for size in (2, 3) for p in range(1, size))]


def ways(**changes: object) -> list[TableRuns]:
    runs = TableRuns(requests=400, **changes)  # type: ignore[arg-type]
    return [replace(runs, pools=pools) for pools in SPLITS]


@examples(6)
@given(
    prompt=st.integers(100, 9900), output=st.integers(2, 200),
    tpot_s=st.sampled_from([0.012, 0.02, 0.1, np.inf]), share=st.sampled_from([0.0, 0.5, 0.9]),
)  # fmt: skip
def test_the_ranking_is_that_of_brute_force(tmp_path_factory, prompt, output, tpot_s, share):
    lengths, slo = fixed_lengths(prompt, output), Slo(4.0, tpot_s)
    tried = ways(prefix_share=share)
    rates = []
    for way in tried:
        replicas = way.pools.prefill + way.pools.decode if way.pools else 1
        try:
            rates.append(
                highest_rate(way.offered(REPLICA, lengths), slo) / (replicas * REPLICA.chips)
            )
        except SloMissed:
            rates.append(0.0)
    ranking = rank_ways(
        [(lengths, 1.0)],
        slo,
        [(REPLICA, [way]) for way in tried],
        cache=tmp_path_factory.mktemp("k"),
    )
    order = sorted(rates, reverse=True)
    for (way, rate), best in zip(ranking.best, order, strict=False):
        # A search that begins at the second best rate ends at most one step away.
        assert rate == pytest.approx(rates[way], rel=2 * (NEAR - 1))
        assert rate == pytest.approx(best, rel=2 * (NEAR - 1))


def test_kinds_of_requests_share_the_best_way(tmp_path):
    """The way that is best for each alone differs; for both it is the best by their shares."""
    slo, tried = Slo(6.0, 0.1), ways()
    questions, each_way = ([(LONG, 1.0)], [(SHORT, 1.0)]), [(REPLICA, [way]) for way in tried]
    alone = [rank_ways(each, slo, each_way, cache=tmp_path) for each in questions]
    assert alone[0].best[0][0] != alone[1].best[0][0]
    kinds, pairs = [(LONG, 0.5), (SHORT, 0.5)], [(REPLICA, [way, way]) for way in tried]
    both = rank_ways(kinds, slo, pairs, cache=tmp_path)
    assert len(both.binds) == 2
    way, rate = both.best[0]
    pools = SPLITS[way]
    chips = REPLICA.chips * (pools.prefill + pools.decode if pools else 1)
    each = [highest_rate(tried[way].offered(REPLICA, of), slo) / chips for of in (LONG, SHORT)]
    assert rate == pytest.approx(2 / (1 / each[0] + 1 / each[1]), rel=NEAR - 1)


def test_a_ranking_is_kept_and_read_back(tmp_path, monkeypatch):
    question = ([(SHORT, 1.0)], Slo(4.0, 0.1), [(REPLICA, [way]) for way in ways()])
    first = rank_ways(*question, cache=tmp_path)
    monkeypatch.setattr("workloads.serving.tables.highest_rate", None)
    assert rank_ways(*question, cache=tmp_path) == first


SLO = Slo(ttft_s=0.5, tpot_s=0.02)


def question(machine: str = "p5.48xlarge", slo: Slo = SLO, **stated: Any) -> DeploymentQuestion:
    drawing = {"requests": "poisson:0.1", "count": 150}
    batching = {"slots": 32, **stated.pop("batching", {})}
    return DeploymentQuestion(
        model("llama-3.1-8b"), cluster(machine), slo, ServingOptions(), batching, drawing, **stated
    )


@pytest.fixture(scope="module")
def gpus() -> DeploymentSearch:
    return search_deployments(question())


def test_the_first_are_the_best_of_all_candidates(gpus):
    """Rates are known to one per cent, so deployments as near as that may change places."""
    rates = []
    for _, words, offered in gpus.candidates:
        try:
            rates.append((highest_rate(offered, SLO) / offered.deployment.chips, words))
        except SloMissed:
            continue
    expected = sorted((rate for rate, _ in rates), reverse=True)[:KEPT]
    rates_found = [each.rate_per_chip_s for each in gpus.ranked[:KEPT]]
    assert rates_found == pytest.approx(expected, rel=NEAR - 1)
    assert len(gpus.candidates) > len(gpus.ranked)


def test_no_rate_exceeds_its_bound(gpus):
    """The bound of a split is that of endless requests, which a run of 150 may exceed a little."""
    for most, words, offered in gpus.candidates:
        measured = 0.99 * offered.saturated_per_s / offered.deployment.chips
        assert measured <= most * (1.1 if "disaggregate" in words else 1.0)


def test_unlike_chips_are_split_and_count_by_their_price():
    usual = question("trn2.48xlarge", tp=4)
    options = ServingOptions(prefill_cluster=cluster("p5.48xlarge"))
    outcome = search_deployments(replace(usual, options=options))
    words = [each for _, each, _ in outcome.candidates]
    assert {each["prefill-tp"] for each in words} == {1, 2, 4, 8}
    assert {each["tp"] for each in words} == {4}
    best = outcome.ranked[0]
    weighed = best.offered.deployment.weighed_chips
    assert weighed > best.offered.deployment.chips
    assert best.rate_per_chip_s == best.rate_per_s / weighed


def test_unlike_chips_without_a_price_are_not_compared(tmp_path):
    (tmp_path / "pod.yaml").write_text(
        "chip: b200\nscale_up: {shape: switch, size: 8, bandwidth: 900GB/s, latency: 1us}\n"
        "domains: 2\nscale_out: {like: infiniband-ndr}\n"
    )
    options = ServingOptions(prefill_cluster=cluster(str(tmp_path / "pod.yaml")))
    with pytest.raises(InputError, match="that of pod is unknown"):
        search_deployments(replace(question("trn2.48xlarge"), options=options))


def test_experts_are_searched_cut_and_divided_unless_that_is_stated():
    """gpt-oss-20b has 32 experts: divided among four ranks each holds eight."""
    mixture = model("gpt-oss-20b")
    limits = replace(question(tp=4, batching={"prefill": "chunked"}), model=mixture)
    words = [words for _, words, _ in search_deployments(limits).candidates]
    assert {each.get("ep", 1) for each in words} == {1, 4}
    stated = replace(limits, options=ServingOptions(ep=2))
    offered = stated.offered({"tp": 4})
    assert offered.deployment.profile.expert_groups == 2
    candidates = deployment_search._candidates(stated)
    assert {words.get("ep") for _, words, _ in candidates} == {None}
    assert {each.deployment.profile.expert_groups for _, _, each in candidates} == {2}


@pytest.mark.parametrize(("limits", "options"), [
    (question(tp=4, batching={"prefill": "chunked"}), {("tp", "prefill", "chunk")}),
    (question("trn2.48xlarge", Slo(2.0, 0.1), tp=4), {("tp",), ("tp", "disaggregate")}),
    (question("trn2.3xlarge", Slo(5.0, 0.2)), {()}),  # a domain of one chip has one degree
])  # fmt: skip
def test_only_what_is_open_is_searched(limits, options):
    searched = search_deployments(limits).candidates
    assert {tuple(words) for _, words, _ in searched} == options
    assert {words.get("tp") for _, words, _ in searched} == {limits.tp}


def test_several_precisions_are_ranked_together():
    limits = question(tp=4, batching={"prefill": "chunked"})
    alone = [search_deployments(replace(limits, precision=each)) for each in ("bf16", "fp8")]
    both = search_deployments(replace(limits, precision="bf16,fp8"))
    rates = [each.ranked[0].rate_per_s for each in alone]
    assert both.ranked[0].rate_per_s == max(rates) == rates[1]
    assert both.ranked[0].words["precision"] == "fp8"
    assert len(both.candidates) == sum(len(each.candidates) for each in alone)
    for wrong in ("bf16,fp9", "bf16,"):
        refused("--precision", search_deployments, replace(limits, precision=wrong))
    # One chip holds 70 billion weights in the second of these alone.
    large = replace(limits, model=model("llama-3.1-70b"), tp=1, precision="bf16,fp8")
    searched = deployment_search._candidates(replace(large, cluster=cluster("mi300x-platform")))
    assert {words["precision"] for _, words, _ in searched} == {"bf16", "fp8"}
    searched = deployment_search._candidates(replace(large, cluster=cluster("p5en.48xlarge")))
    assert {words["precision"] for _, words, _ in searched} == {"fp8"}


def test_slots_are_doubled_while_that_serves_more():
    few_slots = question(slo=Slo(5.0, 0.2), tp=1)
    open_slots = replace(few_slots, batching={}, drawing={"requests": "poisson:0.1", "count": 600})
    few, more = (search_deployments(each).ranked[0] for each in (few_slots, open_slots))
    assert "slots" not in few.words
    assert more.words["slots"] in (128, 256, 512)
    assert more.rate_per_s > few.rate_per_s


def test_an_slo_that_none_keeps_names_the_nearest():
    with pytest.raises(SloMissed, match=r"at best with --tp \d.* keeps tpot 1 ms for only 0\.0%"):
        search_deployments(question(slo=Slo(tpot_s=0.001), tp=8))


def test_a_count_below_the_requests_at_once_gives_no_rate():
    """Requests that all arrive within one answer's time would be served at a burst's rate."""
    few = {"max_rate": True, "prompt": 2000, "output": 500}
    message = "count 400 is too few for a highest rate: it would be that of a burst, of 4,7"
    refused(message, cs.serve, "llama-3.1-8b", "p5.48xlarge", count=400, **few)
    summary = cs.serve("llama-3.1-8b", "p5.48xlarge", count=4000, **few).summary
    assert summary["max_rate_per_s"] < 40
    assert summary["batch_mean"] < summary["requests_at_once"] < 4000
