"""Regions of a fleet of fleets: users, clock and chips of each, and round trips between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.units import parse_seconds
from workloads.demand import Demand, Horizon
from workloads.demand.trace import beside, in_zone
from workloads.demand.what_if import moved_by_zones, share_from
from workloads.fleet.state.services import Service
from workloads.options.fleet import PolicyInputs

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
