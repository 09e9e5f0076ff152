"""Every dependency is pinned by the digests of its files, and set-up installs nothing else."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALLED = ("dev", "dask", "docs")
"""Extras that set-up installs; explore is its users' own choice."""
PIN = re.compile(r"([A-Za-z0-9._-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, int]:
    """Number of digests of each pinned package."""
    text = (ROOT / "constraints.txt").read_text()
    return {canonical(name): digests.count("sha256") for name, digests in PIN.findall(text)}


def test_every_line_of_the_pins_is_understood() -> None:
    text = PIN.sub("", (ROOT / "constraints.txt").read_text())
    assert all(line.startswith("#") for line in text.splitlines() if line.strip()), text[:300]


def test_every_dependency_is_pinned_with_digests() -> None:
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


def test_set_up_installs_what_is_pinned_and_nothing_else() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"\$\(BIN\)/python -m pip install (.*)", makefile)
    assert any("--require-hashes -r constraints.txt" in line for line in installs)
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
