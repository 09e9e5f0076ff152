"""The form of a law, and how a case of it is drawn, run and shown."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz.option_sweep import answer
from tests.fuzz.sweep_bases import write_files

ROUNDING = 1e-9
DRAWS = 40
"""Cases that may be drawn for one that no command refuses."""


@dataclass(frozen=True)
class Line:
    """One command line, with its machine where that is a file.

    Attributes
    ----------
    words : tuple of str
        Command and arguments.
    options : mapping
        Options by name; True stands for a flag, None leaves an option out.
    machine : mapping or None
        Cluster file, which is written for the line and stands for ``--cluster``.
    model : mapping or None
        Fields of a ``config.json``, likewise.
    jobs : tuple of mappings
        Rows of the file of ``--jobs``, likewise.
    """

    words: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    jobs: tuple[Mapping[str, Any], ...] = ()

    def but(self, **options: Any) -> Line:
        """Return the line with other options, whose names have underscores here."""
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return replace(self, options={**self.options, **named})

    def scaled(self, part: str, key: str, factor: float, unit: str = "") -> Line:
        """Return the line on a machine with one of its quantities scaled, or in another unit."""
        section = self.machine[part]
        number, before = section[key].split(" ")
        changed = {**section, key: f"{float(number) * factor:.12g} {unit or before}"}
        return replace(self, machine={**self.machine, part: changed})

    def written(self, name: str) -> tuple[str, ...]:
        """Write the line's files under a name, and return the words of the command."""
        options = dict(self.options)
        words = list(self.words)
        if self.machine is not None:
            Path(f"{name}.yaml").write_text(yaml.safe_dump(dict(self.machine), sort_keys=False))
            if words[0] == "collective":
                words.append(f"{name}.yaml")
            else:
                options["cluster"] = f"{name}.yaml"
        if self.model is not None:
            Path(f"{name}.json").write_text(json.dumps(dict(self.model)))
            options["model"] = f"{name}.json"
        if self.jobs:
            rows = [list(self.jobs[0]), *(list(job.values()) for job in self.jobs)]
            lines = [",".join(map(str, row)) for row in rows]
            Path(f"{name}.csv").write_text("\n".join(lines) + "\n")
            options["jobs"] = f"{name}.csv"
        flags = [f"--{key}" for key, value in options.items() if value is True]
        stated = {key: value for key, value in options.items() if value is not None}
        texts = [f"--{key}={value}" for key, value in stated.items() if value is not True]
        return (*words, *flags, *texts)


Draw = Callable[[random.Random], Line]
Change = Callable[[Line, random.Random], Line]


@dataclass(frozen=True)
class Law:
    """A relation between the answers of two lines, the second of which is made from the first.

    Attributes
    ----------
    name : str
        The law as a sentence.
    draw : function of Random
        Draws the first line.
    change : function of (Line, Random)
        Makes the second line.
    holds : {"==", "<=", ">="}
        How each value of the second answer stands to that of the first.
    keys : tuple of str
        Places of the values in the JSON; dots lead into mappings, all parts of which count, and
        ``*`` stands between values of which the product counts.
    tolerance : float
        Relative difference that is rounding, or that the law's name says more about.
    factor : function of (Line, Line), optional
        Number by which the first answer is multiplied before both are compared.
    share_of : tuple of str
        Places of the first answer of whose sum the tolerance is a share; by default it is one of
        each value.
    """

    name: str
    draw: Draw
    change: Change
    holds: str
    keys: tuple[str, ...]
    tolerance: float = ROUNDING
    factor: Callable[[Line, Line], float] = lambda first, second: 1.0
    share_of: tuple[str, ...] = ()

    def violation(self, seed: int) -> str:
        """Return how a case breaks the law, with the commands that show it; empty if it holds.

        Raises
        ------
        LookupError
            When every case that is drawn is refused, so that the law would say nothing.
        """
        rng = random.Random(f"{self.name} {seed}")
        refusal = ""
        for _ in range(DRAWS):
            state = rng.getrandbits(64)
            first = self.draw(random.Random(state))
            second = self.change(first, random.Random(state + 1))
            with _folder():
                lines = first.written("first"), second.written("second")
                outcomes = [answer(words) for words in lines]
                files = _files_of(first, second)
            if all(outcome["status"] == "ok" for outcome in outcomes):
                documents = [outcome["document"] for outcome in outcomes]
                broken = list(self._broken(documents[0], documents[1], self.factor(first, second)))
                return _shown(self.name, broken, lines, files) if broken else ""
            refusal = next(each["message"] for each in outcomes if each["status"] != "ok")
            if any(outcome["status"] not in ("ok", "refused") for outcome in outcomes):
                return _shown(self.name, [refusal], lines, files)
        raise LookupError(f"{self.name}: {DRAWS} cases were refused, the last by: {refusal}")

    def _broken(self, first: Any, second: Any, factor: float) -> Iterator[str]:
        """Yield the values that break the law."""
        parts = [sum(_values(first, place).values()) for place in self.share_of]
        for key in self.keys:
            before, after = _values(first, key), _values(second, key)
            if before.keys() != after.keys():
                yield f"{key} has other parts"
                continue
            for place, value in before.items():
                expected, got = value * factor, after[place]
                largest = max(abs(expected), abs(got))
                slack = self.tolerance * sum(parts) + ROUNDING * largest
                slack = slack if parts else self.tolerance * largest
                below, above = got < expected - slack, got > expected + slack
                if {"==": below or above, "<=": above, ">=": below}[self.holds]:
                    yield f"{place}: {got!r} is not {self.holds} {expected!r}"


def _values(document: Any, key: str) -> dict[str, float]:
    """Numbers at a place of a document by their own places."""
    if "*" in key:
        parts = (_values(document, part)[part] for part in key.split("*"))
        return {key: math.prod(parts)}
    value = document
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    if isinstance(value, Mapping):
        inner = [_values(value, name).items() for name in value]
        return {f"{key}.{name}": number for group in inner for name, number in group}
    return {key: float(value or 0)}


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Work in a new folder with a file of each format."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _files_of(*lines: Line) -> str:
    """Contents of the files that were written for lines."""
    names = [f"{name}.{end}" for name in ("first", "second") for end in ("yaml", "json", "csv")]
    return "".join(
        f"\n--- {name}\n{Path(name).read_text()}" for name in names if Path(name).exists()
    )


def _shown(name: str, broken: list[str], lines: tuple[tuple[str, ...], ...], files: str) -> str:
    commands = "\n".join(f"  cluster-sim {shlex.join(words)} --json" for words in lines)
    return f"{name}\n  {'; '.join(broken[:3])}\n{commands}{files}"
