"""Time that the tool of a measurement adds, and the interval of such a row."""

from __future__ import annotations

import pytest

from experiments.validation.reading.rows import read_text
from experiments.validation.validate import validate_each
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.confidence.answers import ONE_PROCESS, collective_shown, kernel_shown

COLLECTIVE = "collective,cluster,chips,ranks,size_bytes,time_s,tool\n"
KERNEL = "kernel,chip,precision,size_bytes,kernel_s,tool\n"


def test_calls_behind_one_another_show_at_least_their_distance() -> None:
    call = shipped_catalogue().entry("nccl.pytorch", "call")
    short, long = (
        collective_shown("pytorch", seconds, shipped_catalogue()) for seconds in (1e-5, 1e-3)
    )
    assert short == (call.value, (1e-5, call.high))
    assert long == (1e-3, (1e-3, 1e-3))


def test_waiting_for_each_call_adds_the_wait() -> None:
    waited = shipped_catalogue().entry("nccl.pytorch", "waited")
    shown = collective_shown("pytorch-waited", 1e-3, shipped_catalogue())
    assert shown.seconds == pytest.approx(1e-3 + waited.value)
    assert shown.ends == pytest.approx([1e-3 + (end or 0.0) for end in (waited.low, waited.high)])


def test_one_process_shows_at_least_the_launches_of_its_chips() -> None:
    launch = shipped_catalogue().entry("nccl.one-process", "launch")
    short, few, long = (
        collective_shown(ONE_PROCESS, seconds, shipped_catalogue(), devices=devices)
        for seconds, devices in ((1.8e-5, 8), (1.4e-5, 4), (1e-3, 8))
    )
    assert short.seconds == pytest.approx(8 * launch.value)
    assert short.ends == pytest.approx([8 * (end or 0.0) for end in (launch.low, launch.high)])
    assert few.seconds == pytest.approx(4 * launch.value)
    assert long == (1e-3, (1e-3, 1e-3))


def test_a_row_of_one_process_and_one_of_eight_have_domains_of_their_own() -> None:
    """Both rows of H100 were published, by Azure and by AWS."""
    measured = ("4.2e-5,nccl-tests-one-process", "2.86e-5,nccl-tests")
    text = COLLECTIVE + "".join(f"all-reduce,dgx-h100,8,8,1048576,{each}\n" for each in measured)
    one, eight = validate_each([(read_text(text, "rows.csv"), "rows.csv")])[0].rows
    assert one["low"] < 4.2e-5 < one["high"]
    assert eight["low"] < 2.86e-5 < eight["high"] < 3.5e-5
    assert one["provenance"]["host"] == "assumed: timed through one process for all GPUs"


def test_the_first_nccom_test_shows_its_host_longer_over_servers() -> None:
    """The ends of rows of Trn1 hold the range, and one chip waits less."""
    rows = [f"all-reduce,trn1.32xlarge,{chips},{2 * chips},67108864,1e-3" for chips in (1, 32)]
    text = "".join(f"{row},{tool}\n" for row in rows for tool in ("nccom-first", "nccom-test"))
    compared = validate_each([(read_text(COLLECTIVE + text, "rows.csv"), "rows.csv")])[0].rows
    for (through, alone), quantity in zip(
        (compared[:2], compared[2:]), ("within_server", "servers"), strict=True
    ):
        wait = shipped_catalogue().entry("nccom-test.first", quantity)
        assert through["predicted"] == pytest.approx(alone["predicted"] + wait.value)
        assert through["predicted_most"] == pytest.approx(alone["predicted"] + (wait.high or 0.0))
        assert through["provenance"]["host"] == "assumed: timed through the first nccom-test"


def test_kernels_called_alone_take_a_product_shorter_than_an_element_wise_one() -> None:
    product, other = (
        kernel_shown("pytorch-called", kernel, 1e-4, shipped_catalogue())
        for kernel in ("gemm", "elementwise")
    )
    assert 1e-4 < product.seconds < other.seconds
    assert kernel_shown("nccl", "elementwise", 1e-4, shipped_catalogue()).ends is None


def test_interval_of_a_row_through_pytorch_holds_the_range_of_the_tool() -> None:
    """From the collective alone to the longest distance of two calls, each end with its error."""
    row = f"{COLLECTIVE}all-reduce,dgx-h100,2,2,16384,4e-5,"
    through, alone, bare = (
        validate_each([(read_text(f"{row}{tool}\n", "rows.csv"), "rows.csv")])[0].rows[0]
        for tool in ("pytorch", "nccl-tests", "")
    )
    assert through["predicted_least"] == alone["predicted"] < through["predicted"]
    assert through["low"] < through["predicted_least"] < through["predicted_most"] < through["high"]
    assert "predicted_least" not in alone
    assert bare["predicted"] == bare["predicted_least"] == alone["predicted"]
    assert bare["predicted_most"] >= through["predicted_most"]
    assert bare["low"] < alone["predicted"] < alone["high"] < bare["high"]


def test_kernel_of_a_table_timed_through_pytorch_takes_longer() -> None:
    row = "elementwise,a100-80gb,bf16,536870912,3.73e-4,"
    text = f"{KERNEL}{row}pytorch-called\n{row}\n"
    called, alone = validate_each([(read_text(text, "rows.csv"), "rows.csv")])[0].rows
    more = shipped_catalogue().value("runtime.pytorch", "elementwise_called")
    assert called["predicted"] == pytest.approx(alone["predicted"] + more)
    assert abs(called["error"]) < abs(alone["error"])
