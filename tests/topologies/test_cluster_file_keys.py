"""Every key of a cluster file, by its schema: read, and named when it is wrong or misspelt."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters import yaml_file
from topologies.clusters.cluster import Cluster
from topologies.clusters.yaml_file import cluster_from_file
from topologies.errors import InputError

LINK = {"bandwidth": "64GB/s", "latency": "1us"}
SHAPES: dict[str, dict[str, Any]] = {
    "torus": {"axes": [{"name": "X", "size": 4, "wrap": True, **LINK}]},
    "mesh": {"size": 4, **LINK},
    "switch": {"size": 4, "links": 2, **LINK},
    "clos": {"size": 32, "radix": 8, "oversubscription": 1, **LINK},
    "tiered": {
        "tiers": [
            {"name": "rack", "size": 2, "switches": 2, **LINK},
            {"name": "board", "size": 4, "ring": False, **LINK},
        ]
    },
}
FABRIC = {
    "name": "mine", "like": "efa-v3", "bandwidth_per_chip": "200Gbit/s", "latency": "12us",
    "radix": 32, "oversubscription": 2, "port_bandwidth": "100Gbit/s", "rails": 2,
    "adapters_per_server": 2,
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    shape: {
        "name": "pod",
        "chip": {"like": "trn2", "name": "mine", "hbm_bandwidth": "3.2TB/s"},
        "scale_up": {"shape": shape, **keys},
        "domains": 4,
        "chips_per_server": 4,
        "scale_out": FABRIC,
    }
    for shape, keys in SHAPES.items()
}
"""A file with every key that its shape may have."""
OTHERS: dict[str, Any] = {
    "shape": None, "like": {"chip": "h100", "scale_out": "infiniband-ndr"}, "bandwidth": "32GB/s",
    "hbm_bandwidth": "3.1TB/s", "bandwidth_per_chip": "100Gbit/s", "port_bandwidth": "50Gbit/s",
    "latency": "2us", "radix": 16, "wrap": False, "ring": True, "switches": 0,
    "oversubscription": 4, "rails": 1, "chips_per_server": 2,
}  # fmt: skip
"""Another value of a key; numbers and names without one are doubled."""
LABELS = {("chip", "name")}
"""Keys that are for readers of the file alone."""
WRONG: tuple[Any, ...] = ("zebra", "-5GB/s", -1, 0.5, [1], None)


def places(node: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every key with a plain value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))
        else:
            yield (*above, key)


def changed(document: Any, place: tuple[str | int, ...], value: Any, name: str = "") -> Any:
    """Return a document with another value, or another name of the key, at a place."""
    result = copy.deepcopy(document)
    node = result
    for step in place[:-1]:
        node = node[step]
    if name:
        del node[place[-1]]
    node[name or place[-1]] = value
    return result


def read(folder: Path, document: Any) -> Cluster:
    path = folder / "pod.yaml"
    path.write_text(json.dumps(document))  # which is YAML too
    return cluster_from_file(path, shipped_catalogue())


def at(document: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        document = document[step]
    return document


EVERY = [
    (shape, place)
    for shape, document in FILES.items()
    for place in places(document)
    if shape == "torus" or place[0] not in ("chip", "scale_out")  # which no shape reads
]


def words(case: object) -> str:
    return ".".join(map(str, case)) if isinstance(case, tuple) else str(case)


def test_the_files_have_every_key_of_the_schema():
    models = [
        model
        for model in vars(yaml_file).values()
        if isinstance(model, type) and issubclass(model, yaml_file.BaseModel)
        if model is not yaml_file.AstraKeys  # keys of another tool's file
    ]
    keys = {key for model in models for key in model.model_fields}
    held = {str(step) for _, place in EVERY for step in place if isinstance(step, str)}
    assert keys == held - {"hbm_bandwidth"}


@pytest.mark.parametrize(("shape", "place"), EVERY, ids=words)
def test_every_key_is_read_and_every_mistake_in_it_is_named(shape, place, tmp_path):
    document, key = FILES[shape], str(place[-1])
    whole = read(tmp_path, document)
    value = at(document, place)
    other = OTHERS.get(key, f"{value}x" if isinstance(value, str) else 2 * value if value else None)
    other = other[place[0]] if isinstance(other, dict) else other
    if other is not None and place not in LABELS:
        assert read(tmp_path, changed(document, place, other)) != whole
    for wrong in WRONG:
        try:
            read(tmp_path, changed(document, place, wrong))
        except InputError as mistake:
            text = str(mistake)
            assert "\n" not in text
            assert text.startswith(f"{tmp_path / 'pod.yaml'}: ")
            assert key in text or str(wrong) in text, (wrong, text)
    with pytest.raises(InputError, match=rf"unknown .*\b{key}{key[-1]}\b.*\b{key}\b"):
        read(tmp_path, changed(document, place, value, name=key + key[-1]))
