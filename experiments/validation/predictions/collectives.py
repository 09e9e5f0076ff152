"""Predictions of collective rows: one operation on the first chips of enough machines."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.algorithms.ring import RING
from cluster_sim.collectives.call import RING_KINDS
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.expert_library import (
    LIBRARIES,
    MERGING,
    WAYS,
    known,
    library_s,
    visited,
)
from cluster_sim.collectives.duration.nccl import covers, nccl_ps
from cluster_sim.collectives.group_parsing import parse_chips
from experiments.validation.reading.rows import Outcome, machines_for, servers_reach, unsupported
from experiments.validation.reading.tool_outputs import operation
from topologies.catalogue.catalogue import NCCL, Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from topologies.support.units import PS_PER_S
from workloads.confidence.answers import (
    FIRST_NCCOM,
    ONE_PROCESS,
    PYTORCH_NEURON,
    collective_shown,
    hull,
)
from workloads.kernels.times import elementwise, seen_by_host

TOOLS = {FIRST_NCCOM: "the first nccom-test", ONE_PROCESS: "one process for all GPUs"}
"""Names of tools other than PyTorch whose own time a row contains."""
EXPERTS_PER_TOKEN = 8  # experts of a token where a row states none; those of DeepSeek-V3


def time_s(
    op: str,
    whole: Cluster,
    chips: int,
    ranks: int,
    size_bytes: int,
    algorithm: str = "auto",
    place: str = "",
) -> float:
    """Time of a collective on a cluster's first or listed chips [s]; NVIDIA's ring is NCCL's."""
    if ranks % chips:
        raise InputError(f"ranks {ranks} are not a multiple of chips {chips}. Correct one.")
    if ranks > chips and covers(whole):
        raise InputError(
            f"ranks {ranks} on {chips} chips of {whole.chip}: NCCL runs one on each. Correct one."
        )
    chosen = parse_chips(place, whole, "column group") if place else np.arange(chips)
    if len(chosen) != chips:
        raise InputError(f"group {place[:40]!r} has {len(chosen)} chips, not {chips}. Correct one.")
    call = CollectiveCall(op, Group(whole, chosen, ranks // chips), size_bytes)
    if algorithm == RING.name and op in RING_KINDS and covers(whole):
        return nccl_ps(call, rings=True) / PS_PER_S
    return duration_ps(call, algorithm) / PS_PER_S


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time of the collective of one row as its tool shows it [s], under ``time_s``."""
    through, catalogue = str(values.get("tool") or ""), catalogue or shipped_catalogue()
    library = values.get("library") or through
    if library in LIBRARIES:
        return _of_library(library, values, catalogue)
    if through == "nvshmem":
        return unsupported(
            "measured with NVSHMEM, whose puts are not modelled: its times do not depend on the "
            "ranks. Compare NCCL or nccom-test rows."
        )
    place = values.get("group") or ""
    whole = machines_for(values["cluster"], servers_reach(values["chips"], place), catalogue)
    ranks = values["ranks"] or values["chips"]
    op, algorithm = operation(values["collective"]), (values["algorithm"] or "auto").lower()
    runtime = values.get("runtime") or "compiled"
    run = "all-reduce" if (runtime, op) == (PYTORCH, "broadcast") else op
    seconds = time_s(run, whole, values["chips"], ranks, values["size_bytes"], algorithm, place)
    grades = _provenance(whole, algorithm)
    if runtime == PYTORCH:
        seconds += beside_s(op, values["size_bytes"], values["chips"], ranks, whole.chip, catalogue)
        if values.get("call_s"):  # what the host takes for a call
            return Outcome({"time_s": seconds + values["call_s"]}, provenance=grades)
        shown = collective_shown(PYTORCH_NEURON, seconds, catalogue)
        grades["host"] = "assumed: timed through PyTorch, whose calls differ from run to run"
        return Outcome({"time_s": shown.seconds}, provenance=grades, ends=shown.ends)
    seconds = seen_by_host(whole.chip, seconds, runtime, collective=op)
    devices = min(ranks, whole.chips_per_server)
    shown = collective_shown(through, seconds, catalogue, whole.domains, devices)
    if shown.ends:
        grades["host"] = f"assumed: timed through {TOOLS.get(through, 'PyTorch')}"
    elif not through and covers(whole):
        grades["host"] = "assumed: no tool stated, such as nccl-tests"
        ends = hull("", NCCL, seconds, catalogue, whole.domains)
        return Outcome({"time_s": seconds}, provenance=grades, ends=ends)
    return Outcome({"time_s": shown.seconds}, provenance=grades, ends=shown.ends)


def _of_library(library: str, values: Mapping[str, Any], catalogue: Catalogue) -> Outcome:
    """Exchange of experts by a library's kernels: one way if told, else the mean of both."""
    whole = machines_for(values["cluster"], values["chips"], catalogue)
    if operation(values["collective"]) != "all-to-all":
        raise InputError(
            f"library {library} exchanges tokens of experts. Use collective all-to-all."
        )
    if not known(catalogue, library, whole.chip):
        return unsupported(f"{library}'s kernels on {whole.chip} were not measured.")
    group = Group(whole, np.arange(values["chips"]), 1)
    experts = values.get("experts_per_token") or EXPERTS_PER_TOKEN
    copies = visited(group.ranks, experts) if library == MERGING else experts
    sent = values["size_bytes"] / copies
    stated = f"{values.get('way') or values.get('what') or ''}".lower()
    ways = [way for way in WAYS if way in stated] or WAYS
    seconds = [library_s(catalogue, library, way, group, sent, experts) for way in ways]
    grades = {"exchange": "derived" if len(ways) == 1 else "assumed: neither dispatch nor combine"}
    return Outcome({"time_s": fmean(seconds)}, provenance=grades)


def _provenance(whole: Cluster, algorithm: str) -> dict[str, str]:
    if whole.plain or whole.catalogue is None:
        return {"links": "stated"}
    catalogue = whole.catalogue
    fits = f"nccl.{whole.chip}"
    if covers(whole):
        return {
            "links": catalogue.entry(whole.chip, "scale_up_bandwidth").grade,
            "efficiency": catalogue.entry(fits, "efficiency").grade,
            "algorithm": "assumed" if algorithm == "auto" else "stated",
        }
    return {
        quantity: catalogue.entry(whole.chip, quantity).grade
        for quantity in ("link_bandwidth", "collective_step", "collective_efficiency")
        if catalogue.has(whole.chip, quantity)
    }


PYTORCH = "pytorch"
"""Runtime of rows that PyTorch's own backend for Trainium issued (``torch.distributed`` with
``neuron``, 2026).

It turns every collective into a graph of its own. A collective cannot read or write the tensors of
its graph, so the longer buffer is copied between them and the collective's buffers. A broadcast
clears the buffers of the receivers and sums all of them. All-gathers and reduce-scatters above
512 MiB run in pieces that are put together by copies, and an all-to-all joins the tensors of a list
before and divides them after. All of this is read in its source; nothing is fitted. Sources:
``torch_neuronx/distributed`` (``backend.py``, ``utils.py``) as published by parmoham-aws on GitHub
at 98154b86, and the NKI library of AWS, whose kernels copy because a "collective instruction cannot
read/write" tensors of a graph."""
PIECE_BYTES = 512 * 2**20  # buffer above which all-gathers and reduce-scatters run in pieces [B]
IN_PIECES = ("all-gather", "reduce-scatter")
OF_LISTS = {"all-to-all": 2}
"""Copies of the whole buffer to join and to divide the tensors of a list."""


def beside_s(
    op: str, size_bytes: int, chips: int, ranks: int, chip: str, numbers: Catalogue
) -> float:
    """Time of the copies and of clearing beside a collective on the device [s]."""
    # The constants inside one chip were measured on calls like these, and contain their copies.
    copies = 0 if chips == 1 else 1 + OF_LISTS.get(op, 0)
    copies += op in IN_PIECES and size_bytes > PIECE_BYTES
    cleared = op == "broadcast"  # written, not read
    traffic = (2 * copies + cleared) * size_bytes
    if not traffic:
        return 0.0
    each = max(1, ranks // chips)
    return float(elementwise(chip, traffic, ranks_per_chip=each, catalogue=numbers).seconds)
