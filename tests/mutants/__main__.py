"""``python -m tests.mutants --count N`` mutates places of core rooms and runs their neighbours."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.mutants.mutate import lots, places, switched
from tests.mutants.trial import EARLY

ROOT = Path(__file__).parents[2]
ROOMS = (
    "topologies/shapes", "topologies/views", "topologies/catalogue",
    "cluster_sim/analysis", "cluster_sim/collectives", "cluster_sim/engine", "cluster_sim/schedule",
    "workloads/confidence", "workloads/demand", "workloads/fleet", "workloads/job",
    "workloads/kernels", "workloads/models", "workloads/search", "workloads/serving",
    "workloads/sharing", "workloads/training", "experiments/validation",
)  # fmt: skip
"""Rooms whose places are drawn, each as often."""
NOT_DRAWN = ("cluster_sim/engine/compiler",)  # a loader of machine code, whose mutants crash
LEAST = 0.85
Mutant = tuple[Path, int]


def neighbours(module: Path) -> list[str]:
    """Return the module, for its doctests, and the test files of its room or that name it."""
    parts = module.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    named = (".".join(parts), f"from {'.'.join(parts[:-1])} import {parts[-1]}")
    rooms = [ROOT / "tests" / Path(*parts[:depth]) for depth in (2, 1)]
    room = next(folder for folder in rooms if folder.is_dir())
    chosen = [str(module)]
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if room in path.parents or any(name in path.read_text() for name in named):
            chosen.append(str(path.relative_to(ROOT)))
    return chosen


def drawn(count: int, seed: int, rooms: Sequence[str] = ROOMS) -> list[Mutant]:
    """Draw modules and the numbers of their places, in turn from each room."""
    each = -(-count // len(rooms))
    by_room = []
    for room in rooms:
        modules = [path.relative_to(ROOT) for path in sorted((ROOT / room).rglob("*.py"))]
        every = [
            (lot, module, number)
            for module in modules
            if not str(module).startswith(NOT_DRAWN)
            for number, lot in enumerate(lots((ROOT / module).read_text(), f"{seed} {module}"))
        ]
        by_room.append([(module, number) for _, module, number in sorted(every)[:each]])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_room))
    return [mutant for mutant in turns if mutant is not None][:count]


@cache
def _places(module: Path) -> list[str]:
    return places((ROOT / module).read_text())


def described(mutant: Mutant) -> str:
    module, number = mutant
    return f"{module}, {_places(module)[number]}"


def room_of(mutant: Mutant) -> str:
    return "/".join(mutant[0].parts[:2])


def of_report(report: Path) -> list[Mutant]:
    """Return the mutants that a report of an earlier run calls alive, where they still exist."""
    lines = report.read_text().splitlines()
    words = {line.partition(" | ")[0] for line in lines if "| alive" in line}
    modules = sorted({Path(word.partition(",")[0]) for word in words})
    every = ((module, number) for module in modules for number in range(len(_places(module))))
    return [mutant for mutant in every if described(mutant) in words]


def switch(copy: Path, mutants: Sequence[Mutant]) -> None:
    """Write the modules of a copy of the repository anew, each with its mutants."""
    for module in {module for module, _ in mutants}:
        keys = {number: key for key, (other, number) in enumerate(mutants) if other == module}
        (copy / module).write_text(switched((ROOT / module).read_text(), keys))


def outcomes(mutants: Sequence[Mutant]) -> Iterator[tuple[int, str]]:
    """Yield the key of each mutant, and the test that kills it or else that it is alive."""
    with tempfile.TemporaryDirectory() as folder:
        copy, report, notes = (Path(folder) / name for name in ("copy", "report", "notes"))
        ignored = shutil.ignore_patterns(".venv", "out", ".git", "build")
        shutil.copytree(ROOT, copy, ignore=ignored)
        switch(copy, mutants)
        plan = {key: neighbours(module) for key, (module, _) in enumerate(mutants)}
        document = Path(folder) / "plan"
        document.write_text(json.dumps({"plan": plan, "report": str(report)}))
        environment = {
            **os.environ, "PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(Path(folder) / "cache"),
            "MUTANTS_REACHED": str(notes), "CLUSTER_SIM_QUIET": "1",
        }  # fmt: skip
        call = [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
        files = sorted({name for names in plan.values() for name in names})
        trial = ["-p", "tests.mutants.trial", *files]
        subprocess.run(
            [*call, *trial], cwd=copy, env={**environment, "MUTANTS_PLAN": str(document)},
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        for line in report.read_text().splitlines():
            key, outcome = json.loads(line)
            if outcome == EARLY:  # a mutant that no test kills, unless its module falls with it
                done = subprocess.run(
                    [*call, *plan[key]], cwd=copy, env={**environment, "MUTANT": str(key)},
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                )  # fmt: skip
                outcome = "a test, on import" if done.returncode else f"alive: {EARLY}"
            yield key, outcome


def main() -> int:
    """Mutate, run, and report the score; exit status 1 when it is under 85 %."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alive", type=Path, help="mutants that this output calls alive")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="rooms to draw from, in turn")
    stated = parser.parse_args()
    draw = drawn(stated.count, stated.seed, stated.rooms)
    chosen = of_report(stated.alive) if stated.alive else draw
    alive = Counter[str]()
    texts = [described(mutant) for mutant in chosen]  # before anybody changes a module
    for key, outcome in outcomes(chosen):
        alive[room_of(chosen[key])] += outcome.startswith("alive")
        print(f"{texts[key]} | {outcome}", flush=True)
    for room, tried in sorted(Counter(map(room_of, chosen)).items()):
        print(f"{room}: {tried - alive[room]} of {tried} killed")
    score = 1 - alive.total() / max(1, len(chosen))
    print(f"{len(chosen)} mutants, {score:.1%} killed, at least {LEAST:.0%} should be")
    return int(score < LEAST)


if __name__ == "__main__":
    sys.exit(main())
