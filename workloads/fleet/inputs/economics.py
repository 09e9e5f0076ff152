"""Power and price of a chip in the fleet: those of :mod:`workloads.economics`."""

from workloads.economics import Economics

__all__ = ["Economics"]
