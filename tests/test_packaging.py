"""Source distribution, wheel and set-up, which installs nothing but what digests pin."""

import configparser
import csv
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cluster_sim import __version__

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
HEADING = re.compile(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d|unreleased)\)$", re.MULTILINE)
RELEASES = HEADING.findall(CHANGELOG)
"""Version and date of each section of the changelog, the newest first."""


def _run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**inherited, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from the source distribution of the tracked files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = _run("git", "ls-files", cwd=ROOT).stdout.split("\n")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    assert _run(sys.executable, "-m", "tools.man_pages", cwd=source).returncode == 0
    built = _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=source)
    assert built.returncode == 0, built.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment with the wheel and this environment's libraries."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    path = folder / "bin" / "python"
    packages = Path(_run(path, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder)
                    .stdout.strip())  # fmt: skip
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", path, "install", "--quiet", "--no-deps"]
    done = _run(*pip, "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with packages of a user's own that have common names."""
    for name in ("workloads", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    return tmp_path


CONDA = {"matplotlib": "matplotlib-base"}  # packages that conda splits


def test_the_conda_recipe_needs_what_the_package_needs():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    needs = {
        CONDA.get(need.name, need.name): str(need.specifier)
        for need in map(Requirement, settings["options"]["install_requires"].split())
    }
    recipe = yaml.safe_load((ROOT / "tools/packaging/meta.yaml").read_text())
    listed = dict(line.split() for line in recipe["requirements"]["run"])
    assert listed == {"python": settings["options"]["python_requires"], **needs}
    assert recipe["package"] == {"name": "cluster-sim", "version": __version__}
    entry = settings["options.entry_points"]["console_scripts"].strip()
    assert recipe["build"]["entry_points"] == [entry]


def test_the_container_runs_targets_that_exist():
    steps = (ROOT / "tools/packaging/Dockerfile").read_text()
    targets = re.findall(r"^RUN make (\w+)$", steps, re.MULTILINE)
    assert targets == ["demo", "docs"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


@pytest.mark.slow
def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        facts = Parser().parsestr(archive.read(name).decode())
        carried = set(archive.namelist())
    data = f"cluster_sim-{__version__}.data/data/share/man/man1"
    assert {f"{data}/cluster-sim.1", f"{data}/cluster-sim-train.1"} <= carried
    assert (facts["Name"], facts["Version"]) == ("cluster-sim", __version__)
    assert "simulation" in facts["Keywords"]
    assert "Typing :: Typed" in facts.get_all("Classifier", [])
    links = re.findall(r"\]\(([^)]+)\)", str(facts.get_payload()))
    assert [link for link in links if "://" not in link] == []
    packages = ("topologies", "cluster_sim", "workloads", "experiments")
    tracked = _run("git", "ls-files", *packages, cwd=ROOT)
    assert set(tracked.stdout.split()) - carried == set()


@pytest.mark.slow
def test_the_command_works_beside_folders_of_the_same_names(python, beside):
    command = python.with_name("cluster-sim")
    done = _run(command, "topology", "ring:8", cwd=beside)
    assert done.returncode == 0, done.stderr
    assert "diameter in hops" in done.stdout
    done = _run(python, "-m", "experiments.cli", cwd=beside.parent)
    assert done.returncode != 2


@pytest.mark.slow
def test_a_folder_that_stands_in_for_a_package_is_named(python, beside):
    command = python.with_name("cluster-sim")
    for words in ([command], [python, "-m", "cluster_sim"]):
        done = _run(*words, "topology", "ring:8", cwd=beside, PYTHONPATH=str(beside))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert str(beside / "workloads") in done.stderr
        assert "Rename it" in done.stderr
    done = _run(python, "-c", "import cluster_sim", cwd=beside)
    assert str(beside / "workloads") in done.stderr.splitlines()[-1]
    done = _run(python, "-c", "import workloads; print(workloads.MINE)", cwd=beside)
    assert done.stdout == "True\n"


def test_every_installed_release_runs_on_the_oldest_python_that_is_promised():
    installed = [release.metadata for release in distributions()]
    needed = {release["Name"]: release.get("Requires-Python", "") for release in installed}
    assert "numpy" in needed
    later = [name for name, python in needed.items() if "3.11.0" not in SpecifierSet(python)]
    assert later == []  # constraints.txt pins them, and `make demo` would stop there


def test_the_changelog_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings == [f"{version} ({date})" for version, date in RELEASES]
    assert RELEASES[0][0] == Version(__version__).base_version
    assert (RELEASES[0][1] == "unreleased") == Version(__version__).is_devrelease
    versions = [Version(version) for version, _ in RELEASES]
    assert versions == sorted(set(versions), reverse=True)


def test_the_digest_of_a_release_is_short():
    sections = re.split(r"^## .+$", CHANGELOG, flags=re.MULTILINE)[1:]
    digests = [section.split("\n### ")[0].split("\n") for section in sections]
    assert all(1 <= len(list(filter(None, digest))) <= 12 for digest in digests)


def test_the_citation_is_of_the_newest_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    named = (citation["version"], str(citation["date-released"]))
    assert named == next(release for release in RELEASES if release[1] != "unreleased")
    assert citation["license"] == "Apache-2.0"


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
    (wheel := tmp_path / "cluster_sim-1.0-py3-none-any.whl").write_bytes(b"wheel")
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
