"""Files of traces: Parquet with one row for each op, whose edges are list columns."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

import cluster_sim
from cluster_sim.engine.times import STATUSES, Attempts, Times
from cluster_sim.schedule.build import check
from cluster_sim.schedule.table import (
    FLOW,
    KINDS,
    RESOURCE_COLUMNS,
    Codes,
    Edges,
    Flows,
    Resources,
    Schedule,
    ScheduleError,
)
from topologies.support.arrays import IntArray, pointers
from topologies.support.errors import InputError
from topologies.support.files.reading import check_regular, no_such_file
from topologies.support.files.writing import whole_file

FORMAT = 1  # version of the layout; a reader refuses any other
HEADER, RESOURCES, ATTEMPTS = b"cluster_sim", b"cluster_sim.resources", b"cluster_sim.attempts"
"""Keys of the file's metadata."""
TIMES = ("ready_ps", "start_ps", "end_ps")
DIFFERENCES = (*TIMES, "leads_to.list.element")
"""Columns that mostly grow from row to row: differences of rows take a fifth of the bytes."""
COLUMNS = ("duration_ps", "size_bytes", "priority")
KEYS = ("kind", "resource", "resource_number")
EDGE_COLUMNS = ("leads_to", "lags_ps", "from_start")
FLOW_COLUMNS = ("rate_cap_bytes_per_s", "shares", "share_weights")
ATTEMPT_COLUMNS = ("op", "start_ps", "end_ps")
_FAULTS = (
    pa.ArrowException, ScheduleError, OSError, KeyError, ValueError, TypeError, IndexError,
    AttributeError, MemoryError,
)  # fmt: skip
"""Errors that Arrow and this module raise for a file that is no trace."""
LARGEST_BYTES = 64 * 2**30  # largest stored trace that is read, unpacked [B]


def write(schedule: Schedule, times: Times, path: Path) -> None:
    """Write schedule and times as one Parquet file, which appears whole or not at all."""
    table = to_table(schedule, times)
    # The names by which Parquet knows the values of columns.
    columns = [
        f"{field.name}.list.element" if pa.types.is_large_list(field.type) else field.name
        for field in table.schema
    ]
    with whole_file(path) as part:
        pq.write_table(
            table,
            part,
            compression="zstd",
            use_dictionary=[name for name in columns if name not in DIFFERENCES],
            column_encoding=dict.fromkeys(DIFFERENCES, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )


def read(path: Path) -> tuple[Schedule, Times]:
    """Read and check what :func:`write` wrote; refuse what breaks the rules of time."""
    try:
        if Path(path).exists():
            check_regular(path)
        file = pq.ParquetFile(path, page_checksum_verification=True)
        footer = file.metadata
        unpacked = sum(footer.row_group(k).total_byte_size for k in range(footer.num_row_groups))
        if unpacked > LARGEST_BYTES or footer.num_rows >= 2**31:
            raise InputError(
                f"{path} holds {footer.num_rows:,} rows, {unpacked:,} bytes unpacked; the limit "
                f"is 2^31 rows and {LARGEST_BYTES:,} bytes. Save fewer ops."
            )
        return from_table(file.read())
    except FileNotFoundError:
        raise InputError(f"trace {path} cannot be read: {no_such_file(path)}") from None
    except InputError:
        raise
    except _FAULTS as fault:
        reason = " ".join(str(fault).split())[:200]
        raise InputError(f"{path} is not a trace that Trace.save wrote: {reason}") from None


def to_table(schedule: Schedule, times: Times) -> pa.Table:
    """Return a table of the ops: kind, resource, times, bytes, labels, and edges to other ops."""
    columns: dict[str, Any] = {
        "kind": _dictionary(schedule.kind, KINDS),
        "resource": _dictionary(*schedule.resources.coded(schedule.resource)),
        "resource_number": schedule.resource,
    }
    columns |= {name: getattr(times, name) for name in TIMES}
    columns["status"] = _dictionary(times.status, STATUSES)
    columns |= {name: getattr(schedule, name) for name in COLUMNS}
    for name, label in schedule.labels.items():
        columns[_stored(name)] = (
            _dictionary(label.code, label.names) if isinstance(label, Codes) else label
        )
    columns |= _edge_columns(schedule.edges)
    if len(schedule.flows):
        flows = schedule.flows
        cap = np.zeros(len(schedule), np.int64)
        cap[flows.op] = flows.cap_bytes_per_s
        shares = np.zeros(len(schedule), np.int64)
        shares[flows.op] = np.diff(flows.ptr)
        ptr = pointers(shares)
        columns |= {
            "rate_cap_bytes_per_s": cap,
            "shares": _lists(ptr, flows.resource),
            "share_weights": _lists(ptr, flows.weight),
        }
    arrays = {
        name: pa.array(column) if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
    }
    return pa.table(arrays).replace_schema_metadata(
        {
            HEADER: json.dumps(_header(schedule, times)).encode(),
            RESOURCES: _packed(schedule.resources, RESOURCE_COLUMNS),
            ATTEMPTS: _packed(times.attempts, ATTEMPT_COLUMNS),
        }
    )


def _header(schedule: Schedule, times: Times) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": cluster_sim.__version__,
        "facts": dict(schedule.facts),
        "labels": {
            k: list(label.names) if isinstance(label, Codes) else None
            for k, label in schedule.labels.items()
        },
        "kinds": schedule.resources.kinds,
        "switches_from": schedule.resources.switches_from,
        "dead": times.dead.tolist(),
        "stopped_ps": times.stopped_ps,
    }


def _stored(label: str) -> str:
    """Return the name of a label's column: that of the label, unless another column has it."""
    taken = {*COLUMNS, *TIMES, *EDGE_COLUMNS, *FLOW_COLUMNS, "status", *KEYS}
    return f"label.{label}" if label in taken or label.startswith("label.") else label


def from_table(table: pa.Table) -> tuple[Schedule, Times]:
    """Return the checked schedule and the times of a table that :func:`to_table` made."""
    stored = table.schema.metadata or {}
    header = json.loads(stored[HEADER])
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
    ptr, dst = _csr(table["leads_to"])
    starts = _csr(table["from_start"])[1] if "from_start" in table.column_names else None
    edges = Edges(ptr, dst, _csr(table["lags_ps"])[1], starts)
    kind = _codes(table["kind"], KINDS).code.astype(np.uint8)
    schedule = Schedule(
        kind=kind,
        resource=_array(table["resource_number"]),
        **{name: _array(table[name]) for name in COLUMNS},
        edges=edges,
        resources=Resources(
            kinds=tuple(header["kinds"]),
            switches_from=header["switches_from"],
            **_unpacked(stored[RESOURCES], RESOURCE_COLUMNS),
        ),
        flows=_flows(table, kind),
        labels={
            name: _array(table[_stored(name)])
            if names is None
            else _codes(table[_stored(name)], names)
            for name, names in header["labels"].items()
        },
        facts=header["facts"],
    )
    check(schedule)
    times = Times(
        **{name: _array(table[name]) for name in TIMES},
        status=_codes(table["status"], STATUSES).code.astype(np.uint8),
        attempts=Attempts(**_unpacked(stored[ATTEMPTS], ATTEMPT_COLUMNS)),
        dead=np.array(header["dead"], np.int32),
        stopped_ps=header["stopped_ps"],
    )
    return schedule, times


def _dictionary(code: IntArray, names: Any) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(code.astype(np.int32), pa.array(names, pa.string()))


def _lists(ptr: IntArray, values: Any) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(ptr.astype(np.int64), pa.array(values))


def _edge_columns(edges: Edges) -> dict[str, Any]:
    columns = {"leads_to": _lists(edges.ptr, edges.dst), "lags_ps": _lists(edges.ptr, edges.lag_ps)}
    if edges.from_start is not None:
        columns["from_start"] = _lists(edges.ptr, edges.from_start)
    return columns


def _flows(table: pa.Table, kind: IntArray) -> Flows:
    if "shares" not in table.column_names:
        return Flows.none()
    op = np.flatnonzero(kind == FLOW).astype(np.int32)
    ptr, resource = _csr(table["shares"])
    cap = _array(table["rate_cap_bytes_per_s"])[op]
    return Flows(op, cap, np.append(ptr[op], ptr[-1]), resource, _csr(table["share_weights"])[1])


def _packed(rows: Resources | Attempts, columns: Iterable[str]) -> bytes:
    """Return a small table as compressed text, for the metadata of the file."""
    table = pa.table({name: pa.array(getattr(rows, name)) for name in columns})
    sink = io.BytesIO()
    options = ipc.IpcWriteOptions(compression="zstd")
    with ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue())  # other readers of Parquet take metadata for text


def _unpacked(packed: bytes, columns: Iterable[str]) -> dict[str, Any]:
    table = ipc.open_stream(base64.b64decode(packed)).read_all()
    table.validate(full=True)
    return {name: _array(table[name]) for name in columns}


def _array(column: pa.ChunkedArray) -> Any:
    return np.ascontiguousarray(column.to_numpy())


def _csr(column: pa.ChunkedArray) -> tuple[IntArray, Any]:
    """Return the values of a list column, and the pointers that cut them into rows."""
    lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    ptr = np.concatenate([[0], *lengths]).cumsum()
    return ptr, np.concatenate(values) if values else np.empty(0, np.int64)


def _codes(column: pa.ChunkedArray, names: Sequence[str]) -> Codes:
    whole = column.unify_dictionaries().combine_chunks()
    # Backwards, so that the first of equal names gives the code.
    code_of = {name: code for code, name in reversed(list(enumerate(names)))}
    codes = np.array([code_of[name] for name in whole.dictionary.to_pylist()], np.int32)
    return Codes(codes[whole.indices.to_numpy()], tuple(names))
