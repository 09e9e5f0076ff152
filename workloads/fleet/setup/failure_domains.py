"""Failures of a fleet from the catalogue: of servers alone, or of every part with a known rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from workloads.economics import Economics
from workloads.fleet.processes.failures import Domain, Failures, Interruption
from workloads.fleet.state.services import Service
from workloads.job.causes import failure_rates

CABLES = "copper_link"
"""Cause that takes a whole scale-up domain out, because its cables run between servers."""


def failures_from(
    cluster: Cluster, services: Sequence[Service], *, domains: bool = False
) -> Failures:
    """Return the failures of a cluster's units.

    Without ``domains``, one rate per chip stands for all causes, and every failure takes one server
    out (part ``fleet.failure``, ``chip_mtbf``). With it, servers fail by their causes (chips,
    memory, hosts, power supplies, adapters; see :mod:`workloads.job.causes`), copper cables between
    servers take their scale-up domain out, and racks and power feeds fail as a whole. Causes that
    no spare unit remedies (optical links, switches, software) stop training jobs and take nothing
    out of service; they occur as often as in a job on the whole cluster.

    ``services``: servers fail one by one if no service has a replica, or a group of prefill and
    decode replicas, that spans several servers. ``domains``: whether larger parts than servers fail
    as well.
    """
    catalogue = cluster.catalogue or shipped_catalogue()
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    independent = all(service.lives_in_a_server(servers) for service in services)
    failing_servers = servers if independent else 1
    chips = cluster.chips_per_domain
    servers_only = Failures.from_catalogue(chips, servers=failing_servers, catalogue=catalogue)
    if not domains:
        return servers_only
    single = replace(cluster, domains=1)
    rates = {cause.name: cause for cause in failure_rates(single, chips, catalogue).causes}
    of_servers = sum(
        cause.per_s for name, cause in rates.items() if cause.replaces and name != CABLES
    )
    rack, feed = _rack(cluster, catalogue, failing_servers), _feed(cluster, catalogue)
    larger: tuple[Domain, ...] = (rack, feed)
    if rates[CABLES].per_s > 0:
        larger += (Domain("scale-up domain", 1 / rates[CABLES].per_s, servers_only.repair_s),)
    return Failures(
        1 / of_servers,
        servers_only.repair_s,
        failing_servers,
        domains=larger,
        interruptions=_interruptions(cluster, catalogue),
    )


def _interruptions(cluster: Cluster, catalogue: Catalogue) -> tuple[Interruption, ...]:
    """Return the causes that stop a job on the whole cluster and that no spare unit remedies."""
    return tuple(
        Interruption(cause.name.replace("_", " "), 1 / cause.per_s)
        for cause in failure_rates(cluster, cluster.chips, catalogue).causes
        if not cause.replaces and cause.per_s > 0
    )


def _rack(cluster: Cluster, catalogue: Catalogue, servers: int) -> Domain:
    """Return a rack as a failure domain: some servers of a unit, or several units."""
    machine = machine_of(cluster)
    part = machine if catalogue.has(machine, "rack_chips") else "fleet.failure"
    chips = round(catalogue.value(part, "rack_chips"))
    mtbf_s, repair_s = (
        catalogue.value("fleet.failure", quantity) for quantity in ("rack_mtbf", "rack_repair")
    )
    if chips < cluster.chips_per_domain and servers > 1:
        lost = max(1, chips // cluster.chips_per_server)
        return Domain("rack", mtbf_s, repair_s, units=0, servers=min(lost, servers))
    return Domain("rack", mtbf_s, repair_s, units=max(1, chips // cluster.chips_per_domain))


def _feed(cluster: Cluster, catalogue: Catalogue) -> Domain:
    """Return a power feed as a failure domain: a share of the units of a building."""
    economics = Economics.of(cluster)
    unit_w = max(economics.busy_w * cluster.chips_per_domain, 1.0)
    building = min(catalogue.value("rainier", "building_power") / unit_w, float(cluster.domains))
    share = catalogue.value("fleet.failure", "feed_share")
    return Domain(
        "power feed",
        # The catalogue's mean time is that between losses in a building, which has 1 / share feeds.
        catalogue.value("fleet.failure", "feed_mtbf") / share,
        catalogue.value("fleet.failure", "feed_repair"),
        units=max(1, round(building * share)),
    )
