"""``python -m tests.mutants --count N`` mutates places of core rooms and runs their neighbours."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutate import mutant, places

ROOT = Path(__file__).parents[2]
ROOMS = (
    "topologies/shapes", "topologies/views", "topologies/catalogue",
    "cluster_sim/analysis", "cluster_sim/collectives", "cluster_sim/engine", "cluster_sim/schedule",
    "workloads/confidence", "workloads/demand", "workloads/fleet", "workloads/job",
    "workloads/kernels", "workloads/models", "workloads/search", "workloads/serving",
    "workloads/sharing", "workloads/training", "experiments/validation",
)  # fmt: skip
"""Rooms whose places are drawn, each as often."""
LONGEST_S = 600.0
"""Time after which a mutant counts as killed: it hangs [s]."""
LEAST = 0.85


def neighbours(module: Path) -> list[str]:
    """Return the test files that name a module, or all of its room's where none does."""
    dotted = ".".join(module.with_suffix("").parts)
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    imported = f"from {'.'.join(module.parts[:-1])} import {module.stem}"
    named = [path for path in tests if dotted in (text := path.read_text()) or imported in text]
    room = ROOT / "tests" / module.parts[0] / module.parts[1]
    beside = sorted(room.rglob("test_*.py")) if room.is_dir() else []
    first = [str(path.relative_to(ROOT)) for path in named]
    return list(dict.fromkeys([*first, *(str(path.relative_to(ROOT)) for path in beside)]))


def drawn(count: int, seed: int) -> list[tuple[Path, int]]:
    """Draw modules and the numbers of their places, in turn from each room."""
    rng = random.Random(seed)
    by_room = []
    for room in ROOMS:
        modules = sorted((ROOT / room).rglob("*.py"))
        every = [
            (path.relative_to(ROOT), number)
            for path in modules
            for number in range(len(places(path.read_text())))
        ]
        by_room.append(rng.sample(every, min(len(every), -(-count // len(ROOMS)))))
    turns = [
        mutants[turn]
        for turn in range(max(map(len, by_room)))
        for mutants in by_room
        if turn < len(mutants)
    ]
    return turns[:count]


def survives(copy: Path, module: Path, number: int) -> bool:
    """Return whether no neighbouring test fails on a mutant, in a copy of the repository."""
    source = (ROOT / module).read_text()
    (copy / module).write_text(mutant(source, number))
    call = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*call, str(module), *neighbours(module)],
            cwd=copy, env=environment, capture_output=True, timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    finally:
        (copy / module).write_text(source)
    return done.returncode == 0


def main() -> int:
    """Mutate, run, and report the score; exit status 1 when it is under 85 %."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    stated = parser.parse_args()
    chosen, alive = drawn(stated.count, stated.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", "out", ".git", "build"))
        for done, (module, number) in enumerate(chosen, 1):
            if survives(copy, module, number):
                alive += 1
                text = places((ROOT / module).read_text())[number]
                print(f"{module}, {text}: no test fails", flush=True)
            print(f"{done} mutants, {done - alive} killed", file=sys.stderr, flush=True)
    score = 1 - alive / max(1, len(chosen))
    print(f"{len(chosen)} mutants, {score:.0%} killed, at least {LEAST:.0%} should be")
    return int(score < LEAST)


if __name__ == "__main__":
    sys.exit(main())
