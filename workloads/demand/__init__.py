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
from workloads.demand.what_if import Horizon, measured_noise, with_noise

__all__ = [
    "BUNDLED", "Demand", "Horizon", "azure_code", "azure_conv", "azure_mix", "burstgpt",
    "constant", "deepseek_day", "deepseek_nodes", "demand", "demand_from",
    "measured_noise", "mix", "period_means", "read_demand",
    "servegen", "whole_requests", "with_noise",
]  # fmt: skip
