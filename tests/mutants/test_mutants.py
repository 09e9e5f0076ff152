"""Mutants differ from their module in the place that is named, and neighbours are found."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOMS, ROOT, drawn, neighbours
from tests.mutants.mutate import mutant, places

SOURCE = """
LIMIT = 3

def least(values, floor):
    if floor is None or min(values) < 2.5:
        raise ValueError(1 + 1)
    return values[0] + floor
"""


def test_places_are_in_functions() -> None:
    assert "3 becomes 4" not in " ".join(places(SOURCE))
    assert [place.partition(": ")[2] for place in places(SOURCE)][:3] == [
        "Or becomes And", "Is becomes IsNot", "Lt becomes GtE",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(places(SOURCE))))
def test_a_mutant_differs_in_one_line(number: int) -> None:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    after = mutant(SOURCE, number).splitlines()
    changed = [old for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1


def test_a_draw_is_made_again_and_takes_from_every_room() -> None:
    chosen = drawn(len(ROOMS), 3)
    assert chosen == drawn(len(ROOMS), 3)
    assert len({"/".join(module.parts[:2]) for module, _ in chosen}) == len(ROOMS)


def test_neighbours_come_first_that_name_the_module() -> None:
    tests_beside = neighbours(Path("cluster_sim/collectives/results.py"))
    assert "collectives.results" in (ROOT / tests_beside[0]).read_text()
