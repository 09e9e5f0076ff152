"""A small fleet whose question every hour asks, and a demand with days, nights and weekends."""

import math

import pytest

from experiments.hourly.demand import minute_of
from topologies.clusters.names import cluster
from workloads.fleet.lending.answer import Night
from workloads.fleet.lending.front import for_lending, lend_on
from workloads.fleet.scenario import read_models, scenario
from workloads.options.fleet import FleetInputs, FleetOptions


def requests_of(minute):
    """Requests of a minute since 1970: a wave by the day, and a noise that is always the same."""
    wave = 1 + 0.8 * math.sin((minute % 1440 / 60 - 9) / 12 * math.pi)
    return round(1000 * wave * (1 + 0.04 * math.sin(minute * 12.9898)))


@pytest.fixture(scope="session")
def ask():
    """The night question for 40 units of 64 chips, each of which serves a request a second."""
    options = for_lending(FleetOptions(FleetInputs(unit_rate=1.0, failures="off")))
    machine, models = cluster("trn2-ultraserver:40"), read_models("llama-3.1-8b")

    def answer(history):
        """Answer for a history that ends now."""
        built = scenario(machine, history, options, models=models)
        return lend_on(built, Night()), built

    return answer


@pytest.fixture(scope="session")
def demand():
    """Requests of every minute."""
    return requests_of


@pytest.fixture(scope="session")
def monday():
    """Minute since 1970 of a Monday, two weeks after the demand began."""
    return minute_of("2024-05-20T00:00")
