"""Demand for inference: bundled traces, files of users, what-ifs, noise."""

from workloads.demand.bundled import (
    BUNDLED,
    azure_code,
    azure_conv,
    azure_mix,
    burstgpt,
    deepseek_day,
    deepseek_nodes,
    demand,
    demand_from,
    servegen,
)
from workloads.demand.read import read_demand
from workloads.demand.trace import Demand, constant, mix, period_means, whole_requests
from workloads.demand.what_if import (
    Horizon,
    busiest_hour,
    horizons,
    measured_noise,
    spike,
    with_noise,
)

__all__ = [
    "BUNDLED", "Demand", "Horizon", "azure_code", "azure_conv", "azure_mix", "burstgpt",
    "busiest_hour", "constant", "deepseek_day", "deepseek_nodes", "demand", "demand_from",
    "horizons", "measured_noise", "mix", "period_means", "read_demand",
    "servegen", "spike", "whole_requests", "with_noise",
]  # fmt: skip
