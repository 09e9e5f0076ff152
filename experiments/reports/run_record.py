"""``run.json``: inputs and software of a run, and digests by which runs are compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cluster_sim
from topologies.errors import InputError, system_reason
from topologies.files.reading import check_regular

RECORD = "run.json"
REPORT = "report.html"
FORMAT = 1
"""Version of the record that this module writes and reads."""
LARGEST_RECORD_BYTES = 2**24
MODEL_CONFIG = "config.json"
"""File that describes a model in its directory."""


def read_record(path: Path) -> dict[str, Any]:
    """Read ``run.json`` of a run directory."""
    file = path / RECORD
    try:
        if file.exists():
            check_regular(file)
        if file.stat().st_size > LARGEST_RECORD_BYTES:
            raise ValueError(f"it is over {LARGEST_RECORD_BYTES:,} bytes")
        record = json.loads(file.read_text())
        if record["cluster_sim_run"] != FORMAT:
            raise ValueError(f"format {record['cluster_sim_run']}, this version reads {FORMAT}")
        _check(record["contents"], record["files"])
    except FileNotFoundError:
        raise InputError(
            f"{path} is no run directory: it has no {RECORD}. Name a directory that --out wrote."
        ) from None
    except InputError:
        raise
    except NotADirectoryError:
        raise InputError(f"{path} is a file; name the run directory.") from None
    except OSError as fault:
        raise InputError(f"{file} cannot be read: {system_reason(fault)}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as fault:
        raise InputError(f"{file} was not written by cluster-sim: {fault}. Name its DIR.") from None
    return dict(record)


def check_unchanged(folder: Path, record: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a run whose inputs or named files are no longer those that were written."""
    arguments = {key: record.get(key) for key in ("command", "inputs", "seed", "version")}
    inputs = arguments["inputs"]
    if not isinstance(inputs, dict):
        raise InputError(f"{folder / RECORD} has no table of inputs. Run it again.")
    read = {key: _content(value) for key, value in inputs.items()}
    if digest({**arguments, "inputs": read}) != record.get("inputs_digest"):
        raise InputError(f"{folder / RECORD} was changed since the run. Run it again.")
    for key, value in inputs.items():
        is_file = isinstance(value, dict) and "sha256" in value
        if is_file and content_digest(str(value.get("path"))) != read[key]:
            raise InputError(
                f"{value.get('path')}, the {key} of {folder}, was changed since the run. "
                "Run it again."
            )
    for name in names:
        file = folder / name
        if not file.is_file() or file.is_symlink() or sha256_of(file) != record["files"].get(name):
            raise InputError(f"{file} was changed since the run, or is missing. Run it again.")


def _check(contents: Any, files: Any) -> None:
    if not isinstance(contents, list) or not all(isinstance(item, dict) for item in contents):
        raise TypeError("no list of contents")
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise TypeError("no table of files")


def digest(document: Any) -> str:
    """SHA-256 of a document as canonical JSON; equal contents have equal digests."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def new_record(command: str, inputs: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the record of a run before it starts, with the digests of the files that it reads."""
    recorded = {key: _input(value) for key, value in inputs.items()}
    arguments = {
        "command": command,
        "inputs": recorded,
        "seed": seed,
        "version": cluster_sim.__version__,
    }
    read = {key: _content(value) for key, value in recorded.items()}
    inputs_digest = digest({**arguments, "inputs": read})
    return {"cluster_sim_run": FORMAT, **arguments, "inputs_digest": inputs_digest, "contents": []}


def _input(value: Any) -> Any:
    """Return an input in the form that is recorded: a file by its path and its digest."""
    if isinstance(value, list | tuple):
        return [_input(item) for item in value]
    if isinstance(value, Path | str):
        content = content_digest(str(value))
        if content:
            return {"path": str(value), "sha256": content}
    return plain(value)


def content_digest(name: str) -> str:
    """Return the digest of the file that an input names; empty if it names none.

    For the directory of a model it is that of ``config.json``; ``@FILE`` names the file.
    """
    try:
        path = Path(name.removeprefix("@"))
        if path.is_dir():
            path = path / MODEL_CONFIG
        return sha256_of(path) if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def _content(recorded: Any) -> Any:
    """Return an input without the path of its file, for the digest of all inputs."""
    if isinstance(recorded, list):
        return [_content(item) for item in recorded]
    return recorded["sha256"] if isinstance(recorded, dict) and "sha256" in recorded else recorded


def canonical(document: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal contents have equal texts."""
    return json.dumps(plain(document), sort_keys=True, separators=(",", ":"), allow_nan=False)


def readable(document: Any) -> str:
    """Return JSON with line breaks, for people."""
    return json.dumps(plain(document), indent=2, allow_nan=False) + "\n"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """Convert numpy scalars, arrays, paths and non-finite floats to values that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
