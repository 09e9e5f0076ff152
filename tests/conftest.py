"""Fixtures and settings that all tests share."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import USUAL

EXPLORE = "EXPLORE" in os.environ


class Doctests:
    """Plugin by which no module is imported for doctests that it does not have."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Module], list[pytest.Module]]:
        collectors = yield
        if file_path.suffix == ".py" and ">>>" not in file_path.read_text():
            for each in collectors:
                if type(each) is not pytest.Module:  # but its subclass of doctests
                    each.collect = list
        return collectors


def pytest_configure(config: pytest.Config) -> None:
    """Choose how properties are tried, before any module of tests says how often."""
    # A shared machine may be slow at any moment, so no example has a deadline. The same examples
    # are tried every time, in any order of the tests and on any number of workers; EXPLORE=1 tries
    # others, and more of them. Without slow tests there is a third of the examples too.
    few = USUAL // 3 if config.option.markexpr == "not slow" else USUAL
    settings.register_profile(
        "house", deadline=None, max_examples=2 * USUAL if EXPLORE else few, derandomize=not EXPLORE,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    settings.load_profile("house")
    config.pluginmanager.register(Doctests())  # for all rooms, not only those under this folder


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests, which stay, out of every garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # what tests compute is larger than a program's usual garbage
