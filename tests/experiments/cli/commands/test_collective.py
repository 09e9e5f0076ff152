"""The command ``collective``: its rows, files, comparisons and refusals."""

import json as jsons
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from cluster_sim.collectives.group_parsing import parse_sizes
from experiments.cli.commands.collective import _write_side_by_side
from experiments.cli.main import run
from tests.support.commands import command
from topologies.errors import InputError

collective = command("collective")

KEYS = {
    "collective",
    "algorithm",
    "cluster",
    "ranks",
    "size_bytes",
    "time_s",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "lower_bound_s",
    "steps",
    "ops",
    "engine",
    "build_s",
    "simulate_s",
    "semantics",
}
RING = {"bandwidth": "100GB/s", "latency": "1us"}


def printed(capsys, *arguments, **options):
    collective(*arguments, json=True, quiet=True, **options)
    return jsons.loads(capsys.readouterr().out)["rows"]


def test_one_row_has_every_key_and_the_exact_time(capsys):
    (row,) = printed(capsys, "all-reduce", "ring:8", size="1GiB", algorithm="ring", **RING)
    assert row.keys() >= KEYS
    assert round(row["time_s"] * 1e12) == 14 * (10**6 + 1_342_177_280)
    assert row["semantics"] == "proven"
    assert row["busbw_bytes_per_s"] == pytest.approx(1.75 * row["algbw_bytes_per_s"])


def test_a_range_of_sizes_is_a_row_each(capsys):
    rows_printed = printed(capsys, "all-gather", "trn2.48xlarge", size="1KiB:1MiB:4", ideal=True)
    assert [row["size_bytes"] for row in rows_printed] == [2**k for k in range(10, 21, 2)]
    times = [row["time_s"] for row in rows_printed]
    assert times == sorted(times)


def test_ranks_and_cores(capsys):
    (row,) = printed(capsys, "all-reduce", "trn2.48xlarge", size="1MiB", ranks=16, ranks_per_chip=4)
    assert row["ranks"] == 16


def test_the_table_for_people(capsys):
    collective("all-reduce", "trn2.48xlarge", size="1GiB", algorithm="best", ideal=True)
    text = capsys.readouterr().out
    assert "1 GiB" in text
    assert "busbw" in text


def test_a_run_directory_has_metrics_figure_and_trace(tmp_path: Path, capsys):
    out = tmp_path / "run"
    printed(capsys, "all-to-all", "ring:4", size="1KiB:1MiB:32", out=out, **RING)
    names = {path.name for path in out.iterdir()}
    assert names >= {"run.json", "metrics.csv", "busbw.png", "busbw.svg", "trace.parquet"}
    assert names >= {"links.png", "links.svg", "timeline.png", "timeline.svg"}


def test_groups_at_once_share_nothing_and_take_the_time_of_one(capsys):
    (one,) = printed(capsys, "all-reduce", "trn2-ultraserver", size="1MiB", group="0-15")
    (four,) = printed(
        capsys, "all-reduce", "trn2-ultraserver", size="1MiB", group="0-15;16-31;32-47;48-63"
    )
    assert four["time_s"] == one["time_s"]
    assert (one["ranks"], four["ranks"], four["ops"]) == (16, 16, 4 * one["ops"])


def test_an_order_against_the_fabric_is_slower(capsys, tmp_path: Path):
    ring = {"size": "1MiB", "algorithm": "ring", **RING}
    (straight,) = printed(capsys, "all-reduce", "ring:8", **ring)
    path = tmp_path / "order.txt"
    path.write_text("# chips by rank\n0 2 4 6\n1,3,5,7\n")
    (crossed,) = printed(capsys, "all-reduce", "ring:8", order=str(path), **ring)
    (same,) = printed(capsys, "all-reduce", "ring:8", order="0,2,4,6,1,3,5,7", **ring)
    assert crossed["time_s"] == same["time_s"] > straight["time_s"]


def test_a_permute_runs_along_the_ring_of_the_runtime(capsys):
    (row,) = printed(capsys, "permute", "trn2.48xlarge", size="1MiB", ideal=True)
    assert row["ops"] == 2 * 16  # one hop each, and a join
    strange = {"size": "1MiB", "order": "0,5,1,4", "group": "0,1,4,5"}
    (row,) = printed(capsys, "permute", "trn2.48xlarge", unrestricted=True, **strange)
    assert row["semantics"] == "proven"


MEASURED = """# nThread 1 nGpus 8
# Collective test: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    52.40   20.01   35.02
     4194304       1048576     float     sum      -1    90.00   46.60   81.55
"""


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "nccl.txt"
    path.write_text(MEASURED)
    return path


def test_measured_times_stand_beside_the_simulated_ones(capsys, measured):
    arguments = {"algorithm": "ring", "compare": measured, **RING}
    collective("all-reduce", "ring:8", json=True, **arguments)
    document = jsons.loads(capsys.readouterr().out)
    first, second = document["rows"]
    assert [first["size_bytes"], second["size_bytes"]] == [2**20, 2**22]
    assert first["measured_time_s"] == pytest.approx(52.4e-6)
    assert first["measured_busbw_bytes_per_s"] == pytest.approx(1.75 * 2**20 / 52.4e-6)
    simulated = 14 * (1e-6 + 2**17 / 1e11)
    assert first["error"] == pytest.approx(simulated / 52.4e-6 - 1)
    errors = [abs(first["error"]), abs(second["error"])]
    assert document["summary"]["rows"] == 2
    assert document["summary"]["median_abs_error"] == pytest.approx(sum(errors) / 2)
    collective("all-reduce", "ring:8", **arguments)
    assert "2 rows compared: median error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factors", "normal", "says"),
    [
        ((1, 1), ["usual", "usual"], "All 2 times are usual for such machines (80 % intervals)."),
        (
            (3, 1),
            ["slower", "usual"],
            "1 of 2 times are longer than nine .*. At 4 KiB look at what sets lat",
        ),
        (
            (1, 3),
            ["usual", "slower"],
            "1 of 2 times are longer .*. At 1 GiB look at what sets bandwidth: links and",
        ),
        ((0.3, 1), ["faster", "usual"], "1 of 2 times are shorter .*. Check that machine, ranks"),
    ],
)
def test_measured_times_that_are_not_normal_are_said(capsys, tmp_path, factors, normal, says):
    sizes = (2**12, 2**30)
    plain = printed(capsys, "all-reduce", "dgx-h100", size="4KiB,1GiB")
    microseconds = [f * row["time_s"] * 1e6 for f, row in zip(factors, plain, strict=True)]
    lines = (
        f"{size} {size // 4} float sum -1 {time:.2f} 1 1 0\n"
        for size, time in zip(sizes, microseconds, strict=True)
    )
    path = tmp_path / "nccl.txt"
    path.write_text(MEASURED.splitlines()[2] + "\n" + "".join(lines))
    collective("all-reduce", "dgx-h100", json=True, compare=path)
    document = jsons.loads(capsys.readouterr().out)
    assert [row["normal"] for row in document["rows"]] == normal
    assert re.match(says.replace("(", r"\(").replace(")", r"\)"), document["summary"]["verdict"])


def test_measurements_stand_beside_rows_of_which_some_are_near_a_switch(capsys, tmp_path):
    """Rows without a switch have empty cells in its columns, which nobody may read."""
    path = tmp_path / "nccl.txt"
    lines = (f"{size} {size // 4} float sum -1 40 1 1.96875 0\n" for size in (2**20, 2**28))
    path.write_text(MEASURED.splitlines()[2] + "\n" + "".join(lines))
    words = ("all-reduce", "trn2.48xlarge", "--ranks-per-chip", "4", "--compare", str(path))
    assert run(["collective", *words]) == 0
    assert capsys.readouterr().out.count("the Neuron runtime takes") == 1


def test_a_size_that_was_not_measured_has_no_error(capsys, measured):
    rows = printed(capsys, "all-reduce", "ring:8", size="1MiB,2MiB", compare=measured, **RING)
    assert rows[0]["error"] is not None
    assert rows[1]["error"] is None


def test_scratchpads_leave_memory_out_of_time_and_bound(capsys):
    full = {"op": "reduce-scatter", "cluster": "trn2.48xlarge", "ranks_per_chip": 4}
    (outside,), (inside,) = (
        printed(capsys, size="32MiB", algorithm="multi-ring", sbuf=sbuf, **full)
        for sbuf in (False, True)
    )
    assert inside["time_s"] < outside["time_s"]  # copies inside a chip take the most either way
    assert (outside["bound"], inside["bound"]) == ("hbm", "injection")


def test_a_byte_matrix_sends_just_its_bytes(capsys, tmp_path: Path):
    path = tmp_path / "sent.csv"
    path.write_text("0,1MB,0\n0,0,0\n500kB,0,7\n")
    (row,) = printed(capsys, "all-to-all-v", "ring:3", matrix=path, **RING)
    assert row["time_s"] == pytest.approx(1e-6 + 1e6 / 1e11)
    assert (row["size_bytes"], row["semantics"]) == (1_500_007 // 3, "proven")
    assert row["lower_bound_s"] == pytest.approx(1e-6 + 1e6 / 2e11)


def test_a_popular_rank_slows_the_exchange_down(capsys):
    chips = {"size": "1MiB", "unrestricted": True, "ideal": True}
    (even,) = printed(capsys, "all-to-all-v", "trn2.48xlarge", skew=0.0, **chips)
    (skewed,) = printed(capsys, "all-to-all-v", "trn2.48xlarge", skew=1.0, **chips)
    (plain,) = printed(capsys, "all-to-all", "trn2.48xlarge", size="1MiB", ideal=True)
    assert even["time_s"] == plain["time_s"]
    assert even["busbw_bytes_per_s"] == pytest.approx(plain["busbw_bytes_per_s"])
    assert skewed["time_s"] > 2 * even["time_s"]
    assert skewed["semantics"] == "proven"


@pytest.mark.parametrize("text", ["1KiB:1GiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "", "1KiB,,2KiB"])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1,2\n3\n", "row 2 has 1 sizes, row 1 has 2"),
        ("1,2\n3,4\n", "the byte matrix is 2 x 2, the group has 3 ranks"),
        ("1,2,3\n1,x,3\n1,2,3\n", "--bytes .*x"),
        ("1,2,3\n1,-2,3\n1,2,3\n", "--bytes .*-2"),
        ("1,2,3\n1,9999TiB,3\n1,2,3\n", "9999TiB is over"),
    ],
)
def test_byte_matrices_that_are_none(tmp_path: Path, text, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        collective("all-to-all-v", "ring:3", matrix=path, **RING)
    assert "\n" not in str(caught.value)


def test_a_row_of_auto_near_a_switch_says_what_best_takes(capsys, tmp_path):
    """On Trn1 the runtime leaves the mesh at 1 MiB, where halving would take two thirds as long."""
    small, large = printed(capsys, "all-reduce", "trn1.32xlarge", size="1MiB,256MiB")
    assert (small["algorithm"], small["best_algorithm"]) == ("mesh", "rdh")
    assert small["switches"] == ["mesh", "rdh"]
    assert small["best_time_s"] < 0.7 * small["time_s"]
    assert "best_time_s" not in large
    collective("all-reduce", "trn1.32xlarge", size="1MiB,256MiB", quiet=True, out=tmp_path / "run")
    output = capsys.readouterr().out
    assert "1 MiB: the Neuron runtime takes mesh by the length of the buffer, and rdh" in output
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv", keep_default_na=False)
    assert list(rows["switches"]) == ["mesh rdh", ""]


def test_the_cluster_may_be_named_by_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    for words in (("--cluster", "trn2.48xlarge"), ("trn2.48xlarge",)):
        assert run(["collective", "all-reduce", "--size", "1MiB", "--json", *words]) == 0
        times.append(jsons.loads(capsys.readouterr().out)["rows"][0]["time_s"])
    assert times[0] == times[1]


def test_sizes_side_by_side_are_labelled_in_their_units() -> None:
    figures: list[Any] = []
    out: Any = SimpleNamespace(
        table=lambda *_, **_named: None,
        figure=lambda _name, drawn, **_named: figures.append(drawn),
    )
    rows = [
        {"cluster": name, "size_bytes": 4**power, "busbw_bytes_per_s": 1e9, "status": "ok"}
        for name in ("a", "b")
        for power in range(5, 16)
    ]
    _write_side_by_side(out, "all-reduce", rows)
    labels = [label.get_text() for label in figures[0].axes[0].get_xticklabels()]
    assert labels == ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"]
