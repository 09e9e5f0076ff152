"""Clusters from YAML files: every key by the schema, and one clear line for every mistake."""

import copy
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.refusals import refusal_by, refused
from tests.support.small_shapes import GB
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters import yaml_file
from topologies.clusters.names import cluster, machine
from topologies.clusters.yaml_file import LARGEST_FILE_BYTES, cluster_from_file
from topologies.shapes.basic import Axis, Clos, FullMesh, Switch, Tiered, Torus
from topologies.support.errors import InputError
from topologies.views.measures import measure

POD = """
name: my-pod
chip: trn2
chips_per_server: 4
scale_up:
  shape: torus
  axes:
    - {name: Y, size: 2, bandwidth: 64GB/s, latency: 0.4us}
    - {name: X, size: 4, bandwidth: 128GB/s, latency: 0.3us, wrap: false}
domains: 8
scale_out:
  name: my-fabric
  bandwidth_per_chip: 200Gbit/s
  latency: 12us
  radix: 32
  oversubscription: 2
"""


def read(folder, text):
    (path := folder / "pod.yaml").write_text(text)
    return cluster_from_file(path, shipped_catalogue())


def test_a_whole_file(tmp_path):
    recording = read(tmp_path, POD)
    assert (recording.name, recording.chip, recording.domains) == ("my-pod", "trn2", 8)
    assert (recording.chips, recording.servers) == (64, 16)
    axes = (Axis("Y", 2, 64 * GB, 400_000), Axis("X", 4, 128 * GB, 300_000, wrap=False))
    assert recording.shape == Torus(axes)
    fabric = recording.scale_out
    assert (fabric.name, fabric.bandwidth_bytes_per_s) == ("my-fabric", 25 * GB)
    assert (fabric.latency_ps, fabric.port_bytes_per_s) == (12_000_000, 25 * GB)
    assert (fabric.radix, fabric.oversubscription) == (32, 2)
    labelled = POD.replace("chip: trn2", "chip: {like: trn2, name: mine}")
    assert read(tmp_path, labelled).chip == "trn2"
    mine = "chip: {name: mine, bf16_peak: 500TFLOP/s, hbm_bytes: 64GiB, hbm_bandwidth: 2TB/s}"
    measured = measure(read(tmp_path, POD.replace("chip: trn2", mine)))
    assert measured.flops_per_s_per_chip == {"bf16": 500e12}
    assert (measured.hbm_bytes_per_chip, measured.hbm_bytes_per_s_per_chip) == (2**36, 2000 * GB)


def test_the_example_of_the_documentation(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "background" / "cluster-file.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    recording = read(tmp_path, example)
    assert (recording.chips, recording.domains) == (256, 8)
    assert measure(recording).hbm_bytes_per_s_per_chip == 3200 * GB
    assert measure(recording).hbm_bytes_per_chip == 96 * 2**30


def test_a_cluster_file_is_accepted_where_a_name_is(tmp_path):
    (path := tmp_path / "ring:odd.yml").write_text(POD)
    assert cluster(str(path)).name == "my-pod"
    (tmp_path / "folder.yaml").mkdir()
    for stated, bandwidth, message in (
        (path, "1GB/s", "--bandwidth and --latency are for plain shapes"),
        (tmp_path / "none.yaml", None, "cannot be read: there is no such file"),
        (tmp_path / "folder.yaml", None, "cannot be read: Is a directory"),
    ):
        refused(message, cluster, str(stated), bandwidth=bandwidth)


def test_a_value_laid_over_a_switched_variant_is_in_force(tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("chip: trn2", "chip: {like: trn2, hbm_bandwidth: 9TB/s}"))
    guided = shipped_catalogue().with_variants({"trn2.hbm_bandwidth": "kernel-guide"})
    assert measure(cluster_from_file(path, guided)).hbm_bytes_per_s_per_chip == 9000 * GB
    assert shipped_catalogue().value("trn2", "hbm_bandwidth") == 2.9e12


def test_other_shapes_of_no_chip(tmp_path):
    mesh = read(tmp_path, "scale_up: {shape: mesh, size: 5, bandwidth: 1GB/s, latency: 2us}")
    assert (mesh.name, mesh.chip, mesh.plain) == ("pod", "", True)
    assert mesh.shape == FullMesh(5, GB, 2_000_000)
    assert measure(mesh).flops_per_s == {}
    refused("states no chip, so nothing can be computed", machine, str(tmp_path / "pod.yaml"))
    link = "bandwidth: 100GB/s, latency: 1us"
    switch = read(tmp_path, f"scale_up: {{shape: switch, size: 8, links: 18, {link}}}").shape
    assert switch == Switch(8, 100 * GB, 10**6, 18)
    clos = f"scale_up: {{shape: clos, size: 24, radix: 8, {link}, oversubscription: 3}}"
    assert read(tmp_path, clos).shape == Clos(24, 8, 100 * GB, 10**6, Fraction(3))
    tiers = f"[{{name: rack, size: 4, switches: 2, {link}}}, {{name: board, size: 2, {link}}}]"
    tiered = read(tmp_path, f"scale_up: {{shape: tiered, tiers: {tiers}}}").shape
    assert (type(tiered), tiered.sizes, tiered.switches) == (Tiered, (4, 2), 4)


def test_a_fabric_of_its_own_name_keeps_what_it_is_like(tmp_path):
    head, _, _ = POD.partition("scale_out:")
    usual = read(tmp_path, head + "scale_out: {like: efa-v3, latency: 9us}").scale_out
    assert (usual.name, usual.bandwidth_bytes_per_s) == ("efa-v3", 25 * GB)
    assert (usual.latency_ps, usual.radix) == (9_000_000, 128)
    recording = read(tmp_path, head + "scale_out: {name: mine, like: efa-v3, oversubscription: 4}")
    shipped = cluster("trn2.48xlarge:8").scale_out
    fabric, catalogue = recording.scale_out, recording.catalogue
    assert (fabric.name, fabric.oversubscription) == ("mine", 4)
    assert fabric.climb_ps == shipped.climb_ps
    assert fabric.port_bytes_per_s == shipped.port_bytes_per_s
    assert catalogue.value("mine", "efficiency") == 0.8
    assert catalogue.has("nccl.mine", "slice")
    assert catalogue.has("nccl-tuner.mine", "latency")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("chip: trn2", "chip: trn22", "the catalogue has no part 'trn22'. Did you mean trn2?"),
    ("chip: trn2", "chip: {like: trn2, hbm_bandwith: 1TB/s}",
     "unknown chip.hbm_bandwith. Did you mean hbm_bandwidth"),
    ("chip: trn2", "chip: {like: trn2, hbm_bandwidth: 1TB}",
     "chip.hbm_bandwidth '1TB' is in B; this quantity is in B/s"),
    ("chip: trn2", "chip: {bf16_peak: 1TFLOP/s}", "chip.hbm_bytes is missing"),
    ("chip: trn2", "chip: 7", "chip '7': it must be a mapping with name, like"),
    ("128GB/s", "much", "scale_up.axes.1.bandwidth 'much': bandwidth 'much' is not a number"),
    ("chip: trn2", "chip: {like: trn2, hbm_bandwidth: much}", "'much' is not a number"),
    ("  shape: torus\n", "", "scale_up.shape is missing; give one of torus, mesh"),
    # What only a role change or a machine has would change nothing.
    ("chip: trn2", "chip: {like: trn2, drain: 60s}", "is no quantity of a chip, but of "),
    ("radix:", "radixx:", "unknown key scale_out.radixx. Did you mean radix?"),
    ("  radix: 32\n", "", "scale_out.radix is missing, and there is no like:"),
    ("size: 4", "size: 0", "scale_up.axes.1.size '0': it must be at least 1."),
    ("shape: torus", "shape: tours",
     "'tours' is none of torus, mesh, switch, clos, tiered. Did you mean torus?"),
    ("domains: 8", "domains: 0", "domains '0': it must be at least 1"),
    ("domains: 8", "domains: 8\ndomains: 9", "the key domains is given twice"),
    ("chips_per_server: 4", "chips_per_server: 3",
     "a domain of 8 chips is not made of servers of 3"),
    ("name: my-pod", "nmae: my-pod", "unknown key nmae. Did you mean name?"),
])  # fmt: skip
def test_mistakes_name_the_file_and_the_key(tmp_path, old, new, message):
    assert old in POD
    text = refusal_by(read, tmp_path, POD.replace(old, new, 1))
    assert text.startswith(f"{tmp_path}/pod.yaml")
    assert message in text


@pytest.mark.parametrize(("content", "message"), [
    (b"", "holds no keys; it needs at least scale_up"),
    (b"- 1\n- 2\n", "holds no keys"),
    (b"domains: 1\n", "scale_up is missing"),
    (b"a: [1, 2", "line 1 is not YAML: expected ',' or ']'"),
    (b"a: &a [*a]\nb: {<<: 5}", "an alias stands within what it repeats"),
    (b"[" * 5_000, "is nested too deeply"),
    (b"\xff\xfe\x00", "line 1: not UTF-8 text"),
    (b"x" * (LARGEST_FILE_BYTES + 1), "is over the limit of 1 MB"),
    (b"a: !!python/object/apply:os.system ['true']", "os.system is not read"),
    (b"scale_up: {shape: switch, size: 2, bandwidth: 1GB/s, latency: 1us}\ndomains: 2",
     "no scale-out fabric"),
])  # fmt: skip
def test_files_from_strangers(tmp_path, content, message):
    (path := tmp_path / "pod.yaml").write_bytes(content)
    text = refusal_by(cluster_from_file, path, shipped_catalogue())
    assert message in text
    assert len(text) < 400


LINK = {"bandwidth": "64GB/s", "latency": "1us"}
SHAPES = {
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
FILES = {
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
OTHERS = {
    "shape": None, "like": {"chip": "h100", "scale_out": "infiniband-ndr"}, "bandwidth": "32GB/s",
    "hbm_bandwidth": "3.1TB/s", "bandwidth_per_chip": "100Gbit/s", "port_bandwidth": "50Gbit/s",
    "latency": "2us", "radix": 16, "wrap": False, "ring": True, "switches": 0,
    "oversubscription": 4, "rails": 1, "chips_per_server": 2,
}  # fmt: skip
"""Another value of a key; numbers and names without one are doubled."""
LABELS = {("chip", "name")}
"""Keys that are for readers of the file alone."""
WRONG = ("zebra", "-5GB/s", -1, 0.5, [1], None)


def places(node, above=()):
    """Yield the place of every key with a plain value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))
        else:
            yield (*above, key)


def changed(document, place, value, name=""):
    """Return a document with another value, or another name of the key, at a place."""
    result = copy.deepcopy(document)
    node = result
    for step in place[:-1]:
        node = node[step]
    if name:
        del node[place[-1]]
    node[name or place[-1]] = value
    return result


def read_document(folder, document):
    path = folder / "pod.yaml"
    path.write_text(json.dumps(document))  # which is YAML too
    return cluster_from_file(path, shipped_catalogue())


def at(document, place):
    for step in place:
        document = document[step]
    return document


EVERY = [
    (shape, place)
    for shape, document in FILES.items()
    for place in places(document)
    if shape == "torus" or place[0] not in ("chip", "scale_out")  # which no shape reads
]


def words(case):
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
    whole = read_document(tmp_path, document)
    value = at(document, place)
    other = OTHERS.get(key, f"{value}x" if isinstance(value, str) else 2 * value if value else None)
    other = other[place[0]] if isinstance(other, dict) else other
    if other is not None and place not in LABELS:
        assert read_document(tmp_path, changed(document, place, other)) != whole
    for wrong in WRONG:
        try:
            read_document(tmp_path, changed(document, place, wrong))
        except InputError as mistake:
            text = str(mistake)
            assert "\n" not in text
            assert text.startswith(f"{tmp_path / 'pod.yaml'}: ")
            assert key in text or str(wrong) in text, (wrong, text)
    with pytest.raises(InputError, match=rf"unknown .*\b{key}{key[-1]}\b.*\b{key}\b"):
        read_document(tmp_path, changed(document, place, value, name=key + key[-1]))
