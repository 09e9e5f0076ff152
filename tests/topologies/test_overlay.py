"""Overlays of the catalogue, limits of memory, and chips that are copies or relatives of others."""

import json
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from topologies import memory_limit
from topologies.arrays import distinct
from topologies.catalogue import catalogue as catalogues
from topologies.catalogue.catalogue import Catalogue, chip_family, choose, shipped_catalogue
from topologies.catalogue.reader import COLUMNS
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.search.estimate import estimate

HEADER = ",".join(COLUMNS)


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return shipped_catalogue()


def overlay(path: Path, *lines: str, header: str = HEADER) -> Path:
    file = path / "mine.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


def test_an_overlay_replaces_adds_and_keeps_variants(tmp_path, shipped):
    file = overlay(
        tmp_path, "trn2,link_latency,,250,ns,measured,own bench,,200,300",
        "trn2,link_latency,slow,1,us,assumed,guess,,,", "mychip,cores,,4,count,stated,me,,,",
    )  # fmt: skip
    mine = shipped.with_variants({"trn2.cc_cores": "kernel-guide"}).with_overlay(file)
    assert mine.ps("trn2", "link_latency") == 250_000
    assert mine.entry("trn2", "link_latency").source == "own bench"
    assert mine.with_variants({"trn2.link_latency": "slow"}).ps("trn2", "link_latency") == 10**6
    assert mine.integer("mychip", "cores") == 4
    assert mine.integer("trn2", "cc_cores") == 20
    assert "mychip" in mine.parts()
    assert "mychip" not in shipped.parts()
    slow = choose(overlay=file, variants=["trn2.link_latency=slow"])
    assert slow.value("trn2", "link_latency") == pytest.approx(1e-6)


def test_columns_ends_of_ranges_and_names_of_own_parts(tmp_path, shipped):
    header = "source,grade,unit,value,quantity,part"
    file = overlay(
        tmp_path,
        "me,measured,W,480,tdp,trn2",
        # A thousandth is exact in a file, and no binary fraction.
        "me,measured,ratio,0.001,collective_efficiency,trn2",
        "me,stated,count,4,cores,mychip",
        "me,measured,ratio,0.5,gemm_sustained_mychip,kernels.trainium",
        # Parts that are named almost as others.
        *("own,stated,name,trainium,family,trn2b", "own,stated,TFLOP/s,700,bf16_peak,trn2b"),
        *("own,stated,name,trn2,chip,trn2.49xlarge", "own,stated,count,16,chips,trn2.49xlarge"),
        header=header,
    )
    mine = shipped.with_overlay(file)
    assert (mine.value("trn2", "tdp"), mine.entry("trn2", "tdp").note) == (480.0, "")
    assert mine.value("trn2", "collective_efficiency") == 0.001
    assert mine.value("kernels.trainium", "gemm_sustained_mychip") == 0.5
    assert mine.has("trn2b", "bf16_peak")
    assert mine.has("trn2.49xlarge", "chips")


def test_the_digest_follows_values_not_words(tmp_path, shipped):
    same = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,0.5,kW,measured,me,new note,,"))
    assert same == shipped
    assert hash(same) == hash(shipped)
    other = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,501,W,measured,me,,,"))
    assert other != shipped


@pytest.mark.parametrize(("line", "message"), [
    ("trn2,tdp,,480,W,guess,me,,,", "line 2: grade 'guess' is none of stated, "),
    ("trn2,tdp,,many,W,stated,me,,,", "line 2: value: 'many' is not a number."),
    ("trn2,tdp,,nan,W,stated,me,,,", "line 2: value: 'nan' is not a number."),
    ("trn2,tdp,,1e99,W,stated,me,,,", "line 2: value: 1e99 is beyond 1e±40."),
    ("trn2,tdp,,480,watts,stated,me,,,", "line 2: value: unknown unit watts."),
    ("trn2,tdp,,480,W,stated,,,,", "line 2: source is empty."),
    ("trn2,tdp,,480,,stated,me,,,", "line 2: unit is empty."),
    ("trn2,tdp,,-1,W,stated,me,,,", "line 2: value -1 is negative; the least is 0."),
    ("trn2,tdp,,480,W,stated,me,,490,500", "outside its range, 490 to 500."),
    ("trn2,tdp,,480,W,stated,me,,,low", "line 2: high: 'low' is not a number."),
    ("trn2,tdp,,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, elsewhere in W."),
    ("new,hbm_bytes,,144,TB/s,stated,me,,,", "new hbm_bytes is in B/s, elsewhere in B."),
    ("trn2,tdp,x,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, elsewhere in W."),
    ("trn2,zebra,x,1,W,stated,me,,,", "line 2: trn2 zebra: the variant 'x' has no default"),
    (
        "trn2,link_latnecy,,1,us,stated,me,,,",
        "line 2: trn2 link_latnecy: no command reads a quantity of that name. Did you mean "
        "link_latency? Correct it",
    ),
    ("trm2,link_bandwidth,,64,GB/s,stated,own,,,", "no part 'trm2'. Did you mean trn2? Corr"),
    ("trn2,tdp,,480", "line 2: it has not as many cells as the header has columns."),
    ("trn2,tdp,,480,W,stated,me,,,,,", "line 2: it has not as many cells as the header"),
    ('trn2,tdp,,480,W,"stated,me,,,', "not CSV (unexpected end of data)."),
    ("trn2,tdp,,1,W,stated,me,,,\ntrn2,tdp,,2,W,stated,me,,,",
     "line 3: trn2 tdp is also in line 2; keep one."),
])  # fmt: skip
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, shipped, line, message):
    file = overlay(tmp_path, line)
    with pytest.raises(InputError) as caught:
        shipped.with_overlay(file)
    assert str(caught.value).startswith(f"{file} line ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"part,value\n",
     f" line 1: no column quantity, unit, grade, source; a catalogue has {HEADER}."),
    (HEADER.encode() + b",notes\n", " line 1 has no 'notes'. Did you mean note?"),
    (b"", " line 1: no column part, quantity, value, unit, grade, source;"),
    (b"x" * 5_000_001, " is over the limit of 5 MB."),
    (HEADER.encode() + b"\ntrn2,\xff\xfe\n", " line 2: not UTF-8 text. Save it in UTF-8."),
    (HEADER.encode() + b"\n" + b"\x00" * 100 + b"\n", " line 2"),
])  # fmt: skip
def test_a_bad_file_is_refused_by_name(tmp_path, shipped, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        shipped.with_overlay(path)
    assert str(caught.value).startswith(f"{path}{message}")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(HEADER.encode() + b"\n" + content)
    try:
        outcome = shipped_catalogue().with_overlay(file).digest
    except InputError as refusal:
        outcome = str(refusal)
    assert "\n" not in outcome
    assert outcome


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_the_limits_of_the_process_count(monkeypatch, kind):
    usual = memory_limit.machine_bytes()

    def limits(limit: int) -> tuple[int, int]:
        return (10**6 if limit == kind else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    monkeypatch.setattr(memory_limit.resource, "getrlimit", limits)
    assert memory_limit.machine_bytes() == 10**6 < usual


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory_limit, "CGROUP_LIMIT", group)
    for text, limited in (("123456\n", True), ("max\n", False)):
        group.write_text(text)
        assert (memory_limit.machine_bytes() == 123456) is limited


def test_work_that_needs_more_is_refused_with_what_would_do():
    memory_limit.check_memory("nothing", 0, "")
    with pytest.raises(InputError, match=r"the graph needs about 1 EB, and this .* Leave it out\."):
        memory_limit.check_memory("the graph", 10**18, "Leave it out.")


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values):
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()


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
    row = row._replace(quantity="scheduling_new", value=0.1)
    assert catalogue.value("training", "scheduling_new") == row.value + 0.23
    assert catalogue.with_rows([row]).value("training", "scheduling_new") == 0.1
    catalogue = with_copy("trn2.48xlarge")  # for which variants of the chip it is like hold
    chosen = catalogue.with_variants({"serving.new.expert_block_rate": "sdk-2.26"})
    (old, new) = (each.value("serving.new", "expert_block_rate") for each in (catalogue, chosen))
    assert old != new == chosen.value("serving.trn2", "expert_block_rate")


def test_a_chip_has_the_rows_of_the_one_it_is_like_but_for_its_own():
    catalogue = shipped_catalogue()
    assert catalogue.value("trn4", "vector_clock") == catalogue.value("trn3", "vector_clock")
    assert catalogue.value("trn4", "hbm_bandwidth") == 4 * catalogue.value("trn3", "hbm_bandwidth")
    faster = catalogue.entry("trn4", "vector_clock")._replace(part="trn4", value=2e9)
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
    with pytest.raises(InputError, match=r"family of trn9 .trainum. is none of .* trainium"):
        cluster(str(path))


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
