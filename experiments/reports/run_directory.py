"""Run directories (``docs/background/outputs.md``): tables, figures, traces and the report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from cluster_sim.trace.trace import Trace
from experiments.figures.layout import save, settle
from experiments.reports.drawing import description, headline, hover
from experiments.reports.html import write_report
from experiments.reports.run_record import (
    RECORD,
    REPORT,
    canonical,
    new_record,
    readable,
    sha256_of,
    whole_directory,
)
from topologies.support.files.table import as_text

if TYPE_CHECKING:
    import click
    import pandas as pd

    from cluster_sim.plot.perfetto import Counter

MEASURED = ("build_s", "simulate_s", "peak_rss_bytes", "wall_s")
"""Values that differ from run to run, and are not part of the digest of the results."""


class Run:
    """A run directory while it is written; its files appear in the report in this order."""

    def __init__(
        self, folder: Path, record: dict[str, Any], program: click.Command | None = None
    ) -> None:
        self.folder = folder
        self._record = record
        self._program = program
        self._results = hashlib.sha256()

    def table(
        self,
        name: str,
        rows: pd.DataFrame | Sequence[Mapping[str, Any]],
        *,
        title: str = "",
        note: str = "",
        parquet: bool = False,
    ) -> None:
        """Write ``<name>.csv``, and optionally ``<name>.parquet``; a named index is a column."""
        import pandas as pd

        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
        lasting = frame.drop(columns=[each for each in MEASURED if each in frame.columns])
        self._results.update(f"table {name}\n{_csv(lasting)}".encode())
        self._new(f"{name}.csv").write_text(_csv(frame), encoding="utf-8", newline="")
        if parquet:
            frame.to_parquet(self._new(f"{name}.parquet"), index=_is_named(frame))
        self._show("table", f"{name}.csv", title or name, note)

    def figure(
        self,
        name: str,
        figure: Figure,
        *,
        title: str = "",
        note: str = "",
        slices: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a figure as PNG and SVG, with values for hovering, and a timeline's slices."""
        box = settle(figure)
        save(figure, box, self._new(f"{name}.svg"), self._new(f"{name}.png"))
        entry = {"alt": description(figure), "finding": headline(figure)}
        values = hover(figure, box)
        for kind, data in (("hover", values if any(values.values()) else None), ("slices", slices)):
            if data is not None:
                entry[kind] = f"{name}_{kind}.json"
                self._new(entry[kind]).write_text(canonical(data))
        self._show("figure", f"{name}.svg", title or name, note, **entry)

    def json(self, name: str, document: Mapping[str, Any], *, title: str = "") -> None:
        """Write ``<name>.json``."""
        self._results.update(f"json {name}\n{canonical(_lasting(document))}".encode())
        self._new(f"{name}.json").write_text(readable(document))
        self._show("json", f"{name}.json", title or name, "")

    def trace(self, trace: Trace, counters: Sequence[Counter] = ()) -> None:
        """Write the whole trace to ``trace.parquet``, and its timeline for Perfetto."""
        from cluster_sim.plot.perfetto import write_timeline

        for column in (trace.times.ready_ps, trace.times.start_ps, trace.times.end_ps):
            self._results.update(column.tobytes())
        trace.save(self._new("trace.parquet"))
        self._show("file", "trace.parquet", "", "Every op: resource, ready, start, end, labels.")
        write_timeline(trace, self._new("timeline.pftrace.gz"), more=counters)
        note = "The run to browse: open it in ui.perfetto.dev."
        self._show("file", "timeline.pftrace.gz", "", note)

    def file(
        self, name: str, data: bytes, *, title: str = "", note: str = "", table: bool = False
    ) -> None:
        """Write any other file, which is not part of the digest of the results."""
        self._new(name).write_bytes(data)
        self._show("table" if table else "file", name, title or name, note)

    def _new(self, name: str) -> Path:
        path = self.folder / name
        if Path(name).name != name or name in (RECORD, REPORT) or path.exists():
            raise ValueError(f"{name!r} is no new file name for a run directory")
        return path

    def _show(self, kind: str, file: str, title: str, note: str, **more: str) -> None:
        shown = {"kind": kind, "file": file, "title": title, "note": note}
        self._record["contents"].append({**shown, **more})

    def finish(self) -> None:
        """Write ``run.json`` and ``report.html``."""
        self._record["results_digest"] = self._results.hexdigest()
        self._record["files"] = {
            path.name: sha256_of(path) for path in sorted(self.folder.iterdir())
        }
        (self.folder / RECORD).write_text(readable(self._record))
        write_report(self.folder, self._program)


def _csv(frame: pd.DataFrame) -> str:
    """Return rows as the text of a CSV file; a named index is a column."""
    # Numbers, by far the most, are no text; names of columns come from files as well.
    texts = frame.select_dtypes(exclude=["number", "bool"])
    frame = frame.assign(**{str(name): texts[name].map(as_text) for name in texts})
    return frame.rename(columns=as_text).to_csv(index=_is_named(frame))


def _is_named(frame: pd.DataFrame) -> bool:
    return any(name is not None for name in frame.index.names)


def _lasting(value: Any) -> Any:
    """Return a document without the values that differ from run to run, at any depth."""
    if isinstance(value, Mapping):
        return {key: _lasting(item) for key, item in value.items() if key not in MEASURED}
    return [_lasting(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def run_directory(
    path: str | Path,
    *,
    command: str,
    inputs: Mapping[str, Any],
    seed: int | None = None,
    program: click.Command | None = None,
) -> Iterator[Run]:
    """Write a run directory: ``with run_directory(path, …) as run: run.table(…)``."""
    with whole_directory(path) as folder:
        run = Run(folder, new_record(command, inputs, seed), program)
        yield run
        run.finish()
