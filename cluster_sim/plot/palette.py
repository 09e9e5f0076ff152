"""Colours of categories, the same in every figure, which colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle

KNOWN: Mapping[str, str] = {
    "compute": "#4477aa",
    "optimizer": "#222255",
    "scheduling": "#99bbdd",
    "exposed_tp": "#ee6677",
    "exposed_cp": "#ee9966",
    "exposed_ep": "#aa3377",
    "exposed_pp": "#228833",
    "exposed_dp": "#ccbb44",
    "bubble": "#cccccc",
    "straggler": "#999999",
    "host": "#c9b8a8",
    "other": "#e8e8e8",
    "idle": "#f4f4f4",
    "serving": "#2b6cb0",
    "batch": "#805ad5",
    "warming": "#63b3ed",
    "draining": "#bee3f8",
    "loading": "#ecc94b",
    "compiling": "#b7791f",
    "checkpointing": "#9ae6b4",
    "training": "#2f855a",
    "evaluation": "#68d391",
    "paused": "#cbd5e0",
    "spare": "#e2e8f0",
    "broken": "#c53030",
    "maintenance": "#744210",
}
"""Colours of the categories of a training iteration, where ``tp`` has that of ``exposed_tp``, etc.,
and of the roles of a fleet's units."""

OTHERS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#994455", "#997700", "#004488", "#44bb99", "#ee8866", "#77aadd",
)  # fmt: skip
"""Colours of all other names, in this order, after Paul Tol's qualitative schemes
(SRON/EPS/TN/09-002)."""

MARKS = "os^vDPX*"  # marks of the points of a line, by which lines differ in print without colours


def marks(names: Iterable[str]) -> dict[str, str]:
    """Choose a mark for the points of each name's line.

    >>> marks(["ring", "torus"])
    {'ring': 'o', 'torus': 's'}
    """
    return dict(zip(names, cycle(MARKS), strict=False))


def colors(names: Iterable[str]) -> dict[str, str]:
    """Choose a colour for each name.

    >>> colors(["compute", "tp", "gather"])["tp"]
    '#ee6677'
    """
    chosen: dict[str, str] = {}
    for position, name in enumerate(names):
        usual = KNOWN.get(name) or KNOWN.get(f"exposed_{name}")
        unused = (color for color in OTHERS if color not in chosen.values())
        chosen[name] = usual or next(unused, OTHERS[position % len(OTHERS)])
    return chosen


def ink(color: str) -> str:
    """Return black or white, which is easier to read on a colour ``#rrggbb`` (WCAG 2 luminance).

    >>> ink("#222255"), ink("#ee6677")
    ('white', 'black')
    """
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    luminance = sum(
        weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"
