"""Predictions of rows of long jobs: mean time between failures, and the share of useful time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.validation.reading.rows import Outcome, machines_for
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.job.causes import FailureRates, failure_rates
from workloads.job.checkpoints import PeerCopies
from workloads.job.goodput import daly_interval_s
from workloads.job.job import Job, Recovery
from workloads.job.simulate import simulate

DAY_S = 86400.0
FAILURES = 400
"""Failures in the simulated run: enough that its goodput varies by a few thousandths only."""
SPARES = 1000  # enough for any repair: rows do not state their spares
TIMES = ("checkpoint_interval_s", "checkpoint_stall_s", "restart_s", "detection_s")


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Mean time between failures [s] and goodput of one row, at Daly's interval unless stated."""
    catalogue = catalogue or shipped_catalogue()
    cluster = machines_for(values["cluster"], values["chips"], catalogue)
    rates = failure_rates(cluster, values["chips"], catalogue)
    yearly = values["server_failures_per_1000_days"]
    if yearly:
        servers = values["chips"] / cluster.chips_per_server
        rates = rates.scaled(yearly / 1000 / DAY_S * servers / rates.per_s)
    predicted = {"mtbf_s": rates.mtbf_s}
    if values["goodput"]:
        job = _job(values, rates, cluster, catalogue)
        predicted["goodput"] = simulate(job, np.random.default_rng(0)).goodput
    grades = {"failure_rates": "stated" if yearly else "derived: Llama 3's on H100"}
    empty = [name for name in TIMES if values[name] is None]
    if values["goodput"] and empty:
        grades["columns"] = f"assumed: {', '.join(empty)}"
    return Outcome(predicted, provenance=grades)


def _job(
    values: Mapping[str, Any], rates: FailureRates, cluster: Cluster, catalogue: Catalogue
) -> Job:
    """Return the job of a row; the state is taken to cost nothing to copy, write or read."""
    recovery = Recovery.from_catalogue(catalogue, read_s=0.0)
    if values["restart_s"]:
        recovery = replace(recovery, restart_s=values["restart_s"])
    if values["detection_s"]:
        recovery = replace(recovery, explicit_s=values["detection_s"], hang_share=0.0)
    start_s = recovery.restart_s
    if values["warm_spares"]:
        saved_s = max(0.0, start_s - catalogue.value("job.restart", "warm"))
        recovery = replace(recovery, warm_saves_s=saved_s)
    stall_s = values["checkpoint_stall_s"] or catalogue.value("fleet.training", "checkpoint_stall")
    usual_s = daly_interval_s(rates.mtbf_s, stall_s)
    peers = None
    if values["peer_copy_interval_s"]:
        peers = PeerCopies(values["peer_copy_interval_s"], 0.0, start_s, 0.0)
        stall_s, usual_s = 0.0, catalogue.value("fleet.training", "checkpoint_interval")
    return Job(
        rates=rates,
        recovery=recovery,
        interval_s=values["checkpoint_interval_s"] or usual_s,
        stall_s=stall_s,
        write_s=0.0,
        units=cluster.servers,
        spares=SPARES,
        span_s=FAILURES * rates.mtbf_s,
        peers=peers,
    )
