"""Options that change nothing are named in the answer, or refused where they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli.main import run
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
    call.insert(2, "report.json")
    idle = document_of([*call, "--collective=all-gather", "--ranks=4"])
    assert set(idle["without_effect"]) == {"collective", "ranks"}
    assert "without_effect" not in document_of(call)


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("topology", "ring:4", *LINKS, "--variant=trn2.48xlarge.price=spot"),
            "--variant changes the catalogue, and all numbers of ring:4 stand in",
        ),
        (
            ("list", "models", "--variant=trn2.48xlarge.price=spot"),
            "--variant changes the catalogue, and the list of models is not from it",
        ),
        (
            ("serve", "--model=config.json", "--cluster=dgx-h100", "--requests=requests.csv",
             "--output=5"),
            "requests.csv states the tokens of every answer; leave --output 5 out",
        ),
        (
            ("plan", "--model=config.json", "--cluster=trn2.48xlarge", "--global-batch=0"),
            "--global-batch is 0; it must be a whole number",
        ),
        (
            ("train", "--model=config.json", "--cluster=trn2.48xlarge", "--stage-layers=1-2"),
            "--stage-layers names 2 chunks",
        ),
    ],
)  # fmt: skip
def test_options_that_nothing_would_read_are_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
