"""Causes of failures, with the rate at which each stops a job, from the catalogue or a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.routing import clos
from topologies.support.arguments import check_names
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, check_choice, shown
from topologies.support.files.reading import csv_rows, read_text
from topologies.support.units import parse_seconds, parse_share
from topologies.views.measures import measure

YEAR_S = 365.25 * 86400
LARGEST_FILE_BYTES = 2**20
WITHIN = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""
OPTICAL_ENDS = 2  # transceiver modules of an optical link, either of which may fail
PER = ("chip", "server", "nic", "copper-link", "optical-link", "switch", "job")
"""Kinds of units that fail one by one; rates are stated for one of them."""
COLUMNS = ("cause", "per", "mtbf", "replaces")
FURTHER = ("units", "found_after", "again", "again_after")
"""Columns of a file that may be left out: of bursts, silent corruption, and repairs in vain."""
CATALOGUE = "catalogue"  # word for the causes of the catalogue
MOST_AT_ONCE = 10_000  # most units that one failure takes out
SHIPPED = (
    ("chip", "chip", "failure.chip", "mtbf", True),
    ("hbm", "chip", "failure.hbm", "mtbf", True),
    ("host", "server", "failure.host", "mtbf", True),
    ("power", "server", "failure.power", "mtbf", True),
    ("nic", "nic", "failure.nic", "mtbf", True),
    ("copper_link", "copper-link", "reliability", "copper_link_mttf", True),
    ("optical_link", "optical-link", "reliability", "optical_link_mttf", False),
    ("switch", "switch", "failure.switch", "mtbf", False),
    ("software", "server", "failure.software", "mtbf", False),
)
"""Causes of the catalogue: name, unit, part and quantity, and whether a spare replaces the unit."""


@dataclass(frozen=True)
class Cause:
    """One cause of failures of a job."""

    name: str
    per_s: float  # rate of failures of the whole job [1/s]
    replaces: bool  # whether the unit goes to repair and a spare takes its place
    basis: str = ""  # row of the catalogue or of the file that states the rate
    units: int = 1  # units that fail at once, as with their rack or their power feed
    # Time in which the job computes on with wrong numbers until they are found [s]; 0 for failures
    # that stop it. It then goes back to a checkpoint from before.
    found_after_s: float = 0.0
    # Share of repairs in vain, after which the unit fails again, in the mean so long after it has
    # replaced another [s]
    again: float = 0.0
    again_after_s: float = 0.0


@dataclass(frozen=True)
class FailureRates:
    """All causes of a job's failures."""

    causes: tuple[Cause, ...]
    # low, high: factors on all rates between which 80 % of clusters should lie; 1 where the user
    # stated the rates
    low: float = 1.0
    high: float = 1.0

    @property
    def per_s(self) -> float:
        """Rate of failures of all causes [1/s]."""
        return sum(cause.per_s for cause in self.causes)

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job [s]; infinity without failures."""
        return 1 / self.per_s if self.per_s else math.inf

    def draw(self, rng: np.random.Generator) -> Cause:
        """Draw the cause of a failure."""
        place = int(np.searchsorted(self._bounds, rng.random(), side="right"))
        return self.causes[min(place, len(self.causes) - 1)]

    @cached_property
    def _bounds(self) -> FloatArray:
        """Upper bounds of the causes on a line of length 1."""
        return np.cumsum(np.array([cause.per_s for cause in self.causes]) / self.per_s)

    @property
    def replacing_per_s(self) -> float:
        """Rate at which units fail that a spare has to replace [1/s]."""
        return sum(cause.per_s * cause.units for cause in self.causes if cause.replaces)

    def scaled(self, factor: float) -> FailureRates:
        """Return all rates times a factor, without a range, as if the user had stated them."""
        causes = tuple(replace(cause, per_s=cause.per_s * factor) for cause in self.causes)
        return FailureRates(causes)

    def drawn(self, rng: np.random.Generator) -> FailureRates:
        """Return rates drawn so that 80 % of such draws lie in the range."""
        middle = (math.log(self.low) + math.log(self.high)) / 2
        width = (math.log(self.high) - math.log(self.low)) / 2 / WITHIN
        return self.scaled(math.exp(rng.normal(middle, width)))


def counts(cluster: Cluster, chips: int) -> dict[str, float]:
    """Count the units on which a job of ``chips`` chips depends, by their kind."""
    # Copper cables connect adapters, optical links switches; scale-up links are cables only where a
    # domain has several servers. A part of a cluster depends on its part of links and switches.
    share = chips / cluster.chips
    measured = measure(cluster)
    servers = chips / cluster.chips_per_server
    several_servers = cluster.chips_per_domain > cluster.chips_per_server
    # The measure counts directed links, two to a cable.
    cables = measured.links / 2 * share if several_servers else 0.0
    optical, switches = _fabric(cluster)
    return {
        "chip": float(chips),
        "server": servers,
        "nic": measured.nics * share,
        "copper-link": cables + measured.nics * share,
        "optical-link": optical * share,
        "switch": switches * share,
        "job": 1.0,
    }


def _fabric(cluster: Cluster) -> tuple[float, float]:
    """Number of links between switches of the scale-out fabric, and of switches."""
    if cluster.scale_out is None or cluster.servers == 1:
        return 0.0, 0.0
    fabric, layers = clos(cluster)
    links, switches = 0.0, 0.0
    # Ports towards the chips, layer by layer; what goes up from one layer comes down on the next.
    down = cluster.chips * fabric.bandwidth_bytes_per_s / fabric.port_bytes_per_s
    for layer in layers:
        up = layer.groups * layer.up_links
        switches += (down + up) / fabric.radix
        links += up
        down = up
    return links, switches


def failure_rates(cluster: Cluster, chips: int, catalogue: Catalogue | None = None) -> FailureRates:
    """Return the failure rates of a job on ``chips`` chips, from the catalogue."""
    # The rates of published clusters differ in all causes alike, so one range holds for all rates
    # together: that of ``failure.all server_mtbf``.
    if not 1 <= chips <= cluster.chips:
        raise InputError(
            f"a job on {chips:,} chips does not fit {cluster.name} of {cluster.chips:,}. "
            "Use fewer chips, or a larger cluster."
        )
    catalogue = catalogue or cluster.numbers
    units = counts(cluster, chips)
    causes = []
    for name, per, part, quantity, replaces in SHIPPED:
        row = catalogue.entry(part, quantity)
        ends = OPTICAL_ENDS if per == "optical-link" else 1
        rate = ends * units[per] / row.value
        causes.append(Cause(name, rate, replaces, f"{part} {quantity} {row.written} a {per}"))
    low, high = rate_range(catalogue)
    return FailureRates(tuple(causes), low=low, high=high)


def rate_range(catalogue: Catalogue) -> tuple[float, float]:
    """Return the factors on all rates of failures between which published clusters lie."""
    whole = catalogue.entry("failure.all", "server_mtbf")
    return whole.value / (whole.high or whole.value), whole.value / (whole.low or whole.value)


MOST_YEARLY = 1e9  # most failures of a chip in a year: one each 30 ms


def read_failures(text: str, cluster: Cluster, chips: int) -> FailureRates:
    """Read rates as a user states them: failures of a chip in a year, files of causes, or both."""
    # A time is that between failures of all chips. With either, the causes keep their shares in
    # the catalogue. A file has the columns ``cause, per, mtbf, replaces``: ``per`` is one of
    # ``PER``, ``mtbf`` the mean time between failures of one such unit, such as ``50000h``;
    # ``replaces`` is 1 where a spare takes the unit's place, else 0. Commas join them, as in
    # ``catalogue,bursts.csv``; the range of the catalogue's rates then holds for all.
    parts = [_read_one(part.strip(), cluster, chips) for part in text.split(",")]
    causes = [cause for part in parts for cause in part.causes]
    names = [cause.name for cause in causes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--failures {shown(text, 60)}: cause {twice!r} appears twice. Keep one.")
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    return FailureRates(tuple(causes), low, high)


def _read_one(text: str, cluster: Cluster, chips: int) -> FailureRates:
    if text == CATALOGUE:
        return failure_rates(cluster, chips)
    try:
        if re.fullmatch(r"[\d.]+(s|min|h|d)", text):  # between failures of all chips together
            yearly = YEAR_S / chips / (parse_seconds(text, "--failures") or math.nan)
        else:
            yearly = float(text)
    except ValueError:
        if not Path(text).suffix:
            raise InputError(
                f"--failures {shown(text, 60)!r} is no number and no file. Give failures of a chip "
                "a year, such as 0.17, the time between those of all chips, such as 3h, catalogue, "
                "or a CSV file of causes."
            ) from None
        return _from_file(Path(text), counts(cluster, chips))
    if not 0 <= yearly <= MOST_YEARLY:
        raise InputError(
            f"--failures {text} must be 0 to {MOST_YEARLY:g} failures of a chip a year, such as "
            "0.17, or a CSV file of causes."
        )
    shipped = failure_rates(cluster, chips)
    return shipped.scaled(yearly * chips / YEAR_S / shipped.per_s)


def _from_file(path: Path, units: Mapping[str, float]) -> FailureRates:
    """Read the causes of a file; ``units`` counts the units of each kind in the job."""
    remedy = f"Give a number, failures of a chip a year, or a CSV file of {', '.join(COLUMNS)}."
    text = read_text(path, limit_bytes=LARGEST_FILE_BYTES, remedy=remedy)
    header, rows = csv_rows(text, str(path))
    lacking = [column for column in COLUMNS if column not in header]
    if lacking:
        raise InputError(f"{path} line 1: no column {', '.join(lacking)}. {remedy}")
    check_names(f"{path} line 1", header, (*COLUMNS, *FURTHER))
    causes = tuple(_cause(row, f"{path} line {line}", units) for line, row in rows)
    if not causes:
        raise InputError(f"{path} has no row. {remedy}")
    return FailureRates(causes)


def _cause(row: Mapping[str, str], where: str, units: Mapping[str, float]) -> Cause:
    """Read the cause of one row; ``where`` names file and line in errors."""
    name, per, replaces = row["cause"].strip(), row["per"].strip(), row["replaces"].strip()
    if not name:
        raise InputError(f"{where}: a cause has no name. Write one in column cause.")
    check_choice(f"{where}: per", per, PER)
    if replaces not in ("0", "1"):
        raise InputError(f"{where}: replaces {replaces!r} is neither 0 nor 1. Write 0 or 1.")
    mtbf_s = parse_seconds(row["mtbf"], f"{where}: mtbf")
    if mtbf_s <= 0:
        raise InputError(f"{where}: mtbf {row['mtbf']} must be above 0, such as 50000h.")
    basis = f"{where}: {row['mtbf'].strip()} a {per}"
    cells = {key: row.get(key, "").strip() for key in FURTHER}
    further = _further(cells, where)
    if replaces == "0" and (further.get("units", 1) > 1 or further.get("again")):
        raise InputError(
            f"{where}: units and again are of units that a spare replaces, but replaces is 0. "
            "Write 1, or leave them out."
        )
    return Cause(name, units[per] / mtbf_s, replaces == "1", basis, **further)


def _further(row: Mapping[str, str], where: str) -> dict[str, Any]:
    """Read the columns of a cause that may be left out, or be empty."""
    fields: dict[str, Any] = {}
    if row["units"]:
        short = row["units"].isdecimal() and len(row["units"]) < 9
        if not short or not 1 <= int(row["units"]) <= MOST_AT_ONCE:
            raise InputError(
                f"{where}: units {shown(row['units'])!r} must be a whole number from 1 to "
                f"{MOST_AT_ONCE:,} that fail at once."
            )
        fields["units"] = int(row["units"])
    if row["found_after"]:
        fields["found_after_s"] = parse_seconds(row["found_after"], f"{where}: found_after")
    if bool(row["again"]) != bool(row["again_after"]):
        raise InputError(
            f"{where}: again and again_after go together: the share of repairs in vain, such as "
            "10%, and the mean time until the unit fails again, such as 12h."
        )
    if row["again"]:
        fields["again"] = parse_share(row["again"], f"{where}: again")
        fields["again_after_s"] = parse_seconds(row["again_after"], f"{where}: again_after")
    if fields.get("found_after_s") and fields.get("units", 1) > 1:
        raise InputError(f"{where}: corruption of several units at once; leave units out.")
    return fields
