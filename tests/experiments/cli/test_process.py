"""The process of a command: closed or full streams, readers that leave, internal faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main as main_function
from experiments.cli.main import run

MAIN = sys.modules["experiments.cli.main"]
COMMAND = "-m cluster_sim list variants"


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """Run words of a shell with this Python in place of PY."""
    line = words.replace("PY ", f"{sys.executable} ")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (f"PY {COMMAND} >&-", 2, "standard output is closed; send it somewhere"),
        (f"PY {COMMAND} >/dev/full", 2, "standard output: No space left on device. Free some"),
        ("PY -m cluster_sim --version >/dev/full", 2, "standard output: No space left"),
        (f"PY {COMMAND} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}", 0, ""),
        (f"PY {COMMAND} 2>&- >/dev/null", 0, ""),
        (
            "PYTHONIOENCODING=ascii PY -m cluster_sim train --model gpt2 --cluster dgx-h100",
            0,
            "",
        ),
        ("PY -m cluster_sim nope 2>&-", 2, ""),
        ("PY -m cluster_sim nope <&- >&- 2>&-", 2, ""),
        ("PY -m cluster_sim nope 2>/dev/full", 2, ""),
    ],
)
def test_streams_that_are_closed_full_or_left(words: str, status: int, message: str) -> None:
    if "/dev/full" in words and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    done = shell(words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message)


def test_running_out_of_memory_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("topologies.clusters.names.cluster", full)
    assert run(["topology", "trn2.48xlarge"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("cluster-sim: ran out of memory; this process may use ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("wants_traceback", [False, True])
def test_a_fault_of_the_program_is_a_line_and_a_traceback_for_who_asks(
    wants_traceback: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise KeyError("x")

    def left(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("topologies.clusters.names.cluster", broken)
    monkeypatch.setattr(MAIN, "prepare", lambda: None)
    monkeypatch.setattr(MAIN, "open_streams", lambda: True)
    monkeypatch.setattr(MAIN, "leave", left)
    monkeypatch.setattr(sys, "argv", ["cluster-sim", "topology", "trn2.48xlarge"])
    if wants_traceback:
        monkeypatch.setenv("CLUSTER_SIM_TRACEBACK", "1")
    with pytest.raises(SystemExit, match="1"):
        main_function()
    message = capsys.readouterr().err
    assert ("Traceback" in message) is wants_traceback
    if not wants_traceback:
        assert message.startswith("cluster-sim: internal fault, not yours: KeyError: 'x', at ")
        assert message.count("\n") == 1
