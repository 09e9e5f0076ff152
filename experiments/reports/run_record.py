"""Record of a run, ``run.json``, and the directory that ``--out`` names for it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import cluster_sim
from topologies.support.errors import InputError, shown, system_reason
from topologies.support.files.reading import check_regular
from topologies.support.files.writing import OLD, named_in_faults, remove_orphans, unfinished

if TYPE_CHECKING:
    import click


RECORD = "run.json"
REPORT = "report.html"
FORMAT = 1  # version of the record that this module writes and reads
LARGEST_RECORD_BYTES = 2**24
MODEL_CONFIG = "config.json"  # file that describes a model in its directory


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
        contents, files = record["contents"], record["files"]
        if not isinstance(contents, list) or not all(isinstance(item, dict) for item in contents):
            raise TypeError("no list of contents")
        if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
            raise TypeError("no table of files")
        if not isinstance(record["command"], str) or not isinstance(record["inputs"], dict):
            raise TypeError("no command with a table of inputs")
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
    inputs = record["inputs"]
    read = {key: part_of(value, "sha256") for key, value in inputs.items()}
    if digest({**arguments, "inputs": read}) != record.get("inputs_digest"):
        raise InputError(f"{folder / RECORD} was changed since the run. Run it again.")
    for key, value in inputs.items():
        is_file = isinstance(value, dict) and "sha256" in value
        if is_file and content_digest(str(value.get("path"))) != read[key]:
            raise InputError(
                f"{value.get('path')}, the {key} of {folder}, was changed since the run. "
                "Run it again."
            )
    check_files(folder, record, names)


def check_files(folder: Path, record: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a run whose named files are no longer those that were written."""
    for name in names:
        file = folder / name
        if not file.is_file() or file.is_symlink() or sha256_of(file) != record["files"].get(name):
            raise InputError(f"{file} was changed since the run, or is missing. Run it again.")


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
    read = {key: part_of(value, "sha256") for key, value in recorded.items()}
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


TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def option_words(item: click.Parameter, value: Any) -> list[str]:
    """Return the words that give a parameter a value, several joined unless it may be repeated."""
    flag = [spelling for spelling in item.opts if spelling.startswith("--")][-1:]
    texts = [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
    if item.nargs != -1 and not getattr(item, "multiple", False):
        texts = [",".join(texts)]
    if getattr(item, "is_flag", False):
        if texts[0].lower() not in (*TRUE, *FALSE):
            raise InputError(f"{item.name} is {texts[0]}; it is a switch: true or false")
        return flag if texts[0].lower() in TRUE else list(item.secondary_opts[-1:])
    return [f"{flag[0]}={text}" for text in texts] if flag else texts


def content_digest(name: str) -> str:
    """Return the digest of the file, ``@FILE`` or model's directory an input names; else empty."""
    try:
        path = Path(name.removeprefix("@"))
        if path.is_dir():
            path = path / MODEL_CONFIG
        return sha256_of(path) if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def part_of(recorded: Any, part: str) -> Any:
    """Return a recorded input, of a file its ``path`` or its digest, ``sha256``, alone."""
    if isinstance(recorded, list):
        return [part_of(item, part) for item in recorded]
    return recorded[part] if isinstance(recorded, dict) and part in recorded else recorded


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


@contextmanager
def whole_directory(path: str | Path) -> Iterator[Path]:
    """Give a hidden directory that on success replaces ``path``, and else leaves nothing behind."""
    target = _resolved(path)
    check_replaceable(target)
    part = unfinished(target)
    with _termination_as_exit(), named_in_faults(target), _parents(target):
        remove_orphans(target)
        try:
            part.mkdir()
        except OSError as fault:
            raise InputError(f"--out {path} cannot be written: {system_reason(fault)}") from None
        try:
            yield part
            check_replaceable(target)
            _put_in_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """Check that a path is new, empty or an earlier run; to be called before a long computation."""
    check_writable(path)
    if not path.exists():
        return
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return
    try:
        ours = {*read_record(path)["files"], RECORD, REPORT}
    except InputError:
        ours = set()
    foreign = [name for name in names if name not in ours]
    if foreign:
        raise InputError(
            f"--out {path} holds {foreign[0]}, which no run of cluster-sim wrote. "
            "Choose a new directory."
        )


def check_writable(path: Path) -> None:
    """Check that a directory can be created at a path, as far as this can be known beforehand."""
    _resolved(path)
    try:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as fault:
        raise InputError(f"--out {path} cannot be a directory: {system_reason(fault)}") from None
    if not nearest.is_dir():
        what = "is" if nearest == path else f"is below {nearest}, which is"
        raise InputError(f"--out {path} {what} a file. Choose another name.")
    if nearest == path and any(path.iterdir()):
        return
    # A directory is created and removed again, because permissions alone do not tell enough.
    probe = nearest / f".{os.getpid()}.probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as fault:
        raise InputError(
            f"--out {path} cannot be written: nothing can be made in {nearest} "
            f"({fault.strerror}). Choose another directory."
        ) from None


def _resolved(path: str | Path) -> Path:
    """Return the path that links lead to; those that lead to each other are refused."""
    with suppress(OSError, RuntimeError, ValueError):
        resolved = Path(path).resolve()
        # Python 3.13 and later leave a link that leads back to itself where earlier ones raise.
        if not any(map(os.path.islink, (resolved, *resolved.parents))):
            return resolved
    raise InputError(
        f"--out {shown(str(path))} cannot be a directory: its links lead nowhere. "
        "Choose a new directory."
    )


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Create the directories above the target, and remove the new ones if the run fails."""
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out {target} cannot be written: {system_reason(fault)}") from None
    try:
        yield
    except BaseException:
        for parent in missing:
            if not any(parent.iterdir()):
                parent.rmdir()
        raise


def _put_in_place(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    old = part.with_suffix(OLD)
    target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that the unfinished files are removed as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
