"""What a framework does that a row does not say: attention kernels, fusion, power, libraries.

A recipe is found by the row's ``source``, and is a set of named catalogue variants; it is counted
as assumed. A row of an unknown source gets the defaults: fused attention, tuned kernels.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from topologies.catalogue import Catalogue, catalogue


@dataclass(frozen=True)
class Recipe:
    """Usual choices of a framework.

    Attributes
    ----------
    match : str
        Text in a source by which it is recognised; empty for the default.
    attention : str
        ``fused`` or ``unfused``.
    collectives : str
        Through what a collective was measured: ``nccl``, as by its own tests, ``pytorch`` or
        ``nvshmem``.
    variants : tuple of (path, name)
        Catalogue variants, ``PART.QUANTITY`` and the alternative's name.
    note : str
    """

    match: str
    attention: str
    collectives: str
    variants: tuple[tuple[str, str], ...]
    note: str

    def numbers(self) -> Catalogue:
        """Return the catalogue with the recipe's variants in force."""
        return _numbers(self.variants)


DEFAULT = Recipe("", "fused", "nccl", (), "usual choices of today")


@cache
def _numbers(variants: tuple[tuple[str, str], ...]) -> Catalogue:
    return catalogue().with_variants(dict(variants)) if variants else catalogue()


@cache
def recipes() -> tuple[Recipe, ...]:
    """All shipped recipes."""
    text = (files("experiments.validation") / "recipes.csv").read_text(encoding="utf-8")
    made = []
    for row in csv.DictReader(text.splitlines()):
        pairs = [pair.split("=") for pair in row["variants"].split(";") if pair]
        variants = tuple((path, name) for path, name in pairs)
        how = (row["match"], row["attention"], row["collectives"])
        made.append(Recipe(*how, variants, row["note"]))
    return tuple(made)


def recipe(source: str) -> Recipe:
    """Recipe of a row's source.

    Examples
    --------
    >>> recipe("github VIA-Research/vTrain data/ground_truth_single.csv").attention
    'unfused'
    >>> recipe("my own cluster").attention
    'fused'
    """
    return next((one for one in recipes() if one.match.lower() in source.lower()), DEFAULT)
