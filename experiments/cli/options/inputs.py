"""Inputs that several commands share: catalogue, cluster, model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topologies.errors import InputError
from topologies.options import required, setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model


@dataclass(frozen=True)
class CatalogueInputs:
    """Changes to the hardware catalogue."""

    variant: tuple[str, ...] = setting(
        (),
        "Use a named alternative of a contested value; may be repeated "
        "(`cluster-sim list variants` shows them)",
        metavar="PART.QUANTITY=NAME",
    )
    catalogue: Path | None = setting(
        None, "Catalogue rows that replace the shipped ones", metavar="FILE.csv"
    )

    def read(self, *clusters: str) -> Catalogue:
        """Read the catalogue with these changes.

        ``*clusters``: names of all clusters that the answer is about; none if it is about all
        machines.
        """
        from topologies.catalogue.catalogue import choose

        catalogue = choose(self.variant, self.catalogue)
        if clusters and (self.variant or self.catalogue):
            self._check_parts(clusters, catalogue)
        return catalogue

    def read_side_by_side(self, names: Sequence[str]) -> tuple[Catalogue, str]:
        """Read a catalogue in which the clusters' prices are of one kind, with a sentence on it.

        Prices that the user chose stay.
        """
        from topologies.clusters.machines import machine_of
        from topologies.clusters.names import cluster
        from workloads.economics import one_kind_of_price

        catalogue, machines = self.read(*names), dict[str, None]()
        if self.catalogue or any(".price=" in text for text in self.variant):
            return catalogue, ""
        for name in names:
            try:
                machines[machine_of(cluster(name, catalogue=catalogue))] = None
            except InputError:
                continue  # its row has the reason
        return one_kind_of_price(catalogue, machines)

    def _check_parts(self, clusters: Sequence[str], catalogue: Catalogue) -> None:
        """Refuse a variant of a part of other machines, and name such rows of files."""
        from topologies.clusters.machines import UNIT_OF, machines, parts_of

        stems = [name.partition(":")[0] for name in clusters]
        here = {UNIT_OF.get(stem, stem) for stem in stems}
        every = machines(catalogue)
        if not here <= set(every):
            return  # a cluster file may name any part; an unknown name is refused elsewhere
        parts = {machine: parts_of(machine, catalogue) for machine in every}

        def others(part: str) -> list[str]:
            owners = [machine for machine in every if part in parts[machine]]
            return owners if here.isdisjoint(owners) else []

        for text in self.variant:
            part = text.partition("=")[0].strip().rpartition(".")[0]
            if owners := others(part):
                named = ", ".join(owners[:3]) + (" and others" if len(owners) > 3 else "")
                raise InputError(
                    f"--variant {text} changes nothing on {', '.join(clusters)}: {part} belongs "
                    f"to {named}. Leave it out."
                )
        if self.catalogue is not None:
            from topologies.catalogue.reader import NAME, is_reference, read_entries

            rows = [row for _, row in read_entries(self.catalogue, str(self.catalogue))]
            idle = [
                f"{row.part}.{row.quantity}"
                for row in rows
                if others(row.part)
                or (row.unit != NAME and is_reference(row.part, row.quantity, row.unit))
            ]
            if idle:
                sys.stderr.write(
                    f"{self.catalogue}: nothing reads {', '.join(dict.fromkeys(idle))} here, rows "
                    "of other machines or for reference.\n"
                )

    def check_used(self, cluster: Cluster) -> None:
        """Check that a cluster has numbers of the catalogue, which a plain shape has not."""
        if not cluster.plain or cluster.scale_out is not None:
            return
        for name, value in {"--variant": self.variant, "--catalogue": self.catalogue}.items():
            if value:
                raise InputError(
                    f"{name} changes the catalogue, and all numbers of {cluster.name} stand in its "
                    "own description. Leave it out."
                )


@dataclass(frozen=True)
class MachineInputs:
    """A cluster of any form, plain shapes included, by position."""

    cluster: str = required(
        "Named machine (trn2-ultraserver:16), plain shape (ring:8) or YAML file",
        metavar="CLUSTER",
        argument=True,
    )
    bandwidth: str | None = setting(
        None, "Bandwidth of each directed link of a plain shape, such as 100GB/s"
    )
    latency: str | None = setting(None, "Latency of each link of a plain shape, such as 1us")

    def read(self, catalogue: Catalogue) -> Cluster:
        """Build the cluster."""
        from topologies.clusters.names import cluster

        return cluster(
            self.cluster, bandwidth=self.bandwidth, latency=self.latency, catalogue=catalogue
        )


@dataclass(frozen=True)
class SeveralMachines(MachineInputs):
    """One cluster of any form, or several, by position or by name."""

    cluster: str = setting(
        "",
        "Named machine (trn2-ultraserver:16), plain shape (ring:8) or YAML file; several, "
        "written A,B,C, are compared side by side",
        metavar="CLUSTER",
        argument=True,
    )
    clusters: str | None = setting(
        None, "Clusters as an option, in place of the argument", name="cluster", metavar="A,B,C"
    )

    def __post_init__(self) -> None:
        if bool(self.cluster) == bool(self.clusters):
            both = "are both given" if self.cluster else "are both missing"
            raise InputError(f"CLUSTER and --cluster {both}. Give one, such as trn2.48xlarge.")

    @property
    def name(self) -> str:
        """Text of the argument or option that names the clusters."""
        return self.cluster or self.clusters or ""

    @property
    def names(self) -> list[str]:
        """Names of all clusters."""
        from experiments.cli.output.side_by_side import cluster_names

        return cluster_names(self.name)

    def read(self, catalogue: Catalogue) -> Cluster:
        """Build the only cluster, as :meth:`MachineInputs.read` does."""
        single = MachineInputs(self.name, self.bandwidth, self.latency)
        return single.read(catalogue)


MOST_HEADS = 16
"""Most prediction heads of a trained model: several times those of any that is published."""


@dataclass(frozen=True)
class ModelOnCluster:
    """A model and the cluster that runs it."""

    model: str = required("Named model (`cluster-sim list models`) or path of a config.json")
    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:16")

    def read_model(self) -> Model:
        """Read the model."""
        from workloads.models.huggingface import model

        return model(self.model)

    def read_cluster(self, catalogue: Catalogue) -> Cluster:
        """Build the cluster, which must have chips that compute."""
        from topologies.clusters.names import machine

        return machine(self.cluster, catalogue=catalogue)


@dataclass(frozen=True)
class TrainedModel(ModelOnCluster):
    """A model and the cluster that runs it."""

    prediction_heads: int = setting(
        0,
        "Further layers that each predict one token more (multi-token prediction), on the last "
        "stage; a config's num_nextn_predict_layers is their number where it trains them",
        least=0,
        most=MOST_HEADS,
    )

    def read_model(self) -> Model:
        """Read the model, with its prediction heads."""
        return super().read_model().with_prediction_heads(self.prediction_heads)
