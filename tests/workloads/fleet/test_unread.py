"""Every option and catalogue row of a fleet is read, and options that change nothing are named."""

from dataclasses import fields

import numpy as np
import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.reader import is_reference
from topologies.clusters.names import cluster, machine
from topologies.support.options import described, observed
from workloads.confidence.sensitivity import noting
from workloads.economics import with_prices
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.registry import KINDS
from workloads.fleet.results import summary
from workloads.fleet.scenario import (
    policy_of,
    read_demand,
    read_models,
    run,
    scenario,
    unread_carbon_price,
    unread_options,
    unread_with_unit_rate,
)
from workloads.fleet.setup.serving import services_from
from workloads.models.huggingface import named
from workloads.options.fleet import (
    OF_REPLICAS,
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    PolicyInputs,
)


def test_every_option_is_read_by_the_set_up_or_by_a_policy():
    """An option that nothing reads would change nothing, whatever a user states."""
    stated = FleetOptions(FleetInputs(unit_rate=5.0), DemandInputs(days=0.05, batch_share="20%"))
    groups = {each.name: observed(getattr(stated, each.name)) for each in fields(FleetOptions)}
    options = FleetOptions(**{name: group for name, (group, _) in groups.items()})
    requests, fleet = read_demand(options.demand.demand, options), cluster("trn2-ultraserver:8")
    scenario(fleet, requests, options, models=read_models("gpt2"))
    read = {option for _, noted in groups.values() for option in noted}
    assert not read & set(OF_REPLICAS)  # beside a stated rate they change nothing, and are refused
    replicas, of_replicas = observed(FleetInputs(unit_rate=None))
    services_from(requests.between(0, 60), fleet, [named("gpt2")], replicas, requests=1)
    read |= of_replicas
    read |= {option for kind in KINDS.values() for option in kind.reads}
    every = {option for group, _ in groups.values() for option in described(type(group))}
    assert every - read == {"cluster", "kind", "model", "policy", "compare", "intervals", "what_if"}


@pytest.mark.parametrize(("changes", "expected"), [
    ({"policy": "threshold", "hold": "1h"}, []),
    ({"policy": "threshold"}, []),
    (
        {"policy": "oracle", "hold": "1h", "power_cap": 2.0},
        [
            "--hold 1h changes nothing under policy oracle; threshold reads it.",
            "--power-cap 2.0 changes nothing under policy oracle; mpc, power-cap and "
            "mpc-oracle read it.",
        ],
    ),
    ({"policy": "mpc", "price_share": 0.3},
     ["--price-share 0.3 changes nothing without prices; add --price FILE.csv."]),
    (
        {"policy": "mine.py", "quantile": 0.5},
        [
            "--quantile 0.5 changes nothing under policy mine.py; forecast, mpc, price and "
            "power-cap read it."
        ],
    ),
])  # fmt: skip
def test_what_no_policy_reads_is_named(changes, expected):
    assert unread_options(PolicyInputs(**changes, compare=False), priced=False) == expected


@pytest.mark.parametrize(("carbon", "policy", "named"), [
    (lambda price: 5 * price, "price", True),  # carbon as dear as electricity
    (lambda price: 0 * price + 300.0, "price", True),
    (lambda price: 800 - 5 * price, "price", False),  # and cleanest where that is dear
    (lambda price: 5 * price, "mpc", False),  # weighs how far prices are apart
])  # fmt: skip
def test_a_price_of_carbon_that_moves_no_hour_is_named(carbon, policy, named):
    price = np.repeat(40.0 + np.arange(24) % 7, 60)
    prices = [Prices(price, carbon_g_per_kwh=carbon(price), carbon_usd_per_t=700.0)] * 2
    remarks = unread_carbon_price(policy, 700.0, prices)
    expected = "--carbon-price 700 changes nothing here: with it hours are in the order of "
    assert [remark.startswith(expected) for remark in remarks] == [True] * named


@pytest.mark.parametrize(("fleet", "limits", "names"), [
    ({}, {"weights": "store"}, []),
    ({"tp": 8}, {"change_time": "5min"}, []),
    ({"unit_rate": 5.0, "slo": "ttft=9s"}, {}, ["--slo ttft=9s"]),
    ({"unit_rate": 5.0}, {"weights": "store"}, ["--weights store"]),
    ({}, {"weights": "host", "change_time": "0s"}, ["--weights host"]),
])  # fmt: skip
def test_what_a_stated_rate_or_time_leaves_unread(fleet, limits, names):
    remarks = unread_with_unit_rate(FleetInputs(**fleet), LimitInputs(**limits))
    assert [remark.partition(" changes nothing ")[0] for remark in remarks] == names


def test_no_row_about_fleets_is_read_by_nothing():
    numbers = noting(shipped_catalogue())
    cluster = machine("trn2-ultraserver:20", catalogue=numbers)
    question = FleetOptions(
        fleet=FleetInputs(
            model="llama-3.1-8b", tp=4, slots=64, failures="domains", post_training="lockstep"
        ),
        demand=DemandInputs(demand=("azure-conv",), days=0.05, batch_share="20%"),
    )
    models = read_models(question.fleet.model)
    built = scenario(
        cluster, read_demand(question.demand.demand, question), question, models=models
    )
    summary(run(built, policy_of("static", built), seed=0))
    with_prices(numbers, "owned", [cluster])
    for source in described(LimitInputs)["weights"].choice_texts():
        ChangeCosts.of(cluster, source=source)
    ChangeCosts.of(machine("dgx-h100", catalogue=numbers))  # a host of GPUs copies at its own rate
    rows = [row for row in shipped_catalogue().rows if row.part.startswith("fleet.")]
    read = {(part, quantity) for part, quantity, _ in numbers.read}
    unread = [
        f"{row.part}.{row.quantity}"
        for row in rows
        if (row.part, row.quantity) not in read
        and not is_reference(row.part, row.quantity, row.unit)
    ]
    assert len(rows) > 20
    assert unread == []
