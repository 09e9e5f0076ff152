"""``python -m tools.gallery``: pictures of all experiments, and the page that shows them.

Pictures are drawn with the options of their command and kept small. Each file contains the finding
and the command of its picture, so that some pictures can be drawn anew and the page can still be
written for all.
"""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from scipy.spatial.distance import cdist

from experiments.reports.drawing import description, headline
from experiments.scripts.registry import EXPERIMENTS, Experiment
from topologies.errors import InputError, suggestion
from topologies.files.writing import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path("docs")
PICTURES = Path("figures/gallery")
PAGE = "gallery.md"
DPI, COLORS = 100, 96
MOST_BYTES = 60_000
INTRODUCTION = """# Gallery

Each experiment answers one question. The title of its picture states the finding, for the machine
and the size of the command below it. `--out DIR` writes the picture, its rows and a report, and
`make gallery` draws all pictures again.
"""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "weak_scaling": {"overlap": ("all", "dp")},
    "policy_frontier": {"cluster": "trn2-ultraserver:20"},
}
"""Options of experiments whose defaults take too long for the gallery."""


def draw(experiment: Experiment, docs: Path, options: Mapping[str, Any] | None = None) -> Path:
    """Run an experiment, write its picture below ``docs``, and return the path.

    Parameters
    ----------
    experiment : Experiment
    docs : Path
        Folder of the documentation.
    options : mapping, optional
        Parameters of the experiment; by default those of the gallery.
    """
    module = experiment.load()
    chosen = SIZES.get(experiment.name, {}) if options is None else options
    figure = module.plot(module.run(**chosen))
    picture = docs / PICTURES / f"{experiment.name}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    texts = {
        "Title": headline(figure),
        "Description": description(figure),
        "Comment": _command(experiment, chosen),
    }
    with whole_file(picture) as part:
        part.write_bytes(small_png(figure, texts))
    return picture


def small_png(figure: Figure, texts: Mapping[str, str]) -> bytes:
    """Return a PNG with few colours, and texts about it in its header."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, bbox_inches="tight", format="png")
    with Image.open(drawn) as image:
        few = _with_few_colors(image.convert("RGB"))
    header, packed = PngInfo(), BytesIO()
    for name, text in texts.items():
        header.add_itxt(name, text)
    few.save(packed, format="png", optimize=True, pnginfo=header)
    return packed.getvalue()


def _with_few_colors(image: Image.Image) -> Image.Image:
    """Map a picture to its most common colours, so that white and large areas keep theirs.

    Pillow's own mapping to a palette turns white into a light grey.
    """
    pixels = np.asarray(image)
    colors, color_of, counts = np.unique(
        pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    common = colors[np.argsort(-counts, kind="stable")[:COLORS]]
    nearest = cdist(colors, common).argmin(axis=1).astype(np.uint8)
    few = Image.fromarray(nearest[color_of].reshape(pixels.shape[:2]), mode="P")
    few.putpalette(common.ravel().tolist())
    return few


def _command(experiment: Experiment, options: Mapping[str, Any]) -> str:
    words = ["cluster-sim", "experiment", experiment.name]
    for name, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)


def page(docs: Path) -> str:
    """Return the page of all experiments that have a picture below ``docs``."""
    parts = [INTRODUCTION]
    for experiment in EXPERIMENTS:
        picture = PICTURES / f"{experiment.name}.png"
        if not (docs / picture).exists():
            continue
        with Image.open(docs / picture) as image:
            texts = {name: str(text) for name, text in image.info.items()}
        about = inspect.getdoc(importlib.import_module(f"experiments.scripts.{experiment.name}"))
        paragraph = " ".join((about or "").split("\n\n", 1)[-1].split())
        parts.append(
            f"## {experiment.question}\n\n"
            f"![{_plain(texts['Description'])}]({picture.as_posix()})\n\n{paragraph}\n\n"
            f"```\n{texts['Comment']}\n```\n"
        )
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Replace brackets in the description of a picture, which Markdown puts in brackets."""
    return text.replace("[", "(").replace("]", ")")


def main(names: Sequence[str], docs: Path = DOCS) -> int:
    """Draw the pictures of the named experiments, or of all, and write the page.

    Raises
    ------
    InputError
        For an unknown experiment.
    """
    by_name = {each.name: each for each in EXPERIMENTS}
    for name in names:
        if name not in by_name:
            raise InputError(f"no experiment is called {name}.{suggestion(name, by_name)}")
    for experiment in EXPERIMENTS:
        if not names or experiment.name in names:
            picture = draw(experiment, docs)
            size = picture.stat().st_size
            much = f", over {MOST_BYTES:,}" if size > MOST_BYTES else ""
            sys.stdout.write(f"{experiment.name}: {size:,} bytes{much}\n")
            sys.stdout.flush()
    with whole_file(docs / PAGE) as part:
        part.write_text(page(docs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
