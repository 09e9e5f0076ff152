"""Failure rates: Llama 3's by cause, in proportion to chips, and those of a user's file."""

import pytest

from tests.support.refusals import refused
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.job import failure_rates, read_failures
from workloads.job.causes import YEAR_S, FailureRates, counts
from workloads.job.front import spares_needed
from workloads.sharing.hazards import hazards_of


def test_a_job_fails_in_proportion_to_its_chips_which_its_cluster_has():
    machine = cluster("trn2-ultraserver:16")
    whole, half = failure_rates(machine, 1024), failure_rates(machine, 512)
    assert half.mtbf_s == pytest.approx(2 * whole.mtbf_s)
    refused("does not fit", failure_rates, machine, 1025)


def test_one_server_has_no_fabric_and_no_cables():
    counted = counts(cluster("trn2.48xlarge"), 16)
    assert (counted["optical-link"], counted["switch"], counted["server"]) == (0, 0, 1)
    assert counted["copper-link"] == counted["nic"]
    assert counts(cluster("trn2-ultraserver"), 64)["copper-link"] > 64


def test_a_number_is_failures_of_a_chip_a_year():
    machine = cluster("dgx-h100:4")
    rates = read_failures("0.5", machine, 32)
    assert rates.per_s == pytest.approx(0.5 * 32 / YEAR_S)
    assert (rates.low, rates.high) == (1, 1)
    assert read_failures("0", machine, 32).per_s == 0
    assert read_failures("2.5h", machine, 32).per_s == pytest.approx(1 / 9000)
    refused("must be 0 to 1e\\+09", read_failures, "0h", machine, 32)


ALL = "cause,per,mtbf,replaces,units,found_after,again,again_after\n"


def test_causes_are_joined_and_may_be_bursts_silent_or_repaired_in_vain(tmp_path):
    path, machine = tmp_path / "more.csv", cluster("dgx-h100:4")
    path.write_text(
        f"{ALL}rack,job,100h,1,3,,,\nwrong,chip,1000h,0,,6h,,\nbad,job,50h,1,,,20%,2h\n"
    )
    rates = read_failures(f"catalogue,{path}", machine, 32)
    shipped = failure_rates(machine, 32)
    assert rates.causes[:-3] == shipped.causes
    assert (rates.low, rates.high) == (shipped.low, shipped.high)
    rack, wrong, bad = rates.causes[-3:]
    assert (rack.units, wrong.found_after_s, bad.again, bad.again_after_s) == (3, 21600, 0.2, 7200)
    three = FailureRates((rack, wrong, bad))
    assert three.replacing_per_s == pytest.approx((3 / 100 + 1 / 50) / 3600)
    # Three units are away together: enough for 99.9 % are multiples of three for the rack.
    assert spares_needed(FailureRates((rack,)), 36_000.0) == 3 * 2
    refused("'chip' appears twice", read_failures, "catalogue,0.5", machine, 32)
    with pytest.raises(InputError, match="cause rack has units, found_after or again"):
        hazards_of(machine, {"failures": str(path)}, 0)


def test_a_file_names_causes(tmp_path):
    path = tmp_path / "causes.csv"
    path.write_text("cause,per,mtbf,replaces\npump,server,1000h,1\nscheduler,job,10d,0\n")
    rates = read_failures(str(path), cluster("dgx-h100:4"), 32)
    assert {cause.name: cause.per_s for cause in rates.causes} == pytest.approx(
        {"pump": 4 / 3.6e6, "scheduler": 1 / 864000}
    )
    assert rates.replacing_per_s == pytest.approx(4 / 3.6e6)


@pytest.mark.parametrize(("text", "message"), [
    ("cause,per,mtbf,replaces,repair\npump,server,1000h,1,3h\n", "line 1 has no 'repair'"),
    ("", "no row"),
    ("pump,srver,1000h,1\n", "per 'srver' is none of"),
    ("pump,server,1000,1\n", "line 2: mtbf"),
    ("pump,server,0h,1\n", "must be above 0"),
    ("pump,server,1000h,yes\n", "neither 0 nor 1"),
    (",server,1000h,1\n", "no name"),
    ("pump,server,1000h,1\npump,server,1000h,1\n", "appears twice"),
    ("pump,server\n", "not as many cells"),
    (ALL + "pump,server,9h,1,0,,,\n", "units '0' must be a whole number from 1"),
    (ALL + "pump,server,9h,1,,6,,\n", "found_after '6' has no unit"),
    (ALL + "pump,server,9h,1,,-6h,,\n", "found_after '-6h' is negative"),
    (ALL + "pump,server,9h,1,0000010000999999,,,\n", "units '0000010000999999' must be"),
    (ALL + "pump,server,9h,0,3,,,\n", "units and again are of units that a spare replaces"),
    (ALL + "pump,server,9h,0,,,10%,1h\n", "but replaces is 0. Write 1, or leave them out"),
    (ALL + "pump,server,9h,1,,,10%,\n", "again and again_after go together"),
    (ALL + "pump,server,9h,1,,,150%,1h\n", "again is '150%'; write a share"),
    (ALL + "pump,server,9h,1,3,6h,,\n", "corruption of several units"),
])  # fmt: skip
def test_a_wrong_file_is_told_by_line(tmp_path, text, message):
    path = tmp_path / "causes.csv"
    path.write_text(text if text.startswith("cause") else f"cause,per,mtbf,replaces\n{text}")
    refused(message, read_failures, str(path), cluster("dgx-h100:4"), 32)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "nofile.csv", ""])
def test_a_wrong_number_is_refused(text):
    with pytest.raises(InputError):
        read_failures(text, cluster("dgx-h100:4"), 32)
