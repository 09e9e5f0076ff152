"""Output of measurement tools: units, ranks, prefixes and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.validation.reading.tool_outputs import parse_measured
from topologies.errors import InputError

NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) validation: 1
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
NCCOM_TEST = """nccom-test -r 32 --minbytes 1kb --maxbytes 1mb -f 8 --check allg
    size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)
       1024             256    fp32         151           0.01           0.01
   33554432         8388608    fp32         768          40.69          39.42
   67108864    Failure running neuron-bench - log file /tmp/log
Avg bus bandwidth:      0.7731GB/s
"""


def test_nccl_tests_output_is_read_out_of_place():
    series = parse_measured(NCCL_TESTS)
    assert (series.collective, series.ranks, len(series)) == ("all-reduce", 2, 2)
    assert series.time_s.tolist() == pytest.approx([6.4e-6, 14.2e-6])
    assert series.bandwidth_unit == "GB/s"


def test_nccom_test_output_in_gibibytes_is_read_by_its_times():
    series = parse_measured(NCCOM_TEST)
    assert (series.collective, series.ranks, series.failed) == ("all-gather", 32, 1)
    assert series.bandwidth_unit == "GiB/s"
    assert series.size_bytes[1] / series.time_s[1] == pytest.approx(43.69e9, rel=1e-3)


def test_ranks_are_found_from_the_bandwidths_where_nothing_says_so():
    text = "alltoall_perf\n size time(us) algbw busbw\n 1000000 10 100 87.5\n"
    assert parse_measured(text).ranks == 8
    assert parse_measured("size time(us)\n8 1\n").ranks is None


@pytest.mark.parametrize(("text", "why"), [
    ("", "no table"),
    ("hello\nworld\n", "no table"),
    ("size(B) time(us)\n 1024 Failure\n", "1 rows without a result, none with one"),
])  # fmt: skip
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


def test_of_several_tables_the_one_that_is_wanted_is_read():
    other = NCCL_TESTS.replace("all_reduce", "all_gather").replace("14.20", "9.10")
    assert parse_measured(NCCL_TESTS + other).collective == "all-reduce"
    assert len(parse_measured(NCCL_TESTS + other)) == 2
    series = parse_measured(NCCL_TESTS + other, wanted="all-gather")
    assert (series.collective, series.ranks, series.time_s[-1]) == ("all-gather", 2, 9.1e-6)


@pytest.mark.parametrize("prefix", [
    "[1,0]<stdout>: ", "0: ", "node-7: ", "2026-03-01T10:00:00.123Z ", "[host-1] ",
    "ip-10-0-0-1: 3: ",
])  # fmt: skip
def test_what_stands_before_each_line_is_passed_over(prefix):
    lines = [prefix + line for line in NCCL_TESTS.splitlines()]
    series = parse_measured("\n".join(lines))
    assert (series.collective, series.ranks) == ("all-reduce", 2)
    assert series.size_bytes.tolist() == [1024, 2**20]
