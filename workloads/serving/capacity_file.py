"""Capacity tables as kept files, so that a table is computed once and read from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from topologies.files import kept_files
from workloads.serving.capacity import Capacity, Slo

RATES = ("rate_slo_per_s", "rate_max_per_s")
ARRAYS = (
    "utilisation",
    "quantiles",
    "ttft_s",
    "tpot_s",
    "attainment",
    "prompt_tokens",
    "output_tokens",
    "cost",
)
MOST_KEPT = 1000
"""Largest number of tables in a folder, of about seven kilobytes each; the oldest are deleted."""


def load_table(digest: str, slo: Slo, folder: Path | None = None) -> Capacity | None:
    """Read the table of a digest, exactly as it was kept; None if there is none.

    ``digest``: digest of everything that the table depends on. ``slo``: limits that the table was
    computed for. ``folder``: folder of the table; by default the one of all kept files.
    """

    def table(values: Any) -> Capacity:
        arrays = {name: np.array(values[name], float) for name in ARRAYS}
        rates = {name: float(values[name]) for name in RATES}
        return Capacity(slo=slo, **rates, **arrays)  # type: ignore[arg-type]

    return kept_files.read_json(_name(digest), table, _within(folder))


def keep_table(digest: str, table: Capacity, folder: Path | None = None) -> None:
    """Keep a table under its digest, in the folder that :func:`load_table` reads."""
    values = {name: getattr(table, name).tolist() for name in ARRAYS}
    values |= {name: float(getattr(table, name)) for name in RATES}
    content = json.dumps(values).encode()
    kept_files.keep(_name(digest), content, _name("*"), most=MOST_KEPT, within=_within(folder))


def _name(digest: str) -> str:
    return f"capacity-{digest}.json"


def _within(folder: Path | None) -> tuple[Path, ...]:
    return () if folder is None else (folder,)
