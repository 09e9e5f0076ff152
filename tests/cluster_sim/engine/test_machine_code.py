"""Kept machine code: compiled once, named by a digest of its inputs, and checked when loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cluster_sim.engine.compiler import jit
from cluster_sim.engine.compiler.jit import (
    Code,
    Entry,
    Part,
    _flatten,
    compiled,
    ingredients,
    internal,
    leading_zeros,
    lean,
    prefetch,
    trailing_zeros,
)
from topologies.support.files import kept_files

ROOT = Path(__file__).parents[3]
TWO = (
    "from tests.support.engine_schedules import fixed;"
    "from cluster_sim.engine import simulate; import sys;"
    "print(simulate(fixed([1])).end_ps.tolist(), 'numba' in sys.modules)"
)


class Pair(NamedTuple):
    values: np.ndarray[Any, Any]
    factor: float


@internal
def scaled(pair, at):
    """One value, scaled."""
    return float(pair.values[at]) * pair.factor


@compiled
def total(pair, places):
    summed = 0.0
    for at in range(places[0], places[1]):
        summed += scaled(pair, at)
    return summed


@compiled
def bits(number, out):
    out[0, 0] = leading_zeros(number)
    out[0, 1] = trailing_zeros(number)
    return number > 0


def test_numbers_arrays_and_tuples_are_passed():
    pair = Pair(np.arange(5.0), 0.5)
    assert total(pair, (1, 4)) == 3.0
    assert total(Pair(np.arange(10.0)[::2], 1.0), (0, 5)) == 20.0  # any layout, as other code
    out = np.zeros((1, 2), np.int64)
    assert bits(40, out) is True
    assert out.tolist() == [[58, 3]]


def code_of(function, *arguments):
    assert isinstance(function, Entry)
    words = []
    _flatten(arguments, [], words, function.plain)
    return Code(*function._compile(arguments, len(words)))


@lean
def fetched(values, last):
    """Fetch entries up to and including the one behind the last; returns their number."""
    for at in range(last + 1):
        prefetch(values, at)
    return last


def test_prefetch_is_one_instruction_in_the_machine_code():
    code = code_of(fetched, np.arange(3), 3)
    assert b"llvm.prefetch" not in code.binary  # no call of a function of that name
    assert b"\x0f\x18" in code.binary or os.uname().machine != "x86_64"


def picked(values, at):
    return int(values[at])


def test_lean_code_takes_an_index_as_it_is():
    values = np.arange(10, 20)
    checked, plain = compiled(picked), lean(picked)
    assert [checked(values, 3), plain(values, 3)] == [13, 13]
    assert checked(values[5:], -1) == 19  # from the end, as in Python
    assert plain(values[5:], -1) == 14  # what stands before
    assert parts(plain) != parts(checked)
    with pytest.raises(TypeError, match="lean code takes arrays in C order"):
        plain(values[::2], 3)


@lean
def spread(columns, rows):
    """Write a narrow, a wide and a truth column into the rows; returns how many there are."""
    narrow, broad, truth = columns
    for row in range(len(narrow)):
        rows[row, 0] = narrow[row] << 40  # past 32 bits
        rows[row, 1] = broad[row]
        if truth[row]:
            rows[row, 1] += 1
            narrow[row] -= 1
    return len(rows)


def test_lean_code_reads_whole_numbers_as_int64_and_writes_them_as_they_are_kept():
    narrow, broad = np.array([3, -2], np.int32), np.array([7, 2**60])
    rows = np.zeros((2, 2), np.int64)
    assert spread((narrow, broad, np.array([False, True])), rows) == 2
    assert rows.tolist() == [[3 << 40, 7], [-2 << 40, 2**60 + 1]]
    assert narrow.tolist() == [3, -3]
    small = np.array([255, 0], np.uint8)
    spread((small, broad, np.array([True, True])), rows)
    assert (rows[0, 0], small.tolist()) == (255 << 40, [254, 255])


@internal
def added(value, other):
    return value + other


@compiled
def seven(value):
    return added(added(added(value, 1), 2), value)


def test_a_function_is_compiled_once_for_all_constants():
    assert seven(2) == 7
    assert isinstance(added, Part)
    code_of(seven, 2)
    assert len(added.dispatcher.overloads) == 1


def test_numba_compiles_other_code_of_the_process_as_ever():
    from numba import njit

    code_of(seven, 2)  # leaves numba's functions of its own, such as max, not ready to run

    @njit
    def highest(values):
        return max(values[0], values[-1])

    assert highest(np.array([1, 5])) == 5


def parts(function):
    assert isinstance(function, Entry)
    return list(ingredients(function))


def test_code_is_known_by_what_it_follows_from(monkeypatch):
    before = parts(total)
    assert parts(total) == before

    def with_other_words(pair, at):
        """The same, told otherwise."""
        return float(pair.values[at]) * pair.factor

    def other(pair, at):
        return float(pair.values[at]) + pair.factor

    monkeypatch.setattr(scaled, "function", other)
    assert parts(total) != before
    with_other_words.__qualname__ = "scaled"
    monkeypatch.setattr(scaled, "function", with_other_words)
    assert parts(total) == before  # comments and docstrings are no part of it


def run_two(folder):
    # Commands that other tests ran quietly in this process have told it to log nothing.
    loud = {name: value for name, value in os.environ.items() if name != "CLUSTER_SIM_QUIET"}
    return subprocess.run(
        [sys.executable, "-c", TWO], cwd=ROOT,
        env={**loud, kept_files.FOLDER_VARIABLE: str(folder)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip


def test_kept_code_follows_from_the_compiler_too():
    text = Path(jit.__file__).with_name("numba_side.py").read_text(encoding="utf-8")
    assert kept_files.digest(text) in jit._environment()


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_damage_heals(tmp_path):
    first = run_two(tmp_path)
    assert first.stdout == "[1] True\n"
    assert "compiling cluster_sim.engine.fast.loop.advance" in first.stderr
    second = run_two(tmp_path)
    assert (second.stdout, second.stderr) == ("[1] False\n", "")
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    assert (run_two(tmp_path).stdout, run_two(tmp_path).stdout) == ("[1] True\n", "[1] False\n")
    (blocked := tmp_path / "a file").write_text("where the folder should be")
    assert run_two(blocked).stdout == "[1] True\n"
