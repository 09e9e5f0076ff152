"""The slowdown of a step by uneven chips, at each scale.

All ranks wait for the slowest. An even step is compared with one in which every kernel varies at
random, and with one in which a single rank is slow.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines
from experiments.scripts.support import Replica, Steps, each
from workloads.models.huggingface import as_model
from workloads.training.execution.jitter import disturbance

REPLICA = Replica(seq=4096)


def run(
    model: str = "llama-3.1-70b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (1, 4, 16, 64),
    jitter: float = 0.02,
    straggler: float = 1.2,
    replica: Replica = REPLICA,
    seed: int = 0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate an even step, one with jitter on every chip, and one with a single slow rank.

    ``domains``: numbers of scale-up domains. ``jitter``: standard deviation of kernel times,
    relative to their mean. ``straggler``: time of the slow rank, relative to that of the others.
    ``seed``: seed of the random kernel times.

    Returns one row for each size and case: ``chips``, ``case``, ``iteration_s``, ``slowdown``
    (relative to the even step), and ``<part>_s`` [s].
    """
    shape = as_model(model)
    cases = {
        "even": None,
        f"jitter of {jitter:.0%} on every chip": disturbance(jitter, seed, ()),
        f"one rank {straggler:g} times as slow": disturbance(0.0, seed, (f"0:{straggler}",)),
    }

    def rows(count: int) -> list[dict[str, Any]]:
        """Rows of one number of machines."""
        steps = Steps(shape, f"{machine}:{count}" if count > 1 else machine)
        plan = steps.repeated(replica)
        return [
            {**steps.row(plan, disturbed=uneven), "case": case} for case, uneven in cases.items()
        ]

    frame = pd.DataFrame(row for size in each(rows, domains, watch, task="sizes") for row in size)
    even = frame[frame.case == "even"].set_index("chips").iteration_s
    return frame.assign(slowdown=frame.iteration_s / frame.chips.map(even) - 1)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the relative increase of the step time over the number of chips."""
    uneven = frame[frame.case != "even"]
    last = uneven[uneven.chips == uneven.chips.max()]
    slowdowns = "; ".join(f"{row.case}: {row.slowdown:+.1%}" for row in last.itertuples())
    first = frame.iloc[0]
    title = (
        f"On {last.chips.iloc[0]:,} chips a step takes longer by: {slowdowns}\n"
        f"{first.model} on {first.cluster.partition(':')[0]}, tp {first.tp}"
    )
    percent = uneven.assign(percent=100 * uneven.slowdown)
    labels = ("chips", "longer than the even step [%]")
    return lines(percent, "chips", "percent", "case", title, labels=labels)
