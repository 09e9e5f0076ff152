"""Serving: one replica at token level, and what a unit of the fleet can serve."""

from workloads.serving.capacity import Capacity, Slo, fixed_rate
from workloads.serving.metrics import attained, parse_share, parse_slo, serving_summary
from workloads.serving.predict import Steady, steady
from workloads.serving.profile import Profile, profile
from workloads.serving.replica import BUCKETS, Batching, Served, closed_loop, serve
from workloads.serving.requests import (
    Lengths,
    Requests,
    azure_lengths,
    drawn_rate,
    fixed_lengths,
    poisson,
    read_requests,
)
from workloads.serving.table import capacity_table, saturated_rate

__all__ = [
    "BUCKETS",
    "Batching",
    "Capacity",
    "Lengths",
    "Profile",
    "Requests",
    "Served",
    "Slo",
    "Steady",
    "attained",
    "azure_lengths",
    "capacity_table",
    "closed_loop",
    "drawn_rate",
    "fixed_lengths",
    "fixed_rate",
    "parse_share",
    "parse_slo",
    "poisson",
    "profile",
    "read_requests",
    "saturated_rate",
    "serve",
    "serving_summary",
    "steady",
]
