"""``python tools/sbom.py requirements.txt DIR``: a bill of materials beside the wheel in a folder.

The document is CycloneDX 1.6 JSON (ECMA-424). It lists every release that the wheel runs with, as
pinned, with the digests of all its files; equal pins and wheels give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) \\\n((?:    --hash=sha256:\S+(?: \\)?\n?)+)", re.M)
LONGEST_LICENCE = 60
"""Characters of a licence's name; some packages state the text of the licence in its place."""


def component(name: str, version: str, digests: list[str]) -> dict[str, Any]:
    """Describe one pinned release, with the licence that its installed metadata state."""
    identity = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    files = {"type": "distribution", "url": identity, "hashes": hashes}
    described = {"type": "library", "name": name, "version": version, "purl": identity}
    return {**described, "bom-ref": identity, **_licence(name), "externalReferences": [files]}


def _licence(name: str) -> dict[str, Any]:
    try:
        stated: Any = metadata(name)
    except PackageNotFoundError:  # of another platform
        return {}
    expression, text = stated.get("License-Expression"), stated.get("License") or ""
    if expression:
        return {"licenses": [{"expression": expression}]}
    short = 0 < len(text) <= LONGEST_LICENCE
    return {"licenses": [{"license": {"name": text}}]} if short else {}


def bill(wheel: Path, pins: str) -> dict[str, Any]:
    """Return the bill of materials of a wheel, from the text of its pins."""
    name, version = wheel.name.split("-")[:2]
    parts = [
        component(part, release, re.findall(r"sha256:([0-9a-f]{64})", digests))
        for part, release, digests in PIN.findall(pins)
    ]
    whole = hashlib.sha256(wheel.read_bytes()).hexdigest()
    named = name.replace("_", "-")
    identity = f"pkg:pypi/{named}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": named,
                "version": version,
                "purl": identity,
                "bom-ref": identity,
                "licenses": [{"expression": "Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": whole}],
            }
        },
        "components": parts,
        "dependencies": [{"ref": identity, "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def main(pins: str, folder: str) -> None:
    """Write a bill beside every wheel of the folder."""
    for wheel in sorted(Path(folder).glob("*.whl")):
        text = json.dumps(bill(wheel, Path(pins).read_text()), indent=2)
        wheel.with_suffix(".cdx.json").write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
