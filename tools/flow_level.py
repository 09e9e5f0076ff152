"""Cost of sharing links inside a step that ``--level flow`` finds, beside all messages written out.

``python -m tools.flow_level`` draws plans of a small model below oversubscribed switches and prints
each step at three levels: the figures of 32 plans in docs/background/training.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cluster_sim.progress import progress
from tools.shared_jobs import THIN, TOY
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from workloads.front import train

PLANS = 16  # drawn among all degrees, and again with ZeRO 2 and a tp over two domains or four
LEVELS = ("collective", "flow", "chunk")


def drawn(degrees: list[int], zeros: list[int], seed: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield oversubscriptions and plans of 32 chips."""
    rng = np.random.default_rng(seed)
    for _ in range(PLANS):
        over, tp, pp = (int(rng.choice(of)) for of in ([2, 4], degrees, [1, 2]))
        dp = 32 // tp // pp
        batch = dp * pp * int(rng.choice([1, 2, 4]))
        zero = int(rng.choice(zeros))
        yield over, {"tp": tp, "pp": pp, "dp": dp, "zero": zero, "global_batch": batch}


def thin(over: int) -> Cluster:
    """Return eight servers of four chips under switches with a part of the rate of adapters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "thin.yaml"
        path.write_text(THIN.replace("oversubscription: 4", f"oversubscription: {over}"))
        return cluster(str(path))


def main() -> None:
    """Print the steps, the cost of sharing, and the part of it that is found."""
    plans = [*drawn([1, 2, 4, 8], [0, 1], 0), *drawn([8, 16], [2], 1)]
    for over, plan in progress(plans, "plans", quiet=False):
        steps = [train(TOY, thin(over), level=at, seq=1024, **plan).iteration_s for at in LEVELS]
        alone, found, true = steps
        cost = true / alone - 1
        part = f"{(found - alone) / (true - alone):.0%} found" if abs(cost) >= 0.005 else ""
        sys.stdout.write(f"{over}:1 {plan}: {cost:.1%} {part}, step {found / true - 1:+.1%}\n")


if __name__ == "__main__":
    main()
