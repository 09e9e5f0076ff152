"""Options that change nothing are named in the answer, or refused where they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.seeds import files
from tests.support.commands import document_of

LINKS = ("--bandwidth=1GB/s", "--latency=1us")
QUIET = ("--size=1MiB", "--json", "--quiet")


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "kernels.csv", "report.json", "requests.csv"):
        (tmp_path / name).write_bytes(files()[name])


def test_a_plain_shape_is_ideal_already() -> None:
    call = ("collective", "all-reduce", "ring:4", *LINKS, *QUIET)
    assert document_of([*call, "--ideal"])["without_effect"].keys() == {"ideal"}
    assert "without_effect" not in document_of(list(call))


def test_limits_that_are_kept_need_not_be_lifted() -> None:
    call = ("collective", "permute", "trn2.48xlarge", *QUIET, "--unrestricted")
    assert "unrestricted" in document_of([*call, "--group=0,1,5,4"])["without_effect"]
    assert "without_effect" not in document_of([*call, "--group=0,5"])
    beside = ("collective", "all-reduce", "trn2.48xlarge,dgx-h100", *QUIET, "--unrestricted")
    rows = document_of(list(beside))["rows"]
    assert all("unrestricted" in row["without_effect"] for row in rows)


@pytest.mark.usefixtures("inputs")
def test_options_about_collectives_are_named_where_no_measurement_needs_them() -> None:
    call = ["calibrate", "kernels.csv", "--cluster=trn2.48xlarge", "--json", "--quiet"]
    idle = document_of([*call, "--collective=all-gather", "--ranks=4", "--chips=2"])
    assert set(idle["without_effect"]) == {"collective", "ranks", "chips"}
    call[2:2] = ["report.json", "report.json"]
    idle = document_of([*call, "--collective=all-gather", "--ranks=4"])
    assert set(idle["without_effect"]) == {"collective", "ranks"}
    assert "without_effect" not in document_of(call)
