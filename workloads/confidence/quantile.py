"""The weighted quantile of scores."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray


def weighted_quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """Smallest value at or below which a share ``level`` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    position = int(np.searchsorted(reached, level * reached[-1] * (1 - 1e-12)))
    return float(values[order][min(position, len(values) - 1)])
