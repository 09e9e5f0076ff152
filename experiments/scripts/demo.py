"""The main job: one training step of Llama-3.1-405B on 1,024 Trainium2 chips."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.reports.run_directory import Run
    from workloads.training.iteration import Iteration


FIGURE = "step_time_breakdown"
"""Name of the picture, as in a run directory of ``cluster-sim train``."""


def run(
    model: str = "llama-3.1-405b",
    cluster: str = "trn2-ultraserver:16",
    tp: int = 32,
    pp: int = 2,
    global_batch: int = 256,
    seq: int = 8192,
    overlap: str = "all",
) -> pd.DataFrame:
    """Simulate the step and tell its parts.

    Parameters
    ----------
    model : str
        A name, or the path of a ``config.json``.
    cluster : str
    tp, pp, global_batch, seq : int
    overlap : str

    Returns
    -------
    DataFrame
        ``part``, ``time_s`` and ``share``; the rest, the same in every row, says what was run, what
        it reaches and how many ranks stand for all.
    """
    from experiments.reports.training import breakdown_frame, folding, headline

    step = simulate(model, cluster, tp, pp, global_batch, seq, overlap)
    return breakdown_frame(step).assign(
        step=headline(step),
        mfu=step.mfu,
        tokens_per_s=step.tokens_per_s,
        memory_per_chip_bytes=step.memory.total,
        hbm_per_chip_bytes=step.memory.capacity,
        simulated=folding(step),
    )


@functools.cache
def simulate(
    model: str, cluster: str, tp: int, pp: int, global_batch: int, seq: int, overlap: str
) -> Iteration:
    """Return the step itself, run once for its numbers and its pictures; parameters as for run."""
    from topologies.clusters.names import cluster as machine
    from workloads.models.huggingface import model as read_model
    from workloads.training.iteration import iteration
    from workloads.training.plan.plan_file import complete

    shape, fabric = read_model(model), machine(cluster)
    asked = {"tp": tp, "pp": pp, "global_batch": global_batch, "seq": seq, "overlap": overlap}
    return iteration(shape, fabric, complete(asked, shape, fabric))


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the breakdown as one bar."""
    from experiments.figures.training import NAMES, one_step

    seconds = dict(zip(frame["part"], frame["time_s"], strict=True))
    parts = {part: seconds.get(name, 0.0) for part, name in NAMES.items()}
    return one_step(frame["step"].iloc[0], parts, float(frame["mfu"].iloc[0]))


def save(run: Run, frame: pd.DataFrame, **options: Any) -> None:
    """Add trace, figures and tables of the same step to the run directory."""
    from experiments.reports.training import write

    write(run, simulate(**options), "fast", alone=False)
