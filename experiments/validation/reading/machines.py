"""Machines and models that rows name: shipped ones, files, or those shipped with the tables."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import FILES, GRAPHS, cluster
from workloads.models.huggingface import model, models
from workloads.models.model import Model


def machines_for(name: str, chips: int, catalogue: Catalogue | None = None) -> Cluster:
    """Return enough machines of a name for that many chips; the last may be used in part.

    A cluster of a user's file is one machine. The file is read at each call, as it may change.
    """
    place = shipped().get(name.lower())
    if place is None and name.endswith(FILES + GRAPHS):
        return cluster(name, catalogue=catalogue)
    return _shipped_machines(place or name.lower(), chips, catalogue)


def servers_reach(chips: int, place: str) -> int:
    """Chips that machines must have in all for a group: its number, or its last one and one more.

    >>> servers_reach(2, ""), servers_reach(2, "0,16")
    (2, 17)
    """
    return max([chips, *(int(number) + 1 for number in re.findall(r"\d{1,9}", place))])


@cache
def _shipped_machines(place: str, chips: int, catalogue: Catalogue | None) -> Cluster:
    """Return machines that do not change while the program runs; ``place`` is a name or a file."""
    machine = cluster(place, catalogue=catalogue)
    count = -(-chips // machine.chips)
    return machine if count <= 1 else cluster(f"{place}:{count}", catalogue=catalogue)


def model_for(name: str) -> Model:
    """Return the model of a row: a shipped one, or that of a config, read anew at each call."""
    return _shipped_model(name) if name in shipped_models() else model(name)


@cache
def _shipped_model(name: str) -> Model:
    """Return a model that does not change while the program runs."""
    return model(name)


@cache
def shipped_models() -> frozenset[str]:
    """Return the names of the shipped models."""
    return frozenset(models())


def shipped() -> dict[str, str]:
    """Files of the slices that come with the tables, by name."""
    return files_of_tables("clusters")


@cache
def files_of_tables(folder: str) -> dict[str, str]:
    """Files in a folder that comes with the tables, by name without ending."""
    places = (files("experiments.validation") / folder).iterdir()
    return {item.name.rpartition(".")[0]: str(item) for item in places}
