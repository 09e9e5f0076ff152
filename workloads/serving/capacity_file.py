"""Capacity tables as kept files, so that a table that was measured once is read from then on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from topologies import kept_files
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
"""Tables that are kept in a folder, of about seven kilobytes each; the oldest go first."""


def load_table(digest: str, slo: Slo, folder: Path | None = None) -> Capacity | None:
    """Read the table of this digest, exactly as it was; None where there is none.

    Parameters
    ----------
    digest : str
        Digest of everything that the table follows from.
    slo : Slo
        Limits that it was measured against.
    folder : Path, optional
        Folder of the table; by default the one of all kept files.
    """
    content = kept_files.read(_name(digest), _within(folder))
    if content is None:
        return None
    values = json.loads(content)
    arrays = {name: np.array(values[name], float) for name in ARRAYS}
    rates = {name: float(values[name]) for name in RATES}
    return Capacity(slo=slo, **rates, **arrays)  # type: ignore[arg-type]


def keep_table(digest: str, table: Capacity, folder: Path | None = None) -> None:
    """Keep a table under its digest; parameters as for :func:`load_table`."""
    values = {name: getattr(table, name).tolist() for name in ARRAYS}
    values |= {name: float(getattr(table, name)) for name in RATES}
    content = json.dumps(values).encode()
    kept_files.keep(_name(digest), content, _name("*"), most=MOST_KEPT, within=_within(folder))


def _name(digest: str) -> str:
    return f"capacity-{digest}.json"


def _within(folder: Path | None) -> tuple[Path, ...]:
    return () if folder is None else (folder,)
