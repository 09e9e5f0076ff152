"""Measurement of commands in processes of their own."""

import sys

import numpy as np
import pytest

from benchmarks._measure import measured

MB = 10**6


def test_memory_of_a_command_is_not_that_of_this_process(tmp_path):
    held = np.ones(200 * MB, np.uint8)
    used = measured(sys.executable, "-c", "print('done')", output=tmp_path / "output")
    assert (tmp_path / "output").read_text() == "done\n"
    assert used.peak_bytes < held.nbytes / 2
    larger = measured(sys.executable, "-c", f"bytearray(b'a') * {100 * MB}")
    assert larger.peak_bytes > used.peak_bytes + 50 * MB


def test_failed_command_shows_its_last_words(capfd):
    code = "import sys; print('why it failed', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    with pytest.raises(RuntimeError, match=r"ended with status 3: why it failed$"):
        measured(sys.executable, "-c", code, "3")
    measured(sys.executable, "-c", code, "0")
    assert capfd.readouterr().err == ""


def test_command_that_is_not_there_is_named():
    with pytest.raises(
        RuntimeError, match=r"no-such-program ended with status 1: FileNotFoundError.*"
    ):
        measured("no-such-program")
