"""The fit of NCCL's constants: it finds what made the rows, and the shipped rows are its own."""

from dataclasses import replace

import pytest

from cluster_sim.collectives.duration.nccl import CHIP
from tools.fit_collectives import fit_chips, fit_fabrics, nccl_rows, rows_on, start_for
from tools.fit_rows import write
from tools.nccl_fit import fit, measured, modelled, with_fitted
from topologies.catalogue.catalogue import shipped_catalogue


def a100_rows():
    return rows_on(nccl_rows("nccl_aic"), ["dgx-a100"], far=False)


def test_the_fit_finds_the_constants_that_made_the_rows():
    truth = {
        "launch": 9e-6, "step": 1e-6, "ll_efficiency": 0.35, "ll128_step": 2e-6,
        "ll128_efficiency": 0.7, "simple_step": 6e-6, "simple_second_step": 3e-6, "efficiency": 0.8,
        "slice": 5e-6, "copy_rate": 9e11, "exchange": 3e-6, "exchange_efficiency": 0.7,
        "exchange_copy_rate": 5e11,
    }  # fmt: skip
    start, rows = start_for("dgx-a100"), measured(a100_rows())
    times_s = modelled(with_fitted(start, truth), rows)
    fits = fit(replace(rows, time_s=times_s), CHIP, start)
    assert fits.value == pytest.approx(truth, rel=0.03)
    assert max(fits.spread.values()) < 0.15


def test_the_shipped_rows_are_those_of_the_fits(tmp_path):
    others = nccl_rows("nccl_tests", "nccl_more", "nccl_efa_more")
    chips = fit_chips(nccl_rows("nccl_aic"), others)
    written = write(tmp_path / "fits.csv", chips, fit_fabrics(others, chips))
    again, shipped = shipped_catalogue().with_overlay(tmp_path / "fits.csv"), shipped_catalogue()
    for row in written:
        entry = shipped.entry(row.part, row.quantity)
        assert again.value(row.part, row.quantity) == pytest.approx(entry.value, rel=0.02)
        assert (entry.grade, entry.note) == (row.grade, row.note)
        assert entry.low < entry.value <= entry.high
    fitted = {part for part in shipped.parts() if part.startswith("nccl.")}
    assert fitted - {row.part for row in written} == {"nccl.one-process", "nccl.pytorch"}
    assert shipped.entry("nccl.h200", "launch").grade == "assumed"
