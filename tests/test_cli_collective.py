import json as jsons
from pathlib import Path

import pytest

from cluster_sim.collectives.sizes import parse_sizes
from experiments.cli.collective import collective
from topologies.errors import InputError

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
    found = printed(capsys, "all-gather", "trn2.48xlarge", size="1KiB:1MiB:4", ideal=True)
    assert [row["size_bytes"] for row in found] == [2**k for k in range(10, 21, 2)]
    times = [row["time_s"] for row in found]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "all-reduce", "cluster": "trn2.48xlarge", "size": "1"}, "1"),
        ({"op": "all-sum", "cluster": "trn2.48xlarge", "size": "1GiB"}, "unknown collective"),
        (
            {"op": "all-to-all", "cluster": "trn2.48xlarge", "size": "1GiB", "algorithm": "ring"},
            "these do: auto, best, torus, direct, dimension-ordered",
        ),
        ({"op": "all-reduce", "cluster": "trn2.48xlarge", "size": "1MiB:1KiB:4"}, "a range needs"),
        ({"op": "all-reduce", "cluster": "ring:8", "size": "1GiB"}, "--bandwidth 100GB/s"),
        (
            {"op": "all-reduce", "cluster": "trn2.48xlarge", "size": "1GiB", "engine": "quick"},
            "engine",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        collective(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["1KiB:1GiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "", "1KiB,,2KiB"])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError):
        parse_sizes(text)
