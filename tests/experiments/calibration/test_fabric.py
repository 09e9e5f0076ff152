"""One's own measurements of a collective: which constants are fitted, and the overlay."""

import json

import numpy as np
import pytest

from cluster_sim.collectives.call import CollectiveCall as Call
from cluster_sim.collectives.duration.nccl import nccl_ps
from cluster_sim.collectives.group import whole
from experiments.calibration.fit import ConstantsFit, fit_collectives, overlay_text
from experiments.calibration.measurements import Measurements
from experiments.cli.main import run as run_line
from experiments.validation.reading.tool_outputs import Measured, parse_measured
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.reader import domain
from topologies.clusters.names import cluster
from topologies.errors import InputError


def fit_own(measured: Measured, machine: str, catalogue: Catalogue) -> ConstantsFit:
    alone = Measurements((), (), (("log.txt", measured),), None)
    return fit_collectives(alone, catalogue, machine, None).fit


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
    path = tmp_path / "overlay.csv"
    path.write_text(overlay_text(fits.entries))
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
    with pytest.raises(InputError, match=why):
        fit_own(measured, "dgx-h100", shipped_catalogue())


TWO_SERVERS = """# size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    45.10   23.25   43.59      0
     4194304       1048576     float     sum      -1      N/A   23.25   43.59      0
    16777216       4194304     float     sum      -1   200.10   83.84  157.21      0
   134217728      33554432     float     sum      -1  1400.00   95.87  179.75      0
   268435456      67108864     float     sum      -1  2790.00   96.21  180.40      0
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
    (group,) = document["groups"]
    assert "nccl.h100.efficiency" in group["stopped"]
    for row in document["rows"]:
        limits = domain(row["quantity"], row["unit"])
        assert limits.least <= row["value"] <= limits.most
        assert row["low"] < row["value"] or row["high"] > row["value"]
