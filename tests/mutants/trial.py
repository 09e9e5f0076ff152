"""A plugin of pytest that collects tests once, and then forks itself for every mutant.

The process runs in a copy of the repository, whose modules hold all mutants, each switched by its
key (:mod:`tests.mutants.mutate`). First every test file runs in a fork of its own without a mutant:
that tells which tests pass, which places each reaches, and how long it takes. Then each mutant runs
in a fork against the tests of the files that reach it, the shortest first, until one fails.
"""

import json
import os
import resource
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.mutants.active import ACTIVE, REACHED
from topologies.support.files import kept_files

SPARE_S = 60
"""Time that a mutant may take besides ten times that of its tests; then it hangs, and is killed."""
MOST_BYTES = 8 * 10**9
LEFT_S = 10.0  # time for tests that may only use what others have left in memory
EARLY = "reached on import"
NEVER = "alive: no test beside runs the line"


class Test(NamedTuple):
    item: pytest.Item
    seconds: float
    reached: frozenset[int]


class Trial:
    """Run the tests of a session against the mutants that ``plan`` names.

    The plan is a JSON document: for each key the files, relative to the repository, whose tests may
    kill the mutant.
    """

    def __init__(self, plan: Mapping[str, Sequence[str]], notes: Path, report: Path) -> None:
        self.allowed = {int(key): set(files) for key, files in plan.items()}
        self.notes = notes
        self.report = report
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of the loop over all tests."""
        early = set(REACHED)  # on import, for which a fork may come too late
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            by_file[str(item.path.relative_to(session.config.rootpath))].append(item)
        tests = {name: list(self._without_mutant(items)) for name, items in by_file.items()}
        for key in sorted(self.allowed):
            near = {name: tests[name] for name in self.allowed[key] & tests.keys()}
            ordered = list(_ordered(key, near))
            killer = self._against(key, ordered) if ordered else ""
            alive = f"alive: {len(ordered)} tests beside" if ordered else NEVER
            outcome = killer or (EARLY if key in early else alive)
            with self.report.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, outcome]) + "\n")
        return True

    def _without_mutant(self, items: Sequence[pytest.Item]) -> Iterator[Test]:
        """Run the tests of a file in a fork; yield those that pass."""
        for line in _forked(lambda file: self._measure(items, file), 3600):
            number, seconds, reached = json.loads(line)
            yield Test(items[number], seconds, frozenset(reached))

    def _measure(self, items: Sequence[pytest.Item], file: TextIO) -> None:
        for number, item in enumerate(items):
            REACHED.clear()
            self.notes.write_text("")
            begun = time.perf_counter()
            if self._passes(item, items[number + 1] if number + 1 < len(items) else None):
                reached = sorted({int(line) for line in self.notes.read_text().split()})
                file.write(json.dumps([number, time.perf_counter() - begun, reached]) + "\n")
                file.flush()

    def _against(self, key: int, tests: Sequence[Test]) -> str:
        """Run tests in a fork in which a mutant is active; return the first that fails, or ''."""

        def run(file: TextIO) -> None:
            """Write the name of each test before it runs, and an empty line after the last."""
            ACTIVE["key"] = key
            os.environ["MUTANT"] = str(key)
            for test, after in zip(tests, [*tests[1:], None], strict=True):
                file.write(test.item.nodeid.replace("\n", " ") + "\n")
                file.flush()
                if not self._passes(test.item, after.item if after else None):
                    return
            file.write("\n")

        limit_s = SPARE_S + 10 * sum(test.seconds for test in tests)
        lines = _forked(run, int(limit_s)) or ["no test began"]
        return lines[-1]

    def _passes(self, item: pytest.Item, after: pytest.Item | None) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return not self.failed


def _ordered(key: int, near: Mapping[str, Sequence[Test]]) -> Iterator[Test]:
    """Yield the tests that reach a place, file by file, the shortest first; then what is left.

    Other tests of these files may use what one that reaches the place has left in memory.
    """
    reaching = {
        name: sorted((test for test in tests if key in test.reached), key=lambda test: test.seconds)
        for name, tests in near.items()
    }
    files = [name for name, tests in reaching.items() if tests]
    files.sort(key=lambda name: sum(test.seconds for test in reaching[name]))
    for name in files:
        yield from reaching[name]
    left = [test for name in files for test in near[name] if key not in test.reached]
    spent_s = 0.0
    for test in sorted(left, key=lambda test: test.seconds):
        spent_s += test.seconds
        if spent_s > LEFT_S:
            return
        yield test


def _forked(work: Callable[[TextIO], None], limit_s: int) -> list[str]:
    """Run ``work`` in a fork, hand it a file, and return the lines that it has written."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.alarm(limit_s)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            _fresh_cache()
            try:
                work(file)
            finally:
                file.flush()
                os._exit(0)
        os.waitpid(child, 0)
        with suppress(ProcessLookupError):  # processes that it may have left
            os.killpg(child, signal.SIGKILL)
        file.seek(0)
        return file.read().splitlines()


def _fresh_cache() -> None:
    """Keep no result of another mutant on disk: machine code alone."""
    for folder in kept_files.folders():
        for path in folder.glob("*.json"):
            path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the trial that the document named by the environment describes."""
    stated = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
    notes = Path(os.environ["MUTANTS_REACHED"])
    trial = Trial(stated["plan"], notes, Path(stated["report"]))
    config.pluginmanager.register(trial, "mutants")
