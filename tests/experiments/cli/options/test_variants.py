"""Every alternative of the catalogue changes a result, or is refused as kept for reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from experiments.cli.main import run
from experiments.sweeps.outcome import run_row
from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.catalogue.domains import is_reference
from topologies.catalogue.families import chip_family
from topologies.clusters.machines import machines
from topologies.errors import InputError

VARIANTS = [
    (row.part, row.quantity, row.variant) for row in shipped_catalogue().rows if row.variant
]
DEMAND = ("--demand=azure-conv", "--days=0.1", "--model=llama-3.1-8b")
MEASURED = ("build_s", "simulate_s", "wall_s", "peak_rss_bytes", "search_s", "interval")


def commands(part: str, quantity: str) -> Iterator[tuple[str, ...]]:
    """Command lines that may read a row, the quick ones first."""
    catalogue = shipped_catalogue()
    for name in machines(catalogue):
        chip, several = catalogue.name(name, "chip"), catalogue.has(name, "fabric")
        fabric = catalogue.name(name, "fabric") if several else ""
        family = catalogue.name(chip, "family")
        parts = (name, chip, fabric, f"kernels.{family}", f"serving.{chip}", "training")
        chips = chip_family(chip, catalogue)
        parts += (f"nccl.{fabric}", chips.serving, f"{chips.runtime}-tuner")
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
        yield "serve", "--model=llama-3.1-8b", f"--cluster={name}", "--count=20", "--tp=1"
        if part.startswith("serving"):
            yield "serve", "--model=mixtral-8x7b", f"--cluster={name}", "--count=20"
            prompts = ("--requests=poisson:1", "--prompt=4096", "--count=20", "--prefill=separate")
            yield "serve", "--model=llama-3.1-8b", f"--cluster={name}", "--precision=fp8", *prompts
        if several:
            yield "fleet", f"--cluster={name}:8", *DEMAND
    if part == "rainier":
        yield "topology", "rainier"


def steady(value: Any) -> Any:
    """Drop what differs from run to run."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in MEASURED}
    return [steady(item) for item in value] if isinstance(value, list) else value


@cache
def answer(words: tuple[str, ...]) -> Any:
    outcome = run_row(run, [*words, "--json", "--quiet"])
    return outcome["status"], steady(outcome["document"]) or outcome["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "quantity", "name"), VARIANTS)
def test_an_alternative_changes_a_result_or_is_refused(part: str, quantity: str, name: str) -> None:
    variant = f"{part}.{quantity}={name}"
    if is_reference(part, quantity, shipped_catalogue().entry(part, quantity).unit):
        with pytest.raises(InputError, match="kept for reference"):
            choose([variant])
        return
    tried = []
    for words in commands(part, quantity):
        tried.append(words)
        if answer(words) != answer((*words, f"--variant={variant}")):
            return
    pytest.fail(f"{variant} changes none of {len(tried)} commands")


def test_no_row_that_is_read_is_marked_as_reference() -> None:
    for part, quantity in (("trn2", "hbm_bandwidth"), ("trn2", "ranks_per_chip")):
        assert not is_reference(part, quantity, shipped_catalogue().entry(part, quantity).unit)
    assert is_reference("trn2", "scale_up_headline", "B/s")
