"""One training step of Llama-3.1-405B on 1,024 Trainium2 chips.

The bar divides the step into computation and into communication and waiting that nothing hides. The
interval should contain 80 % of measured steps. `make demo` runs this experiment.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from experiments.reports.run_directory import Run
    from workloads.training.iteration import Iteration


FIGURE = "step_time_breakdown"


STATED = {
    "framework": "neuronx", "recompute": "selective", "zero": 1, "vpp": 1, "microbatch": 1,
    "sequence_parallel": True,
}  # fmt: skip
"""Fields that the plan states besides the parameters, so that its interval is that of a whole plan.
"""


def run(
    model: str = "llama-3.1-405b",
    cluster: str = "trn2-ultraserver:16",
    tp: int = 32,
    pp: int = 2,
    global_batch: int = 256,
    seq: int = 8192,
    overlap: str = "all",
) -> pd.DataFrame:
    """Simulate the step and divide it into its parts.

    Returns ``part``, ``time_s`` and ``share``. The other columns are the same in every row: the
    step, the ends between which 80 % of measured steps should lie, MFU, throughput, memory, and the
    number of simulated ranks.
    """
    import pandas as pd

    from experiments.reports.training import folding, headline, shares

    # Keywords, as in save: to functools.cache a call by position is another call.
    step = simulate(
        model=model, cluster=cluster, tp=tp, pp=pp,
        global_batch=global_batch, seq=seq, overlap=overlap,
    )  # fmt: skip
    mfu = step.interval.scaled(step.mfu, rate=True)
    return pd.DataFrame(shares(step), columns=["part", "time_s", "share"]).assign(
        step=headline(step),
        low_s=step.interval.low,
        high_s=step.interval.high,
        mfu=step.mfu,
        mfu_low=mfu["low"],
        mfu_high=mfu["high"],
        tokens_per_s=step.tokens_per_s,
        memory_per_chip_bytes=step.memory.total,
        hbm_per_chip_bytes=step.memory.capacity,
        simulated=folding(step),
    )


@functools.cache
def simulate(
    *, model: str, cluster: str, tp: int, pp: int, global_batch: int, seq: int, overlap: str
) -> Iteration:
    """Simulate the step once, for its numbers and its figures; parameters as for :func:`run`."""
    from topologies.clusters.names import cluster as machine
    from workloads.models.huggingface import model as read_model
    from workloads.training.iteration import iteration
    from workloads.training.usual_plan import complete

    shape, fabric = read_model(model), machine(cluster)
    changes = {"tp": tp, "pp": pp, "global_batch": global_batch, "seq": seq, "overlap": overlap}
    return iteration(shape, fabric, complete({**STATED, **changes}, shape, fabric))


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the parts of the step as one bar."""
    from experiments.figures.training import NAMES, one_step
    from workloads.confidence.interval import Interval

    seconds = dict(zip(frame["part"], frame["time_s"], strict=True))
    parts = {part: seconds.get(name, 0.0) for part, name in NAMES.items()}
    ends = Interval(float(frame["low_s"][0]), float(frame["high_s"][0]))
    return one_step(frame["step"][0], parts, float(frame["mfu"][0]), ends)


def save(run: Run, frame: pd.DataFrame, **options: Any) -> None:
    """Add the trace, figures and tables of the step to a run directory."""
    from experiments.reports.training import write

    write(run, simulate(**options), "fast", alone=False)
