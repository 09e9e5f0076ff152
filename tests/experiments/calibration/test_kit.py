"""The measurement kit for owners of hardware, and constants fitted to measurements of one's own."""

import ast
import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives.call import CollectiveCall as Call
from cluster_sim.collectives.duration.nccl import nccl_ps
from cluster_sim.collectives.group import whole
from experiments.calibration import fit
from experiments.calibration.kit import read_manifest, write_kit
from experiments.calibration.measurements import Measurements, read_measurements
from experiments.cli.main import run as run_line
from experiments.validation.predictions.collectives import time_s
from experiments.validation.predictions.kernels import predict
from experiments.validation.predictions.training import Steps
from experiments.validation.reading.rows import machines_for
from experiments.validation.reading.rows import read_text as read_rows
from experiments.validation.reading.tool_outputs import Measured, parse_measured
from tests.fuzz.foreign_seeds import KERNELS as KERNEL_ROWS
from tests.support.commands import document_of, ended, printed_by, refusal_of
from tests.support.refusals import refused
from topologies.catalogue.catalogue import Catalogue, choose, shipped_catalogue
from topologies.catalogue.reader import domain
from topologies.clusters.names import cluster

SHARED = {"chip": "trn2", "cores": 2, "runtime": "graph", "precision": "bf16"}
PRODUCTS = [
    *((side, side, side) for side in (512, 1024, 2048, 4096, 8192)),
    *((1, 4096, 4096), (128, 4096, 4096), (4096, 17408, 5120), (16, 14336, 4096)),
]
STREAMED = {"kernel": "elementwise", "work": "streaming"}
KERNELS = [
    *({"kernel": "gemm", "m": m, "n": n, "k": k, **SHARED} for m, n, k in PRODUCTS),
    *({**STREAMED, "size_bytes": size, **SHARED} for size in (2**20, 2**24, 2**28)),
]
TRUE = {
    fit.Constant("kernels.trainium", "gemm_sustained"): 0.8,
    fit.Constant("kernels.trainium", "elementwise_efficiency"): 0.664,
    fit.Constant("kernels.trainium", "launch"): 5.25e-6,
}
SIZES = [2**power for power in (14, 21, 28)]
INSIDE = {
    fit.Constant("trn2", "copy_all_reduce_4"): 1.3,
    fit.Constant("trn2", "chip_collective_launch"): 1.5,
}
"""Factors of what the shipped catalogue has."""


def write_rows(path, rows):
    columns = sorted({name for row in rows for name in row})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def measured(catalogue, noise=0.0):
    """Kernel rows timed with these constants, each off by up to the noise."""
    draws = np.random.default_rng(0).uniform(-noise, noise, len(KERNELS))
    return [
        {**row, "kernel_s": predict(row, catalogue).predicted["kernel_s"] * (1 + draw)}
        for row, draw in zip(KERNELS, draws.tolist(), strict=True)
    ]


def fitted(group):
    return {entry.quantity: entry.value for entry in group.entries}


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
    refused("not an empty folder", write_kit, tmp_path, "trn2")
    refused(r"no kit for chip 'h20'.*Did you mean h200", write_kit, tmp_path / "new", "h20")


@pytest.mark.parametrize(("content", "why"), [
    (b'{"chip": ', "Expecting value: line 1 column 10"),
    (b"[]", "it names no chip"),
    (b"\xff", "not UTF-8 text"),
])  # fmt: skip
def test_a_damaged_manifest_is_named_with_its_mistake(tmp_path, content, why):
    (tmp_path / "manifest.json").write_bytes(content)
    refused(why, read_manifest, tmp_path)


def test_known_constants_of_kernels_come_back_and_are_read_as_measured(tmp_path):
    write_kit(tmp_path / "kit", "trn2")
    catalogue = shipped_catalogue()
    write_rows(tmp_path / "kit" / "results.csv", measured(fit.with_values(catalogue, TRUE)))
    (group,) = fit.fit_all(read_measurements([tmp_path / "kit"]), catalogue, None)
    for constant, value in TRUE.items():
        assert fitted(group)[constant.quantity] == pytest.approx(value, rel=0.02)
    assert np.abs(group.after).max() < 0.001
    numbers = catalogue, fit.with_values(catalogue, TRUE)
    times = [[row["kernel_s"] for row in measured(each)] for each in numbers]
    assert group.before == pytest.approx(np.divide(*times) - 1)
    assert "no row depends on it" in group.kept.values()
    (overlay := tmp_path / "mine.csv").write_text(fit.overlay_text(group.entries))
    entry = choose((), overlay).entry("kernels.trainium", "launch")
    assert (entry.grade, entry.value) == ("measured", pytest.approx(5.25e-6, rel=0.02))


def test_known_constants_of_collectives_come_back(tmp_path):
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    true = {one: catalogue.value(one.part, one.quantity) * by for one, by in INSIDE.items()}
    machine = machines_for("trn2.48xlarge", 1, fit.with_values(catalogue, true))
    (kit / "collectives").mkdir()
    lines = ["nccom-test -r 4 allr", "size(B) count(elems) type time(us) algbw(GB/s) busbw(GB/s)"]
    for size in SIZES:
        seconds = time_s("all-reduce", machine, 1, 4, size)
        rate = size / seconds / 1e9
        lines.append(f"{size} {size // 4} fp32 {seconds * 1e6:.6f} {rate:.4f} {1.5 * rate:.4f}")
    (kit / "collectives" / "allr_4.log").write_text("\n".join(lines))
    (kit / "collectives" / "allr_8.log").write_text("out of memory\n")
    assert read_measurements([kit]).unread == ("allr_8.log",)
    (group,) = fit.fit_all(read_measurements([kit]), catalogue, None)
    fits = fitted(group)
    for constant, value in true.items():
        assert fits[constant.quantity] == pytest.approx(value, rel=0.02)


def test_noise_of_a_fifth_and_two_rows_are_fitted_within_physical_bounds(tmp_path):
    catalogue, path = shipped_catalogue(), tmp_path / "rows.csv"
    noisy = measured(fit.with_values(catalogue, TRUE), noise=0.2)
    for rows in (noisy, noisy[3:5]):
        write_rows(path, rows)
        (group,) = fit.fit_all(read_measurements([path]), catalogue, None)
        for entry in group.entries:
            assert entry.low <= entry.value <= entry.high
            assert entry.unit != "ratio" or entry.high <= 1
        assert np.abs(group.after).max() <= np.abs(group.before).max()
    assert group.kept


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
        refused("does not state the kernel", read_measurements, [profile])


def test_the_commands_write_a_kit_and_calibrate_from_it(tmp_path):
    kit = tmp_path / "kit"
    printed_by(f"measure-kit {kit} --chip trn2")
    assert "no measurement in it" in refusal_of(f"calibrate {kit}")
    write_rows(kit / "results.csv", measured(fit.with_values(shipped_catalogue(), TRUE)))
    (group,) = document_of(f"calibrate {kit}")["groups"]
    assert group["name"] == "kernels"
    assert group["median_abs_error"] < 0.001 < group["median_abs_error_before"]
    status, output, errors = ended(f"calibrate {kit}")
    assert (status, output.startswith("part,quantity")) == (0, True)
    assert "no row depends on it" in errors
    (kit / "collectives").mkdir()
    (kit / "collectives" / "allr_8.log").write_text("out of memory\n")
    assert "allr_8.log holds no measurement" in ended(f"calibrate {kit}")[2]
    for broken in (b"", bytes(range(256)), b"kernel,kernel_s,m,n,k\n"):
        (kit / "results.csv").write_bytes(broken)
        assert "results.csv" in refusal_of(f"calibrate {kit}")


STEP = {
    "cluster": "trn2.48xlarge", "chips": 4, "layers": 2, "hidden": 2048, "ffn": 5632, "heads": 16,
    "kv_heads": 16, "vocab": 32000, "seq": 2048, "gated_mlp": 1, "tp": 4, "pp": 1, "dp": 4,
    "microbatch": 1, "global_batch": 8, "precision": "bf16", "recompute": "none", "overlap": "dp",
}  # fmt: skip
OF_STEPS = {
    fit.Constant("training", "scheduling_trn2"): 0.5,
    fit.Constant("training", "sharded_rate_trn2"): 60e9,
}


def timed_steps(catalogue, **more):
    """Steps with and without sharded parameters, timed with these constants."""
    rows = [{**STEP, "name": f"zero {zero}", "zero": zero, **more} for zero in (1, 2, 3)]
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    return [
        {**row, "iteration_s": Steps().predict(read_row(text), catalogue).predicted["iteration_s"]}
        for row, text in zip(rows, texts, strict=True)
    ]


def read_row(cells):
    """Values of one training row."""
    text = ",".join(cells) + "\n" + ",".join(cells.values()) + "\n"
    (row,) = read_rows(text, "mine").rows
    return row.values


@pytest.mark.slow
def test_known_constants_of_training_steps_come_back(tmp_path):
    catalogue, path = shipped_catalogue(), tmp_path / "steps.csv"
    write_rows(path, timed_steps(fit.with_values(catalogue, OF_STEPS)))
    (group,) = fit.fit_all(read_measurements([path]), catalogue, None)
    fits = fitted(group)
    for constant, value in OF_STEPS.items():
        assert fits[constant.quantity] == pytest.approx(value, rel=0.02)
    assert np.abs(group.after).max() < 0.001 < np.abs(group.before).max()
    assert len(group.apart) == 0


def test_steps_that_are_held_out_only_test_the_fit_of_kernels(tmp_path):
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    true = {fit.Constant("kernels.trainium", "gemm_sustained"): 0.7}
    write_rows(kit / "results.csv", measured(fit.with_values(catalogue, true)))
    write_rows(kit / "training_rows.csv", timed_steps(fit.with_values(catalogue, true), held_out=1))
    kernels, steps = fit.fit_all(read_measurements([kit]), catalogue, None)
    assert fitted(kernels)["gemm_sustained"] == pytest.approx(0.7, rel=0.02)
    assert (len(steps.entries), len(steps.after)) == (0, 0)
    assert np.abs(steps.apart).max() < 0.01 < np.abs(steps.apart_before).max()


@pytest.mark.slow
def test_kernels_that_meet_held_out_steps_worse_are_doubted(tmp_path):
    """Products of short bursts are faster than in the steps, which are as shipped."""
    kit, catalogue = tmp_path / "kit", shipped_catalogue()
    write_kit(kit, "trn2")
    fast = {fit.Constant("kernels.trainium", "gemm_sustained"): 1.0}
    for factors, doubted in ((fast, True), ({}, False)):
        write_rows(kit / "results.csv", measured(fit.with_values(catalogue, factors)))
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
    (path := tmp_path / "gemm_m64_n64_k64.json").write_text(json.dumps({"results": [result]}))
    refused(message, read_measurements, [path])


@pytest.mark.parametrize("ranks", ["true", "1", "0"])
def test_a_report_of_fewer_than_two_ranks_is_refused(tmp_path, ranks):
    report, kernels = tmp_path / "report.json", tmp_path / "kernels.csv"
    results = '[{"size": 1024, "time_us": 12.0}]'
    report.write_text(f'{{"op": "allr", "nworkers": {ranks}, "results": {results}}}')
    kernels.write_bytes(KERNEL_ROWS)
    assert "rank" in refusal_of(f"calibrate {kernels} {report} --cluster=trn2.48xlarge")


def fit_own(measured: Measured, machine: str, catalogue: Catalogue) -> fit.ConstantsFit:
    alone = Measurements((), (), (("log.txt", measured),), None)
    return fit.fit_collectives(alone, catalogue, machine, None)


def test_own_measurements_become_an_overlay_that_meets_them(tmp_path):
    base = shipped_catalogue()
    sizes = 2 ** np.arange(10, 32, 3)
    eight = whole(cluster("dgx-a100"))
    lines = ["all_reduce_perf -g 8", "size time(us) algbw busbw"]
    for size in sizes.tolist():
        slower = nccl_ps(Call("all-reduce", eight, size)) / 1e6 * 1.25 + 20
        rate = size / slower / 1e3
        lines.append(f"{size} {slower:.3f} {rate:.4f} {1.75 * rate:.4f}")
    measured = parse_measured("\n".join(lines))
    assert (measured.collective, measured.ranks) == ("all-reduce", 8)
    fits = fit_own(measured, "dgx-a100", base)
    assert np.median(np.abs(fits.after)) < 0.1 < np.median(np.abs(fits.before))
    (path := tmp_path / "overlay.csv").write_text(fit.overlay_text(fits.entries))
    mine = base.with_overlay(path)
    assert mine.entry("nccl.a100-80gb", "efficiency").grade == "measured"
    assert mine.value("nccl.a100-80gb", "efficiency") < base.value("nccl.a100-80gb", "efficiency")
    assert mine.value("nccl.a100-80gb", "launch") > base.value("nccl.a100-80gb", "launch")


@pytest.mark.parametrize(
    ("head", "why"),
    [("", "operation. Add --collective"), ("all_reduce_perf\n", "number of ranks. Add --ranks")],
)
def test_the_message_asks_for_an_unknown_operation_or_ranks(head, why):
    measured = parse_measured(f"{head}size time(us)\n8 1\n16 2\n")
    refused(why, fit_own, measured, "dgx-h100", shipped_catalogue())


TWO_SERVERS = """# size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    45.10   23.25   43.59      0
     4194304       1048576     float     sum      -1      N/A   23.25   43.59      0
    16777216       4194304     float     sum      -1   200.10   83.84  157.21      0
   134217728      33554432     float     sum      -1  1400.00   95.87  179.75      0
   268435456      67108864     float     sum      -1  2790.00   96.21  180.40      0
"""


def test_a_fit_keeps_what_the_times_do_not_tell(tmp_path, capsys):
    """The rate in the switch has no effect once these times are met: it keeps its value."""
    (log := tmp_path / "log.txt").write_text(TWO_SERVERS)
    assert run_line(["calibrate", str(log), "--cluster=dgx-h100"]) == 0
    printed = capsys.readouterr()
    assert "in_switch_efficiency,," not in printed.out
    assert "no row depends on it once the others are fitted: nccl.h100.in_switch" in printed.err
    assert "Rows left out, as they have no time: 1." in printed.err


def test_a_fit_that_a_limit_stops_says_so_and_is_sure_of_nothing(tmp_path, capsys):
    """Times that no such machine can reach."""
    (log := tmp_path / "log.txt").write_text(TWO_SERVERS.replace("1400.00", "1e-9"))
    assert run_line(["calibrate", str(log), "--cluster=dgx-h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (group,) = document["groups"]
    assert "nccl.h100.efficiency" in group["stopped"]
    for row in document["rows"]:
        limits = domain(row["quantity"], row["unit"])
        assert limits.least <= row["value"] <= limits.most
        assert row["low"] < row["value"] or row["high"] > row["value"]
