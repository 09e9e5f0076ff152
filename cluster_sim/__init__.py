"""The front door of the simulator: functions, classes, and the modules ``metrics`` and ``plot``.

>>> import cluster_sim as cs
>>> cs.cluster("trn2-ultraserver:16").chips
1024

A name is loaded with its first use, so that ``import cluster_sim`` costs nothing. This is the one
place where a lower package hands on names of higher ones; ``setup.cfg`` says so as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cluster_sim.shadowing import check_not_shadowed

if TYPE_CHECKING:
    from cluster_sim import plot
    from cluster_sim.analysis import metrics
    from cluster_sim.collectives.builder import collective
    from cluster_sim.collectives.group import Group
    from cluster_sim.schedule.table import Schedule
    from cluster_sim.trace.trace import Trace
    from cluster_sim.trace.trace import run as simulate
    from experiments.reports.differences import compare
    from experiments.validation.validate import validate
    from topologies.clusters.names import cluster
    from topologies.support.errors import InputError
    from workloads.fleet.front import run_fleet
    from workloads.fleet.lending.front import lend
    from workloads.front import collective_time, train
    from workloads.job.front import run_job
    from workloads.models.huggingface import model
    from workloads.search.search import search_plans
    from workloads.search.sizes import search_sizes
    from workloads.serving.front import serve
    from workloads.sharing.queueing import queue_jobs
    from workloads.sharing.sharing import share
    from workloads.traces.replay import replay
    from workloads.training.plan.plan import ParallelPlan as Plan

__version__ = "0.3.0"

__all__ = [
    "Group",
    "InputError",
    "Plan",
    "Schedule",
    "Trace",
    "cluster",
    "collective",
    "collective_time",
    "compare",
    "lend",
    "metrics",
    "model",
    "plot",
    "queue_jobs",
    "replay",
    "run_fleet",
    "run_job",
    "search_plans",
    "search_sizes",
    "serve",
    "share",
    "simulate",
    "train",
    "validate",
]

_PLACES = {
    "Group": "cluster_sim.collectives.group:Group",
    "InputError": "topologies.support.errors:InputError",
    "Plan": "workloads.training.plan.plan:ParallelPlan",
    "Schedule": "cluster_sim.schedule.table:Schedule",
    "Trace": "cluster_sim.trace.trace:Trace",
    "cluster": "topologies.clusters.names:cluster",
    "collective": "cluster_sim.collectives.builder:collective",
    "collective_time": "workloads.front:collective_time",
    "compare": "experiments.reports.differences:compare",
    "lend": "workloads.fleet.lending.front:lend",
    "metrics": "cluster_sim.analysis.metrics:",
    "model": "workloads.models.huggingface:model",
    "plot": "cluster_sim.plot:",
    "queue_jobs": "workloads.sharing.queueing:queue_jobs",
    "replay": "workloads.traces.replay:replay",
    "run_fleet": "workloads.fleet.front:run_fleet",
    "run_job": "workloads.job.front:run_job",
    "search_plans": "workloads.search.search:search_plans",
    "search_sizes": "workloads.search.sizes:search_sizes",
    "serve": "workloads.serving.front:serve",
    "share": "workloads.sharing.sharing:share",
    "simulate": "cluster_sim.trace.trace:run",
    "train": "workloads.front:train",
    "validate": "experiments.validation.validate:validate",
}
"""Where each public name is defined, as ``module:attribute``; a module has no attribute."""


# Before anything is loaded: a foreign package called "workloads" would fail far from the cause.
check_not_shadowed(__file__)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'cluster_sim' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value  # Python comes here only for names that the module does not have yet
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
