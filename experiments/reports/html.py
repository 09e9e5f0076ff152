"""``report.html``: a run directory as one self-contained page, with the answers first.

Files may be of unknown origin: text is escaped, figures are images, and the page's policy allows
the script of this package only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from cluster_sim.plot.palette import colors, ink
from experiments.figures.training import NAMES
from experiments.reports.certainty import basis, interval_band, price_sentences, ratio_title
from experiments.reports.findings import FAULTS, TABLED, answers, finding
from experiments.reports.formatting import (
    STATISTICS,
    columns_of,
    constants,
    heading,
    is_number,
    sentence,
    table_text,
    unit_of,
    value_text,
)
from experiments.reports.run_record import REPORT, option_words, part_of, read_record, sha256_of
from topologies.support.errors import InputError
from topologies.support.files.table import as_named
from topologies.support.files.writing import whole_file
from topologies.support.units import format_memory

if TYPE_CHECKING:
    import click
    import pandas as pd


T = TypeVar("T")
LONGEST_IN_LEAD = 40
UNIT = re.compile(r"(\d) ([a-zA-Zµ%/]+)")
"""Pattern of a number and its unit, between which a line must not break."""
REDRAWN = "step_time_breakdown"
"""Figure that the page draws itself if the results have the breakdown."""
WHOLES = {"Where the time goes": "breakdown_s", "Where the chip-hours go": "chip_hours_by_role"}
"""Sections about the parts of a whole, each with its key in the results."""
SLICES = ("lanes", "categories", "colors", "slices", "end_s")
PROVENANCE_TABLES = ("inputs.csv",)
"""Tables with the sources of numbers, which are shown in the section about them."""


def write_report(folder: str | Path, program: click.Command | None = None) -> Path:
    """Write ``report.html`` of a run directory from its ``run.json`` and files; return the path."""
    target = Path(folder) / REPORT
    page = report_html(Path(folder), program)
    with whole_file(target) as part:
        part.write_bytes(page.encode("utf-8", "xmlcharrefreplace"))
    return target


def report_html(folder: Path, program: click.Command | None = None) -> str:
    """Return the page as text; parameters as for :func:`write_report`."""
    record = read_record(folder)
    command, contents = record["command"], record["contents"]
    results = merged_documents(folder, contents)
    ratios = results.get("ratios") or []
    if ratios:  # of several clusters, whose numbers stand in a table and not as the answer
        results = {key: value for key, value in results.items() if key not in ("rows", "interval")}
    rows = first_table(folder, contents) if command in TABLED else None
    drawn = (item.get("finding") for item in contents if item.get("kind") == "figure")
    title = finding(command, results, rows) or ratio_title(ratios)
    title = title or next((str(text) for text in drawn if text), command)
    script = packaged("report.js")
    sections = [
        *_sections(folder, record, results),
        _section("How to reproduce it", list(_reproduce(record, program))),
        _section("Files", [_files(folder, record)]),
    ]
    page = {
        "title": UNIT.sub("\\1\u00a0\\2", title),
        "command": f"cluster-sim {command}",
        "lead": _lead(record, program),
        "answers": answers(command, results, rows),
        "sections": [part for part in sections if part["blocks"]],
        "style": Markup(packaged("report.css")),
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return template("report.html.j2").render(page)


def _lead(record: Mapping[str, Any], program: click.Command | None) -> str:
    """Return the short inputs of a run that differ from the defaults, in one line."""
    inputs, _ = _given(record)
    changed = _tried(lambda: _changed(record, program), None)
    names = inputs if changed is None else {str(item.name) for item, _ in changed}
    words = [
        f"{name.replace('_', ' ')} {'' if text == str(True) else text}".rstrip()
        for name, text in inputs.items()
        if len(text) <= LONGEST_IN_LEAD and name in names
    ]
    return " · ".join(words)


def _sections(
    folder: Path, record: Mapping[str, Any], results: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield sections in the order of a reader: answers, figures, certainty, sources."""
    contents = record["contents"]
    lines = [str(line) for key in ("remarks", "notes") for line in results.get(key) or ()]
    if "other_prices" in results and "rows" not in results:
        lines.append(f"Price: {results['price_basis']}.")
    lines += price_sentences(results)
    texts = [{"kind": "text", "text": sentence(line)} for line in lines]
    yield _section("Remarks", texts)
    for title, key in WHOLES.items():
        yield _section(title, _tried(partial(_whole, results.get(key), key), list[Block]()))
    for item in contents:
        drawn = Path(file_name(item)).stem == REDRAWN and "breakdown_s" in results
        if item.get("kind") == "figure" and not drawn:
            yield _shown(item, partial(figure_blocks, item=item), folder)
    yield _section("Memory of a rank", _tried(lambda: _memory(results), list[Block]()))
    command = record["command"]
    band = _tried(lambda: [interval_band(command, results)], list[Block]())
    yield _section("How sure it is", band, basis(command, results))
    sources = []
    for item in contents:
        if item.get("kind") == "table":
            part = _shown(item, partial(frame_blocks, results=bool(results)), folder)
            if file_name(item) in PROVENANCE_TABLES:
                sources.append(part)
            else:
                yield part
    for item in contents:
        if item.get("kind") == "json":
            part = _shown(item, lambda path: document_blocks(read_document(path)), folder)
            part["blocks"] = [{"kind": "more", "text": "all of them", "blocks": part["blocks"]}]
            yield part
    yield _section("Where the numbers come from", _provenance(results))
    yield from sources


def _section(title: str, blocks: list[Block], note: str = "") -> dict[str, Any]:
    return {"title": title, "note": note, "blocks": blocks}


def _shown(
    item: Mapping[str, Any], blocks: Callable[[Path], Iterator[Block]], folder: Path
) -> dict[str, Any]:
    """Return the section of one file, or of the reason for which it cannot be shown."""
    try:
        shown = list(blocks(path_inside(folder, file_name(item))))
    except SHOWN_FAULTS as fault:
        shown = [{"kind": "text", "text": f"Cannot be shown: {fault}"}]
    note = str(item.get("note") or "")
    return _section(str(item.get("title", "")), shown, note)


def _tried(make: Callable[[], T], otherwise: T) -> T:
    """Return what a function makes of results, or something else where they are damaged."""
    try:
        return make()
    except SHOWN_FAULTS:
        return otherwise


def _whole(parts: Any, key: str) -> list[Block]:
    if not isinstance(parts, dict) or not any(parts.values()):
        return []
    held = {part: value for part, value in parts.items() if value}
    more = {"kind": "more", "text": "as a table", "blocks": [parts_table(key, held)]}
    return [stack(key, held), more]


def _memory(results: Mapping[str, Any]) -> list[Block]:
    """Return a bar of a rank's memory and its capacity; for a search, those of the best plan."""
    holder = results if "memory_bytes" in results else results["rows"][0]
    memory = dict(holder["memory_bytes"])
    capacity, total = memory.pop("capacity"), memory.pop("total")
    verb = "used" if total <= capacity else "likely to be needed"
    used = f"{format_memory(total)} of {format_memory(capacity)} are {verb}."
    parts = {part: value for part, value in memory.items() if value}
    return [stack("memory_bytes", parts, capacity, "free"), {"kind": "text", "text": used}]


def _provenance(results: Mapping[str, Any]) -> list[Block]:
    grades = results.get("provenance")
    if not isinstance(grades, dict) or not grades:
        return []
    rows = [[str(name), plain_text("", grade)] for name, grade in grades.items()]
    return [table(["input", "how it is known"], rows, text=(0, 1))]


def _reproduce(record: Mapping[str, Any], program: click.Command | None) -> Iterator[Block]:
    if words := _tried(lambda: command_line(record, program), ""):
        yield {"kind": "code", "text": words}
    digests = " and ".join(
        f"{name} {str(record.get(key, '?'))[:12]}"
        for name, key in (("inputs", "inputs_digest"), ("results", "results_digest"))
    )
    seed = record.get("seed")
    drawn = f", seed {seed}" if seed is not None else ""
    sentences = (
        f"cluster-sim {record.get('version', '?')}{drawn}; the same run has the digests {digests}."
    )
    yield {"kind": "text", "text": sentences}
    inputs, left = _given(record)
    blocks = [table(["input", "value"], [list(item) for item in inputs.items()], text=(0, 1))]
    if left:
        blocks.append({"kind": "text", "text": f"Not given: {', '.join(left)}."})
    if inputs or left:
        yield {"kind": "more", "text": "all inputs", "blocks": blocks}


def _given(record: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the stated inputs as text, and the names of the others."""
    pairs = list(record["inputs"].items())
    kept = {str(name): plain_text(str(name), value) for name, value in pairs if not _out(value)}
    return kept, [str(name) for name, value in pairs if _out(value)]


def _out(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _files(folder: Path, record: Mapping[str, Any]) -> Block:
    holds = {
        Path(str(item.get("file"))).stem: str(item.get("title") or item.get("note") or "")
        for item in record["contents"]
    }
    rows = []
    for name, stored in record["files"].items():
        note = holds.get(Path(name).stem, "")
        try:
            path = path_inside(folder, str(name))
            size = value_text("size_bytes", path.stat().st_size)
            note += "" if sha256_of(path) == stored else " (changed since the run)"
        except InputError:
            note, size = f"{note} (missing, or very large)", "-"
        rows.append([str(name), note, size])
    return table(["file", "holds", "size"], rows, text=(0, 1))


def packaged(name: str) -> str:
    """Return the text of a file of the package, the only source of templates."""
    return (files("experiments.reports") / "page" / name).read_text(encoding="utf-8")


@cache
def template(name: str) -> jinja2.Template:
    """Return a template of the package, for which a name without a value is an error."""
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(packaged),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["unbroken"] = unbroken
    return templates.get_template(name)


OPTION = re.compile(r"(?<![\w-])--[a-z]\S*")


def unbroken(text: str) -> Markup:
    """Return text as HTML that a browser breaks before its options and never inside them.

    >>> unbroken("so state --tp 4")
    Markup('so state <span class="option">--tp</span> 4')
    """
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))


LONGEST_WORD = 1000


def command_line(record: Mapping[str, Any], program: click.Command | None) -> str:
    """Return the command line of ``cluster-sim`` that repeats a run; empty if it is unknown."""
    changed = _changed(record, program)
    if changed is None:
        return ""
    options: list[str] = []
    positional: list[str] = []
    for item, value in changed:
        words = option_words(item, value)
        (options if item.param_type_name == "option" else positional).extend(words)
    if isinstance(record.get("seed"), int) and record["seed"]:
        options.append(f"--seed={record['seed']}")
    words = ["cluster-sim", *record["command"].split(), *positional, *options]
    return " ".join(shlex.quote(word[:LONGEST_WORD]) for word in words)


def _changed(
    record: Mapping[str, Any], program: click.Command | None
) -> list[tuple[Any, Any]] | None:
    """Parameters whose values differ from their defaults; None for a command of no program."""
    parameters = _parameters(record["command"].split(), program)
    if parameters is None:
        return None
    pairs = [(item, part_of(record["inputs"].get(str(item.name)), "path")) for item in parameters]
    return [
        (item, value)
        for item, value in pairs
        if value is not None and value not in ("", [], item.default)
    ]


def _parameters(words: list[str], program: click.Command | None) -> list[Any] | None:
    """Parameters of a command; None for a command that the program does not have."""
    command: Any = program
    for word in words:
        if not hasattr(command, "list_commands") or word not in command.list_commands(None):
            return None
        try:
            command = command.get_command(None, word)
        except InputError:
            return None
    return list(command.params) if words else None


LARGEST_DATA_BYTES = 2**22
"""Largest values of a figure, or slices of a timeline, that are included in the page."""
SVG_AT_MOST_BYTES = 2**21  # largest drawing that is shown as SVG; larger ones are shown as PNG
SHOWN_FAULTS = (*FAULTS, OSError, RecursionError)
"""Errors of damaged files, which the page shows in place of the content."""


def merged_documents(folder: Path, contents: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the JSON documents of a run, except those that cannot be read."""
    merged: dict[str, Any] = {}
    for name in [file_name(item) for item in contents if item.get("kind") == "json"]:
        read = partial(lambda file: read_document(path_inside(folder, file)), name)
        merged |= _tried(read, dict[str, Any]())
    return merged


def first_table(folder: Path, contents: list[dict[str, Any]]) -> pd.DataFrame | None:
    """Read the first table of a run; None if it has none that can be read."""
    import pandas as pd

    first = next((item for item in contents if item.get("kind") == "table"), None)
    if first is None:
        return None
    return _tried(lambda: pd.read_csv(path_inside(folder, file_name(first))), None)


def file_name(item: Mapping[str, Any]) -> str:
    """Return the file name of an item of the contents, empty if it has none."""
    return str(item.get("file", ""))


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file directly in the folder that is not too large to show."""
    # A name with a path, and a link, could lead outside of the folder.
    path = folder / name
    if Path(name).name != name or path.is_symlink() or not path.is_file():
        raise InputError(f"there is no file {name}")
    if path.stat().st_size > LARGEST_SHOWN_BYTES:
        raise InputError(f"{name} is over {LARGEST_SHOWN_BYTES:,} bytes")
    return path


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict):
        raise InputError(f"{path.name} holds no object")
    return document


def figure_blocks(path: Path, item: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a drawing with its values, after a zoomable timeline if the figure has slices."""
    drawing, media = path, "image/svg+xml"
    if path.stat().st_size > SVG_AT_MOST_BYTES or path.suffix != ".svg":
        drawing, media = path_inside(path.parent, f"{path.stem}.png"), "image/png"
    data = base64.b64encode(drawing.read_bytes()).decode()
    slices = _drawing_data(path.parent, item.get("slices"), SLICES)
    if slices is not None:
        yield {"kind": "timeline", "data": slices}
    yield {
        "kind": "figure",
        "alt": str(item.get("alt") or path.stem),
        "source": f"data:{media};base64,{data}",
        "hover": _drawing_data(path.parent, item.get("hover"), ("points", "boxes")),
        "replaced": slices is not None,
    }


def _drawing_data(folder: Path, name: Any, wanted: tuple[str, ...]) -> Markup | None:
    """Return the values of a drawing as JSON that is safe in a page; None if they do not fit."""
    if not name:
        return None
    path = _tried(lambda: path_inside(folder, str(name)), None)
    if path is None or path.stat().st_size > LARGEST_DATA_BYTES:
        return None
    document = _tried(lambda: read_document(path), dict[str, Any]())
    if not all(part in document for part in wanted):
        return None
    return htmlsafe_json_dumps(document, separators=(",", ":"), allow_nan=False)


Block = dict[str, Any]
MOST_ROWS = 500
LONGEST_SAME = 160  # characters of equal columns that are shown unfolded
LARGEST_SHOWN_BYTES = 2**26
ADDITIVE = ("_s", "_ps", "_hours")  # units of objects whose parts are shares of a whole


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Collection[int] = (0,),
    shares: Sequence[float] = (),
    values: Sequence[Sequence[Any]] = (),
    more: str = "",
) -> Block:
    """Return a table with ``text`` columns left, ``shares`` as bars, and ``values`` to sort by."""
    raw = values or [[None] * len(row) for row in rows]
    behind: Sequence[float | None] = shares or [None] * len(rows)
    lines = [
        {
            "share": share,
            "cells": [
                {"text": cell, "value": _sortable(value)}
                for cell, value in zip(row, texts, strict=True)
            ],
        }
        for row, texts, share in zip(rows, raw, behind, strict=True)
    ]
    return {"kind": "table", "columns": columns, "rows": lines, "text": list(text), "more": more}


def _sortable(value: Any) -> Any:
    """Return a value if rows can be sorted by it: None for text and infinities."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def frame_blocks(path: Path, *, results: bool = False) -> Iterator[Block]:
    """Yield a CSV file as a table, after a line with the columns that are equal in all rows."""
    # ``results`` has the same numbers as a table of metric and value.
    import pandas as pd

    held = pd.read_csv(path, nrows=MOST_ROWS + 1, encoding="utf-8-sig")
    for name in held.select_dtypes(["str", "object"]):
        held[name] = held[name].map(as_named)
    held = held.drop(columns="provenance", errors="ignore")  # its long words are the file's
    names = set(held.columns)
    if names == {"metric", "value"} and results:
        return
    if names == {"result", "name", "low", "value", "high"}:  # numbers of unlike units
        for end in ("low", "value", "high"):
            held[end] = [value_text(*pair) for pair in zip(held["name"], held[end], strict=True)]
        held["result"] = held["result"].str.replace(r" \[\w+\]$", "", regex=True)
        held = held.drop(columns="name")
    if {"low", "high"} <= names and {"time_s", "iteration_s"} & names:
        held = held.rename(columns={"low": "low_s", "high": "high_s"})
    same, rest = constants(held.head(MOST_ROWS))
    if same:
        line = {"kind": "text", "text": f"The same in all rows: {same}."}
        folded = {"kind": "more", "text": "columns that are the same in all rows", "blocks": [line]}
        yield line if len(same) <= LONGEST_SAME else folded
    yield table_block(rest, more=path.name if len(held) > MOST_ROWS else "")


def table_block(held: pd.DataFrame, more: str = "") -> Block:
    """Return a table of a file or a document as a block."""
    headings, rows = table_text(held)
    columns = list(columns_of(held).values())
    text = [place for place, values in enumerate(columns) if not is_number(values)]
    return table(headings, rows, text=text, values=list(zip(*columns, strict=True)), more=more)


def document_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield plain values as a grid, and objects and lists of objects as tables after it."""
    import pandas as pd

    simple = {key: value for key, value in document.items() if not isinstance(value, dict | list)}
    if simple:
        pairs = [(heading(key), value_text(key, value)) for key, value in simple.items()]
        yield {"kind": "facts", "pairs": pairs}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield {"kind": "head", "text": heading(key)}
            yield parts_table(key, value)
        elif isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            yield {"kind": "head", "text": heading(key)}
            yield from ({"kind": "text", "text": line} for line in value)
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield {"kind": "head", "text": heading(key)}
            yield table_block(pd.DataFrame([_with_parts(row) for row in value[:MOST_ROWS]]))


def _with_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with a cell for each part of an object of numbers."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        parts = value if isinstance(value, dict) else {}
        if parts and all(isinstance(each, int | float) for each in parts.values()):
            cells |= {f"{key}.{part}": each for part, each in parts.items()}
        else:
            cells[key] = value
    return cells


def parts_table(key: str, value: Mapping[str, Any]) -> Block:
    """Return an object as a table, with shares if its values are parts of a whole."""
    unit = unit_of(key) or ("_hours" if "_hours" in key else "")
    rows = [[heading(part), plain_text(f"{key}.{part}", inner)] for part, inner in value.items()]
    numbers = [x for x in value.values() if isinstance(x, int | float) and x >= 0]
    statistics = all(STATISTICS.fullmatch(part) for part in value)
    additive = unit in ADDITIVE and not statistics and len(numbers) == len(value)
    if not additive or not sum(numbers):
        return table(["part", "value"], rows)
    shares = [number / sum(numbers) for number in numbers]
    whole = [[*row, f"{share:.1%}"] for row, share in zip(rows, shares, strict=True)]
    return table(["part", "value", "share"], whole, shares=shares)


def plain_text(name: str, value: Any) -> str:
    """An input or a result in one line: a file by path and digest, words in a row, else JSON."""
    if isinstance(value, dict) and value.keys() == {"path", "sha256"}:
        return f"{value['path']} (sha256 {str(value['sha256'])[:12]}…)"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value) if isinstance(value, dict | list) else value_text(name, value)


def stack(name: str, parts: Mapping[str, float], whole: float = 0.0, rest: str = "") -> Block:
    """Return a bar of several parts, each with its share of their sum or of a larger whole."""
    held = {part: value for part, value in parts.items() if value > 0}
    shade = colors(held)
    left = whole - sum(held.values())
    if left > 0:
        held[rest], shade[rest] = left, "#dfe3e8"
    total = sum(held.values())
    if not held or not math.isfinite(total):
        raise InputError(f"{name} has no parts")
    lines = [
        {
            "name": NAMES.get(part, heading(part)),
            "text": value_text(f"{name}.{part}", value),
            "share": value / total,
            "percent": f"{value / total:.1%}",
            "color": shade[part],
            "ink": ink(shade[part]),
        }
        for part, value in held.items()
    ]
    shares = ", ".join(f"{line['name']} {line['text']} ({line['percent']})" for line in lines)
    return {"kind": "stack", "parts": lines, "alt": f"A bar of {heading(name)}: {shares}."}
