"""Kinds of units from machines and options: their services, jobs, limits, price, and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.support.errors import InputError, shown, suggestion
from workloads.demand import Demand
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.reservations import blocks_from
from workloads.fleet.policies.view import Limits, check_power
from workloads.fleet.processes.failures import Fleet, failures_from, windows_from
from workloads.fleet.setup.night_work import night_work
from workloads.fleet.setup.regions import Region, services_in
from workloads.fleet.setup.serving import block_of, services_from
from workloads.fleet.simulation import Kind
from workloads.fleet.state.services import Service, units_needed
from workloads.models.model import Model
from workloads.options.fleet import FleetOptions, LimitInputs, MoneyInputs, seconds


@dataclass(frozen=True, eq=False, kw_only=True)
class Machines(Kind):
    """Units of one kind, with their machine."""

    cluster: Cluster

    @property
    def usd_per_s(self) -> float:
        """Price of all units [USD/s]; 0 if unknown."""
        return self.cluster.chips * self.economics.usd_per_chip_s


def kinds_from(
    clusters: Sequence[tuple[Cluster, str]],
    demand: Demand,
    models: Sequence[Model],
    options: FleetOptions,
    regions: Sequence[Region],
) -> tuple[Machines, ...]:
    """Return the kinds of units of a fleet, from its machines, each with its region."""
    # Machines that are stated twice in a region are one kind.
    joined: dict[tuple[str, str], Cluster] = {}
    for cluster, place in clusters:
        key = machine_of(cluster), place
        before = joined.get(key)
        joined[key] = replace(cluster, domains=cluster.domains + (before.domains if before else 0))
    named = {f"{name}@{place}" if place else name: (name, place) for name, place in joined}
    units = {name: joined[key].domains for name, key in named.items()}
    windows = windows_from(options.policy.maintenance, units, demand)
    blocks = blocks_from(
        options.policy.capacity_block, {name: joined[key] for name, key in named.items()}, demand
    )
    here = {region.name: region for region in regions}
    served: dict[str, tuple[Service, ...]] = {}
    result = []
    for name, (machine, place) in named.items():
        cluster = joined[machine, place]
        if machine not in served:
            served[machine] = services_from(demand, cluster, models, options.fleet)
        services = served[machine]
        fleet = _fleet(cluster, services, options)
        more = max((block.units for block in blocks[name]), default=0)
        fleet = replace(
            fleet, units=fleet.units + more, maintenance=windows[name], blocks=blocks[name]
        )
        whole = replace(cluster, domains=fleet.units)
        work = whole, models, options.fleet, services, demand, fleet
        kind = Machines(
            name,
            services_in(services, regions) if regions else services,
            fleet,
            night_work(*work, kinds=[*named], name=name),
            cluster=cluster,
            economics=_economics(cluster, options.money),
            region=place,
            round_trip_s=here[place].round_trip_s if place else {},
        )
        result.append(kind)
        if options.policy.power_cap is not None:
            check_power("--power-cap", {kind.name: kind.economics.busy_w})
    return tuple(result)


CHEAPEST, FASTEST = "cheapest", "fastest"


def placed(kinds: Sequence[Machines], text: str | None, demand: Demand) -> tuple[Machines, ...]:
    """Return the kinds in the order in which they serve a demand, which a text states."""
    # ``cheapest`` has the kind first whose price for the demand is least, ``fastest`` that whose
    # chips serve most; of stated kinds only these serve. Without a text it is ``cheapest``, or
    # ``fastest`` where a kind has no price.
    names = {kind.name: kind for kind in kinds}
    lacking = ", ".join(kind.name for kind in kinds if not kind.usd_per_s)
    if text is None:
        text = FASTEST if lacking else CHEAPEST
    if text in (CHEAPEST, FASTEST):
        if text == CHEAPEST and lacking:
            raise InputError(
                f"--serve-on cheapest: the catalogue has no price of {lacking}; state fastest, or "
                "the kinds."
            )

        def weight(kind: Machines) -> float:
            """Price or chips of the units that the demand needs."""
            need = float(units_needed(demand, kind.services).sum()) / kind.fleet.units
            return need * (kind.usd_per_s if text == CHEAPEST else kind.cluster.chips)

        return tuple(sorted((replace(kind, serves=True) for kind in kinds), key=weight))
    stated = [part.strip() for part in text.split(",")]
    for name in stated:
        if name not in names or stated.count(name) > 1:
            raise InputError(
                f"--serve-on {shown(text)}: {shown(name)!r} is "
                f"{'stated twice' if name in names else 'no kind of the fleet'}; choose from "
                f"{', '.join(names)}, or state cheapest or fastest.{suggestion(name, names)}"
            )
    others = (replace(kind, serves=False) for kind in kinds if kind.name not in stated)
    return (*(replace(names[name], serves=True) for name in stated), *others)


def _fleet(cluster: Cluster, services: Sequence[Service], options: FleetOptions) -> Fleet:
    """Return the units of a cluster; blocks are whole groups of prefill and decode replicas."""
    limits, policy, failing = options.limits, options.policy, options.fleet.failures
    failures = None
    if failing != "off":
        failures = failures_from(cluster, services, domains=failing == "domains")
    return Fleet(
        cluster.domains,
        cluster.chips_per_domain,
        costs_of(cluster, limits),
        Limits(
            floor=limits.floor,
            cap=policy.cap,
            block=math.lcm(limits.block, block_of(services)),
            changes_per_minute=policy.changes_per_minute,
            min_lease_s=seconds(policy.lease, "--lease"),
            notice_s=seconds(policy.notice, "--notice"),
            reserve=limits.reserve,
        ),
        failures,
    )


def costs_of(cluster: Cluster, inputs: LimitInputs) -> ChangeCosts:
    """Return the costs of role changes: the catalogue's, or one fixed time of the options."""
    by_source = ChangeCosts.of(cluster, source=inputs.weights)
    if inputs.change_time is None:
        return by_source
    return ChangeCosts.fixed(seconds(inputs.change_time, "--change-time"))


def _economics(cluster: Cluster, money: MoneyInputs) -> Economics:
    """Prices and power of a cluster's machine, those of the options before the catalogue's."""
    economics = Economics.of(cluster, carbon_g_per_kwh=money.carbon)
    discount = economics.batch_discount if money.batch_discount is None else money.batch_discount
    return replace(economics, usd_per_million_tokens=money.token_price, batch_discount=discount)
