"""Chip families are read from the catalogue, for a user's own chips as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from topologies.catalogue.catalogue import chip_family, choose, families, shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from topologies.errors import InputError


def test_every_chip_of_a_machine_has_a_family() -> None:
    catalogue = shipped_catalogue()
    for machine in machines(catalogue):
        chip = catalogue.name(machine, "chip")
        assert chip_family(chip).name in families(catalogue)
        assert catalogue.has(chip, "family")


@pytest.mark.parametrize(
    ("chip", "family", "runtime", "ranks", "provenance"),
    [
        ("trn1", "trainium", "neuron", 2, "assumed"),
        ("trn2", "trainium", "neuron", 4, "interpolated"),
        ("trn3", "trainium", "neuron", 4, "assumed"),
        ("h100", "h100", "nccl", 1, "measured"),
        ("h200", "h100", "nccl", 1, "interpolated"),
        ("gb300", "b200", "nccl", 1, "interpolated"),
        ("mi300x", "mi300", "rccl", 1, "assumed"),
        ("tpu-v4", "tpu", "xla", 1, "assumed"),
        ("tpu-v5p", "tpu", "xla", 1, "assumed"),
        ("nobody's", "gpu", "other", 1, "assumed"),
    ],
)
def test_families(chip: str, family: str, runtime: str, ranks: int, provenance: str) -> None:
    chips_family = chip_family(chip)
    assert (chips_family.name, chips_family.runtime, chips_family.ranks_per_chip) == (
        family,
        runtime,
        ranks,
    )
    assert chips_family.provenance == provenance


def test_a_variant_changes_the_ranks_of_a_chip() -> None:
    one = choose(["trn2.ranks_per_chip=lnc1"])
    assert chip_family("trn2", one).ranks_per_chip == 8


def test_a_chip_of_ones_own_names_its_family(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    chip = (
        "{name: trn9, family: trainium, bf16_peak: 1PFLOP/s, hbm_bytes: 1TB, hbm_bandwidth: 9TB/s}"
    )
    shape = "{shape: switch, size: 4, bandwidth: 1GB/s, latency: 1us}"
    path.write_text(f"chip: {chip}\nscale_up: {shape}\n")
    machine = cluster(str(path))
    assert chip_family(machine.chip, machine.catalogue).is_neuron
    path.write_text(path.read_text().replace("trainium", "trainum"))
    with pytest.raises(InputError, match=r"family of trn9 .trainum. is none of .* trainium"):
        cluster(str(path))


def test_a_name_is_no_number_and_a_number_no_name() -> None:
    with pytest.raises(InputError, match="trn2 family is 'trainium', a name and no number"):
        shipped_catalogue().value("trn2", "family")
    with pytest.raises(InputError, match="trn2 cores is 8 count, a number and no name"):
        shipped_catalogue().name("trn2", "cores")
