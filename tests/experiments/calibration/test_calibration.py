"""Calibration: NCCL's closed form and its fit, output of measurement tools, and overlays."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import KINDS
from cluster_sim.collectives.call import CollectiveCall as Call
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.collectives.duration.nccl.constants import CHIP, FABRIC, constants
from cluster_sim.collectives.duration.nccl.judged import bound_with_switch
from cluster_sim.collectives.duration.nccl.load import load_of
from cluster_sim.collectives.duration.nccl.rings import ring_s
from cluster_sim.collectives.duration.nccl.times import nccl_ps, seconds
from cluster_sim.collectives.duration.nccl.tuner import PROTOCOLS
from cluster_sim.collectives.group import Group, whole
from cluster_sim.collectives.verify.bounds import lower_bound
from experiments.calibration.collectives import (
    fit_chips,
    fit_fabrics,
    held_out,
    nccl_rows,
    rows_on,
    start_for,
)
from experiments.calibration.constants import overlay_text
from experiments.calibration.fabric import constants_of
from experiments.calibration.fabric import fit as fit_own
from experiments.calibration.fit_rows import write
from experiments.calibration.nccl_fit import fit, measured, modelled, with_fitted
from experiments.cli.main import run as run_line
from experiments.validation.nccl_tests import parse_measured, read_measured
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.domains import domain
from topologies.clusters.names import cluster
from topologies.errors import InputError

NCCL = """# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) validation: 1
# Running: all_reduce_perf -b 8 -e 16G -f 2
#  Rank  0 Group  0 Pid  10 on a device  0 [0x53] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  11 on a device  1 [0x64] NVIDIA H100 80GB HBM3
#                                              out-of-place                  in-place
#   size    count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#    (B)  (elements)                     (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
    1024      256  float    sum    -1    6.40   0.16   0.16      0    6.50   0.16   0.16    0
 1048576   262144  float    sum    -1   14.20  73.84  73.84    N/A   14.10  74.37  74.37  N/A
# Avg bus bandwidth    : 37
"""
NCCOM = """nccom-test -r 32 --minbytes 1kb --maxbytes 1mb -f 8 --check allg
    size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)
       1024             256    fp32         151           0.01           0.01
   33554432         8388608    fp32         768          40.69          39.42
   67108864    Failure running neuron-bench - log file /tmp/log
Avg bus bandwidth:      0.7731GB/s
"""


# The tools' output


def test_nccl_tests_output_is_read_out_of_place():
    series = parse_measured(NCCL)
    assert (series.collective, series.ranks, len(series)) == ("all-reduce", 2, 2)
    assert series.time_s.tolist() == pytest.approx([6.4e-6, 14.2e-6])
    assert series.bandwidth_unit == "GB/s"


def test_nccom_test_output_in_gibibytes_is_read_by_its_times():
    series = parse_measured(NCCOM)
    assert (series.collective, series.ranks, series.failed) == ("all-gather", 32, 1)
    assert series.bandwidth_unit == "GiB/s"
    assert series.size_bytes[1] / series.time_s[1] == pytest.approx(43.69e9, rel=1e-3)


def test_ranks_are_found_from_the_bandwidths_where_nothing_says_so():
    text = "alltoall_perf\n size time(us) algbw busbw\n 1000000 10 100 87.5\n"
    assert parse_measured(text).ranks == 8
    assert parse_measured("size time(us)\n8 1\n").ranks is None


def test_launcher_prefixes_colours_and_milliseconds():
    text = "\x1b[1mall_gather_perf\x1b[0m\n[1,0]<stdout>: size time(ms)\n[1,0]<stdout>: 8 2\n"
    assert parse_measured(text).time_s.tolist() == [0.002]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no table"),
        ("hello\nworld\n", "no table"),
        ("size(B) time(us)\n 1024 Failure\n", "1 rows without a result, none with one"),
    ],
)
def test_text_without_measurements_is_refused(text, why):
    with pytest.raises(InputError, match=why):
        parse_measured(text, "log.txt")


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text):
    try:
        series = parse_measured("size time(us) algbw busbw\n" + text)
    except InputError:
        return
    assert np.isfinite(series.time_s).all()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_measured(tmp_path / "none")


# The closed form


def test_loads_follow_the_algorithms():
    inside = whole(cluster("dgx-h100"))
    ring = load_of(Call("all-reduce", inside, 800))
    assert (ring.inside, ring.in_switch, ring.steps, ring.far_steps) == (1400, 900, 14, 0)
    two, four = (whole(cluster(f"dgx-h100:{count}")) for count in (2, 4))
    assert load_of(Call("all-reduce", two, 800)).outside == 100
    assert load_of(Call("all-reduce", four, 800)).outside == pytest.approx(193.75)
    assert load_of(Call("all-gather", four, 3200)).outside == 3100 / 8
    assert load_of(Call("all-to-all", two, 1600)).outside == 800
    one_each = Group(cluster("dgx-h100:4"), np.arange(4) * 8)
    assert load_of(Call("all-gather", one_each, 400)).outside == 300


def test_times_have_the_right_limits():
    eight = whole(cluster("dgx-a100"))
    costs = constants(eight.cluster)
    assert nccl_ps(Call("all-reduce", eight, 0)) == 0
    assert nccl_ps(Call("all-reduce", Group(eight.cluster, np.arange(1)), 10**6)) == 0
    smallest = nccl_ps(Call("all-reduce", eight, 8)) / 1e12
    assert smallest == pytest.approx(costs.chip["launch"] + 14 * costs.chip["step"], rel=0.01)
    size = 2**36
    rate = 1.75 * size / (nccl_ps(Call("all-reduce", eight, size)) / 1e12)
    assert rate == pytest.approx(costs.chip["efficiency"] * costs.port, rel=0.06)


MACHINES = [
    "p4de.24xlarge",
    "p5.48xlarge",
    "p5en.48xlarge",
    "dgx-a100",
    "dgx-a100-40gb",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "gb200-nvl72",
]


@given(
    st.sampled_from(KINDS),
    st.sampled_from(MACHINES),
    st.sampled_from([2, 3, 4, 5, 8, 12, 16, 64, 72, 128, 512]),
    st.booleans(),
    st.floats(3, 34).map(lambda power: int(2**power)),
    st.integers(1, 2**24),
)
def test_times_grow_with_size_and_keep_to_the_bounds(op, name, ranks, spread, size, more):
    each = cluster(name).chips
    machine = cluster(f"{name}:{-(-ranks // each)}")
    chips = np.arange(machine.domains) * each if spread and ranks > each else np.arange(ranks)
    group = Group(machine, chips)
    now = nccl_ps(Call(op, group, size))
    assert nccl_ps(Call(op, group, size + more)) >= now
    assert (
        now >= bound_with_switch(Call(op, group, size), lower_bound(Call(op, group, size))).time_ps
    )
    if load_of(Call("all-gather", group, size)).way == "ring":
        reduced, gathered = (_by_protocol(Call(kind, group, size)) for kind in BOTH_WAYS)
        assert all(one >= other for one, other in zip(reduced, gathered, strict=True))
        assert min(gathered) * 1e12 <= nccl_ps(Call("all-gather", group, size)) + 1


BOTH_WAYS = ("all-reduce", "all-gather")


def _by_protocol(call):
    """Time round rings in each protocol [s]; which one NCCL picks by its own beliefs is another
    matter: 4 B200 gather 8 MiB in 47 us, where they reduce and gather in 45."""
    load, costs = load_of(call, rings=True), constants(call.group.cluster)
    return [float(ring_s(load, costs, protocol)) for protocol in PROTOCOLS]


@pytest.mark.parametrize(
    ("machine", "op", "chips", "busbw"),
    [
        ("p5en.48xlarge", "all-reduce", 5, 414),
        ("p5en.48xlarge", "all-reduce", 8, 473),
        ("p5en.48xlarge", "all-gather", 8, 361),
        ("p5en.48xlarge", "reduce-scatter", 8, 363),
        ("p5en.48xlarge", "all-reduce", 32, 365),
        ("dgx-b200", "all-gather", 8, 678),
        ("dgx-a100", "all-to-all", 8, 210),
        ("dgx-h100", "all-to-all", 8, 320),
        ("gb200-nvl72", "all-to-all", 32, 640),
    ],
)
def test_largest_rates_are_those_that_others_published(machine, op, chips, busbw):
    """Peaks [GB/s], none of which the constants were fitted to; of B200 its rings'."""
    count = -(-chips // cluster(machine).chips)
    group = Group(cluster(f"{machine}:{count}"), np.arange(chips))
    factor = (2 if op == "all-reduce" else 1) * (chips - 1) / chips
    assert factor * 2**33 / nccl_ps(Call(op, group, 2**33)) * 1000 == pytest.approx(busbw, rel=0.16)


def test_pairs_of_a100_jump_where_the_tuner_leaves_ll_too_early():
    pair = Group(cluster("dgx-a100"), np.arange(2))
    before, after = (nccl_ps(Call("all-gather", pair, size)) / 1e6 for size in (2**20, 2**21))
    assert before == pytest.approx(19.9, rel=0.2)
    assert after == pytest.approx(38.1, rel=0.25)


def test_reduction_in_the_switch_beats_the_ring_for_large_buffers_only():
    eight = whole(cluster("dgx-h100"))
    busbw = [
        1.75 * size / nccl_ps(Call("all-reduce", eight, size)) * 1e12 for size in (2**24, 2**33)
    ]
    assert busbw[0] < 300e9
    assert 440e9 < busbw[1] < 500e9


def test_auto_on_nvidia_machines_is_this_model_and_plain_shapes_are_not():
    eight = whole(cluster("dgx-h100"))
    assert duration_ps(Call("all-reduce", eight, 2**20)) == nccl_ps(
        Call("all-reduce", eight, 2**20)
    )
    assert duration_ps(Call("all-reduce", eight, 2**20), ideal=True) != nccl_ps(
        Call("all-reduce", eight, 2**20)
    )
    assert not covers(cluster("switch:8", bandwidth="100GB/s", latency="1us"))
    assert not covers(cluster("trn2.48xlarge"))


# The fit


def a100_rows():
    return rows_on(nccl_rows("nccl_aic"), ["dgx-a100"], far=False)


def test_the_fit_finds_the_constants_that_made_the_rows():
    truth = {
        "launch": 9e-6,
        "step": 1e-6,
        "ll_efficiency": 0.35,
        "ll128_step": 2e-6,
        "ll128_efficiency": 0.7,
        "simple_step": 6e-6,
        "simple_second_step": 3e-6,
        "efficiency": 0.8,
        "slice": 5e-6,
        "copy_rate": 9e11,
        "exchange": 3e-6,
        "exchange_efficiency": 0.7,
        "exchange_copy_rate": 5e11,
    }
    start, rows = start_for("dgx-a100"), measured(a100_rows())
    times_s = modelled(with_fitted(start, truth), rows)
    fits = fit(replace(rows, time_s=times_s), CHIP, start)
    assert fits.value == pytest.approx(truth, rel=0.03)
    assert max(fits.spread.values()) < 0.15


def tree_filling_s(machine: str, size: int) -> float:
    """Time that filling a tree over all servers of a machine takes [s]."""
    call = Call("all-reduce", whole(cluster(machine)), size)
    costs = constants(call.group.cluster)
    at_once = replace(costs, fabric={**costs.fabric, "slice": 0.0})
    return float(seconds(load_of(call), costs)) - float(seconds(load_of(call), at_once))


@pytest.mark.parametrize(("machine", "whole_mib"), [("dgx-h100:8", 16), ("dgx-h100:2", 32)])
def test_filling_a_tree_grows_until_its_chunks_are_whole(machine, whole_mib):
    filled = tree_filling_s(machine, whole_mib * 2**20)
    assert tree_filling_s(machine, whole_mib * 2**18) == pytest.approx(filled / 2, rel=0.2)
    assert tree_filling_s(machine, whole_mib * 2**28) == pytest.approx(filled, rel=0.2)


def test_a_tree_over_other_servers_is_met_by_what_some_showed():
    rows = rows_on(nccl_rows("nccl_more"), ["dgx-h100"], far=True)
    seen = measured([row for row in rows if row.values["chips"] == 32])
    unseen = measured(
        [row for row in rows if row.values["chips"] == 64 and row.values["size_bytes"] >= 2**22]
    )
    chip = constants(cluster("dgx-h100:2")).chip
    start = with_fitted(start_for("dgx-h100"), chip)
    names = [name for name in FABRIC if name != "ll128_step"]
    fitted = fit(seen, names, start, fabric=True).value
    errors = np.abs(modelled(with_fitted(start, fitted, fabric=True), unseen) / unseen.time_s - 1)
    assert np.median(errors) < 0.04
    assert np.quantile(errors, 0.9) < 0.12


def test_left_out_rows_are_met():
    lines = held_out(a100_rows(), CHIP, start_for("dgx-a100"))
    assert len(lines) == 3
    for line in lines:
        medians = [float(part.split(": ")[-1]) for part in line.split("%, p90")[:-1]]
        assert len(medians) == 3
        assert max(medians) < 12


def test_the_shipped_rows_are_those_of_the_fits(tmp_path):
    others = nccl_rows("nccl_tests", "nccl_more")
    chips = fit_chips(nccl_rows("nccl_aic"), others)
    written = write(tmp_path / "fits.csv", chips, fit_fabrics(others, chips))
    again, shipped = shipped_catalogue().with_overlay(tmp_path / "fits.csv"), shipped_catalogue()
    for row in written:
        entry = shipped.entry(row.part, row.quantity)
        assert again.value(row.part, row.quantity) == pytest.approx(entry.value, rel=0.02)
        assert (entry.grade, entry.note) == (row.grade, row.note)
        assert entry.low < entry.value <= entry.high
    fitted = {part for part in shipped.parts() if part.startswith("nccl.")}
    assert fitted - {row.part for row in written} == {"nccl.pytorch"}
    assert shipped.entry("nccl.h200", "launch").grade == "assumed"


# One's own measurements


def test_own_measurements_become_an_overlay_that_meets_them(tmp_path):
    base = shipped_catalogue()
    sizes = 2 ** np.arange(10, 32, 3)
    eight = whole(cluster("dgx-a100"))
    lines = ["all_reduce_perf -g 8", "size time(us) algbw busbw"]
    for size in sizes.tolist():
        time_us = nccl_ps(Call("all-reduce", eight, size)) / 1e6
        slower = time_us * 1.25 + 20
        lines.append(
            f"{size} {slower:.3f} {size / slower / 1e3:.4f} {1.75 * size / slower / 1e3:.4f}"
        )
    measured = parse_measured("\n".join(lines))
    assert (measured.collective, measured.ranks) == ("all-reduce", 8)
    fits = fit_own(measured, "dgx-a100", base)
    assert np.median(np.abs(fits.after)) < 0.1 < np.median(np.abs(fits.before))
    path = tmp_path / "overlay.csv"
    path.write_text(overlay_text(fits.entries))
    mine = base.with_overlay(path)
    assert mine.entry("nccl.a100-80gb", "efficiency").grade == "measured"
    assert mine.value("nccl.a100-80gb", "efficiency") < base.value("nccl.a100-80gb", "efficiency")
    assert mine.value("nccl.a100-80gb", "launch") > base.value("nccl.a100-80gb", "launch")


TRN1_RATE = ("trn1", "collective_efficiency")


def chosen_constants(machine, operation, size):
    """Constants that measurements of an operation would be fitted to."""

    def largest(changed):
        numbers = shipped_catalogue().with_rows(
            replace(shipped_catalogue().entry(*name), value=value, exact=Fraction(value))
            for name, value in changed.items()
        )
        group = whole(cluster(machine, catalogue=numbers))
        return np.array([duration_ps(Call(operation, group, size)) / 1e12])

    return constants_of(cluster(machine), largest)


@pytest.mark.parametrize(
    ("machine", "operation", "start", "rate"),
    [
        ("dgx-h100", "all-gather", ("nccl.h100", "launch"), ("nccl.h100", "efficiency")),
        ("dgx-h100", "all-reduce", ("nccl.h100", "launch"), ("nccl.h100", "in_switch_efficiency")),
        ("dgx-h100", "all-to-all", ("nccl.h100", "launch"), ("nccl.h100", "exchange_efficiency")),
        ("p4de.24xlarge:2", "all-gather", ("nccl.efa-v1", "step"), ("nccl.efa-v1", "efficiency")),
        ("trn1.32xlarge", "all-gather", ("trn1", "collective_step"), TRN1_RATE),
        ("trn1.32xlarge:2", "all-gather", ("efa-v2", "step_latency"), TRN1_RATE),
    ],
)
def test_the_constants_to_calibrate_are_those_that_are_felt(machine, operation, start, rate):
    assert chosen_constants(machine, operation, 2**30) == [start, rate]


def test_of_several_tables_the_one_that_is_wanted_is_read():
    other = NCCL.replace("all_reduce", "all_gather").replace("14.20", "9.10")
    assert parse_measured(NCCL + other).collective == "all-reduce"
    assert len(parse_measured(NCCL + other)) == 2
    series = parse_measured(NCCL + other, wanted="all-gather")
    assert (series.collective, series.ranks, series.time_s[-1]) == ("all-gather", 2, 9.1e-6)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>: ",
        "0: ",
        "node-7: ",
        "2026-03-01T10:00:00.123Z ",
        "[host-1] ",
        "ip-10-0-0-1: 3: ",
    ],
)
def test_what_stands_before_each_line_is_passed_over(prefix):
    lines = [prefix + line for line in NCCL.splitlines()]
    series = parse_measured("\n".join(lines))
    assert (series.collective, series.ranks, series.size_bytes.tolist()) == (
        "all-reduce",
        2,
        [1024, 2**20],
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("size time(us)\n8 1\n16 2\n", "--collective all-reduce"),
        ("all_reduce_perf\nsize time(us)\n8 1\n16 2\n", "--ranks N"),
        ("nccom-test -r 8 allr\nsize time(us)\n8 1\n8 2\n", "at least two"),
    ],
)
def test_the_message_asks_for_an_unknown_operation_or_ranks(text, why):
    with pytest.raises(InputError, match=why):
        fit_own(parse_measured(text), "dgx-h100", shipped_catalogue())


def test_spread_is_finite():
    assert math.isfinite(shipped_catalogue().entry("nccl.h100", "slice").high or 0)


def test_only_an_all_reduce_has_so_much_more_bus_bandwidth():
    header = "#  size  count  type  time  algbw  busbw\n#  (B)  (elements)  (us)  (GB/s)  (GB/s)\n"
    series = parse_measured(header + "134217728 33554432 float 563.9 238.02 416.53\n")
    assert (series.collective, series.ranks) == ("all-reduce", 8)
    series = parse_measured(header + "134217728 33554432 float 563.9 238.02 208.27\n")
    assert (series.collective, series.ranks) == (None, None)


TWO_SERVERS = """# size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    45.10   23.25   43.59      0
     4194304       1048576     float     sum      -1      N/A   23.25   43.59      0
    16777216       4194304     float     sum      -1   200.10   83.84  157.21      0
   134217728      33554432     float     sum      -1  1400.00   95.87  179.75      0
"""


def test_a_fit_keeps_what_the_times_do_not_tell(tmp_path, capsys):
    """The rate in the switch has no effect once these times are met: it keeps its value."""
    log = tmp_path / "log.txt"
    log.write_text(TWO_SERVERS)
    assert run_line(["calibrate", str(log), "--cluster=dgx-h100"]) == 0
    printed = capsys.readouterr()
    assert "in_switch_efficiency,," not in printed.out
    assert "no row depends on it once the others are fitted: nccl.h100.in_switch" in printed.err
    assert "Rows left out, as they have no time: 1." in printed.err


def test_a_fit_that_a_limit_stops_says_so_and_is_sure_of_nothing(tmp_path, capsys):
    """Times that no such machine can reach."""
    log = tmp_path / "log.txt"
    log.write_text(TWO_SERVERS.replace("1400.00", "1e-9"))
    assert run_line(["calibrate", str(log), "--cluster=dgx-h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stopped"] == ["nccl.h100.in_switch_efficiency"]
    for row in document["rows"]:
        limits = domain(row["quantity"], row["unit"])
        assert limits.least <= row["value"] <= limits.most
        assert row["low"] < row["value"] or row["high"] > row["value"]
