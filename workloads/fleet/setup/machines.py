"""Kinds of units from machines and options: services, jobs, limits, prices, order and regions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.units import parse_seconds
from workloads.demand import Demand, Horizon
from workloads.demand.trace import beside, in_zone
from workloads.demand.what_if import moved_by_zones, share_from
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.reservations import blocks_from
from workloads.fleet.policies.view import Limits, check_power
from workloads.fleet.processes.failures import failures_from, windows_from
from workloads.fleet.setup.night_work import night_work
from workloads.fleet.setup.serving import block_of, services_from
from workloads.fleet.state.services import Fleet, Kind, Service, units_needed
from workloads.models.model import Model
from workloads.options.fleet import (
    FleetOptions,
    LimitInputs,
    PolicyInputs,
    seconds,
)


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
        whole, money = replace(cluster, domains=fleet.units), options.money
        economics = Economics.of(cluster, carbon_g_per_kwh=money.carbon)
        if money.batch_discount is not None:  # in place of the catalogue's
            economics = replace(economics, batch_discount=money.batch_discount)
        kind = Machines(
            name,
            services_in(services, regions) if regions else services,
            fleet,
            night_work(
                whole, models, options.fleet, services, demand, fleet, kinds=[*named], name=name
            ),
            cluster=cluster,
            economics=replace(economics, usd_per_million_tokens=money.token_price),
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


REGION = re.compile(r"(?P<name>[\w-]+)=(?P<hours>[+-]?\d+(?:\.\d+)?):(?P<share>.+)", re.ASCII)
ROUND_TRIP = re.compile(r"(?P<one>[\w-]+)/(?P<other>[\w-]+)=(?P<time>.+)", re.ASCII)
REGION_FORM, ROUND_TRIP_FORM = "us=-8:60%", "us/eu=145ms"
LONGEST_S = 10.0  # longest round trip between two regions; even a satellite's is shorter
DAY = 24.0


@dataclass(frozen=True)
class Region:
    """A region: its users, and the round trip of their requests to each region."""

    name: str
    hours: float  # hours by which the clocks of its users are ahead of those of the demand
    share: float  # share of the demand
    round_trip_s: Mapping[str, float]  # round trip to each region, by its name [s]


def regions_from(
    inputs: PolicyInputs, machines: Sequence[tuple[Cluster, str]]
) -> tuple[Region, ...]:
    """Read regions, for a fleet of machines, each with the name of its region.

    Raises InputError for a text that cannot be read, a region without chips, and a kind of units in
    no region.
    """
    zones, places = _zones(inputs.region), [place for _, place in machines]
    for name in zones:
        if name not in places:
            raise InputError(
                f"region {name} has no chips; state some by --kind NAME:COUNT@{name}, or give its "
                "users to another region."
            )
    for cluster, place in machines:
        if place not in zones and (place or zones):
            stated = f"is in region {shown(place)!r}" if place else "states no region"
            remedy = f"add --region {place}=0:100%"
            if zones:
                remedy = f"write NAME:COUNT@ and one of {', '.join(zones)}"
            raise InputError(f"{cluster.name} {stated}; {remedy}.{suggestion(place, [*zones])}")
    stated_s = _round_trips(inputs.round_trip, [*zones])
    per_hour_s = machines[0][0].numbers.value("fleet.region", "round_trip_of_an_hour")

    def round_trip_s(one: str, other: str) -> float:
        """Round trip between two regions: as stated, or by the hours between their clocks."""
        apart = abs(zones[one][0] - zones[other][0]) % DAY
        return stated_s.get(frozenset((one, other)), per_hour_s * min(apart, DAY - apart))

    return tuple(
        Region(name, hours, share, {other: round_trip_s(name, other) for other in zones})
        for name, (hours, share) in zones.items()
    )


def _zones(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the hours and the share of the demand of each region by its name."""
    zones: dict[str, tuple[float, float]] = {}
    for text in texts:
        match = REGION.fullmatch(text.strip())
        if match is None or abs(float(match["hours"])) > DAY or match["name"] in zones:
            raise InputError(
                f"--region {shown(text)} is not a new name, hours from -24 to 24 and a share of "
                f"the demand; write {REGION_FORM}."
            )
        share = share_from(match["share"], f"--region {shown(text)}", REGION_FORM)
        if share < 0:
            raise InputError(f"--region {shown(text)} has a share below 0; write {REGION_FORM}.")
        zones[match["name"]] = float(match["hours"]), share
    return zones


def _round_trips(texts: Sequence[str], names: Sequence[str]) -> dict[frozenset[str], float]:
    """Return the stated round trips by their ends [s]."""
    stated_s: dict[frozenset[str], float] = {}
    for text in texts:
        what, match = f"--round-trip {shown(text)}", ROUND_TRIP.fullmatch(text.strip())
        ends = frozenset((match["one"], match["other"])) if match else frozenset()
        if match is None or not ends <= {*names} or len(ends) != 2 or ends in stated_s:
            listed = f" of {', '.join(names)}" if names else ", which --region states"
            raise InputError(
                f"{what} is not a new round trip between two regions{listed}; write "
                f"{ROUND_TRIP_FORM}."
            )
        stated_s[ends] = parse_seconds(match["time"], what)
        if stated_s[ends] > LONGEST_S:
            raise InputError(f"{what} is longer than {LONGEST_S:g} s; write {ROUND_TRIP_FORM}.")
    return stated_s


def in_regions(horizon: Horizon, regions: Sequence[Region]) -> Horizon:
    """Return a demand with each of its services once for each region, at the region's clock."""

    def moved(whole: Demand) -> Demand:
        """Put the regions side by side."""
        parts = [in_zone(whole, region.hours).times(region.share) for region in regions]
        names = [f"{name}@{region.name}" for region in regions for name in whole.services]
        return replace(beside(parts, names), notes=whole.notes)

    if not any(region.hours for region in regions):  # clocks need no shift, so no whole days
        return Horizon(moved(horizon.demand), horizon.history and moved(horizon.history))
    return moved_by_zones(horizon, moved, "--region")


def services_in(services: Sequence[Service], regions: Sequence[Region]) -> tuple[Service, ...]:
    """Return the services of a kind of units once for each region, as ``in_regions`` does."""
    return tuple(
        replace(
            service,
            name=f"{service.name}@{region.name}",
            weights=service.weights or service.name,
            region=region.name,
        )
        for region in regions
        for service in services
    )
