"""The measurement kit for owners of hardware, and constants fitted to its results."""

import ast
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.calibration.fit import Constant, Group, fit_all, overlay_text, with_values
from experiments.calibration.kit import read_manifest, write_kit
from experiments.calibration.measurements import read_measurements
from experiments.validation.predictions.collectives import time_s
from experiments.validation.predictions.kernels import predict
from experiments.validation.predictions.training import Steps
from experiments.validation.reading.rows import machines_for
from experiments.validation.reading.rows import read_text as read_rows
from tests.fuzz.foreign_seeds import KERNELS as KERNEL_ROWS
from tests.support.commands import document_of, ended, printed_by, refusal_of
from topologies.catalogue.catalogue import Catalogue, choose, shipped_catalogue
from topologies.errors import InputError

SHARED = {"chip": "trn2", "cores": 2, "runtime": "graph", "precision": "bf16"}
PRODUCTS = [
    *((side, side, side) for side in (512, 1024, 2048, 4096, 8192)),
    *((1, 4096, 4096), (128, 4096, 4096), (4096, 17408, 5120), (16, 14336, 4096)),
]
STREAMED = {"kernel": "elementwise", "work": "streaming"}
KERNELS: list[dict[str, Any]] = [
    *({"kernel": "gemm", "m": m, "n": n, "k": k, **SHARED} for m, n, k in PRODUCTS),
    *({**STREAMED, "size_bytes": size, **SHARED} for size in (2**20, 2**24, 2**28)),
]
TRUE = {
    Constant("kernels.trainium", "gemm_sustained"): 0.8,
    Constant("kernels.trainium", "elementwise_efficiency"): 0.664,
    Constant("kernels.trainium", "launch"): 5.25e-6,
}
SIZES = [2**power for power in (14, 21, 28)]
INSIDE = {
    Constant("trn2", "copy_all_reduce_4"): 1.3,
    Constant("trn2", "chip_collective_launch"): 1.5,
}
"""Factors of what the shipped catalogue has."""


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = sorted({name for row in rows for name in row})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def measured(catalogue: Catalogue, noise: float = 0.0) -> list[dict[str, Any]]:
    """Kernel rows timed with these constants, each off by up to the noise."""
    draws = np.random.default_rng(0).uniform(-noise, noise, len(KERNELS))
    return [
        {**row, "kernel_s": predict(row, catalogue).predicted["kernel_s"] * (1 + draw)}
        for row, draw in zip(KERNELS, draws.tolist(), strict=True)
    ]


def fitted(group: Group) -> dict[str, float]:
    return {entry.quantity: entry.value for entry in group.fit.entries}


@pytest.mark.parametrize("chip", ["trn1", "trn2", "h100", "b200"])
def test_scripts_of_a_kit_are_whole(tmp_path, chip):
    folder = tmp_path / "kit"
    manifest = write_kit(folder, chip)
    assert replace(manifest, files=()) == read_manifest(folder)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    for name, text in texts.items():
        assert not any(f"@{word}@" in text for word in ("CHIP", "RANKS", "CLUSTER", "TOOL")), name
        if name.endswith(".py"):
            ast.parse(text)
    assert set(manifest.files) == set(texts)
    assert ("nccom-test" in texts["collectives.sh"]) == chip.startswith("trn")


def test_a_kit_needs_an_empty_folder_and_a_known_chip(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(InputError, match="not an empty folder"):
        write_kit(tmp_path, "trn2")
    with pytest.raises(InputError, match=r"no kit for chip 'h20'.*Did you mean h200"):
        write_kit(tmp_path / "new", "h20")


@pytest.mark.parametrize(("content", "why"), [
    (b'{"chip": ', "Expecting value: line 1 column 10"),
    (b"[]", "it names no chip"),
    (b"\xff", "not UTF-8 text"),
])  # fmt: skip
def test_a_damaged_manifest_is_named_with_its_mistake(tmp_path, content, why):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match=why):
        read_manifest(tmp_path)


def test_known_constants_of_kernels_come_back_and_are_read_as_measured(tmp_path):
    write_kit(tmp_path / "kit", "trn2")
    catalogue = shipped_catalogue()
    write_rows(tmp_path / "kit" / "results.csv", measured(with_values(catalogue, TRUE)))
    (group,) = fit_all(read_measurements([tmp_path / "kit"]), catalogue, None)
    for constant, value in TRUE.items():
        assert fitted(group)[constant.quantity] == pytest.approx(value, rel=0.02)
    assert np.abs(group.fit.after).max() < 0.001 < np.abs(group.fit.before).max()
    assert "no row depends on it" in group.fit.kept.values()
    overlay = tmp_path / "mine.csv"
    overlay.write_text(overlay_text(group.fit.entries))
    entry = choose((), overlay).entry("kernels.trainium", "launch")
    assert (entry.grade, entry.value) == ("measured", pytest.approx(5.25e-6, rel=0.02))


def test_known_constants_of_collectives_come_back(tmp_path):
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    true = {one: catalogue.value(one.part, one.quantity) * by for one, by in INSIDE.items()}
    machine = machines_for("trn2.48xlarge", 1, with_values(catalogue, true))
    (kit / "collectives").mkdir()
    lines = ["nccom-test -r 4 allr", "size(B) count(elems) type time(us) algbw(GB/s) busbw(GB/s)"]
    for size in SIZES:
        seconds = time_s("all-reduce", machine, 1, 4, size)
        rate = size / seconds / 1e9
        lines.append(f"{size} {size // 4} fp32 {seconds * 1e6:.6f} {rate:.4f} {1.5 * rate:.4f}")
    (kit / "collectives" / "allr_4.log").write_text("\n".join(lines))
    (group,) = fit_all(read_measurements([kit]), catalogue, None)
    fits = fitted(group)
    for constant, value in true.items():
        assert fits[constant.quantity] == pytest.approx(value, rel=0.02)


def test_noise_of_a_fifth_and_two_rows_are_fitted_within_physical_bounds(tmp_path):
    catalogue, path = shipped_catalogue(), tmp_path / "rows.csv"
    noisy = measured(with_values(catalogue, TRUE), noise=0.2)
    for rows in (noisy, noisy[3:5]):
        write_rows(path, rows)
        (group,) = fit_all(read_measurements([path]), catalogue, None)
        for entry in group.fit.entries:
            assert entry.low <= entry.value <= entry.high
            assert entry.unit != "ratio" or entry.high <= 1
        assert np.abs(group.fit.after).max() <= np.abs(group.fit.before).max()
    assert group.fit.kept


def test_profiles_and_reports_in_json_are_measurements(tmp_path):
    profile = tmp_path / "gemm_m4096_n4096_k4096_bf16.json"
    profile.write_text(json.dumps({"summary": [{"total_time": 0.00145}]}))
    report = tmp_path / "report.json"
    results = [{"size": 1024, "time_us": 12.0}, {"size": 2**20, "time_us": 40.0}]
    report.write_text(json.dumps({"op": "allr", "nworkers": 2, "results": results}))
    measurements = read_measurements([profile, report])
    kernel, (_, series) = measurements.kernels[0], measurements.collectives[0]
    assert (kernel["m"], kernel["kernel_s"]) == (4096, 0.00145)
    assert (series.collective, series.ranks) == ("all-reduce", 2)
    assert series.time_s.tolist() == pytest.approx([12e-6, 40e-6])
    for name in ("unnamed_m4_n4_k4.json", "gemm.json"):
        profile = profile.rename(tmp_path / name)
        with pytest.raises(InputError, match="does not state the kernel"):
            read_measurements([profile])


def test_the_commands_write_a_kit_and_calibrate_from_it(tmp_path):
    kit = tmp_path / "kit"
    printed_by(f"measure-kit {kit} --chip trn2")
    assert "no measurement in it" in refusal_of(f"calibrate {kit}")
    write_rows(kit / "results.csv", measured(with_values(shipped_catalogue(), TRUE)))
    (group,) = document_of(f"calibrate {kit}")["groups"]
    assert group["name"] == "kernels"
    assert group["median_abs_error"] < 0.001 < group["median_abs_error_before"]
    status, output, errors = ended(f"calibrate {kit}")
    assert (status, output.startswith("part,quantity")) == (0, True)
    assert "no row depends on it" in errors


STEP = {
    "cluster": "trn2.48xlarge", "chips": 4, "layers": 2, "hidden": 2048, "ffn": 5632, "heads": 16,
    "kv_heads": 16, "vocab": 32000, "seq": 2048, "gated_mlp": 1, "tp": 4, "pp": 1, "dp": 4,
    "microbatch": 1, "global_batch": 8, "precision": "bf16", "recompute": "none", "overlap": "dp",
}  # fmt: skip
OF_STEPS = {
    Constant("training", "scheduling_trn2"): 0.5,
    Constant("training", "sharded_rate_trn2"): 60e9,
}


def timed_steps(catalogue: Catalogue, **more: object) -> list[dict[str, Any]]:
    """Steps with and without sharded parameters, timed with these constants."""
    rows = [{**STEP, "name": f"zero {zero}", "zero": zero, **more} for zero in (1, 2, 3)]
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    return [
        {**row, "iteration_s": Steps().predict(read_row(text), catalogue).predicted["iteration_s"]}
        for row, text in zip(rows, texts, strict=True)
    ]


def read_row(cells: Mapping[str, str]) -> Mapping[str, Any]:
    """Values of one training row."""
    text = ",".join(cells) + "\n" + ",".join(cells.values()) + "\n"
    (row,) = read_rows(text, "mine").rows
    return row.values


@pytest.mark.slow
def test_known_constants_of_training_steps_come_back(tmp_path):
    catalogue, path = shipped_catalogue(), tmp_path / "steps.csv"
    write_rows(path, timed_steps(with_values(catalogue, OF_STEPS)))
    (group,) = fit_all(read_measurements([path]), catalogue, None)
    fits = fitted(group)
    for constant, value in OF_STEPS.items():
        assert fits[constant.quantity] == pytest.approx(value, rel=0.02)
    assert np.abs(group.fit.after).max() < 0.001 < np.abs(group.fit.before).max()
    assert len(group.apart) == 0


def test_steps_that_are_held_out_only_test_the_fit_of_kernels(tmp_path):
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    true = {Constant("kernels.trainium", "gemm_sustained"): 0.7}
    write_rows(kit / "results.csv", measured(with_values(catalogue, true)))
    write_rows(kit / "training_rows.csv", timed_steps(with_values(catalogue, true), held_out=1))
    kernels, steps = fit_all(read_measurements([kit]), catalogue, None)
    assert fitted(kernels)["gemm_sustained"] == pytest.approx(0.7, rel=0.02)
    assert (len(steps.fit.entries), len(steps.fit.after)) == (0, 0)
    assert np.abs(steps.apart).max() < 0.01 < np.abs(steps.apart_before).max()


@pytest.mark.slow
def test_kernels_that_meet_held_out_steps_worse_are_doubted(tmp_path):
    """Products of short bursts are faster than in the steps, which are as shipped."""
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    fast = {Constant("kernels.trainium", "gemm_sustained"): 1.0}
    for factors, doubted in ((fast, True), ({}, False)):
        write_rows(kit / "results.csv", measured(with_values(catalogue, factors)))
        write_rows(kit / "training_rows.csv", timed_steps(catalogue, held_out=1))
        status, _, errors = ended(f"calibrate {kit}")
        assert (status, "met better by the shipped rows" in errors) == (0, doubted)


@pytest.mark.parametrize(("result", "message"), [
    ({"size": float("inf"), "time_us": 12.0}, "a size of inf bytes"),
    ({"size": 10**30, "time_us": 12.0}, "a size of 10000000000000000000000000000000* bytes"),
    ({"size": 1024, "time_us": 1e-5}, "measured times are 1e-09 to 1e"),
    ({"size": 1024, "time_us": float("inf")}, "neither sizes with times"),
    ({"size": 1024, "time_us": 10**400}, "neither sizes with times"),
    ({"size": True, "time_us": 12.0}, "neither sizes with times"),
    ({"total_time": 1e300}, "a time of 1e.300 s"),
])  # fmt: skip
def test_measurements_that_no_clock_shows_are_refused(result, message, tmp_path):
    path = tmp_path / "gemm_m64_n64_k64.json"
    path.write_text(json.dumps({"results": [result]}))
    with pytest.raises(InputError, match=message):
        read_measurements([path])


@pytest.mark.parametrize("ranks", ["true", "1", "0"])
def test_a_report_of_fewer_than_two_ranks_is_refused(tmp_path, ranks):
    report, kernels = tmp_path / "report.json", tmp_path / "kernels.csv"
    results = '[{"size": 1024, "time_us": 12.0}]'
    report.write_text(f'{{"op": "allr", "nworkers": {ranks}, "results": {results}}}')
    kernels.write_bytes(KERNEL_ROWS)
    assert "rank" in refusal_of(f"calibrate {kernels} {report} --cluster=trn2.48xlarge")
