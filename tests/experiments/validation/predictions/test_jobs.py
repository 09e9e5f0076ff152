"""Rows of long jobs against the closed form of their goodput."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.validation.predictions.jobs import TIMES, predict
from workloads.job.goodput import expected_goodput

ROW: dict[str, Any] = {
    "cluster": "dgx-h100", "chips": 1024, "server_failures_per_1000_days": 31.25,
    "checkpoint_interval_s": 600, "checkpoint_stall_s": 20, "restart_s": 100, "detection_s": 10,
    "peer_copy_interval_s": None, "warm_spares": None, "goodput": 0.9,
}  # fmt: skip
"""128 servers, one of which fails every six hours."""


def test_failures_of_servers_add_up() -> None:
    outcome = predict({**ROW, "goodput": None})
    assert outcome.predicted == {"mtbf_s": pytest.approx(21_600)}


def test_goodput_is_that_of_exponential_failures() -> None:
    """Half of an interval, detection and restart are lost to each of the 400 failures."""
    outcome = predict(ROW)
    expected = expected_goodput(600, 21_600, checkpoint_s=20, restart_s=100, detection_s=10)
    assert outcome.predicted["goodput"] == pytest.approx(expected, abs=0.003)
    assert outcome.provenance == {"failure_rates": "stated"}


def test_times_that_a_row_leaves_out_are_assumed() -> None:
    """A goodput at Daly's interval is at least that of any other with the same times."""
    stall_alone = predict({**ROW, "checkpoint_interval_s": None})
    assert stall_alone.provenance["columns"] == "assumed: checkpoint_interval_s"
    assert stall_alone.predicted["goodput"] > predict(ROW).predicted["goodput"] - 0.003
    nothing = predict({**ROW, **dict.fromkeys(TIMES)})
    assert nothing.provenance["columns"] == f"assumed: {', '.join(TIMES)}"
