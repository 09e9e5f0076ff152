"""Every dependency is pinned by the digests of its files, and set-up installs nothing else."""

import configparser
import csv
import re
import runpy
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
INSTALLED = ("dev", "dask", "docs", "explore", "editable")
"""Extras that make develop installs."""
PIN = re.compile(r"([A-Za-z0-9._-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, int]:
    """Number of digests of each pinned package."""
    text = (ROOT / "constraints.txt").read_text()
    return {canonical(name): digests.count("sha256") for name, digests in PIN.findall(text)}


def test_what_runs_is_a_closed_part_of_what_is_pinned():
    """``make setup`` installs less than ``make develop``, and never another release."""
    few, every = (
        {pin[1]: pin[0] for pin in PIN.finditer((ROOT / name).read_text())}
        for name in ("requirements.txt", "constraints.txt")
    )
    assert few.items() <= every.items()
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    wanted = {Requirement(line).name for line in settings["options"]["install_requires"].split("\n")
              if line} | {"setuptools"}  # fmt: skip
    missing = {canonical(name) for name in wanted}
    seen: set[str] = set()
    while missing:
        name = missing.pop()
        seen.add(name)
        needs = map(Requirement, distribution(name).requires or [])
        here = {canonical(need.name) for need in needs
                if need.marker is None or need.marker.evaluate({"extra": ""})}  # fmt: skip
        missing |= here - seen
    assert seen <= {canonical(name) for name in few}, f"run make lock: {seen - few.keys()}"


def test_every_dependency_is_pinned_with_digests():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = settings["options.extras_require"]
    lists = [settings["options"]["install_requires"], *(extras[name] for name in INSTALLED)]
    wanted = {
        canonical(re.split(r"[\[<>=!~; ]", line.strip())[0])
        for text in lists
        for line in text.splitlines()
        if line.strip()
    }
    pinned = pins()
    assert wanted <= pinned.keys(), f"run make lock: {sorted(wanted - pinned.keys())}"
    assert min(pinned.values()) >= 1
    assert pinned["numpy"] > 10, "wheels of every supported Python, not of this one alone"


def test_set_up_installs_what_is_pinned_and_nothing_else():
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"\$\(BIN\)/python \$\(PIP\) (.*)", makefile)
    assert len(installs) == 3
    assert any("--require-hashes -r constraints.txt" in line for line in installs)
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)


def test_the_bill_of_materials_lists_every_release_that_runs(tmp_path):
    wheel = tmp_path / "cluster_sim-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    bill = runpy.run_path(str(ROOT / "tools" / "sbom.py"))["bill"]
    document = bill(wheel, (ROOT / "requirements.txt").read_text())
    parts = {part["name"]: part for part in document["components"]}
    assert len(parts) == (ROOT / "requirements.txt").read_text().count("==")
    assert {"numpy", "simpy", "numba"} <= parts.keys()
    (files,) = parts["numpy"]["externalReferences"]
    assert len(files["hashes"]) == pins()["numpy"]
    assert document["dependencies"][0]["dependsOn"] == [p["bom-ref"] for p in parts.values()]
    assert document["metadata"]["component"]["name"] == "cluster-sim"


def test_one_file_has_the_licence_of_every_table():
    stated = (ROOT / "DATA_LICENCES.md").read_text()
    tables = ROOT / "experiments" / "validation" / "tables"
    with (tables / "index.csv").open() as file:
        for row in csv.DictReader(file):
            assert f"| `{row['file']}` | {row['credit']} | {row['licence']} |" in stated
    for path in (ROOT / "workloads" / "data").glob("*.csv"):
        assert f"`{path.name}`" in stated
