"""The front of the fleet: its names, loaded one by one."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from workloads import fleet


def test_every_name_of_the_front_is_defined_where_the_front_says() -> None:
    listed = [name for names in fleet._MODULES.values() for name in names]
    assert sorted(listed) == sorted(fleet.__all__) == dir(fleet)
    for module, names in fleet._MODULES.items():
        for name in names:
            value = getattr(fleet, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert value.__module__ == module, name


def test_a_name_that_the_front_lacks_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        getattr(fleet, "simulat")  # noqa: B009 – mypy knows that there is none


def test_a_function_of_the_front_is_no_module_of_the_same_name() -> None:
    """A module would hide the function once it was imported."""
    code = (
        "import workloads.fleet.front, workloads.fleet.lending, workloads.fleet as fleet, types;"
        "print(*(n for n in fleet.__all__ if isinstance(getattr(fleet, n), types.ModuleType)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
