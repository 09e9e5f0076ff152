"""``cluster-sim queue``: jobs that arrive over days, and how long each waits for its servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.cli.options.inputs import CatalogueInputs
from experiments.cli.options.invocation import Invocation
from experiments.cli.output.printing import print_table, print_text
from topologies.options import required, setting


def _disciplines() -> tuple[str, ...]:
    from workloads.sharing.queueing import DISCIPLINES

    return tuple(DISCIPLINES)


def _places() -> tuple[str, ...]:
    from workloads.sharing.queueing import PLACES

    return tuple(PLACES)


@dataclass(frozen=True)
class QueueInputs:
    """A cluster, and the jobs that queue for it."""

    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:4", argument=True)
    jobs: Path = required(
        "Jobs with submit, chips and time, or model, plan and steps, in CSV; or output of Slurm's "
        "sacct --parsable2, or kubectl get jobs,jobsets --output json",
        metavar="FILE",
    )
    discipline: str = setting(
        "backfill", "Order in which waiting jobs are considered", choices=_disciplines
    )
    place: str = setting(
        "any",
        "Whether a job may be in more scale-up domains than its size needs, or waits for fewer",
        choices=_places,
    )
    study: bool = setting(False, "Run every discipline and place, and show them side by side")


def queue(inputs: QueueInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> None:
    """Queue jobs for a cluster, and see how long they wait.

    Jobs take whole servers for as long as they run. A job with a model runs for its steps, each as
    long as train says.
    """
    from experiments.reports.queue import (
        document,
        longest_table,
        results,
        sentences,
        study_table,
        write,
    )
    from topologies.clusters.names import machine
    from workloads.sharing.queueing import queue_jobs

    cluster = machine(inputs.cluster, catalogue=catalogue_inputs.read(inputs.cluster))
    worked_off = queue_jobs(
        cluster,
        inputs.jobs,
        discipline=inputs.discipline,
        place=inputs.place,
        study=inputs.study,
    )

    def show() -> None:
        """Print the waits, the jobs that waited longest, and a study's other disciplines."""
        title = f"{len(worked_off.jobs):,} jobs queue for {cluster.name}"
        print_table(title, ["result", "value"], results(worked_off), left=2)
        for sentence in sentences(worked_off):
            print_text(sentence)
        print_table("Longest waits", *longest_table(worked_off), left=1)
        if worked_off.others:
            print_table("Disciplines", *study_table(worked_off), left=2)

    call.answer(lambda: document(worked_off), show, lambda out: write(out, worked_off))
