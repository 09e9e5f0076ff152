"""Alternatives of the catalogue and ``--sensitivity``: each changes a result or is named."""

from functools import cache

import pytest

import cluster_sim as cs
from experiments.cli.main import run
from experiments.sweeps.runner import run_row
from tests.fuzz.seeds import files
from tests.support.commands import document_of, ended, printed_by
from tests.support.refusals import refused
from topologies.catalogue.catalogue import PREFIX, chip_family, choose, shipped_catalogue
from topologies.catalogue.reader import NAME, is_reference
from topologies.clusters.machines import machines
from workloads.confidence.sensitivity import noting

ROWS = shipped_catalogue().rows
VARIANTS = [(row.part, row.quantity, row.variant) for row in ROWS if row.variant]
DEMAND = ("--demand=azure-conv", "--days=0.1", "--model=llama-3.1-8b")
MEASURED = ("build_s", "simulate_s", "wall_s", "peak_rss_bytes", "search_s", "interval")


def commands(part, quantity):
    """Command lines that may read a row, the quick ones first."""
    catalogue = shipped_catalogue()
    for name in machines(catalogue):
        chip, several = catalogue.name(name, "chip"), catalogue.has(name, "fabric")
        fabric = catalogue.name(name, "fabric") if several else ""
        family = catalogue.name(chip, "family")
        parts = (name, chip, fabric, f"kernels.{family}", f"serving.{chip}", "training")
        chips = chip_family(chip, catalogue)
        parts += (f"nccl.{fabric}", chips.kernels, chips.serving, f"{chips.runtime}-tuner")
        parts += (f"runtime.{chips.runtime}",)
        if part not in parts and not part.startswith(("neuron", "rainier", "reliability")):
            continue
        if chip.startswith("tpu"):
            continue
        if not part.startswith("kernels"):  # which only steps and replicas read
            yield "topology", f"{name}:128" if several else name
            one = f"{name}:16" if several else name
            yield "collective", "all-reduce", one, "--size=64KiB,64MiB"
            yield "collective", "all-to-all", one, "--size=1MiB"
        for precision in ("bf16", "fp8"):
            train = ("train", "--model=gpt2", f"--cluster={name}", f"--precision={precision}")
            yield (*train, "--tp=2", "--attention=unfused", "--overlap=none", "--zero=1")
            yield train
            if part == "training":
                yield *train, "--cp=2"
                yield *train, "--zero=3"
                yield *train, "--pp=2", "--recompute=full"
                latent = ("--model=deepseek-v2", "--ep=2", "--allow-oversized")
                yield "train", *latent, f"--cluster={name}", f"--precision={precision}"
                if precision == "bf16" and name == "dgx-h100":
                    yield from trained_by_kind(f"--cluster={name}")
        if chips.runtime == "nccl" and part.startswith("kernels"):  # releases of others choose
            for framework in ("torchtitan", "megatron-core"):
                experts = ("--model=qwen3-30b-a3b", "--ep=8", f"--framework={framework}")
                yield "train", f"--cluster={name}", *experts, "--allow-oversized"
        yield ("serve", "--model=llama-3.1-8b", f"--cluster={name}", "--count=20", "--tp=1")
        if part == "serving.mi300x":
            for scheduler in ("vllm", "sglang"):
                latent = ("--model=deepseek-v3", "--tp=8", "--precision=fp8", "--count=20")
                yield "serve", f"--cluster={name}", *latent, f"--scheduler={scheduler}"
        if part == "serving.gpu" and name.startswith("dgx-h"):
            yield from served_by_kind(f"--cluster={name}")
        if part.startswith("serving"):
            yield "serve", "--model=mixtral-8x7b", f"--cluster={name}", "--count=20"
            prompts = ("--requests=poisson:1", "--prompt=4096", "--count=20", "--prefill=separate")
            yield (
                "serve",
                "--model=llama-3.1-8b",
                f"--cluster={name}",
                "--precision=fp8",
                *prompts,
            )
        if several:
            yield "fleet", f"--cluster={name}:8", *DEMAND
    if part == "rainier":
        yield "topology", "rainier"
    if part == "joined-clusters":
        pools = ("--prefill-cluster=trn2.48xlarge:2", "--disaggregate=1:1", "--count=20")
        yield "serve", "--model=llama-3.1-8b", "--cluster=p5.48xlarge:16", *pools


def trained_by_kind(cluster):
    """Yield steps that read constants of single kinds of training, on eight H100."""
    adapted = ("--model=llama-3.2-1b", "--global-batch=32", "--lora-rank=16", "--tp=1")
    yield "train", cluster, *adapted, "--framework=megatron-core", "--seq=512", "--microbatch=1"
    yield "train", cluster, *adapted, "--framework=megatron-core"
    yield "train", cluster, *adapted, "--framework=deepspeed", "--zero=3"
    experts = ("--model=qwen3-30b-a3b", "--ep=8", "--allow-oversized")
    yield "train", cluster, *experts, "--framework=torchtitan"
    again = ("--model=llama-3.1-8b", "--tp=8", "--pp=2", "--seq=8192", "--recompute=selective")
    yield "train", "--cluster=trn1.32xlarge:4", *again, "--framework=axlearn"


def served_by_kind(cluster):
    """Yield services that read constants of single kinds of models, on eight H100 or H200."""
    yield "serve", cluster, "--model=falcon-h1-7b", "--tp=1", "--count=20"
    yield "serve", cluster, "--model=deepseek-v3.2", "--tp=8", "--precision=fp8", "--count=20"
    for scheduler in ("vllm", "sglang"):
        small = ("--model=gpt-oss-20b", "--tp=1", "--count=20", "--prompt=100")
        yield "serve", cluster, *small, f"--scheduler={scheduler}"
    beside = ("--model=llama-3.1-8b", "--tp=1", "--requests=poisson:20", "--prompt=4096")
    yield "serve", "--cluster=dgx-a100", *beside, "--count=100", "--scheduler=vllm"
    many = ("--count=800", "--requests=poisson:2000")
    for model, tp in (("nemotron-h-56b", 2), ("qwen3.5-9b", 1)):
        yield "serve", cluster, f"--model={model}", f"--tp={tp}", *many
        shared = "--variant=serving.gpu.cache_share=sglang"
        yield "serve", cluster, f"--model={model}", f"--tp={tp}", *many, shared


def steady(value):
    """Drop what differs from run to run."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in MEASURED}
    return [steady(item) for item in value] if isinstance(value, list) else value


@cache
def answer(words):
    outcome = run_row(run, [*words, "--json", "--quiet"])
    return outcome["status"], steady(outcome["document"]) or outcome["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "quantity", "name"), VARIANTS)
def test_an_alternative_changes_a_result_or_is_refused(part, quantity, name):
    variant = f"{part}.{quantity}={name}"
    if is_reference(part, quantity, shipped_catalogue().entry(part, quantity).unit):
        refused("kept for reference", choose, [variant])
        return
    tried = []
    for words in commands(part, quantity):
        tried.append(words)
        if answer(words) != answer((*words, f"--variant={variant}")):
            return
    pytest.fail(f"{variant} changes none of {len(tried)} commands")


IDLE = "changes nothing here: the answer does not read it."
ELSEWHERE = "--variant=kernels.h100.host_dispatch=graphs"
JOB = ("--model=gpt2", "--cluster=trn2.48xlarge")
NIGHT = ("--cluster=rainier", "--demand=azure-conv", "--model=gpt2")


@pytest.mark.parametrize("words", [
    ("collective", "all-reduce", "trn2.48xlarge,trn3-gen1", "--size=1MiB"),
    ("topology", "rainier"),
    ("topology", "ring:4", "--bandwidth=1GB/s", "--latency=1us"),
    ("train", *JOB),
    ("plan", *JOB, "--global-batch=64", "--tp=4", "--pp=1", "--microbatch=1"),
    ("run-job", *JOB, "--tp=4"),
    ("serve", *JOB),
    ("fleet", *NIGHT, "--days=0.1", "--unit-rate=5"),
    ("lend", *NIGHT, "--unit-rate=5"),
])  # fmt: skip
def test_an_alternative_of_another_machine_is_named(words):
    status, _, errors = ended(words, "--quiet", ELSEWHERE)
    assert (status, f"{ELSEWHERE.replace('=', ' ', 1)} {IDLE}" in errors) == (0, True)


def parts_of(machine, catalogue):
    """Return the parts that answers about a machine may read, by the words in its rows."""
    # From the machine to its chip and fabric, to the chip's family, and to the kernels and serving
    # engine of it; parts such as ``serving.<chip>`` come along, those of no machine do not.
    every = catalogue.parts()
    reached = set()
    names = [machine]
    while names:
        name = names.pop()
        # Words that are no part, such as the shape ``switch``, name nothing in ``failure.switch``.
        named = [part for part in every if name in every and name in part.split(".")[1:]]
        for part in {name, PREFIX + name, *named} & set(every) - reached:
            reached.add(part)
            rows = catalogue.entries(part).values()
            names += [row.written for row in rows if row.unit == NAME]
    return frozenset(reached)


@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn3-gen2", "p5en.48xlarge", "mi300x-platform"])
def test_answers_about_a_machine_read_no_part_that_only_others_have(name):
    noted = noting(shipped_catalogue())
    machine = cs.cluster(name, catalogue=noted)
    cs.collective_time("all-reduce", machine, size_bytes="1MiB")
    cs.train("gpt2", machine, global_batch=144)
    cs.serve("llama-3.1-8b", machine, tp=8, requests="poisson:1")
    shipped = shipped_catalogue()
    every = {each: parts_of(each, shipped) for each in machines(shipped)}
    parts = {part for part, *_ in noted.read} & frozenset[str]().union(*every.values())
    assert {name, machine.chip} <= parts
    assert "failure.switch" not in every[name]
    assert parts <= every[name]


HEAD = "part,quantity,variant,value,unit,grade,source,note,low,high\n"


def test_rows_that_nothing_reads_are_named(tmp_path):
    """Rows of other machines, and those kept for reference, as the file may have other uses."""
    path = tmp_path / "mine.csv"
    rows = ("h100,hbm_bandwidth,,3.0", "trn2,hbm_bandwidth,,2.8", "trn2,scale_up_headline,,1.0")
    idle = (
        f"h100.hbm_bandwidth of {path}, trn2.scale_up_headline of {path} change nothing here: the "
        "answer does not read them.\n"
    )
    for stated, errors in ((rows, idle), (rows[1:2], "")):
        path.write_text(HEAD + "".join(f"{row},TB/s,assumed,me,,,\n" for row in stated))
        assert ended(f"topology trn2.48xlarge --catalogue {path}")[::2] == (0, errors)
    copied = ("new,like,,trn2", "node,like,,trn2.48xlarge", "node,chip,,new")
    path.write_text(HEAD + "".join(f"{row},name,assumed,me,,,\n" for row in copied))
    assert ended(f"train --model gpt2 --cluster node --catalogue {path}")[::2] == (0, "")


@pytest.mark.parametrize(("words", "reads"), [
    ("collective all-reduce --size=1MiB p5.48xlarge", False),
    ("topology p5.48xlarge", False),
    ("train --model=gpt2 --cluster=p5.48xlarge", True),
    ("serve --model=llama-3.1-8b --cluster=p5.48xlarge --requests=poisson:1", True),
])  # fmt: skip
def test_an_alternative_that_an_answer_does_not_read_is_named(words, reads):
    stated = "kernels.h100.gemm_sustained=500-watt"
    _, _, errors = ended(words, "--quiet", "--variant", stated)
    assert (f"--variant {stated} {IDLE}" in errors) is not reads


PLAIN = "collective all-reduce ring:4 --bandwidth=1GB/s --latency=1us --size=1MiB"
PERMUTE = "collective permute trn2.48xlarge --size=1MiB --unrestricted"
CALIBRATE = "calibrate kernels.csv --cluster=trn2.48xlarge"
WITH_REPORTS = CALIBRATE.replace("kernels.csv", "kernels.csv report.json report.json")
ABOUT = "--collective=all-gather --ranks=4"


@pytest.mark.parametrize(("line", "idle"), [
    (PLAIN, set()),
    (f"{PLAIN} --ideal", {"ideal"}),
    (f"{PERMUTE} --group=0,1,5,4", {"unrestricted"}),
    (f"{PERMUTE} --group=0,5", set()),
    (f"{CALIBRATE} {ABOUT} --chips=2", {"collective", "ranks", "chips"}),
    (f"{WITH_REPORTS} {ABOUT}", {"collective", "ranks"}),
    (WITH_REPORTS, set()),
])  # fmt: skip
def test_options_without_effect_are_named(line, idle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("kernels.csv", "report.json"):
        (tmp_path / name).write_bytes(files()[name])
    assert document_of(line).get("without_effect", {}).keys() == idle


def test_each_of_several_clusters_names_what_has_no_effect():
    line = "collective all-reduce trn2.48xlarge,dgx-h100 --size=1MiB --unrestricted"
    assert all("unrestricted" in row["without_effect"] for row in document_of(line)["rows"])


KEYS = {"input", "low", "high", "change_low", "change_high", "elasticity", "grade", "unit"}
SLOW = pytest.mark.slow


@pytest.mark.parametrize("line", [
    "serve --model qwen2.5-0.5b --cluster dgx-h100 --tp 1 --count 20",
    pytest.param("train --model gpt2 --cluster dgx-h100 --tp 4 --global-batch 2", marks=SLOW),
    pytest.param(
        "plan --model gpt2 --cluster dgx-h100 --global-batch 4 --tp 4 --pp 1 --top 1",
        marks=SLOW,
    ),
])  # fmt: skip
def test_numbers_are_ranked_with_their_ranges(line):
    rows = document_of(line, "--sensitivity")["sensitivity"]
    assert rows
    assert all(row.keys() == KEYS for row in rows)
    assert all(abs(row["elasticity"]) < 2 for row in rows), "no number acts more than twice over"


def test_a_run_directory_has_the_tornado(tmp_path):
    line = "collective all-reduce trn2.48xlarge --size 1MiB --algorithm mesh --sensitivity"
    printed = printed_by(line, f"--out={tmp_path}")
    assert "What the time of the first size depends on" in printed
    assert (tmp_path / "sensitivity.csv").exists()
    assert (tmp_path / "tornado.png").exists()


@SLOW
def test_a_fleet_ranks_what_it_lends_and_what_serving_costs(tmp_path):
    """What is not lent is paid for: the price acts in full, all else as on the share kept."""
    document = document_of(
        "fleet --cluster trn2-ultraserver:20 --demand azure-conv --days 0.5 --unit-rate 30 "
        f"--failures off --no-compare --sensitivity --out {tmp_path}"
    )
    share = document["expected_lendable_share"]
    lent = {row["input"]: row["elasticity"] for row in document["sensitivity"]}
    cost = {row["input"]: row["elasticity"] for row in document["sensitivity_cost"]}
    assert lent["fleet.change.mode_switch"] < 0
    assert cost["trn2-ultraserver.price"] == pytest.approx(1.0)
    for name, elasticity in lent.items():
        assert cost[name] == pytest.approx(-elasticity * share / (1 - share), rel=1e-6)
    assert {"tornado.png", "tornado_cost.png"} <= {path.name for path in tmp_path.iterdir()}
