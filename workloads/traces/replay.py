"""Replay of other tools' execution traces on a cluster."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.analysis.stretches import Intervals, shares_ps
from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import Trace, run
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import checked
from topologies.support.errors import InputError, check_choice, shown, suggestion
from topologies.support.files.reading import no_such_file
from topologies.support.units import format_seconds
from workloads.traces.chakra import read_chakra
from workloads.traces.goal import read_goal
from workloads.traces.kineto import read_kineto
from workloads.traces.lower import check_ranks, lower
from workloads.traces.neuron_profile import is_summary, read_neuron_profile
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    KINDS,
    MEMORY,
    NOTHING,
    RECEIVE,
    SEND,
    Recording,
    read_bounded,
)

MOST_FILES = 100_000
COMPUTE_TIMES = ("auto", "recorded", "scaled")
COMMUNICATION_TIMES = ("simulated", "recorded")
PARTS = ("compute", "memory", "exposed_communication", "host")
PART_OF = {COMPUTE: 0, NOTHING: 0, MEMORY: 1, COLLECTIVE: 2, SEND: 2, RECEIVE: 2, HOST: 3}
"""Part of an iteration, as a number in ``PARTS``, that nodes of each kind count to."""
LEVEL = 0.8  # probability with which the interval should hold the measured time
STEP_SPREAD = 0.02
"""Relative difference between runs of the same step (assumed). No interval is narrower, even if all
kernels are as recorded and hide the communication."""
WAIT_LEFT = 0.15
"""Share of the waits for the host in a profile that is left without the profiler.

Five steps of one H100 and one H200 that were timed with and without it had 0.14 to 0.6 (times
without it: the validation table ``hopper_steps``).
"""


@display.by_facts("Replay")
@dataclass(frozen=True, eq=False)
class Replay:
    """Result of the replay of a trace on a cluster.

    Attributes
    ----------
    recording : Recording
        The trace, with the compute times that were replayed.
    cluster : Cluster
    trace : Trace
    how : {"recorded", "scaled"}
        Whether compute times are recorded ones or scaled by the roofline.
    source : str
        Chip that the trace was recorded on; empty if unknown.
    unmapped : mapping of str to int
        Names of communications that kept their recorded time, and the number of each.
    low_s, high_s : float
        Interval of the time of an iteration [s].
    simulate_s : float
        Wall-clock time of the simulation [s].
    """

    recording: Recording
    cluster: Cluster
    trace: Trace
    how: str
    source: str
    unmapped: dict[str, int]
    low_s: float
    high_s: float
    simulate_s: float

    @property
    def _facts(self) -> dict[str, object]:
        parts = {name: format_seconds(seconds) for name, seconds in self.breakdown_s.items()}
        ends = f"{format_seconds(self.low_s)} – {format_seconds(self.high_s)}"
        return {
            "cluster": self.cluster.name,
            "time": format_seconds(self.iteration_s),
            f"{LEVEL:.0%}": ends,
            **{name: time for name, time in parts.items() if self.breakdown_s[name]},
            "kernel times": self.how,
        }

    @property
    def iterations(self) -> int:
        """Number of iterations in the trace."""
        return int(self.recording.facts.get("iterations", 1))

    @property
    def iteration_s(self) -> float:
        """Time of one iteration, the mean of those in the trace [s]."""
        return self.trace.total_s / self.iterations

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Time of each part of an iteration, mean over ranks [s]; sums to ``iteration_s``."""
        # Each instant of a rank counts to the first part that is active, in the order compute,
        # memory, communication, host; an instant without any counts as waiting.
        ranks, group = np.unique(self.recording.rank, return_inverse=True)
        nodes = len(self.recording)
        part = np.array([PART_OF[kind] for kind in range(len(KINDS))])[self.recording.kind]
        times = self.trace.times
        spans = Intervals(
            group.astype(np.int32), times.start_ps[:nodes], times.end_ps[:nodes], len(ranks)
        )
        each = shares_ps(spans, part.astype(np.int8), len(PARTS))[0][:, : len(PARTS)]
        mean_s = each.mean(axis=0) / PS_PER_S / self.iterations
        parts = {name: float(value) for name, value in zip(PARTS, mean_s, strict=True)}
        waiting_s = self.iteration_s - sum(parts.values())
        return {**parts, "waiting": waiting_s if waiting_s >= 1 / PS_PER_S else 0.0}

    @property
    def host_waits_s(self) -> float:
        """Time for which nothing ran until the host of a PyTorch profile launched more [s].

        Launches keep their recorded spacing on every cluster, and the profiler lengthens it.
        """
        is_profile = self.recording.facts.get("format") == "kineto"
        return self.breakdown_s["waiting"] if is_profile else 0.0


def read_traces(paths: str | Path | Sequence[str | Path]) -> Recording:
    """Read the traces of one job, from files or directories."""
    several = [paths] if isinstance(paths, str | Path) else paths
    if not several:
        raise InputError("no trace is given. Pass a file, several files, or a directory.")
    files = _files([Path(path) for path in several])
    kinds = {_kind(path) for path in files}
    if len(kinds) > 1:
        raise InputError(
            f"{files[0].parent}: traces of {' and '.join(sorted(kinds))}. Give one kind."
        )
    readers = {
        "Chakra": read_chakra,
        "Kineto": read_kineto,
        "neuron-profile": read_neuron_profile,
        "GOAL": read_goal,
    }
    return readers[kinds.pop()](files)


def _files(paths: Sequence[Path]) -> list[Path]:
    """Files to read; in a directory its .et files, or else its JSON files, or else GOAL files."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise InputError(f"{path} cannot be read: {no_such_file(path)}")
            files.append(path)
            continue
        inside = [file for file in sorted(path.iterdir()) if file.is_file()][: MOST_FILES + 1]
        patterns = ((".et", ".et.gz"), (".json", ".json.gz"), (".goal", ".goal.gz"))
        chosen = next(
            (some for ends in patterns if (some := [f for f in inside if f.name.endswith(ends)])),
            [],
        )
        if not chosen:
            raise InputError(f"{path} holds no traces. Give .et, .json, .json.gz or .goal files.")
        files += chosen
    if len(files) > MOST_FILES:
        raise InputError(f"{len(files):,} files; at most {MOST_FILES:,} ranks are read.")
    return files


def _kind(path: Path) -> str:
    """Tool that a trace comes from, by the file's name or content."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".et"):
        return "Chakra"
    if name.endswith(".goal"):
        return "GOAL"
    if not name.endswith(".json"):
        raise InputError(
            f"{path}: unknown kind of trace. Give Chakra .et, JSON of PyTorch's profiler or of "
            "neuron-profile, or .goal."
        )
    if path.stat().st_size > 2**20 or name.endswith(".pt.trace.json"):
        return "Kineto"
    try:
        return "neuron-profile" if is_summary(json.loads(read_bounded(path))) else "Kineto"
    except (ValueError, RecursionError):
        return "Kineto"  # its reader says what is wrong


@checked(cluster=CLUSTER_REMEDY)
def replay(
    paths: str | Path | Sequence[str | Path],
    cluster: Cluster | str,
    *,
    recorded_on: str = "",
    compute: str = "auto",
    communication: str = "simulated",
    ranks: int | None = None,
    engine: str = "fast",
) -> Replay:
    """Replay traces on a cluster.

    Parameters
    ----------
    paths : path or sequence of paths
        Chakra ``.et`` files, one a rank; JSON of PyTorch's profiler or neuron-profile; GOAL.
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it.
    recorded_on : str, optional
        Chip that the trace was recorded on, for a trace that does not say.
    compute : {"auto", "recorded", "scaled"}, default "auto"
        Whether kernels are scaled by the roofline; ``auto`` does so if two known chips differ.
    communication : {"simulated", "recorded"}, default "simulated"
        Whether collectives are simulated or keep their recorded time.
    ranks : int, optional
        Ranks of the job, whose groups of data parallelism grow; as recorded unless stated.
    engine : {"fast", "reference"}, default "fast"

    Returns
    -------
    Replay
        ``iteration_s``, its ``breakdown_s`` [s], ``low_s`` and ``high_s``; ``trace``.

    Raises
    ------
    InputError
        For a trace that contradicts itself, or does not fit the cluster.

    Examples
    --------
    Two ranks, of which one computes for 1 µs and sends 5 MB to the other:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> send = "rank 0 {\\nl1: calc 1000\\nl2: send 5000000b to 1 tag 3\\nl2 requires l1\\n}\\n"
    >>> text = "num_ranks 2\\n" + send + "rank 1 {\\nl1: recv 5000000b from 0 tag 3\\n}\\n"
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.goal"
    ...     _ = path.write_text(text)
    ...     played = replay([path], "trn2.48xlarge")
    >>> played.iteration_s > 1e-6
    True
    """
    check_choice("compute", compute, COMPUTE_TIMES)
    check_choice("communication", communication, COMMUNICATION_TIMES)
    machine, recording = as_cluster(cluster), read_traces(paths)
    check_ranks(ranks or 1, machine)
    recording = recording if ranks is None else recording.on_ranks(ranks)
    times = scaled(recording, machine, recorded_on=recorded_on, compute=compute)
    return _replayed(times, machine, communication, engine)


def _replayed(times: Scaled, cluster: Cluster, communication: str, engine: str) -> Replay:
    """Run a recording whose kernels have their times on this cluster."""
    lowered, kept = lower(times.recording, cluster, communication=communication)
    start = time.perf_counter()
    trace = run(lowered, engine=engine)
    simulate_s = time.perf_counter() - start
    count = int(times.recording.facts.get("iterations", 1))
    low_s, high_s = _interval(times, cluster, communication, trace.total_s)
    played = Replay(
        recording=times.recording,
        cluster=cluster,
        trace=trace,
        how=times.how,
        source=times.source,
        unmapped=kept,
        low_s=low_s / count,
        high_s=high_s / count,
        simulate_s=simulate_s,
    )
    without_profiler_s = played.iteration_s - (1 - WAIT_LEFT) * played.host_waits_s
    return replace(played, low_s=min(played.low_s, without_profiler_s))


def _interval(
    times: Scaled, cluster: Cluster, communication: str, total_s: float
) -> tuple[float, float]:
    """Time of the whole trace with likely shortest and with likely longest parts [s]."""
    ends = []
    for recording, end in ((times.fast, "low"), (times.slow, "high")):
        lowered, _ = lower(recording, cluster, communication=communication, end=end)
        ends.append(run(lowered).total_s)
    return min(ends[0], (1 - STEP_SPREAD) * total_s), max(ends[1], (1 + STEP_SPREAD) * total_s)


def replay_document(played: Replay, engine: str) -> dict[str, Any]:
    """Return all results under the keys of the command line's JSON."""
    recording = played.recording
    facts = recording.facts
    document: dict[str, Any] = {
        "format": facts.get("format", ""),
        "version": facts.get("version", ""),
        "files": list(recording.files.values()),
        "cluster": played.cluster.name,
        "ranks": len(recording.ranks),
        "world": recording.ranks_of_the_job,
        "nodes": len(recording),
        "iterations": played.iterations,
        "iteration_s": played.iteration_s,
        "breakdown_s": played.breakdown_s,
        "host_waits_s": played.host_waits_s,
        "interval": {
            "level": LEVEL, "low": played.low_s, "high": played.high_s,
            "basis": "waits for the host down to what is left of them without a profiler, "
            "either limit of the roofline for every kernel, each communication at the end of its "
            f"interval and runs of one step within {STEP_SPREAD:.0%} (assumed)",
        },
    }  # fmt: skip
    document |= {name: facts[name] for name in ("recorded_s", "grown") if name in facts}
    return {
        **document,
        "compute": played.how,
        "recorded_on": played.source or None,
        "unmapped": dict(sorted(played.unmapped.items(), key=lambda item: -item[1])),
        "ops": len(played.trace),
        "engine": engine,
        "simulate_s": played.simulate_s,
    }


# Compute times of a recording on another chip, by the rooflines of both chips.
# A kernel is limited by arithmetic or by memory, and its name tells which. Matrix products and
# attention scale with the peak of the matrix engine in bf16, all other kernels with the bandwidth
# of memory. The true ratio of a kernel lies between these two, which gives the interval.

PRODUCT = re.compile(
    r"gemm|cutlass|xmma|wgmma|mma_|nvjet|matmul|conv|cublas|cudnn|Cijk|attention|fmha|flash|"
    r"tensor engine",
    re.IGNORECASE,
)
"""Names of kernels that are limited by the matrix engine."""
DEVICES = (
    (r"A100.*80\s*GB", "a100-80gb"), (r"A100", "a100-40gb"), (r"H100", "h100"), (r"H200", "h200"),
    (r"GB200", "gb200"), (r"B200", "b200"), (r"trn3|Trainium3", "trn3-gen2"),
    (r"trn2|Trainium2", "trn2"), (r"trn1|Trainium1|Trainium", "trn1"),
)  # fmt: skip
"""Profilers' names of chips, and the chip of the catalogue that each is."""
NODES = (COMPUTE, MEMORY)


@dataclass(frozen=True)
class Scaled:
    """A recording with compute times on a cluster's chips, and their likely range."""

    recording: Recording  # the recording with likely times
    # fast, slow: the recording with the more, and with the less favourable ratio for all kernels
    fast: Recording
    slow: Recording
    how: str  # ("recorded", "scaled")
    source: str  # chip that it was recorded on; empty if unknown


def scaled(
    recording: Recording, cluster: Cluster, *, recorded_on: str = "", compute: str = "auto"
) -> Scaled:
    """Return the compute times of a recording on the chips of a cluster."""
    # ``recorded_on``: chip of the catalogue; by default the chip that the trace names. ``compute``
    # ("auto", "recorded", "scaled"): ``auto`` scales if both chips are known and differ.
    catalogue = cluster.numbers
    device = str(recording.facts.get("chip", ""))
    named = next((chip for pattern, chip in DEVICES if re.search(pattern, device)), "")
    source = _source(recorded_on or named, catalogue)
    target = cluster.chip or ""
    if recorded_on and not target:
        raise InputError(
            f"--recorded-on {shown(recorded_on)} scales kernels to another chip, and "
            f"{cluster.name} has none. Leave it out, or name a machine such as trn2.48xlarge."
        )
    recording = _timed(recording, catalogue, target)
    if compute == "scaled" and not (source and target):
        missing = "--recorded-on CHIP" if not source else "a cluster with chips of the catalogue"
        raise InputError(f"compute cannot be scaled without knowing both chips. Give {missing}.")
    if compute == "recorded" or not (source and target) or source == target:
        return Scaled(recording, recording, recording, "recorded", source)
    arithmetic = _peak(catalogue, source) / _peak(catalogue, target)
    memory = catalogue.value(source, "hbm_bandwidth") / catalogue.value(target, "hbm_bandwidth")
    products = np.array([bool(PRODUCT.search(name)) for name in recording.name.names], np.bool_)
    ratio = np.where(products[recording.name.code], arithmetic, memory)
    low, high = min(arithmetic, memory), max(arithmetic, memory)
    likely, fast, slow = (_times(recording, factor) for factor in (ratio, low, high))
    return Scaled(likely, fast, slow, "scaled", source)


def _times(recording: Recording, ratio: Any) -> Recording:
    """Recording with the times of kernels multiplied by a ratio, to at least 1 ps each."""
    kernels = np.isin(recording.kind, NODES) & (recording.duration_ps > 0)
    multiplied = np.maximum(1, np.rint(recording.duration_ps * ratio)).astype(np.int64)
    return replace(recording, duration_ps=np.where(kernels, multiplied, recording.duration_ps))


def _timed(recording: Recording, catalogue: Catalogue, chip: str) -> Recording:
    """Recording with times on the cluster's chip for nodes that state operations or bytes only."""
    untimed = np.isin(recording.kind, NODES) & (recording.duration_ps == 0)
    untimed &= (recording.flops > 0) | ((recording.kind == MEMORY) & (recording.size_bytes > 0))
    if not untimed.any():
        return recording
    if not chip:
        node = int(np.argmax(untimed))
        raise InputError(
            f"{recording.place(node)} states operations or bytes but no duration, and the cluster "
            "has no chip to time them on. Replay it on a machine of the catalogue."
        )
    work_s = np.maximum(
        recording.flops / _peak(catalogue, chip),
        recording.size_bytes / catalogue.value(chip, "hbm_bandwidth"),
    )
    picoseconds = np.maximum(1, np.ceil(work_s * PS_PER_S)).astype(np.int64)
    return replace(recording, duration_ps=np.where(untimed, picoseconds, recording.duration_ps))


def _peak(catalogue: Catalogue, chip: str) -> float:
    """Matrix peak of a chip in bf16 [FLOP/s]."""
    quantity = "bf16_matmul" if catalogue.has(chip, "bf16_matmul") else "bf16_peak"
    return catalogue.value(chip, quantity)


def _source(chip: str, catalogue: Catalogue) -> str:
    """Return the chip itself, or refuse a chip that the catalogue does not have."""
    if chip and not (catalogue.has(chip, "hbm_bandwidth") and catalogue.has(chip, "bf16_peak")):
        chips = [part for part in catalogue.parts() if catalogue.has(part, "bf16_peak")]
        raise InputError(
            f"--recorded-on {chip!r} is no chip of the catalogue.{suggestion(chip, chips)} "
            f"There are {', '.join(sorted(chips))}."
        )
    return chip
