"""Failures of a fleet from the catalogue: servers alone, or every part that is known to fail."""

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
"""Cause that takes a whole scale-up domain out: its cables are laid between servers."""


def failures_from(
    cluster: Cluster, services: Sequence[Service], *, domains: bool = False
) -> Failures:
    """Return the failures of a cluster's units.

    Without ``domains`` one rate of a chip stands for all causes, and every failure takes one server
    (part ``fleet.failure``, ``chip_mtbf``). With them, servers fail by their causes (chips, memory,
    hosts, power supplies, adapters; see :mod:`workloads.job.causes`), copper cables between servers
    take their scale-up domain out, and racks and power feeds fail as wholes. Causes for which no
    spare takes a place (optical links, switches, software) stop training jobs and take nothing out
    of service; they strike as often as in a job on the whole cluster.

    Parameters
    ----------
    cluster : Cluster
    services : sequence of Service
        Where none has a replica, or a group of prefill and decode replicas, over several servers,
        servers fail one by one.
    domains : bool
    """
    catalogue = cluster.catalogue or shipped_catalogue()
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    alone = all(service.lives_in_a_server(servers) for service in services)
    one_by_one = servers if alone else 1
    chips = cluster.chips_per_domain
    plain = Failures.from_catalogue(chips, servers=one_by_one, catalogue=catalogue)
    if not domains:
        return plain
    single = replace(cluster, domains=1)
    rates = {cause.name: cause for cause in failure_rates(single, chips, catalogue).causes}
    of_servers = sum(
        cause.per_s for name, cause in rates.items() if cause.replaces and name != CABLES
    )
    larger: tuple[Domain, ...] = (_rack(cluster, catalogue, one_by_one), _feed(cluster, catalogue))
    if rates[CABLES].per_s > 0:
        larger += (Domain("scale-up domain", 1 / rates[CABLES].per_s, plain.repair_s),)
    return Failures(
        1 / of_servers,
        plain.repair_s,
        one_by_one,
        domains=larger,
        interruptions=_interruptions(cluster, catalogue),
    )


def _interruptions(cluster: Cluster, catalogue: Catalogue) -> tuple[Interruption, ...]:
    """Causes that stop a job of the whole cluster and that no spare mends; those that occur."""
    return tuple(
        Interruption(cause.name.replace("_", " "), 1 / cause.per_s)
        for cause in failure_rates(cluster, cluster.chips, catalogue).causes
        if not cause.replaces and cause.per_s > 0
    )


def _rack(cluster: Cluster, catalogue: Catalogue, servers: int) -> Domain:
    """A rack: some servers of a unit, or several units."""
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
    """A power feed: a share of the units of a building, which loses one so often."""
    economics = Economics.of(cluster)
    unit_w = max(economics.busy_w * cluster.chips_per_domain, 1.0)
    building = min(catalogue.value("rainier", "building_power") / unit_w, float(cluster.domains))
    share = catalogue.value("fleet.failure", "feed_share")
    return Domain(
        "power feed",
        catalogue.value("fleet.failure", "feed_mtbf") / share,
        catalogue.value("fleet.failure", "feed_repair"),
        units=max(1, round(building * share)),
    )
