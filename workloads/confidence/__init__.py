"""Confidence: intervals around predictions, from the residuals of published measurements."""

from workloads.confidence.features import (
    collective_features,
    serving_features,
    training_features,
)
from workloads.confidence.interval import LEVEL, Interval
from workloads.confidence.kinds import Prediction
from workloads.confidence.ratio import margin, ratio_half_width
from workloads.confidence.residuals import Residual, Residuals, shipped_residuals
from workloads.confidence.split_conformal import half_width, interval

__all__ = [
    "LEVEL",
    "Interval",
    "Prediction",
    "Residual",
    "Residuals",
    "collective_features",
    "half_width",
    "interval",
    "margin",
    "ratio_half_width",
    "serving_features",
    "shipped_residuals",
    "training_features",
]
