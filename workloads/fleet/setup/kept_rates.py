"""Files of training rates, so that ``lend`` and ``fleet`` search for a training plan only once.

The search takes half of the time of ``lend``. A rate follows from the model, the cluster with its
catalogue, and the code and data of the simulator; a digest of all of these is part of the name of
the file, so a change of any of them leads to a new search.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.files import kept_files
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan

PACKAGES = ("cluster_sim", "topologies", "workloads")
READ = (".py", ".csv", ".json", ".yaml", ".toml")
"""Suffixes of the files that results depend on."""
CACHE = "__pycache__"
"""Folder whose files follow from the others."""
MOST_KEPT = 1000
"""Files that are kept, of about 700 bytes each; the oldest are removed first."""


@dataclass(frozen=True)
class TrainingRate:
    """Throughput of a training job.

    Attributes
    ----------
    units : int
        Scale-up domains of the simulated job.
    tokens_per_s : float
        Throughput on these units [1/s]. On other numbers of units it is taken in proportion,
        because the batch grows with the job.
    plan : ParallelPlan, optional
        None where no plan fits, and the throughput is that of the roofline.
    """

    units: int
    tokens_per_s: float
    plan: ParallelPlan | None = None


def load_rate(name: str) -> TrainingRate | None:
    """Read the rate of this name, exactly as it was; None where there is none."""
    return kept_files.read_json(name, _rate)


def _rate(document: dict[str, Any]) -> TrainingRate:
    plan = document.pop("plan")
    return TrainingRate(**document, plan=None if plan is None else _plan(plan))


def _plan(document: dict[str, Any]) -> ParallelPlan:
    """Return a plan from the JSON of its fields, in which tuples are lists."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    return ParallelPlan(**values)


def keep_rate(name: str, rate: TrainingRate) -> None:
    """Keep a rate under its name."""
    content = json.dumps(asdict(rate)).encode()
    kept_files.keep(name, content, "training-rate-*.json", most=MOST_KEPT)


def rate_name(model: Model, cluster: Cluster, precision: str) -> str:
    """Return the name of the file of a rate, with a digest of its inputs and of all code."""
    inputs = (model, cluster, cluster.catalogue or shipped_catalogue(), precision, np.__version__)
    return f"training-rate-{kept_files.digest(kept_files.exact_text(inputs), _program())}.json"


@cache
def _program() -> str:
    return kept_files.digest(*(path.read_bytes() for path in _sources()))


def _sources() -> Iterator[Path]:
    root = Path(__file__).parents[3]
    for package in PACKAGES:
        paths = sorted((root / package).rglob("*.*"))
        yield from (path for path in paths if path.suffix in READ and CACHE not in path.parts)
