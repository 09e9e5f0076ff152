"""Serving: one replica at token level, and what a unit of the fleet can serve."""

from workloads.serving.batching import BUCKETS, Batching, batching_from
from workloads.serving.deployment import Deployment, Pools, parse_pools, pools, serve_apart
from workloads.serving.deployment_search import FILLS, ServingOptions, at_highest_rate
from workloads.serving.profile import Profile, profile
from workloads.serving.replica import serve
from workloads.serving.requests import (
    Lengths,
    Requests,
    azure_lengths,
    fixed_lengths,
    poisson,
    read_requests,
    requests_from,
    with_prefix_cache,
)
from workloads.serving.served import Served, Slo, SloMissed, attained, parse_slo, serving_summary
from workloads.serving.speculation import Speculation, parse_speculation
from workloads.serving.tables import (
    TableRuns,
    capacity_table,
    fixed_rate,
    rank_ways,
    saturated_rate,
)

__all__ = [
    "BUCKETS", "FILLS", "Batching", "Deployment",
    "Lengths", "Pools", "Profile", "Requests", "Served", "ServingOptions", "Slo",
    "SloMissed", "Speculation", "TableRuns", "at_highest_rate", "attained",
    "azure_lengths", "batching_from", "capacity_table",
    "fixed_lengths", "fixed_rate", "parse_pools", "parse_slo", "parse_speculation",
    "poisson", "pools", "profile", "rank_ways", "read_requests", "requests_from", "saturated_rate",
    "serve", "serve_apart", "serving_summary", "with_prefix_cache",
]  # fmt: skip
