"""``cluster-sim replay``: the replay of another tool's execution trace on any cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import CatalogueInputs, Invocation, MachineInputs
from experiments.cli.output.printing import print_table, print_text
from topologies.catalogue.catalogue import chip_family
from topologies.support.options import required, setting
from topologies.support.units import format_seconds

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.traces.replay import Replay

MOST_UNMAPPED = 8
MANY_WAITS = 0.2  # share of an iteration from which waits for the host are named


@dataclass(frozen=True)
class TraceInputs:
    """Traces of one job, and the cluster on which they are replayed."""

    trace: tuple[Path, ...] = required(
        "Chakra .et files, one a rank, or their directory; JSON of the PyTorch profiler "
        "(Kineto) or of neuron-profile; a GOAL schedule",
        metavar="TRACE…",
        argument=True,
    )
    cluster: str = required(
        "Named machine, plain shape (ring:8) or YAML file; rank r runs on chip r"
    )
    bandwidth: str | None = setting(
        None, "Bandwidth of each directed link of a plain shape, such as 100GB/s"
    )
    latency: str | None = setting(None, "Latency of each link of a plain shape, such as 1us")
    recorded_on: str | None = setting(
        None, "Chip on which the trace was recorded", default="the one that the trace names"
    )
    compute: str = setting(
        "auto",
        "Times of kernels: as recorded, or scaled by the rooflines of both chips; auto scales "
        "if both chips are known and differ",
        choices="workloads.traces.replay:COMPUTE_TIMES",
    )
    communication: str = setting(
        "simulated", "Times of communication", choices="workloads.traces.replay:COMMUNICATION_TIMES"
    )
    ranks: int | None = setting(
        None,
        "Ranks of the job on this cluster, each of which does the same as recorded: groups of "
        "data parallelism grow, those of tensor and pipeline parallelism keep their size",
        least=1,
        default="as recorded",
    )
    chakra: Path | None = setting(
        None,
        "Write the trace as Chakra .et files, for other simulators",
        metavar="DIR",
        recorded=False,
    )


def replay(inputs: TraceInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> None:
    """Replay an execution trace of another tool on a cluster.

    Collectives are simulated on the cluster. Kernels take their recorded times, or these scaled
    from the chip on which they were recorded.
    """
    from workloads.traces.replay import replay as run
    from workloads.traces.replay import replay_document

    machine = MachineInputs(inputs.cluster, inputs.bandwidth, inputs.latency)
    played = run(
        inputs.trace,
        machine.read(catalogue_inputs.watched()),
        recorded_on=inputs.recorded_on or "",
        compute=inputs.compute,
        communication=inputs.communication,
        ranks=inputs.ranks,
        engine=call.engine,
    )
    if inputs.chakra is not None:
        from workloads.traces.chakra import write_chakra

        write_chakra(played.recording, inputs.chakra)
    call.answer(
        replay_document(played, call.engine),
        show=lambda _: _print(played),
        write=lambda directory, document: _write(directory, played, document),
    )


def _print(played: Replay) -> None:
    from workloads.traces.recording import HOST

    recording = played.recording
    facts = recording.facts
    ranks = "1 rank" if len(recording.ranks) == 1 else f"{len(recording.ranks)} ranks"
    title = (
        f"{facts.get('format')} trace of {ranks}, {len(recording):,} nodes, "
        f"on {played.cluster.name}"
    )
    rows = [
        ("iteration", format_seconds(played.iteration_s)),
        ("interval (80 %)", f"{format_seconds(played.low_s)} to {format_seconds(played.high_s)}"),
    ]
    recorded = facts.get("recorded_s")
    if isinstance(recorded, float) and recorded > 0:
        change = round(played.iteration_s / recorded - 1, 3) + 0.0  # no -0.0%
        rows.append(("as recorded", f"{format_seconds(recorded)} ({change:+.1%} on this cluster)"))
    source = f" from {played.source}" if played.how == "scaled" else ""
    if played.cluster.chip and not played.source:
        source = f" on an unknown chip; --recorded-on CHIP scales to {played.cluster.chip}"
    rows.append(("kernel times", f"{played.how}{source}"))
    print_table(title, ["result", "value"], rows, left=2)
    total = played.iteration_s or 1.0
    parts = [
        (name.replace("_", " "), format_seconds(value), f"{value / total:.1%}")
        for name, value in played.breakdown_s.items()
    ]
    print_table("", ["where the time goes, mean over ranks", "time", "share"], parts)
    if missing := (world := recording.ranks_of_the_job) - len(recording.ranks):
        print_text(
            f"There is no trace of {missing:,} of the job's {world:,} ranks: they are taken to "
            "arrive at collectives together with the others."
        )
    if grown := facts.get("grown"):
        print_text(f"With --ranks, {grown}, grow; all others keep their size.")
    _print_waits(played, played.host_waits_s / total)
    if facts.get("format") == "kineto" and (recording.kind == HOST).sum() == len(recording.ranks):
        click.echo(
            "The profile has no launches by the host, so the order of work on unlike streams is "
            "that of its recorded times. Profile with ProfilerActivity.CPU as well to have it."
        )
    if played.unmapped:
        most = sorted(played.unmapped.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{count} × {name[:60]}" for name, count in most[:MOST_UNMAPPED])
        more = f" and {len(most) - MOST_UNMAPPED} more names" if len(most) > MOST_UNMAPPED else ""
        click.echo(f"Kept as recorded, for want of a size or of the sender's trace: {shown}{more}.")


def _print_waits(played: Replay, share: float) -> None:
    if share < MANY_WAITS:
        return
    chip, machine = played.source, played.cluster
    other = chip and machine.chip and chip_family(chip).runtime != chip_family(machine.chip).runtime
    print_text(
        f"For {share:.0%} of the iteration the chips wait for the host. Its launches keep "
        "their recorded spacing on every cluster, and the profiler lengthens it: without one "
        "the iteration may be as short as the interval says."
    )
    if other:
        print_text(
            f"That host issued kernels to {chip}; {machine.chip} is driven by another runtime, "
            "whose launches no trace of this one tells. Compare the kernels alone."
        )


def _write(out: Run, played: Replay, document: Mapping[str, Any]) -> None:
    from cluster_sim.plot import timeline
    from experiments.reports.drawing import slices

    out.json("results", document, title="Results")
    first = played.recording.ranks[:8].tolist()
    out.figure(
        "timeline",
        timeline(played.trace, by="rank", ranks=first),
        title="Timeline",
        slices=slices(played.trace, by="rank", ranks=first),
    )
    out.trace(played.trace)
