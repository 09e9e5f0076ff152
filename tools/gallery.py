"""``python -m tools.gallery``: pictures of experiments and commands, and the page that shows them.

Pictures are drawn with the options of their command and kept small. Each file contains the finding
and the command of its picture, so that some pictures can be drawn anew and the page can still be
written for all.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from scipy.spatial.distance import cdist

from experiments.cli.commands.experiment import about as about_experiment
from experiments.cli.main import run
from experiments.figures import layout
from experiments.reports.drawing import description, headline
from experiments.reports.run_record import read_record
from experiments.scripts.registry import EXPERIMENTS, Experiment
from tools.precompile import DEMO
from topologies.support.errors import InputError, suggestion
from topologies.support.files.writing import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path("docs")
PICTURES = Path("figures/gallery")
PAGE = "gallery.md"
DPI, COLORS = 100, 96
MOST_BYTES = 65_000
INTRODUCTION = """# Gallery

Each experiment or command on this page answers one question. The title of a picture states the
finding, for the machine and the size in the command below it. That command with `--out DIR` writes
the picture, its rows and a report.
"""


@dataclass(frozen=True)
class Command:
    """A command whose run directory has a picture for the gallery."""

    name: str
    question: str
    words: tuple[str, ...]
    figure: str
    about: str


COMMANDS = (
    Command(
        "demo",
        "How long is a step of Llama-3.1-405B on 1,024 Trainium2 chips?",
        DEMO,
        "step_time_breakdown",
        "The bar divides the step into computation and into communication and waiting that nothing "
        "hides. The interval should contain 80 % of measured steps. `make demo` runs this command.",
    ),
    Command(
        "fleet_week",
        "What does a week of serving by day and training by night earn?",
        ("fleet", "--cluster", "rainier", "--demand", "azure-code", "--days", "7"),
        "roles",
        "The upper panel shows the role of every chip and the chips that the demand needs, the "
        "lower one the share of requests that keep the SLO. The demand is scaled so that its "
        "busiest hour needs nine tenths of the fleet.",
    ),
    Command(
        "plan_comparison",
        "Which tensor and pipeline degrees suit a model best?",
        (
            *("plan", "--model", "llama-3.1-405b", "--cluster", "trn2-ultraserver:16"),
            *("--global-batch", "256", "--seq", "8192", "--overlap", "all", "--precision", "bf16"),
            *("--each", "tp,pp", "--top", "9", "--finalists", "9"),
        ),
        "plans",
        "Each bar is the plan that is estimated fastest for a combination of tensor and pipeline "
        "parallel degrees. The mark shows its estimate.",
    ),
)
SHOWN: tuple[Experiment | Command, ...] = (*EXPERIMENTS, *COMMANDS)

SIZES: Mapping[str, Mapping[str, Any]] = {
    "weak_scaling": {"overlap": ("all", "dp")},
    "policy_frontier": {"cluster": "trn2-ultraserver:20"},
}
"""Options of experiments whose defaults take too long for the gallery."""


def draw(shown: Experiment | Command, docs: Path) -> Path:
    """Run an experiment or a command, write its picture below ``docs``, and return the path."""
    small = _drawn_by_command(shown) if isinstance(shown, Command) else _drawn(shown)
    picture = docs / PICTURES / f"{shown.name}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(picture) as part:
        part.write_bytes(small)
    return picture


def _drawn(experiment: Experiment) -> bytes:
    script, chosen = experiment.load(), SIZES.get(experiment.name, {})
    figure = script.plot(script.run(**chosen))
    texts = {
        "Title": headline(figure),
        "Description": description(figure),
        "Comment": _command(experiment, chosen),
    }
    return small_png(figure, texts)


def _drawn_by_command(shown: Command) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        # Drawn small: a picture that is reduced has more colours between two areas.
        with patch.object(layout, "DOTS_PER_INCH", DPI), redirect_stdout(StringIO()):
            if run([*shown.words, "--out", str(out), "--quiet"]):
                raise InputError(f"the command of picture {shown.name} failed")
        contents = read_record(out)["contents"]
        entry = next(each for each in contents if each["file"] == f"{shown.figure}.svg")
        texts = {"Title": entry["finding"], "Description": entry["alt"]}
        words = shlex.join(["cluster-sim", *shown.words])
        with Image.open(out / f"{shown.figure}.png") as image:
            return _packed(image.convert("RGB"), {**texts, "Comment": words})


def small_png(figure: Figure, texts: Mapping[str, str]) -> bytes:
    """Return a PNG with few colours, and texts about it in its header."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, bbox_inches="tight", format="png")
    with Image.open(drawn) as image:
        return _packed(image.convert("RGB"), texts)


def _packed(image: Image.Image, texts: Mapping[str, str]) -> bytes:
    few = _with_few_colors(image)
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
    """Return the page of all experiments and commands that have a picture below ``docs``."""
    parts = [INTRODUCTION]
    for shown in SHOWN:
        picture = PICTURES / f"{shown.name}.png"
        if not (docs / picture).exists():
            continue
        with Image.open(docs / picture) as image:
            texts = {name: str(text) for name, text in image.info.items()}
        about = shown.about if isinstance(shown, Command) else about_experiment(shown.load().run)
        parts.append(
            f"## {shown.question}\n\n"
            f"![{_plain(texts['Description'])}]({picture.as_posix()})\n\n{about}\n\n"
            f"```\n{texts['Comment']}\n```\n"
        )
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Replace brackets in the description of a picture, which Markdown puts in brackets."""
    return text.replace("[", "(").replace("]", ")")


def main(names: Sequence[str], docs: Path = DOCS) -> int:
    """Draw the named pictures, or all, and write the page."""
    by_name = {each.name: each for each in SHOWN}
    for name in names:
        if name not in by_name:
            raise InputError(f"no picture is called {name}.{suggestion(name, by_name)}")
    for shown in SHOWN:
        if not names or shown.name in names:
            picture = draw(shown, docs)
            size = picture.stat().st_size
            much = f", over {MOST_BYTES:,}" if size > MOST_BYTES else ""
            sys.stdout.write(f"{shown.name}: {size:,} bytes{much}\n")
            sys.stdout.flush()
    with whole_file(docs / PAGE) as part:
        part.write_text(page(docs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
