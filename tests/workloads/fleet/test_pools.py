"""Services with the same weights share units; others move units at the cost of a load."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.toy_fleet import check_conserved, scaled_to_fleet, simulate
from topologies.clusters.names import cluster
from workloads.demand import azure_mix
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import default_jobs
from workloads.fleet.policies.rules import threshold
from workloads.fleet.results import changes_frame, summary, timeline
from workloads.fleet.setup.serving import services_from
from workloads.fleet.state.services import Fleet, Pool, Service, by_pool
from workloads.fleet.state.world import Role, World
from workloads.options.fleet import FleetInputs
from workloads.serving.tables import fixed_rate

UNITS = 400
WEIGHTS = 4 * 0.75e12
PRICES = Economics(750.0, 400.0)
MIX = azure_mix().between(0, 2 * 1440)


@cache
def _run(demand, weights=""):
    services = [Service(of, fixed_rate(3.5), WEIGHTS, weights=weights) for of in demand.services]
    return simulate(
        scaled_to_fleet(demand, services, UNITS, peak_share=0.9), services,
        Fleet(UNITS, costs=ChangeCosts.from_catalogue(4)), threshold(), jobs=default_jobs(UNITS),
        economics=PRICES,
    )  # fmt: skip


def test_services_of_other_weights_pay_for_every_move():
    apart, together = (summary(_run(MIX, weights)) for weights in ("", "m"))
    assert apart["service_moves"] == 0 < apart["weight_changes"]
    assert together["service_moves"] > 0 == together["weight_changes"]
    assert apart["slo_attainment"] < together["slo_attainment"]


def test_units_of_services_sum_to_the_pool():
    run = _run(MIX.between(0, 1440), "m")
    check_conserved(run)
    pool = np.diff(run.kinds[0].spent_server_ms[:, -1]) / 60_000 / run.kinds[0].servers
    assert run.service_units.sum(axis=1) == pytest.approx(pool)
    assert {"code_units", "conv_slo_attainment"} <= set(timeline(run))


def test_two_services_pass_units_to_each_other_and_to_training():
    run = _run(MIX.between(0, 1440))
    check_conserved(run)
    assert set(changes_frame(run)["to"]) == {"code", "conv", "lent"}
    assert run.kinds[0].spent_server_ms[-1, len(Role) :].min() > 0


def test_services_of_one_model_hold_the_same_weights():
    machine = cluster("trn2-ultraserver:4")
    services = services_from(MIX.between(0, 60), machine, (), FleetInputs(unit_rate=1.0))
    assert len({service.weights for service in services}) == 1


@pytest.mark.parametrize("services", [[(0,), (1,), (2,)], [(1,), (0,), (2,)], [(0, 2), (1,)]])
@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_rows_of_services_are_summed_by_pool(services, shape):
    values = np.random.default_rng(0).random(shape)
    pools = [Pool(str(members), members, 1.0) for members in services]
    result = by_pool(values, pools)
    assert result.tolist() == [values[list(members)].sum(axis=0).tolist() for members in services]
    assert not np.shares_memory(result, values)


@pytest.mark.parametrize(
    ("waiting", "shares"), [([0, 0], [0.5, 0.5]), ([3, 0], [1.0, 0.0]), ([2, 6], [0.5, 0.5])]
)
def test_a_pool_divides_its_time_by_the_work_of_its_services(waiting, shares):
    queues = [SimpleNamespace(waiting=count, arrivals=np.zeros(1, np.int64)) for count in waiting]
    world = SimpleNamespace(
        queues=queues, pools=[Pool("both", (0, 1), 1.0)], rate_max_per_s=np.array([[1.0], [3.0]])
    )
    assert [share for *_, share, _ in World.shares(world, 0)] == shares
