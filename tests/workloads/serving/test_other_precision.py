"""FP8 beside a precision that nobody stated: the gain is that of stating it, and is only named."""

from dataclasses import replace
from typing import Any

import pytest

import cluster_sim as cs
from tests.support.commands import document_of
from workloads.serving import front
from workloads.serving.deployment_search import search_deployments
from workloads.serving.other_precision import gained, smaller_sizes

SERVE = "serve --model=llama-3.1-8b --cluster=dgx-h100 --count=200 --tp=1 --max-rate"


def test_the_gain_is_that_of_stating_fp8():
    open_one = document_of(SERVE)
    stated = document_of(f"{SERVE} --precision=fp8")
    other = open_one["other_precision"]
    assert (other["precision"], other["chips"]) == ("fp8", 1)
    gain = stated["max_rate_per_s"] / open_one["max_rate_per_s"]
    assert other["share"] == pytest.approx(gain, rel=0.02)
    assert any(
        f"would serve {other['share'] - 1:.0%} more requests/s a chip: --precision fp8" in remark
        for remark in open_one["remarks"]
    )
    assert "other_precision" not in stated


@pytest.mark.parametrize("line", [
    f"{SERVE} --precision=bf16",  # stated
    SERVE.replace("h100 --count=200", "a100 --count=800"),  # no FP8
])  # fmt: skip
def test_it_is_not_named_where_it_is_no_question(line):
    assert "other_precision" not in document_of(line)


def test_experts_that_a_search_divides_are_divided_on_fewer_chips_as_well(monkeypatch):
    def divided(question: Any, watch: Any) -> Any:
        searched = search_deployments(question, watch)
        ranked = sorted(searched.ranked, key=lambda each: "ep" not in each.words)
        return replace(searched, ranked=ranked)

    monkeypatch.setattr(front, "search_deployments", divided)
    words = {"search": True, "slo": "ttft=4s,tpot=60ms", "requests": "poisson:10", "count": 60}
    summary = cs.serve("qwen3-235b-a22b", "p5en.48xlarge", **words).summary
    assert summary["options"].startswith("--tp 4 --ep 4")
    assert summary["other_precision"]["chips"] == 2


def test_the_units_of_a_fleet_serve_as_much_more_once_it_is_stated():
    def unit(**stated: Any) -> tuple[float, Any]:
        fleet = cs.run_fleet(
            "dgx-h100:20", "azure-code", model="llama-3.1-8b", days=0.02, policy="static", tp=2,
            slots=64, **stated,
        )  # fmt: skip
        sized = fleet.scenario.sizing.unit_capacity_requests_per_s
        return sized, fleet.scenario.services[0].other_precision

    (usual, other), (fp8, none) = unit(), unit(precision="fp8")
    assert none is None
    assert other.chips == 2
    assert other.share == pytest.approx(fp8 / usual, rel=0.02)


def test_small_gains_are_not_named():
    assert list(smaller_sizes(6)) == [6, 3]
    assert gained(iter([(2, 1.04)]), 1.0) is None
    assert gained(iter(()), 1.0) is None
    best = gained(iter([(2, 1.2), (1, 1.5)]), 1.0)
    assert best is not None
    assert (best.chips, best.share) == (1, 1.5)
    assert "would serve 50% more requests/s a chip" in best.sentence
