"""Files of a run directory as blocks of its report page.

The files may be of unknown origin. A name may therefore not lead out of the folder, large files are
not read, and a document is escaped before it is embedded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from experiments.reports.blocks import (
    LARGEST_SHOWN_BYTES,
    Block,
    frame_blocks,
)
from experiments.reports.findings import FAULTS
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LARGEST_DATA_BYTES = 2**22
"""Largest values of a figure, or slices of a timeline, that are included in the page."""
SVG_AT_MOST_BYTES = 2**21
"""Largest drawing that is shown as SVG; larger ones are shown as PNG."""
SHOWN_FAULTS = (*FAULTS, OSError, RecursionError)
"""Errors of damaged files, which the page shows in place of the content."""


def merged_documents(folder: Path, contents: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the JSON documents of a run, except those that cannot be read."""
    merged: dict[str, Any] = {}
    for item in contents:
        if item.get("kind") == "json":
            try:
                merged |= read_document(path_inside(folder, str(item.get("file", ""))))
            except SHOWN_FAULTS:
                continue
    return merged


def first_table(folder: Path, contents: list[dict[str, Any]]) -> pd.DataFrame | None:
    """Read the first table of a run; None if it has none that can be read."""
    import pandas as pd

    first = next((item for item in contents if item.get("kind") == "table"), None)
    try:
        return None if first is None else pd.read_csv(path_inside(folder, file_name(first)))
    except SHOWN_FAULTS:
        return None


def table_blocks(
    folder: Path, item: Mapping[str, Any], results: Mapping[str, Any]
) -> Iterator[Block]:
    """Yield a table of a run; ``results`` are its documents."""
    return frame_blocks(path_inside(folder, file_name(item)), results=bool(results))


def file_name(item: Mapping[str, Any]) -> str:
    """Return the file name of an item of the contents, empty if it has none."""
    return str(item.get("file", ""))


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file directly in the folder that is not too large to show.

    A name with a path, and a link, could lead outside of the folder and are refused.
    """
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


def figure_blocks(folder: Path, item: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a drawing with its values, after a zoomable timeline if the figure has slices."""
    path = path_inside(folder, file_name(item))
    drawing, media = path, "image/svg+xml"
    if path.stat().st_size > SVG_AT_MOST_BYTES or path.suffix != ".svg":
        drawing, media = path_inside(folder, f"{path.stem}.png"), "image/png"
    data = base64.b64encode(drawing.read_bytes()).decode()
    slices = drawing_data(
        folder, item, "slices", ("lanes", "categories", "colors", "slices", "end_s")
    )
    if slices is not None:
        yield {"kind": "timeline", "data": slices}
    yield {
        "kind": "figure",
        "alt": str(item.get("alt") or path.stem),
        "source": f"data:{media};base64,{data}",
        "hover": drawing_data(folder, item, "hover", ("points", "boxes")),
        "replaced": slices is not None,
    }


def drawing_data(
    folder: Path, item: Mapping[str, Any], key: str, wanted: tuple[str, ...]
) -> Markup | None:
    """Return the values of a drawing as JSON that is safe in a page; None if they do not fit."""
    if not item.get(key):
        return None
    try:
        path = path_inside(folder, str(item[key]))
        if path.stat().st_size > LARGEST_DATA_BYTES:
            return None
        document = read_document(path)
    except SHOWN_FAULTS:
        return None
    if not all(name in document for name in wanted):
        return None
    return htmlsafe_json_dumps(document, separators=(",", ":"), allow_nan=False)
