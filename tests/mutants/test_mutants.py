"""Mutants differ from their module in the place that is named, and neighbours are found."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, described, drawn, neighbours, of_report, room_of
from tests.mutants.active import ACTIVE, mutated
from tests.mutants.mutate import lots, places, switched

SOURCE = '''"""A module."""
from __future__ import annotations

LIMIT = 3

@compiled
def kernel(x):
    return x + 1

def share(values, floor):
    if floor is None or min(values) < 2.5:
        raise ValueError(1 + 1)
    ratio: Annotated[float, 1] = values[0] + floor
    return ratio / (values[1] - 200)
'''
ROOMS = ("topologies/views", "workloads/demand", "workloads/confidence")


def test_places_are_in_functions_that_python_runs_and_not_in_errors_and_annotations():
    assert [place.partition(" ")[2] for place in places(SOURCE)] == [
        "11:8: Or becomes And", "11:8: Is becomes IsNot", "11:25: Lt becomes GtE",
        "11:25: min becomes max", "11:39: 2.5 becomes 3.5", "13:34: Add becomes Sub",
        "13:41: 0 becomes 1", "14:12: Div becomes Mult", "14:21: Sub becomes Add",
        "14:28: 1 becomes 2", "14:33: 200 becomes 400",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "answer"),
    [(None, 5.0), (3, 5.0), (5, 3.0), (6, 202.0), (7, 5.0), (8, 5 / 401), (10, -5 / 199)],
)
def test_each_place_is_wrong_while_its_mutant_is_active(number, answer, monkeypatch):
    names = {"compiled": lambda function: function}
    exec(switched(SOURCE, {each: 20 + each for each in range(len(places(SOURCE)))}), names)
    if number is not None:
        monkeypatch.setitem(ACTIVE, "key", 20 + number)
    assert names["share"]([4, 201], 1) == answer


def test_a_process_notes_the_places_that_it_reaches_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MUTANTS_REACHED", str(tmp_path / "notes"))
    assert not any(mutated(key) for key in (10**6, 10**6 + 1, 10**6))
    assert (tmp_path / "notes").read_text().split() == ["1000000", "1000001"]


def test_a_draw_is_made_again_and_takes_from_every_room():
    chosen = drawn(4, 3, ROOMS)
    assert chosen == drawn(4, 3, ROOMS) != drawn(4, 4, ROOMS)
    assert {room_of(mutant) for mutant in chosen} == set(ROOMS)


def test_a_draw_stays_while_other_lines_change():
    grown = SOURCE.replace("LIMIT = 3", "LIMIT = 3\n\ndef more(x):\n    return x * LIMIT")
    assert set(lots(grown, "0")) - set(lots(SOURCE, "0")) == set(lots(grown, "0")[:1])
    assert len(set(lots(SOURCE, "0")) | set(lots(SOURCE, "1"))) == 2 * len(places(SOURCE))


def test_the_mutants_that_a_report_calls_alive_are_found_again(tmp_path):
    first, second = drawn(2, 3, ROOMS)
    report = tmp_path / "report.txt"
    report.write_text(f"{described(first)} | alive\n{described(second)} | tests/test_it.py::test\n")
    assert of_report(report) == [first]


def test_neighbours_are_the_module_its_room_and_the_tests_that_name_it():
    near = neighbours(Path("workloads/confidence/poisson.py"))
    assert near[0] == "workloads/confidence/poisson.py"
    rooms = {str(Path(name).parent) for name in near[1:]}
    assert "tests/workloads/confidence" in rooms
    others = [name for name in near if "confidence" not in name]
    assert all("confidence.poisson" in (ROOT / name).read_text() for name in others)
    assert "tests/topologies/test_shapes.py" in neighbours(Path("topologies/shapes/basic.py"))
