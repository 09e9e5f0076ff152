"""The command ``collective``: its rows, files, comparisons, faults and refusals."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from cluster_sim.hardware import faults
from experiments.cli.commands.collective import _write_side_by_side
from tests.support.commands import document_of, printed_by, refusal_of

KEYS = {
    "collective", "algorithm", "cluster", "ranks", "size_bytes", "time_s", "algbw_bytes_per_s",
    "busbw_bytes_per_s", "lower_bound_s", "steps", "ops", "engine", "build_s", "simulate_s",
    "semantics",
}  # fmt: skip
LINKS = "--bandwidth 100GB/s --latency 1us"
REDUCE = "collective all-reduce"
RING = f"{REDUCE} ring:4 --algorithm ring --size 1MiB {LINKS}"


def rows_of(line, *more):
    return document_of(f"collective {line}", *more)["rows"]


def row_of(line, *more):
    (row,) = rows_of(line, *more)
    return row


def test_one_row_has_every_key_and_the_exact_time():
    row = row_of(f"all-reduce ring:8 --size 1GiB --algorithm ring {LINKS}")
    assert row.keys() >= KEYS
    assert round(row["time_s"] * 1e12) == 14 * (10**6 + 1_342_177_280)
    assert row["semantics"] == "proven"
    assert row["busbw_bytes_per_s"] == pytest.approx(1.75 * row["algbw_bytes_per_s"])


def test_a_run_directory_has_metrics_figure_and_trace(tmp_path):
    out = tmp_path / "run"
    printed = printed_by(f"collective all-to-all ring:4 --size 1KiB:1MiB:32 {LINKS} --out {out}")
    assert "1 MiB" in printed
    assert "busbw" in printed
    names = {path.name for path in out.iterdir()}
    assert names >= {"run.json", "metrics.csv", "trace.parquet"}
    for picture in ("busbw", "links", "timeline"):
        assert names >= {f"{picture}.png", f"{picture}.svg"}


def test_groups_at_once_share_nothing_and_take_the_time_of_one():
    line = "all-reduce trn2-ultraserver --size 1MiB"
    one = row_of(line, "--group=0-15")
    four = row_of(line, "--group=0-15;16-31;32-47;48-63")
    assert four["time_s"] == one["time_s"]
    assert (one["ranks"], four["ranks"], four["ops"]) == (16, 16, 4 * one["ops"])


def test_an_order_against_the_fabric_is_slower(tmp_path):
    path = tmp_path / "order.txt"
    path.write_text("# chips by rank\n0 2 4 6\n1,3,5,7\n")
    orders = ([], [f"--order={path}"], ["--order=0,2,4,6,1,3,5,7"])
    line = f"all-reduce ring:8 --size 1MiB --algorithm ring {LINKS}"
    straight, crossed, same = (row_of(line, *order)["time_s"] for order in orders)
    assert crossed == same > straight


def test_a_permute_runs_along_the_ring_of_the_runtime():
    line = "permute trn2.48xlarge --size 1MiB"
    assert row_of(line, "--ideal")["ops"] == 2 * 16  # one hop each, and a join
    strange = row_of(line, "--order=0,5,1,4", "--group=0,1,4,5", "--unrestricted")
    assert strange["semantics"] == "proven"


HEADER = "# size count type redop root time algbw busbw\n"


def measured(path, *lines):
    """File of nccl-tests with lines of a size in bytes, a time in us, and two bandwidths."""
    texts = (f"{size} {size // 4} float sum -1 {rest}\n" for size, rest in lines)
    path.write_text("# Collective test: all_reduce_perf\n" + HEADER + "".join(texts))
    return path


def test_measured_times_stand_beside_the_simulated_ones(tmp_path):
    log = measured(tmp_path / "log", (2**20, "52.40 20.01 35.02"), (2**22, "90.00 46.60 81.55"))
    line = f"{REDUCE} ring:8 --algorithm ring {LINKS} --compare {log}"
    document = document_of(line)
    first, second = document["rows"]
    assert [first["size_bytes"], second["size_bytes"]] == [2**20, 2**22]
    assert first["measured_time_s"] == pytest.approx(52.4e-6)
    assert first["measured_busbw_bytes_per_s"] == pytest.approx(1.75 * 2**20 / 52.4e-6)
    simulated_s = 14 * (1e-6 + 2**17 / 1e11)
    assert first["error"] == pytest.approx(simulated_s / 52.4e-6 - 1)
    median = (abs(first["error"]) + abs(second["error"])) / 2
    assert document["summary"]["median_abs_error"] == pytest.approx(median)
    assert "2 rows compared: median error" in printed_by(line)
    rows = document_of(line, "--size=1MiB,2MiB")["rows"]
    assert [row["error"] is None for row in rows] == [False, True]


@pytest.mark.parametrize(("factors", "normal", "says"), [
    ((1, 1), ["usual", "usual"], r"All 2 times are usual for such machines \(80 % intervals\)"),
    ((3, 1), ["slower", "usual"], "1 of 2 .* longer than nine .*. At 4 KiB look .* sets lat"),
    ((1, 3), ["usual", "slower"], "1 of 2 .* longer .*. At 1 GiB look .* bandwidth: links and"),
    ((0.3, 1), ["faster", "usual"], "1 of 2 .* shorter .*. Check that machine, ranks"),
])  # fmt: skip
def test_measured_times_that_are_not_normal_are_said(tmp_path, factors, normal, says):
    plain = rows_of("all-reduce dgx-h100 --size 4KiB,1GiB")
    times_us = [f * row["time_s"] * 1e6 for f, row in zip(factors, plain, strict=True)]
    sizes = (row["size_bytes"] for row in plain)
    lines = zip(sizes, (f"{us:.2f} 1 1.75" for us in times_us), strict=True)
    document = document_of(f"{REDUCE} dgx-h100 --compare {measured(tmp_path / 'log', *lines)}")
    assert [row["normal"] for row in document["rows"]] == normal
    assert re.match(says, document["summary"]["verdict"])


def test_a_measured_time_may_be_typed():
    line = f"{REDUCE} dgx-h100 --size=1GiB"
    (row,) = document_of(line, "--compare=6ms")["rows"]
    assert (row["measured_time_s"], row["normal"]) == (0.006, "slower")
    printed = " ".join(printed_by(line, "--compare=6ms").split())
    assert "1 row compared" in printed
    assert "The time is longer than nine of ten such machines take. At 1 GiB look at" in printed
    assert "has 2 measured times, and --size 1 sizes" in refusal_of(line, "--compare=6ms,7ms")


def test_measurements_stand_beside_rows_of_which_some_are_near_a_switch(tmp_path):
    """Rows without a switch have empty cells in its columns, which nobody may read."""
    log = measured(tmp_path / "log", *((size, "40 1 1.96875") for size in (2**20, 2**28)))
    printed = printed_by(f"{REDUCE} trn2.48xlarge --ranks-per-chip 4 --compare {log}")
    assert printed.count("the Neuron runtime takes") == 1


def test_ranks_of_nccom_test_are_cores(tmp_path):
    rows = ((size, "40 1 1.96875") for size in (2**20, 2**24))
    log = measured(tmp_path / "log", *rows)
    log.write_text("nccom-test -r 64 allr\n" + log.read_text())
    says = "4 a chip; here each of its 64 ranks has a chip to itself. Add --ranks-per-chip 4"
    for machine, said_once in (("trn2-ultraserver", 1), ("trn2.48xlarge --ranks-per-chip 4", 0)):
        words = " ".join(printed_by(f"{REDUCE} {machine} --compare {log}").split())
        assert words.count(says) == said_once


def test_scratchpads_leave_memory_out_of_time_and_bound():
    line = "reduce-scatter trn2.48xlarge --ranks-per-chip 4 --size 32MiB --algorithm multi-ring"
    outside, inside = row_of(line), row_of(line, "--sbuf")
    assert inside["time_s"] < outside["time_s"]  # copies inside a chip take the most either way
    assert (outside["bound"], inside["bound"]) == ("hbm", "injection")


def test_a_byte_matrix_sends_just_its_bytes(tmp_path):
    (path := tmp_path / "sent.csv").write_text("0,1MB,0\n0,0,0\n500kB,0,7\n")
    row = row_of(f"all-to-all-v ring:3 --bytes {path} {LINKS}")
    assert row["time_s"] == pytest.approx(1e-6 + 1e6 / 1e11)
    assert (row["size_bytes"], row["semantics"]) == (1_500_007 // 3, "proven")
    assert row["lower_bound_s"] == pytest.approx(1e-6 + 1e6 / 2e11)


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"),
    ("1,2\n3\n", "row 2 has 1 sizes, row 1 has 2"),
    ("1,2\n3,4\n", "the byte matrix is 2 x 2, the group has 3 ranks"),
    ("1,2,3\n1,x,3\n1,2,3\n", "--bytes .*x"),
    ("1,2,3\n1,-2,3\n1,2,3\n", "--bytes .*-2"),
    ("1,2,3\n1,9999TiB,3\n1,2,3\n", "9999TiB is over"),
])  # fmt: skip
def test_byte_matrices_that_are_none(tmp_path, text, message):
    (path := tmp_path / "m.csv").write_text(text)
    refusal = refusal_of(f"collective all-to-all-v ring:3 --bytes {path} {LINKS}")
    assert re.search(message, refusal)


def test_a_row_of_auto_near_a_switch_says_what_best_takes(tmp_path):
    """On Trn1 the runtime leaves the mesh at 1 MiB, where halving would take two thirds as long."""
    line = f"{REDUCE} trn1.32xlarge --size 1MiB,256MiB"
    small, large = document_of(line, f"--out={tmp_path / 'run'}")["rows"]
    assert (small["algorithm"], small["best_algorithm"]) == ("mesh", "rdh")
    assert small["switches"] == ["mesh", "rdh"]
    assert small["best_time_s"] < 0.7 * small["time_s"]
    assert "best_time_s" not in large
    says = "1 MiB: the Neuron runtime takes mesh by the length of the buffer, and rdh"
    assert says in printed_by(line)
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv", keep_default_na=False)
    assert list(rows["switches"]) == ["mesh rdh", ""]


def test_sizes_side_by_side_are_labelled_in_their_units():
    figures = []
    out = SimpleNamespace(
        table=lambda *_, **_named: None, figure=lambda _name, drawn, **_named: figures.append(drawn)
    )
    rows = [
        {"cluster": name, "size_bytes": 4**power, "busbw_bytes_per_s": 1e9, "status": "ok"}
        for name in ("a", "b")
        for power in range(5, 16)
    ]
    _write_side_by_side(out, "all-reduce", rows)
    labels = [label.get_text() for label in figures[0].axes[0].get_xticklabels()]
    assert labels == ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"]


def test_a_slow_link_holds_up_the_ring_and_the_time_without_it_stands_beside():
    fault = [*RING.split(), "--fault", "link:0-1@0s:slow=1/2"]
    for engine in ("fast", "reference"):
        (row,) = document_of(fault, "--engine", engine)["rows"]
        assert row["time_s"] == pytest.approx(1e-6 + 6 * 2**18 / 50e9, rel=1e-9)
    (healthy,) = document_of(RING)["rows"]
    assert row["undisturbed_s"] == healthy["time_s"] < row["time_s"]
    assert "healthy" in printed_by(fault)
    # The best of a machine of GPUs may be NCCL's closed form, which has no links to be slow.
    best = "collective broadcast mi300x-platform --size 1MB --algorithm best"
    (row,) = document_of(f"{best} --fault link:0-1@0s:slow=1/1")["rows"]
    assert row["undisturbed_s"] == row["time_s"]


@pytest.mark.parametrize(("line", "fault"), [
    ("all-reduce trn2.48xlarge:2 --algorithm hierarchical", "tx:5@0s:slow=1/4"),
    # A link of a switch is named as the trace prints it.
    (f"all-gather switch:4 --algorithm ring {LINKS}", "link:2-s0@0s:slow=1/2"),
    (f"all-gather switch:4 --algorithm ring {LINKS}", "link:s0-2@0s:slow=1/2"),
])  # fmt: skip
def test_a_slow_adapter_or_link_is_as_slow_on_both_engines(line, fault):
    words = f"{line} --size 1MiB"
    engines = ("--engine=fast", "--engine=reference")
    fast, reference = (row_of(words, f"--fault={fault}", each)["time_s"] for each in engines)
    assert fast == reference > row_of(words)["time_s"]


def test_messages_go_around_a_cable_that_is_down_from_the_start():
    """A step over the missing hop takes the three others, which also carry their own messages."""
    faults = (f"--fault=cable:0-1@{what}" for what in ("0s:dead", "0s:slow=1/2", "1s:dead"))
    down, slow, later = (document_of(RING, each)["rows"][0]["time_s"] for each in faults)
    assert down > slow > later == document_of(RING)["rows"][0]["time_s"]
    assert "ops never ran" in refusal_of(RING, "--fault=cable:0-1@2us:dead")


def test_a_refused_cable_names_one_that_this_machine_has():
    words = f"collective all-gather switch:4 --algorithm ring {LINKS} --size 1MiB"
    message = refusal_of(words, "--fault=cable:0-1@0s:dead")
    assert re.search("no resource link:0-1.*or write cable:0-s0, ", message)
    assert document_of(words, "--fault=cable:0-s0@0s:slow=1/2")["rows"]


@pytest.mark.parametrize("resource", ["link:16-17", "tx:20", "rx:31", "dma:16"])
def test_a_fault_of_an_idle_part_has_no_effect_and_says_so(caplog, resource):
    """The second server has no rank; what stands nowhere is refused as before."""
    few = f"{REDUCE} trn2.48xlarge:2 --ranks 16 --algorithm ring --size 1MiB"
    faults._tell_idle.cache_clear()
    with_fault, healthy = document_of(few, f"--fault={resource}@0s:dead"), document_of(few)
    assert with_fault["rows"][0]["time_s"] == healthy["rows"][0]["time_s"]
    assert f"the fault of {resource} has no effect" in caplog.text
    for nowhere in ("link:16-21", "tx:32", "link:99999999999-1", "uplink:1"):
        refusal = refusal_of(few, f"--fault={nowhere}@0s:dead")
        assert f"no resource {nowhere} in this run" in refusal
