"""Page and picture of how true answers are; ``python -m tools.record`` writes them.

Both come from ``workloads/confidence/residuals.csv``, ``tools/as_user.csv`` and the grades of the
catalogue. ``python -m tools.how_true docs`` writes them again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tools.as_user import KEYS, MEAN, recorded
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.support.errors import InputError

KINDS: Mapping[str, tuple[str, str]] = {
    "kernel": ("kernels", "fitted to kernels of the chip"),
    "collective": ("collectives", "fitted to collectives of the machine"),
    "training": ("training steps", "kernels and collectives; few constants from steps"),
    "first_token": ("first tokens", "as times per token; schedulers as engines document them"),
    "serving": ("times per token", "kernels and collectives; overheads of an engine from its runs"),
}
"""Prefix of the kinds of residuals, their name on the page, and the basis of such answers."""
LEFT_OUT = "training.research"
"""Kind of the runs of research code on nodes of mixed quality; the validation page has them."""
WIDEST_ERROR = 100  # upper limit of the axes of errors [%]
CHIPS = (
    "a100-40gb",
    "a100-80gb",
    "h100",
    "h200",
    "b200",
    "gb200",
    "gb300",
    "trn1",
    "inf2",
    "trn2",
    "trn3",
)
FEWEST = 3  # rows below which no 90th percentile is shown
HEAD = """# How accurate

This page shows how large the errors of predictions were, for each kind of answer and each chip.
All rows of the validation tables count, including those to which constants were fitted. Served
rows state what users of `serve` do: model, chips, degrees, precision, lengths, users, engine and
its month.
[Validation](background/validation.md) lists the tables, [large errors](background/large-errors.md)
says what causes them, and [confidence](background/confidence.md) how intervals follow from them.

![Errors by kind of answer and chip](figures/how_true.png)

## Errors

Median / 90th percentile of the absolute error, and in brackets the mean error, in per cent of the
published value.

"""
AS_USER = """
## Training steps, as a user gets them

The errors above are those of predictions from all that a published row states: its framework with
all settings, the release, the machine's oddities. Users of `train` state less.
These are means over the {tables} tables of training steps, each of equal weight, of errors and of
the 80 % intervals that such a question gets. The intervals come from all other tables.

"""
AS_USER_END = """
The last row states degrees, batch, sequence and precision. `cluster-sim validate --as-user` shows
each table, and `python -m tools.as_user` compares with the recorded errors.
"""
LEVELS = {"framework": "plan and framework", "plan": "plan", "bare": "degrees and batch"}
"""Levels of what was told, in words."""
NO_ROW = """
A dash means that the tables have no row of that kind for the chip. Its answers then rely on a
similar chip (H200 on H100, Trn3 on Trn2, GB200 on B200) or on the catalogue alone, and their
intervals are wider. Steps on Trn2 are near zero because constants were fitted to nearly all of
them: before, nine of the contest's steps were 26 % too fast. Their intervals say so.
"""
RESTS = """
## What an answer rests on

"""
COUNTS = """
Measured rows behind each cell above, and the number of tables that they come from:

"""
GRADES = """
Constants of kernels by grade:

"""
END = """
`cluster-sim train --explain` shows every number behind a step, with its source. With access to a
chip you can replace assumed numbers by measured ones: `cluster-sim measure-kit DIR --chip trn2`
writes scripts to run on it, and `cluster-sim calibrate DIR --overlay mine.csv` fits the catalogue
to their results.

This command writes this page and its picture:

```
python -m tools.record
```
"""


def lines(residuals: pd.DataFrame) -> pd.DataFrame:
    """Rows, tables, median, 90th percentile and mean of errors by kind of answer and chip."""
    rows = residuals[residuals.kind.ne(LEFT_OUT) & residuals.chip.isin(CHIPS)]
    error = np.expm1(-rows.log_residual)
    rows = rows.assign(kind=rows.kind.str.split(".").str[0], error=error, size=error.abs())
    return rows.groupby(["kind", "chip"]).agg(
        rows=("size", "count"),
        tables=("table", "nunique"),
        median=("size", "median"),
        p90=("size", lambda sizes: sizes.quantile(0.9) if len(sizes) >= FEWEST else np.nan),
        bias=("error", "mean"),
    )


def grades(catalogue: Catalogue) -> dict[str, Counter[str]]:
    """Number of kernel constants of each chip's family by grade."""
    grades_of = {}
    for chip in CHIPS:
        try:
            part = chip_family(chip).kernels
            others = tuple(f"_{other}" for other in CHIPS if other != chip)
            grades_of[chip] = Counter(
                entry.grade
                for entry in catalogue.rows
                if entry.part == part and not entry.variant and not entry.quantity.endswith(others)
            )
        except InputError:
            continue
    return grades_of


def page(lines: pd.DataFrame, graded: Mapping[str, Mapping[str, int]]) -> str:
    """Text of the page."""
    names = [name for name, _ in KINDS.values()]
    rests = [f"| {name} | {basis} |" for name, basis in KINDS.values()]
    kinds = ("measured", "derived", "stated", "assumed")
    of_chips = [
        [chip, *(str(count.get(kind, 0)) for kind in kinds)] for chip, count in graded.items()
    ]
    return "".join(
        (
            HEAD,
            _table(["chip", *names], _by_chip(lines, _errors)),
            NO_ROW,
            _as_user(),
            RESTS,
            "\n".join(["| answer | rests on |", "|---|---|", *rests, ""]),
            COUNTS,
            _table(["chip", *names], _by_chip(lines, _counts)),
            GRADES,
            _table(["chip", *kinds], of_chips),
            END,
        )
    )


def _as_user() -> str:
    """Return the section of errors as a user gets them, from their record."""
    rows = recorded()
    means = {row["stated"]: row for row in rows if row["table"] == MEAN}
    cells = [
        [words, *(f"{100 * float(means[level][key]):.1f}" for key in KEYS)]
        for level, words in LEVELS.items()
        if level in means
    ]
    columns = ["stated", "median", "p90", "bias, without sign", "inside 80 %", "half-width"]
    tables = len({row["table"] for row in rows} - {MEAN})
    return AS_USER.format(tables=tables) + _table(columns, cells) + AS_USER_END


def _by_chip(lines: pd.DataFrame, cell: Callable[[Any], str]) -> list[list[str]]:
    """Return one row for each chip, with a cell for each kind of answer."""
    cells: dict[Any, str] = {line.Index: cell(line) for line in lines.itertuples()}
    return [[chip, *(cells.get((kind, chip), "–") for kind in KINDS)] for chip in CHIPS]


def _errors(line: Any) -> str:
    p90 = "" if np.isnan(line.p90) else f" / {100 * line.p90:.1f}"
    return f"{100 * line.median:.1f}{p90} ({100 * line.bias:+.1f})"


def _counts(line: Any) -> str:
    return f"{line.rows:,} in {line.tables}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [columns, ["---"] * len(columns)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (*head, *rows))


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Median and 90th percentile of the error by kind of answer and chip."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    axes = figure.subplots(1, len(KINDS), sharey=True)
    of_cells: dict[Any, Any] = {line.Index: line for line in lines.itertuples()}
    heights = {chip: -at for at, chip in enumerate(CHIPS)}
    for axis, (kind, (name, _)) in zip(axes, KINDS.items(), strict=True):
        for chip, y in heights.items():
            line = of_cells.get((kind, chip))
            if line is None:
                axis.text(1, y, "no row", va="center", fontsize=7, color="0.5")
                continue
            far = line.median if np.isnan(line.p90) else line.p90
            axis.plot([100 * line.median, 100 * far], [y, y], color="0.6", lw=2)
            axis.plot(100 * line.median, y, "o", color="C0", ms=5)
        axis.set_title(name, fontsize=9)
        axis.set_xlim(0, WIDEST_ERROR)
        axis.set_xlabel("error [%]", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(list(heights.values()), list(heights))
    figure.suptitle("Median (dot) and 90th percentile (end of line) of the error", fontsize=9)
    figure.savefig(path, dpi=110)


def main(folder: Path) -> None:
    """Write ``how-true.md`` and its picture into the folder of the documentation."""
    residuals = pd.read_csv(str(files("workloads.confidence") / "residuals.csv"))
    rows = lines(residuals[residuals.stated.isna()])
    (folder / "how-true.md").write_text(page(rows, grades(shipped_catalogue())), encoding="utf-8")
    draw(rows, folder / "figures" / "how_true.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
