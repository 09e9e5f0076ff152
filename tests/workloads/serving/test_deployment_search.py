"""The search for a deployment: the best of all candidates, and what was stated stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import model
from workloads.serving import ServingOptions, Slo, SloMissed
from workloads.serving.deployment_search import (
    KEPT,
    NEAR,
    DeploymentQuestion,
    DeploymentSearch,
    highest_rate,
    search_deployments,
)

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


def test_the_first_are_the_best_of_all_candidates(gpus: DeploymentSearch) -> None:
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


def test_no_rate_exceeds_its_bound(gpus: DeploymentSearch) -> None:
    """The bound of a split is that of endless requests, which a run of 150 may exceed a little."""
    for most, words, offered in gpus.candidates:
        measured = 0.99 * offered.saturated_per_s / offered.deployment.chips
        assert measured <= most * (1.1 if "disaggregate" in words else 1.0)


def test_unlike_chips_are_split_and_count_by_their_price() -> None:
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


def test_unlike_chips_without_a_price_are_not_compared() -> None:
    options = ServingOptions(prefill_cluster=cluster("dgx-b200"))
    with pytest.raises(InputError, match="that of dgx-b200 is unknown"):
        search_deployments(replace(question("trn2.48xlarge"), options=options))


def test_candidates_are_ways_and_splits_that_fit(gpus: DeploymentSearch) -> None:
    words = [words for _, words, _ in gpus.candidates]
    assert {each["tp"] for each in words} == {1, 2, 4, 8}
    splits = {each["disaggregate"] for each in words if each["tp"] == 2 and "disaggregate" in each}
    assert splits == {"1:1", "1:2", "2:1", "1:3", "3:1"}
    assert {"tp": 8, "prefill": "chunked", "chunk": 2048} in words
    assert all(offered.deployment.chips <= 8 for _, _, offered in gpus.candidates)


def test_what_is_stated_stays() -> None:
    few_slots = question(tp=4, batching={"prefill": "chunked"})
    words = [words for _, words, _ in search_deployments(few_slots).candidates]
    assert [each["chunk"] for each in words].count(512) == 1
    assert {each["tp"] for each in words} == {4}
    assert not any("disaggregate" in each for each in words)


def test_neuron_machines_run_whole_prompts() -> None:
    search = search_deployments(question("trn2.48xlarge", Slo(2.0, 0.1), tp=4))
    assert {tuple(words) for _, words, _ in search.candidates} == {("tp",), ("tp", "disaggregate")}


def test_a_domain_of_one_chip_has_one_degree() -> None:
    search = search_deployments(question("trn2.3xlarge", Slo(5.0, 0.2)))
    assert [words for _, words, _ in search.candidates] == [{}]


def test_slots_are_doubled_while_that_serves_more() -> None:
    few_slots = question(slo=Slo(5.0, 0.2), tp=1)
    few = search_deployments(few_slots).ranked[0]
    more = search_deployments(
        DeploymentQuestion(
            few_slots.model, few_slots.cluster, few_slots.slo, few_slots.options, {},
            {"requests": "poisson:0.1", "count": 600}, 1,
        )
    ).ranked[0]  # fmt: skip
    assert "slots" not in few.words
    assert more.words["slots"] in (128, 256, 512)
    assert more.rate_per_s > few.rate_per_s


def test_a_chip_puts_out_more_and_each_user_less_under_more_requests(
    gpus: DeploymentSearch,
) -> None:
    rows = gpus.frontier()
    assert {row["apart"] for row in rows} == {False, True}
    for name in {row["options"] for row in rows}:
        curve = [row for row in rows if row["options"] == name]
        chip = [row["tokens_per_s_per_chip"] for row in curve]
        assert chip == sorted(chip)
        assert curve[-1]["tokens_per_s_per_user"] < curve[0]["tokens_per_s_per_user"]


def test_an_slo_that_none_keeps_names_the_nearest() -> None:
    with pytest.raises(SloMissed, match=r"at best with --tp \d.* keeps tpot 1 ms for only 0\.0%"):
        search_deployments(question(slo=Slo(tpot_s=0.001), tp=8))


def test_a_program_of_trainium_has_fewer_slots_where_the_limit_is_short() -> None:
    """All 64 slots, empty ones too, would take longer than the limit; half of them do not."""
    open_slots = replace(question("trn2.48xlarge", tp=8), batching={})
    replica = open_slots.offered({}).deployment.profile
    limit_s = 1.05 * replica.decode_s(32, 4096)
    assert limit_s < replica.decode_s(64, 1)
    best = search_deployments(replace(open_slots, slo=Slo(5.0, limit_s))).ranked[0]
    assert best.words["slots"] in (8, 16, 32)
    with pytest.raises(SloMissed):
        search_deployments(replace(open_slots, slo=Slo(5.0, limit_s), batching={"slots": 64}))
