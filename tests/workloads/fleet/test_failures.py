"""Failures of a fleet beside the published record of a training run."""

from __future__ import annotations

import pytest

from topologies.catalogue.catalogue import catalogue
from workloads.demand import constant
from workloads.fleet import Failures, Service, simulate, static
from workloads.serving.capacity import fixed_rate

GPUS, DAYS, UNEXPECTED = 16_384, 54, 419
"""Llama 3's pre-training on H100 (arXiv 2407.21783, table 5): a window of 54 days in which 419
interruptions were not planned, most of them of hardware."""
A_NODE = 8


def test_the_catalogue_has_the_published_rate_of_a_chip() -> None:
    entry = catalogue().entry("fleet.failure", "chip_mtbf")
    hours = GPUS * DAYS * 24 / UNEXPECTED
    assert entry.source.startswith("LLAMA3")
    assert entry.value == pytest.approx(hours * 3600, rel=0.02)


def test_a_simulated_third_of_it_has_a_third_of_the_interruptions() -> None:
    """A Poisson count of 140 scatters by 12; the model may differ by three of these."""
    days, expected = DAYS // 3, UNEXPECTED / 3
    run = simulate(
        constant(60.0, minutes=days * 1440),
        [Service("chat", fixed_rate(3.5), 1e9)],
        units=GPUS // A_NODE,
        policy=static(1),
        failures=Failures.from_catalogue(A_NODE),
        chips_per_unit=A_NODE,
    )
    assert run.failures == pytest.approx(expected, abs=3 * expected**0.5)
    assert days * 24 / run.failures == pytest.approx(3.09, rel=0.3)
