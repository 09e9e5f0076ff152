"""A chip is its rows: copies, families and the how-to page give equal numbers in every command."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import cluster_sim as cs
from experiments.cli.main import run
from tests.support.refusals import refused
from topologies.catalogue import catalogue as catalogues
from topologies.catalogue.catalogue import Catalogue, chip_family, choose, shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from workloads.search.estimate import estimate

OF_CHIPS = [row for row in shipped_catalogue().rows if row.quantity == "chip"]
MACHINES = {row.written: row.part for row in reversed(OF_CHIPS)}
"""A machine of each chip that is shipped."""


def with_copy(machine: str) -> Catalogue:
    """Return a catalogue with copies of a machine and its chip, ``node`` and ``new``."""
    catalogue = shipped_catalogue()
    chip = catalogue.name(machine, "chip")
    rows = [row._replace(part="new") for row in catalogue.rows if row.part == chip]
    node = [row._replace(part="node") for row in catalogue.rows if row.part == machine]
    named = [row._replace(written="new") if row.quantity == "chip" else row for row in node]
    return catalogue.with_rows([*rows, *named])


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_a_copy_of_a_chip_gives_equal_numbers(machine):
    alone, copy = cs.cluster(machine), cs.cluster("node", catalogue=with_copy(machine))
    served = [cs.serve("llama-3.1-8b", whole, "poisson:1", count=3) for whole in (alone, copy)]
    assert served[0].tokens_per_s == served[1].tokens_per_s
    lender = shipped_catalogue().name(alone.chip, "like", "new")
    assert copy.measured_chip == lender  # whose intervals it has; of trn4 that is trn3
    chips = alone.chips
    if chips > 72:  # TPU pods, whose torus takes seconds
        return
    plan = cs.Plan(dp=chips, global_batch=2 * chips, seq=1024, zero=3, ranks_per_chip=1)
    model = cs.model("gpt2")
    steps = [cs.train(model, whole, plan) for whole in (alone, copy)]
    assert steps[0].iteration_s == steps[1].iteration_s
    assert steps[0].interval == steps[1].interval or lender != alone.chip
    estimates = [estimate(model, whole, [plan])[0] for whole in (alone, copy)]
    assert estimates[0] == estimates[1]
    if chips > 1:
        times = [cs.collective_time("all-reduce", w, size_bytes=2**24) for w in (alone, copy)]
        assert times[0] == times[1]


def test_rows_of_the_copy_itself_come_first():
    catalogue = with_copy("trn3-gen1")
    row = catalogue.entry("training", "scheduling_trn3")
    row = row._replace(quantity="scheduling_new", exact=Fraction(1, 10))
    assert catalogue.value("training", "scheduling_new") == row.value + 0.23
    assert catalogue.with_rows([row]).value("training", "scheduling_new") == 0.1
    catalogue = with_copy("trn2.48xlarge")  # for which variants of the chip it is like hold
    chosen = catalogue.with_variants({"serving.new.expert_block_rate": "sdk-2.26"})
    (old, new) = (each.value("serving.new", "expert_block_rate") for each in (catalogue, chosen))
    assert old != new == chosen.value("serving.trn2", "expert_block_rate")


def test_a_chip_has_the_rows_of_the_one_it_is_like_but_for_its_own():
    catalogue = shipped_catalogue()
    like = catalogue.entry("trn4", "like")._replace(part="new", written="trn4")
    added = catalogue.with_rows([like])
    for quantity in ("hbm_bandwidth", "vector_clock"):  # of trn4's own, and of trn3's
        assert added.value("new", quantity) == catalogue.value("trn4", quantity)
    round_about = added.with_rows([like._replace(part="trn3", written="new")])
    assert round_about.value("trn3", "vector_clock") == catalogue.value("trn3", "vector_clock")
    assert catalogue.value("trn4", "vector_clock") == catalogue.value("trn3", "vector_clock")
    assert catalogue.value("trn4", "hbm_bandwidth") == 4 * catalogue.value("trn3", "hbm_bandwidth")
    faster = catalogue.entry("trn4", "vector_clock")._replace(
        part="trn4", exact=Fraction(2 * 10**9)
    )
    assert catalogue.with_rows([faster]).value("trn4", "vector_clock") == 2e9


@pytest.mark.parametrize(("chip", "family", "runtime", "ranks", "provenance"), [
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
])  # fmt: skip
def test_families(chip, family, runtime, ranks, provenance):
    chips_family = chip_family(chip)
    assert (chips_family.name, chips_family.runtime) == (family, runtime)
    assert (chips_family.ranks_per_chip, chips_family.provenance) == (ranks, provenance)
    for machine in machines(shipped_catalogue()):
        of_machine = shipped_catalogue().name(machine, "chip")
        assert chip_family(of_machine).name in catalogues.families(shipped_catalogue())
    assert chip_family("trn2", choose(["trn2.ranks_per_chip=lnc1"])).ranks_per_chip == 8


def test_a_chip_of_ones_own_names_its_family(tmp_path):
    path = tmp_path / "mine.yaml"
    numbers = "bf16_peak: 1PFLOP/s, hbm_bytes: 1TB, hbm_bandwidth: 9TB/s"
    shape = "{shape: switch, size: 4, bandwidth: 1GB/s, latency: 1us}"
    path.write_text(f"chip: {{name: trn9, family: trainium, {numbers}}}\nscale_up: {shape}\n")
    machine = cluster(str(path))
    assert chip_family(machine.chip, machine.catalogue).is_neuron
    path.write_text(path.read_text().replace("trainium", "trainum"))
    refused(r"family of trn9 .trainum. is none of .* trainium", cluster, str(path))


PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-chip.md"
FILES = dict(re.findall(r'```text title="(\S+)"\n(.*?)```', PAGE.read_text(), re.DOTALL))
COMMANDS = {
    "collective all-reduce next-node:2 --size 1MiB": "rows",
    "train --model gpt2 --cluster next-node --tp 2": "iteration_s",
    "plan --model llama-3.2-1b --cluster next-node --global-batch 8 --tp 8 --pp 1": "rows",
    "serve --model llama-3.1-8b --cluster next-node --tp 8 --count 20": "ttft_s",
}


def rows(family: str) -> str:
    """The overlay of the page, with the rows that a chip of the Trainium family has besides."""
    if family == "gpu":
        return FILES["next.csv"]
    kept = [line for line in FILES["next.csv"].splitlines() if not line.startswith("next,family")]
    return "\n".join([*kept, FILES["trainium.csv"]])


@pytest.mark.parametrize("family", ["gpu", "trainium"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_rows_of_the_page_are_enough(family, command, tmp_path, capsys):
    overlay = tmp_path / "next.csv"
    overlay.write_text(rows(family))
    words = [*command.split(), "--catalogue", str(overlay), "--json", "--quiet"]
    assert run(words) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)[COMMANDS[command]]


def test_a_quantity_that_is_missing_is_named_with_what_to_do(tmp_path, capsys):
    overlay = tmp_path / "next.csv"
    lines = rows("trainium").splitlines()
    left_out = ("next,array_rows,", "next,like,")  # a chip that it is like would have the row
    overlay.write_text("\n".join(line for line in lines if not line.startswith(left_out)))
    words = ["train", "--model", "llama-3.1-8b", "--cluster", "next-node", "--tp", "8", "--quiet"]
    assert run([*words, "--catalogue", str(overlay)]) == 2
    assert capsys.readouterr().err == (
        "cluster-sim: the catalogue has no 'array_rows' of next. Did you mean array_columns? "
        "Correct the name, or add a row for it to an overlay (--catalogue FILE).\n"
    )


@pytest.mark.parametrize(("row", "message"), [
    ("next,bf16_peak,", "the catalogue has no 'bf16_peak' of next."),
    ("next-node,chip,", "the catalogue has no 'chip' of next-node."),
    ("next-node,fabric,", "next-node:2 has 2 domains and no scale-out fabric to join them. Use"),
])  # fmt: skip
def test_a_row_that_a_machine_needs_is_named(row, message, tmp_path, capsys):
    (overlay := tmp_path / "next.csv").write_text(re.sub(f"(?m)^{row}.*\n", "", rows("gpu")))
    words = ["train", "--model", "gpt2", "--cluster", "next-node:2", "--tp", "2", "--quiet"]
    assert run([*words, "--catalogue", str(overlay)]) == 2
    assert message in capsys.readouterr().err
