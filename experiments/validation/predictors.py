"""Which function predicts which kind of row."""

from __future__ import annotations

from experiments.validation.columns import Kind
from experiments.validation.compare import Predict


def predictor(kind: Kind) -> Predict:
    """Return the predictor of a kind of rows; its imports wait until it is asked for."""
    if kind.name == "kernel":
        from experiments.validation import kernels

        return kernels.predict
    if kind.name == "collective":
        from experiments.validation import collectives

        return collectives.predict
    if kind.name == "serving":
        from experiments.validation import serving

        return serving.predict
    from experiments.validation import training

    return training.predict
