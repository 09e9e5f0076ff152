"""Colours of categories, the same in every figure, told apart by colour-blind readers too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

KNOWN: Mapping[str, str] = {
    "compute": "#4477aa",
    "optimizer": "#222255",
    "exposed_tp": "#ee6677",
    "exposed_cp": "#ee9966",
    "exposed_ep": "#aa3377",
    "exposed_pp": "#228833",
    "exposed_dp": "#ccbb44",
    "bubble": "#cccccc",
    "straggler": "#999999",
    "other": "#e8e8e8",
    "idle": "#f4f4f4",
}
"""Categories of a training iteration; ``tp`` is coloured as ``exposed_tp``, and so on."""

OTHERS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#994455", "#997700", "#004488", "#44bb99", "#ee8866", "#77aadd",
)  # fmt: skip
"""After Paul Tol's qualitative schemes (SRON/EPS/TN/09-002), for all other names in order."""


def colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name.

    Examples
    --------
    >>> colors(["compute", "tp", "gather"])["tp"]
    '#ee6677'
    """
    chosen: dict[str, str] = {}
    for position, name in enumerate(names):
        known = KNOWN.get(name) or KNOWN.get(f"exposed_{name}")
        unused = (color for color in OTHERS if color not in chosen.values())
        chosen[name] = known or next(unused, OTHERS[position % len(OTHERS)])
    return chosen
