"""The rank vector: a program evaluated for all ranks at once, as arrays of clocks."""

from workloads.training.rank_vector.evaluate import Progress, RankVector, evaluate

__all__ = ["Progress", "RankVector", "evaluate"]
