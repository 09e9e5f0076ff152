"""Training jobs of weeks: failures, checkpoints, spares, and the useful share of their time."""

from workloads.job.causes import Cause, FailureRates, failure_rates, read_failures
from workloads.job.front import run_job
from workloads.job.goodput import daly_interval_s, expected_goodput
from workloads.job.job import PARTS, Job, Outcome, Recovery, Stragglers
from workloads.job.result import JobResult
from workloads.job.simulate import simulate

__all__ = [
    "PARTS", "Cause", "FailureRates", "Job", "JobResult", "Outcome", "Recovery",
    "Stragglers", "daly_interval_s", "expected_goodput", "failure_rates", "read_failures",
    "run_job", "simulate",
]  # fmt: skip
