"""Every option of a command is a keyword of its Python function, with the same meaning."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.commands import document_of
from workloads.fleet.front import OPTIONS as GROUPS
from workloads.fleet.lending.front import GROUPS as LENDING
from workloads.fleet.scenario import keywords_of, read_options
from workloads.job.job import KEYWORDS, JobPlan, plan_with
from workloads.options.fleet import DemandInputs, FleetInputs, PolicyInputs
from workloads.options.job import JobInputs
from workloads.options.serving import DeploymentInputs, ReplicaInputs, RequestInputs
from workloads.serving.front import WORDS

FLEET = "trn2-ultraserver:20"


def _options(*kinds: Any) -> set[str]:
    return {each.name for kind in kinds for each in fields(kind)}


def test_every_option_of_lending_is_a_word() -> None:
    """Keywords are made of the options, so only those without one are listed."""
    words = set(keywords_of(cs.lend, *LENDING))
    # A what-if changes the run after the history, which lending does not have.
    assert "what_if" not in words
    assert {"until", "begin", "confidence", "window", "reserve"} < words
    assert {"what_if", "power_cap", "carbon"} < set(keywords_of(cs.run_fleet, *GROUPS))
    with pytest.raises(cs.InputError, match="Did you mean reserve"):
        cs.lend(FLEET, "burstgpt", reserves=3)


def test_every_option_of_a_replica_and_of_a_job_is_a_word() -> None:
    options = _options(RequestInputs, ReplicaInputs, DeploymentInputs)
    stated = set(inspect.signature(cs.serve).parameters) | set(WORDS)
    assert options <= stated
    assert _options(JobInputs) <= {*KEYWORDS, *_options(JobPlan)}


@pytest.mark.parametrize(
    ("keywords", "options"),
    [
        (
            {"start_day": 2.0, "power_cap": 1.0, "policy": "power-cap", "failures": "off"},
            ["--start-day=2", "--power-cap=1", "--policy=power-cap", "--failures=off"],
        ),
        (
            {"what_if": "growth=30%", "hold": 600, "reserve": 2, "change_time": "5min"},
            ["--what-if=growth=30%", "--hold=10min", "--reserve=2", "--change-time=5min"],
        ),
    ],
)
def test_a_keyword_means_what_the_option_means(
    keywords: dict[str, Any], options: list[str]
) -> None:
    common = {"policy": "threshold", "unit_rate": 5.0, "days": 0.2}
    done = cs.run_fleet(FLEET, **{**common, **keywords})
    line = ["fleet", f"--cluster={FLEET}", "--unit-rate=5", "--days=0.2", "--policy=threshold"]
    document = document_of([*line, *options, "--no-compare", "--json"])
    for key in ("training_chip_hours", "served_tokens", "role_changes", "units_needed_peak"):
        assert {**done.scenario.sizing.document(), **done.summary}[key] == document[key]


def test_a_night_in_words_is_a_night() -> None:
    from workloads.fleet.lending.answer import Night

    result = cs.lend(FLEET, "burstgpt", unit_rate=9.0, until="07:00", confidence=0.9, window=1800)
    night = cs.lend(
        FLEET, "burstgpt", unit_rate=9.0, night=Night("07:00", confidence=0.9, window_minutes=30)
    )
    assert result.summary == night.summary
    with pytest.raises(cs.InputError, match="a night and until"):
        cs.lend(FLEET, "burstgpt", night=Night(), until="07:00")


def test_a_fleet_states_its_regret() -> None:
    done = cs.run_fleet(FLEET, unit_rate=5.0, days=0.2, policy=lambda view: 15.0)
    assert done.regret["gain_over_static_chip_hours"] == pytest.approx(
        done.summary["training_chip_hours"]
        - cs.run_fleet(FLEET, unit_rate=5.0, days=0.2, policy="static").summary[
            "training_chip_hours"
        ]
    )


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"powercap": 3}, "Did you mean power_cap"),
        ({"weights": "disk"}, "choose from store, nvme, host, peer"),
        ({"quantile": 2}, "a number from 0 to 1"),
        ({"floor": "three"}, "floor is 'three' .* Pass a whole number"),
        ({"what_if": ["monday", "growth=3%"]}, "2 what-ifs for one run"),
        ({"hold": "soon"}, "--hold 'soon'"),
        ({"policy": "treshold"}, "Did you mean threshold"),
    ],
)
def test_wrong_keywords_are_refused(keywords: dict[str, Any], error: str) -> None:
    with pytest.raises(cs.InputError, match=error):
        cs.run_fleet(FLEET, **{"unit_rate": 5.0, "days": 0.05, "policy": "threshold", **keywords})


def test_words_about_names_need_names() -> None:
    from workloads.demand import constant

    with pytest.raises(cs.InputError, match="service is a word about demands by name"):
        cs.run_fleet(FLEET, constant(60.0), unit_rate=5.0, service="code")


def test_plain_numbers_are_seconds_and_shares() -> None:
    policy = read_options(PolicyInputs, {"lease": 90, "notice": np.inf})
    assert (policy.lease, policy.notice) == ("90s", "inf")
    assert read_options(FleetInputs, {"prefix_cache": 0.5}).prefix_cache == "0.5"
    assert read_options(DemandInputs, {"noise": 0.1}).noise == "0.1"


def test_a_job_takes_words_and_fields() -> None:
    cluster = cs.cluster("trn2-ultraserver:2")
    keywords = {
        "checkpoint": "peer",
        "standby": "warm",
        "repair": "2h",
        "restart": 300,
        "spares": 3,
    }
    plan = plan_with(JobPlan(), {**keywords, "standby": "cold"}, cluster, 128)
    assert (plan.peers, plan.warm, plan.repair_s, plan.restart_s) == (True, False, 7200.0, 300.0)
    every = plan_with(JobPlan(interval_s=5.0), {"checkpoint_interval": "auto"}, cluster, 128)
    assert every.interval_s is None
    with pytest.raises(cs.InputError, match="Did you mean checkpoint"):
        plan_with(JobPlan(), {"chekpoint": "peer"}, cluster, 128)
    with pytest.raises(cs.InputError, match="--standby 'hot'"):
        plan_with(JobPlan(), {"standby": "hot"}, cluster, 128)
    with pytest.raises(cs.InputError, match="--spares '-1'"):
        plan_with(JobPlan(), {"spares": -1}, cluster, 128)


def test_a_replica_takes_the_words_of_its_command() -> None:
    few = cs.serve(
        "llama-3.1-8b", "trn2.48xlarge", "poisson:2", count=20, prompt=300, output=20, slots=4
    )
    assert few.summary["requests"] == 20
    with pytest.raises(cs.InputError, match="--chunk 3 cuts prompts"):
        cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:2", chunk=3)
    with pytest.raises(cs.InputError, match="count for requests as they are"):
        cs.serve("llama-3.1-8b", "trn2.48xlarge", few.served.requests, count=3)
    with pytest.raises(cs.InputError, match="Did you mean count"):
        cs.serve("llama-3.1-8b", "trn2.48xlarge", cont=3)  # type: ignore[call-arg]
