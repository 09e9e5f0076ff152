"""Reader of measurements of several tools: collectives, kernels and training steps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from experiments.calibration.kit import MANIFEST, Manifest, read_manifest
from experiments.validation.reading.rows import read_text as read_rows
from experiments.validation.reading.tool_outputs import Measured, operation, parse_measured
from topologies.support.errors import InputError
from topologies.support.files.reading import read_text

LARGEST_FILE_BYTES = 20_000_000
RESULTS = ("results.csv", "training_rows.csv")
"""Files with rows in a kit's folder, beside its subfolders ``collectives`` and ``profiles``."""
SIZE = ("size", "size(b)", "size_bytes", "bytes", "message_size")
TIME_UNITS = {"(us)": 1e-6, "_us": 1e-6, "(ms)": 1e-3, "_ms": 1e-3, "(s)": 1.0, "_s": 1.0}
LARGEST_SIZE_BYTES = 2**53
SHORTEST_S, LONGEST_S = 1e-9, 1e9  # shortest and longest time that a measurement may have [s]
SHAPE = re.compile(r"(kv_seq|kv_heads|head_dim|heads|batch|seq|cores|size_bytes|rows|[mnk])(\d+)")
"""Pattern of the columns of a kernel's shape in a file name, each followed by its value."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements that were read from files and folders."""

    # kernels, training: rows in the columns of ``validate --file``, with a measured time
    # unread: names of files of a folder in which no measurement is
    kernels: tuple[Mapping[str, Any], ...]
    training: tuple[Mapping[str, Any], ...]
    collectives: tuple[tuple[str, Measured], ...]
    manifest: Manifest | None
    unread: tuple[str, ...] = ()

    def __len__(self) -> int:
        sizes = sum(len(series) for _, series in self.collectives)
        return len(self.kernels) + len(self.training) + sizes

    def named(self, collective: str | None, ranks: int | None) -> Measurements:
        """Fill in the operation and ranks of series without them, or of a single one, as stated."""
        names, alone = {"collective": collective, "ranks": ranks}, len(self.collectives) == 1
        series = []
        for file, measured in self.collectives:
            filled: dict[str, Any] = {
                name: value
                for name, value in names.items()
                if value and (alone or not getattr(measured, name))
            }
            series.append((file, replace(measured, **filled)))
        return replace(self, collectives=tuple(series))


def read_measurements(paths: Sequence[Path], wanted: str | None = None) -> Measurements:
    """Read files and folders."""
    kernels: list[Mapping[str, Any]] = []
    training: list[Mapping[str, Any]] = []
    collectives: list[tuple[str, Measured]] = []
    unread: list[str] = []
    manifest = next((read_manifest(path) for path in paths if (path / MANIFEST).is_file()), None)
    for path, kit in _files(paths):
        text = read_text(path, limit_bytes=LARGEST_FILE_BYTES, remedy="Split it.", lenient=True)
        if path.suffix == ".json":
            _read_json(path, text, kernels, collectives)
        elif path.suffix == ".csv" and (_is_rows(text) or (kit and path.name in RESULTS)):
            # Faulty rows are left out, unless all are faulty.
            rows = read_rows(text, str(path))
            timed = {"kernel": "kernel_s", "training": "iteration_s"}
            if rows.kind.name not in timed:
                raise InputError(
                    f"{path}: rows of kind {rows.kind.name} cannot be fitted; kernel and training "
                    "rows can, and what nccl-tests and nccom-test print."
                )
            good = [row.values for row in rows.rows if not row.mistakes]
            kept = [dict(row) for row in good if row.get(timed[rows.kind.name]) is not None]
            if not kept:
                raise InputError(
                    f"{path}: no row with {timed[rows.kind.name]} in it. Run the kit first."
                )
            (kernels if rows.kind.name == "kernel" else training).extend(kept)
        else:
            try:
                collectives.append((path.name, parse_measured(text, str(path), wanted)))
            except InputError:
                if not kit:
                    raise
                unread.append(path.name)
    if not (kernels or training or collectives):
        raise InputError(f"{', '.join(map(str, paths))}: no measurement in it. Run the kit first.")
    measured = tuple(kernels), tuple(training), tuple(collectives)
    return Measurements(*measured, manifest, tuple(unread))


def _files(paths: Sequence[Path]) -> Iterable[tuple[Path, bool]]:
    """Yield the files to read, and whether each lies in a folder and so may be of no use."""
    for path in paths:
        if not path.is_dir():
            yield path, False
            continue
        for name in RESULTS:
            if (path / name).is_file():
                yield path / name, True
        for pattern in ("collectives/*.log", "collectives/*.json", "profiles/*.json"):
            yield from ((file, True) for file in sorted(path.glob(pattern)))
        if not (path / MANIFEST).is_file():
            yield from (
                (file, True)
                for file in sorted(path.iterdir())
                if file.suffix in (".csv", ".log", ".txt", ".json") and file.name not in RESULTS
            )


def _is_rows(text: str) -> bool:
    """Return whether a text begins with a header of plain columns."""
    header = text.partition("\n")[0].split(",")
    return len(header) > 2 and not any(" " in name.strip() for name in header)


def _read_json(
    path: Path, text: str, kernels: list[Mapping[str, Any]], collectives: list[tuple[str, Measured]]
) -> None:
    """Read a report of nccom-test, or a summary of neuron-profile."""
    try:
        document = json.loads(text)
    except ValueError:
        raise InputError(f"{path}: not JSON. Give the tool's own file.") from None
    pairs = sorted(_pairs(document, path))
    if pairs:
        size, seconds = np.array(pairs, float).T
        named = _named(document)
        collectives.append((path.name, Measured(*named, size, seconds, "", 0)))
        return
    totals_s = (entry.get("total_time") for entry in _objects(document))
    total_s = next((each for each in totals_s if _is_number(each) and 0 < each < math.inf), None)
    if total_s is None:
        raise InputError(
            f"{path}: neither sizes with times, as nccom-test reports them, nor total_time, as "
            "neuron-profile does. Give a file of one of them."
        )
    kernels.append(_profiled(path, _checked_s(float(total_s), path)))


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _pairs(document: Any, path: Path) -> Iterable[tuple[float, float]]:
    """Yield size [B] and time [s] of each result in a report of nccom-test."""
    for entry in _objects(document):
        cells = {str(name).lower().replace(" ", ""): value for name, value in entry.items()}
        size = next((cells[name] for name in SIZE if name in cells), None)
        time = _time_s(cells)
        if not _is_number(size) or time is None or size <= 0 or time <= 0:
            continue
        if not size < LARGEST_SIZE_BYTES:
            raise InputError(
                f"{path}: a size of {str(size)[:40]} bytes; a message has less than 2^53. "
                "Give the tool's own file."
            )
        yield float(size), _checked_s(time, path)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_s(time_s: float, path: Path) -> float:
    if not SHORTEST_S <= time_s <= LONGEST_S:
        raise InputError(
            f"{path}: a time of {time_s:g} s; measured times are {SHORTEST_S:g} to {LONGEST_S:g} s."
            " Give the tool's own file."
        )
    return time_s


def _time_s(cells: Mapping[str, Any]) -> float | None:
    """Time of a result, the median if there is one [s]; without a unit it is in microseconds."""
    names = sorted(
        (name for name in cells if name.startswith("time")), key=lambda name: "p50" not in name
    )
    for name in names:
        value = cells[name]
        if _is_number(value) and abs(value) < 2**1000:
            unit = next((TIME_UNITS[end] for end in TIME_UNITS if name.endswith(end)), 1e-6)
            return float(value) * unit
    return None


def _named(document: Any) -> tuple[str | None, int | None]:
    """Operation and number of ranks that a report states."""
    named: dict[str, Any] = {}
    for entry in _objects(document):
        for name, value in entry.items():
            named.setdefault(str(name).lower(), value)
    names = ("operation", "op", "collective", "cc_op", "cc_operation")
    op = next((named[name] for name in names if isinstance(named.get(name), str)), None)
    counts = ("nworkers", "ranks", "num_workers", "world_size", "nranks")
    ranks = next((named[name] for name in counts if isinstance(named.get(name), int)), None)
    return (operation(op) if op else None), ranks


def _profiled(path: Path, total_s: float) -> dict[str, Any]:
    """Return the kernel row of a profile, whose file name states the shape."""
    words = path.stem.split("_")
    shape = {name: int(value) for name, value in SHAPE.findall(path.stem)}
    if words[0] not in ("gemm", "attention", "elementwise", "gather") or not shape:
        raise InputError(
            f"{path}: the name does not state the kernel and its shape. Call it for example "
            "gemm_m4096_n4096_k4096_bf16.json."
        )
    precisions = [word for word in words if word in ("bf16", "fp16", "fp32", "fp8", "mxfp8")]
    row: dict[str, Any] = {"kernel": words[0], "kernel_s": total_s, "runtime": "graph", **shape}
    row["precision"] = precisions[0] if precisions else None
    return row
