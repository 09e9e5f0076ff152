"""Progress of a command, as :mod:`cluster_sim.progress` shows it."""

from cluster_sim.progress import progress, telling

__all__ = ["progress", "telling"]
