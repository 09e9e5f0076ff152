"""``report.html``: a run directory as one page that stands alone, for a reader who was not there.

What a run directory holds may come from a stranger: text is escaped, and figures are shown as
images, in which nothing is run.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from cluster_sim.files import whole_file
from experiments.reports.formatting import (
    STATISTICS,
    constants,
    heading,
    table_text,
    text_columns,
    unit_of,
    value_text,
)
from experiments.reports.run_record import read_record, sha256_of
from topologies.errors import InputError

REPORT = "report.html"
MOST_ROWS = 200
LONGEST_IN_LEAD = 40
LONGEST_ON_A_LINE = 50
LARGEST_SHOWN_BYTES = 2**26
ADDITIVE = ("_s", "_ps", "_hours")
"""Units of objects whose parts are shares of a whole."""
SVG_AT_MOST_BYTES = 2**21
"""A heavier drawing is shown as its PNG."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --line: #d9d9e0;
  --page: #fcfcfd; --card: #ffffff; --accent: #0b68cb; --bar: #e6f1fc; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --line: #363a3f;
  --page: #111113; --card: #18191b; --accent: #70b8ff; --bar: #14283f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 3rem 0 .8rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem; }
p { color: var(--soft); margin: .3rem 0 1rem; max-width: 46rem; }
.scroll { overflow: auto; max-height: 36rem; border: 1px solid var(--line); border-radius: 8px;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--card); }
@media print { .scroll { max-height: none; } }
tr[style] { background: linear-gradient(to right, var(--bar) var(--share), transparent 0); }
tr:last-child td { border-bottom: 0; }
td.text, th.text { text-align: left; }
td.long { white-space: normal; overflow-wrap: break-word; min-width: 22rem; max-width: 34rem; }
p.lead { color: var(--ink); font-size: 1.05rem; max-width: none; }
figure { margin: 0; }
figure img { width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; padding: .8rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .7rem; }
.fact { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .9rem; }
.fact span { display: block; color: var(--soft); font-size: .82rem; }
.fact b { font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere; }
code { font: .85em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
a { color: var(--accent); }
"""


def write_report(folder: str | Path) -> Path:
    """Build ``report.html`` of a run directory from its ``run.json`` and files; gives its path.

    Raises
    ------
    InputError
        When ``folder`` is no run directory.
    """
    target = Path(folder) / REPORT
    page = report_html(Path(folder))
    with whole_file(target) as part:
        part.write_bytes(page.encode("utf-8", "xmlcharrefreplace"))
    return target


def report_html(folder: Path) -> str:
    """Return the page as text.

    Raises
    ------
    InputError
        When ``folder`` is no run directory.
    """
    record = read_record(folder)
    command = str(record.get("command", "run"))
    body = [
        f"<h1>{escape(command)}</h1>",
        f"<p class=lead>{escape(_lead(record))}</p>",
        f"<p>{_byline(record)}</p>",
        *_sections(folder, record),
        *_inputs(record),
        *_files(folder, record),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(command)} · cluster-sim</title>\n<style>{STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _lead(record: Mapping[str, Any]) -> str:
    """Return the short inputs of a run in one line."""
    given, _ = _given(record)
    words = [f"{name} {text}" for name, text in given.items() if len(text) <= LONGEST_IN_LEAD]
    return " · ".join(words)


def _byline(record: Mapping[str, Any]) -> str:
    seed = record.get("seed")
    parts = [
        f"cluster-sim {record.get('version', '?')}",
        *([f"seed {seed}"] if seed is not None else []),
        f"inputs {str(record.get('inputs_digest', '?'))[:12]}",
        f"results {str(record.get('results_digest', '?'))[:12]}",
    ]
    return escape(" · ".join(parts))


def _sections(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    show = {"figure": _figure, "table": _table, "json": _document}
    for item in record["contents"]:
        maker = show.get(str(item.get("kind")))
        if maker is None:
            continue
        yield f"<h2>{escape(str(item.get('title', '')))}</h2>"
        if item.get("note"):
            yield f"<p>{escape(str(item['note']))}</p>"
        try:
            yield from maker(_inside(folder, str(item.get("file", ""))))
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as fault:
            yield f"<p>Cannot be shown: {escape(str(fault))}</p>"


def _inside(folder: Path, name: str) -> Path:
    """A file right in the folder, not too large to show."""
    path = folder / name
    if Path(name).name != name or path.is_symlink() or not path.is_file():
        raise InputError(f"there is no file {name}")
    if path.stat().st_size > LARGEST_SHOWN_BYTES:
        raise InputError(f"{name} is over {LARGEST_SHOWN_BYTES:,} bytes")
    return path


def _figure(path: Path) -> Iterator[str]:
    drawing, media = path, "image/svg+xml"
    if path.stat().st_size > SVG_AT_MOST_BYTES or path.suffix != ".svg":
        drawing, media = _inside(path.parent, f"{path.stem}.png"), "image/png"
    data = base64.b64encode(drawing.read_bytes()).decode()
    yield f'<figure><img alt="{escape(path.stem)}" src="data:{media};base64,{data}"></figure>'


def _table(path: Path) -> Iterator[str]:
    frame = pd.read_csv(path, nrows=MOST_ROWS + 1)
    if list(frame.columns) == ["metric", "value"]:
        yield from _rows(["metric", "value"], _metrics(frame))
        return
    same, rest = constants(frame.head(MOST_ROWS))
    if same:
        yield f"<p>{escape(same)}</p>"
    yield from _rows(*table_text(rest), text=text_columns(rest))
    if len(frame) > MOST_ROWS:
        name = escape(path.name)
        yield f'<p>The first {MOST_ROWS} rows; all of them are in <a href="{name}">{name}</a>.</p>'


def _metrics(frame: pd.DataFrame) -> list[list[str]]:
    """Rows of names and values, each value with the unit that its name carries."""
    numbers = pd.to_numeric(frame["value"], errors="coerce").tolist()
    rows = []
    for name, text, value in zip(frame["metric"], frame["value"], numbers, strict=True):
        whole = int(value) if value == value and float(value).is_integer() else value
        shown = str(text) if value != value else value_text(str(name), whole)
        rows.append([heading(str(name)), shown])
    return rows


def _document(path: Path) -> Iterator[str]:
    document = json.loads(path.read_text())
    if not isinstance(document, dict):
        raise InputError(f"{path.name} holds no object")
    yield from _object(document)


def _object(document: Mapping[str, Any]) -> Iterator[str]:
    """Plain values as a grid; objects and lists of objects as tables after it."""
    simple = {key: value for key, value in document.items() if not isinstance(value, dict | list)}
    if simple:
        facts = "".join(
            f"<div class=fact><span>{escape(heading(key))}</span>"
            f"<b>{escape(value_text(key, value))}</b></div>"
            for key, value in simple.items()
        )
        yield f"<div class=facts>{facts}</div>"
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield f"<h3>{escape(heading(key))}</h3>"
            yield from _parts(key, value)
        elif isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            yield f"<h3>{escape(heading(key))}</h3>"
            yield from (f"<p>{escape(line)}</p>" for line in value)
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield f"<h3>{escape(heading(key))}</h3>"
            frame = pd.DataFrame(value[:MOST_ROWS])
            yield from _rows(*table_text(frame), text=text_columns(frame))


def _parts(key: str, value: Mapping[str, Any]) -> Iterator[str]:
    """An object as a table; where its values are parts of a whole, with the share of each."""
    unit = unit_of(key) or ("_hours" if "_hours" in key else "")
    rows = [[heading(part), _text(f"{key}.{part}", inner)] for part, inner in value.items()]
    numbers = [x for x in value.values() if isinstance(x, int | float) and x >= 0]
    statistics = all(STATISTICS.fullmatch(part) for part in value)
    additive = unit in ADDITIVE and not statistics and len(numbers) == len(value)
    if not additive or not sum(numbers):
        yield from _rows(["part", "value"], rows)
        return
    shares = [number / sum(numbers) for number in numbers]
    yield from _rows(
        ["part", "value", "share"],
        [[*row, f"{share:.1%}"] for row, share in zip(rows, shares, strict=True)],
        bars=shares,
    )


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"path", "sha256"}:
        return f"{value['path']} (sha256 {str(value['sha256'])[:12]}…)"
    return json.dumps(value) if isinstance(value, dict | list) else value_text(name, value)


def _inputs(record: Mapping[str, Any]) -> Iterator[str]:
    given, left = _given(record)
    if not given and not left:
        return
    yield "<h2>Inputs</h2>"
    yield from _rows(["input", "value"], [list(item) for item in given.items()], text=(0, 1))
    if left:
        yield f"<p>Not given: {escape(', '.join(left))}.</p>"


def _given(record: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Inputs as text, and the names of those that were left out."""
    inputs = record.get("inputs")
    pairs = inputs.items() if isinstance(inputs, dict) else []
    given = {str(name): _text(str(name), value) for name, value in pairs if not _left_out(value)}
    return given, [str(name) for name, value in pairs if _left_out(value)]


def _left_out(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _files(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Files</h2>"
    holds = {
        Path(str(item.get("file"))).stem: str(item.get("title") or item.get("note") or "")
        for item in record["contents"]
    }
    rows = []
    for name, stored in record["files"].items():
        note = holds.get(Path(name).stem, "")
        try:
            path = _inside(folder, str(name))
            size = value_text("size_bytes", path.stat().st_size)
            note += "" if sha256_of(path) == stored else " (changed since the run)"
        except InputError:
            note, size = f"{note} (missing, or very large)", "-"
        rows.append([str(name), note, size])
    yield from _rows(["file", "holds", "size"], rows, text=(0, 1))


def _rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Collection[int] = (0,),
    bars: Sequence[float] = (),
) -> Iterator[str]:
    """A table; ``text`` columns align left, ``bars`` are drawn behind the rows."""

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = (
            f"{'text' if k in text else ''} {'long' if len(value) > LONGEST_ON_A_LINE else ''}"
            for k, value in enumerate(values)
        )
        return "".join(
            f'<{tag} class="{kind.strip()}">{escape(value)}</{tag}>'
            for kind, value in zip(kinds, values, strict=True)
        )

    styles = [f' style="--share:{share:.2%}"' for share in bars] or [""] * len(rows)
    lines = "".join(
        f"<tr{style}>{cells('td', row)}</tr>" for style, row in zip(styles, rows, strict=True)
    )
    yield (
        f"<div class=scroll><table><thead><tr>{cells('th', columns)}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )
