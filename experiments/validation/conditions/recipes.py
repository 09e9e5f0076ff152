"""Recipe of a framework: attention kernels, fusion, power and libraries that a row leaves out.

A recipe is a set of catalogue variants and choices of the plan; its provenance is *assumed*. It is
found by the row's ``source``; a row of an unknown source gets the usual one for its model and chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from experiments.validation.conditions.conditions import chosen, month
from experiments.validation.reading.machines import machines_for
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.files.reading import csv_rows

CONDITIONS = ("zero", "gated_mlp", "overlap", "tp", "chip")
"""Columns of a recipe that a row must agree with, in the order of the cost of checking them."""


@dataclass(frozen=True)
class Recipe:
    """Usual choices of a framework.

    Attributes
    ----------
    match : str
        Text in a source by which it is recognised; empty for a recipe of any source.
    conditions : tuple of (str, tuple of str)
        Names of chips, or values of a column, of which a row must have one.
    until : str
        Year or month before which the row's software must be, where that is known; empty for any.
    attention : str
        ``fused`` or ``unfused``.
    selective : str
        Meaning of *selective* recomputation: the core of ``attention`` (Megatron), or every other
        of the ``layers`` (frameworks of FSDP).
    usual_overlap : str
        Which communication runs beside compute where a row does not say.
    collectives : str
        Software by which a collective or kernel was timed: ``nccl`` (its own tests), ``nvshmem``, a
        library of exchanges, or a constant of :mod:`experiments.validation.conditions.timing_tool`.
    variants : tuple of (path, name)
        Catalogue variants, ``PART.QUANTITY`` and the alternative's name.
    note : str
    """

    match: str
    conditions: tuple[tuple[str, tuple[str, ...]], ...]
    until: str
    attention: str
    selective: str
    usual_overlap: str
    collectives: str
    variants: tuple[tuple[str, str], ...]
    note: str

    @property
    def label(self) -> str:
        """Return the name that results show."""
        return self.match or self.note

    def numbers(self, base: Catalogue | None = None) -> Catalogue:
        """Return a catalogue, the shipped one by default, with the recipe's variants in force.

        A variant that was chosen in ``base`` stays.
        """
        return _numbers(self.variants, base or shipped_catalogue())

    def suits(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is of the recipe's source and meets its conditions."""
        if self.match.lower() not in str(row.get("source") or "").lower():
            return False
        if self.until and month(row) >= self.until:
            return False
        return all(_meets(row, name, allowed) for name, allowed in self.conditions)


def _meets(row: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> bool:
    if name == "chip":
        return machines_for(row["cluster"], 1).chip in allowed
    return str(row.get(name)) in allowed


@cache
def _numbers(variants: tuple[tuple[str, str], ...], base: Catalogue) -> Catalogue:
    chosen = {f"{part}.{quantity}" for part, quantity, _ in base.chosen}
    left = {name: variant for name, variant in variants if name not in chosen}
    return base.with_variants(left) if left else base


@cache
def recipes() -> tuple[Recipe, ...]:
    """All shipped recipes, those of a source before those of any, the usual one last."""
    text = (files("experiments.validation") / "recipes.csv").read_text(encoding="utf-8")
    _, rows = csv_rows(text, "recipes.csv")
    return tuple(_recipe(row) for _, row in rows)


def _recipe(row: Mapping[str, str]) -> Recipe:
    pairs = [pair.split("=") for pair in row["variants"].split(";") if pair]
    return Recipe(
        match=row["match"],
        conditions=tuple((name, tuple(row[name].split())) for name in CONDITIONS if row[name]),
        until=row["until"],
        attention=row["attention"],
        selective=row["selective"],
        usual_overlap=row["usual_overlap"],
        collectives=row["collectives"],
        variants=tuple((path, name) for path, name in pairs),
        note=row["note"],
    )


def recipe(row: Mapping[str, Any]) -> Recipe:
    """Recipe of a row, by its ``source``, else by chip, ``gated_mlp``, ``zero`` and ``overlap``.

    Conditions that the row states itself take the place of the recipe's.

    Examples
    --------
    >>> recipe({"source": "github VIA-Research/vTrain ground_truth_single.csv"}).attention
    'unfused'
    >>> mine = {"cluster": "dgx-a100", "gated_mlp": 0, "zero": 1, "overlap": "none"}
    >>> recipe(mine).attention, recipe(mine | {"overlap": "all"}).attention
    ('unfused', 'fused')
    """
    suited = next(candidate for candidate in recipes() if candidate.suits(row))
    stated = chosen(row, machines_for(row["cluster"], 1).chip) if row.get("cluster") else {}
    if not stated and not row.get("attention"):
        return suited
    merged = {**dict(suited.variants), **stated}
    kept = tuple((path, name) for path, name in merged.items() if name)
    return replace(suited, variants=kept, attention=row.get("attention") or suited.attention)
