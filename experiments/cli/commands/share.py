"""``cluster-sim share``: several training jobs on one cluster, and what each costs the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.cli.output.printing import print_table, print_text
from topologies.options import required, setting


def _placements() -> tuple[str, ...]:
    from workloads.sharing.placements import PLACEMENTS

    return tuple(PLACEMENTS)


@dataclass(frozen=True)
class SharingInputs:
    """A cluster, and the jobs that share it."""

    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:4", argument=True)
    jobs: Path = required(
        "YAML file with a list of jobs: name, model, fields of a plan or its file, chips or dp, "
        "placement or start",
        metavar="FILE.yaml",
    )
    placement: str | None = setting(
        None,
        "Placement of every job without a start of its own",
        choices=_placements,
        default="that of each job, or packed",
    )
    study: bool = setting(False, "Simulate every placement, and say which loses least")
    steps: int = setting(
        4, "Steps of the slowest job; others make as many as fit", least=1, most=1000
    )


def share(inputs: SharingInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> None:
    """Run several jobs on one cluster, and see what they lose.

    Each job runs alone and beside the others. Where links or adapters that several jobs cross are
    full, their collectives slow each other.
    """
    from experiments.reports.sharing import (
        document,
        job_table,
        link_table,
        placement_table,
        sentences,
        write,
    )
    from topologies.clusters.names import machine
    from workloads.sharing.front import share as run

    cluster = machine(inputs.cluster, catalogue=catalogue_inputs.read(inputs.cluster))
    shared = run(
        cluster,
        inputs.jobs,
        placement=inputs.placement or "",
        study=inputs.study,
        steps=inputs.steps,
        engine=call.engine,
    )

    def show() -> None:
        """Print the jobs, what slows them, the links that they share, and the placements."""
        print_table(f"{len(shared.jobs)} jobs on {cluster.name}", *job_table(shared), left=1)
        for sentence in sentences(shared):
            print_text(sentence)
        if shared.links:
            print_table("Links that they share", *link_table(shared), left=2)
        if shared.others:
            print_table("Placements", *placement_table(shared), left=1)

    call.answer(lambda: document(shared), show, lambda out: write(out, shared))
