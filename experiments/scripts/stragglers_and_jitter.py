"""The slowdown of a step by uneven chips, at each scale.

All ranks wait for the slowest. A step on equal chips is compared with steps on chips that causes
make uneven, and with one in which a single rank is slow.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines
from experiments.scripts.support import Replica, Steps, each
from workloads.models.huggingface import as_model
from workloads.training.execution.jitter import CAUSES, TYPICAL

REPLICA = Replica(tp=32, pp=2, microbatches=8)
STEPS = 100  # drawn steps


def run(
    model: str = "llama-3.1-405b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (16, 64, 256, 1024, 4096, 15_624),
    cases: tuple[str, ...] = ("typical", *CAUSES, "0:1.1"),
    overlap: str = "all",
    replica: Replica = REPLICA,
    seed: int = 0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step on equal chips, steps on uneven ones, and one with a single slow rank.

    ``domains``: numbers of scale-up domains. ``cases``: causes or numbers as of ``train --jitter``,
    of which a number simulates every rank, and slow ranks as of ``--straggler``. ``seed``: seed of
    the draws of a hundred steps, of which the median is simulated.

    Returns one row for each size and case: ``chips``, ``case``, ``iteration_s``, ``slowdown``
    (relative to equal chips), ``p90_s`` and ``p99_s`` of the drawn steps, and ``<part>_s`` [s].
    """
    shape = as_model(model)

    def rows(count: int) -> list[dict[str, Any]]:
        """Rows of one number of machines."""
        of_size = Steps(shape, f"{machine}:{count}" if count > 1 else machine)
        plan = of_size.repeated(replica, overlap=overlap)
        rows_of_size = [{**of_size.row(plan), "case": "equal"}]
        for case in cases:
            rank, _, factor = case.partition(":")
            if factor:
                row = of_size.row(plan, stragglers=(case,))
                rows_of_size.append({**row, "case": f"rank {rank} takes {factor} times as long"})
            else:
                row = of_size.row(plan, jitter=case, seed=seed, steps=STEPS)
                rows_of_size.append({**row, "case": case})
        return rows_of_size

    frame = pd.DataFrame(row for size in each(rows, domains, watch, task="sizes") for row in size)
    even = frame[frame.case == "equal"].set_index("chips").iteration_s
    return frame.assign(slowdown=frame.iteration_s / frame.chips.map(even) - 1)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the relative increase of the step time over the number of chips."""
    uneven = frame[frame.case != "equal"]
    ends = uneven[uneven.case == uneven.case.iloc[0]].sort_values("chips")
    first, last = ends.iloc[0], ends.iloc[-1]
    title = (
        f"Causes of uneven chips ({last.case}) make a step {first.slowdown:.1%} longer on "
        f"{first.chips:,} chips and {last.slowdown:.1%} on {last.chips:,}\n"
        f"{first.model} on {first.cluster.partition(':')[0]}, tp {first.tp}, pp {first.pp}, "
        f"overlap {first.overlap}"
    )
    cases = uneven.case.replace("typical", f"typical: {', '.join(TYPICAL)}")
    percent = uneven.assign(percent=100 * uneven.slowdown, case=cases)
    labels = ("chips", "longer than on equal chips [%]")
    return lines(percent, "chips", "percent", "case", title, labels=labels)
