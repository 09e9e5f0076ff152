"""Options that are generated from dataclasses, and the how-to page that adds a command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cluster_sim.collectives.algorithms.registry import ALGORITHMS
from experiments.cli.main import run
from experiments.cli.options.from_fields import Stated, as_options
from experiments.cli.options.inputs import Invocation
from topologies.support.options import option

PAGE = Path(__file__).parents[4] / "docs/how-to/add-a-command.md"


@dataclass(frozen=True)
class Plain:
    """One field of each kind."""

    place: str = field(metadata=option("Place", argument=True))
    count: int = field(default=3, metadata=option("Number of things", unit="1/s", least=1, most=9))
    names: tuple[str, ...] = field(default=(), metadata=option("Names"))
    check: bool | None = field(default=None, metadata=option("Check", default="where it is quick"))
    fast: bool = field(default=False, metadata=option("Hurry", recorded=False))
    mode: str = field(default="a", metadata=option("Mode", choices=lambda: ("a", "b")))
    hidden: int = 7


@dataclass(frozen=True)
class Plan:
    """A dataclass of which only stated fields count."""

    tp: int = field(default=1, metadata=option("Degree"))
    layers: tuple[int, ...] = field(default=(), metadata=option("Layers", kind=str))
    bucket_bytes: int = field(default=0, metadata=option("Bucket", name="bucket", kind=str))


def _answers(*words: str) -> dict[str, Any]:
    """Arguments that a command is called with."""
    seen: dict[str, Any] = {}

    def probe(
        plain: Plain, plan: Annotated[Mapping[str, Any], Stated(Plan)], call: Invocation
    ) -> None:
        """Remember what was given."""
        seen.update(plain=plain, plan=plan, call=call)

    as_options("probe", probe).main(list(words), standalone_mode=False)
    return seen


def test_fields_become_options_and_options_fields_and_inputs():
    seen = _answers("here", "--count", "4", "--names", "x", "--names", "y", "--no-check")
    assert seen["plain"] == Plain("here", 4, ("x", "y"), check=False)
    assert (seen["plan"], seen["call"].seed) == ({}, 0)
    seen = _answers("here", "--fast", "--tp", "2", "--bucket", "160MB")
    assert seen["plain"] == Plain("here", fast=True)
    assert seen["plan"] == {"tp": 2, "bucket_bytes": "160MB"}
    assert seen["call"].command == "probe"
    assert seen["call"].inputs == {
        **{"place": "here", "count": 3, "names": None, "check": None, "mode": "a"},
        **{"tp": 2, "layers": None, "bucket_bytes": "160MB", "engine": "fast"},
    }


def test_a_switch_that_is_set_twice_alike_is_set_once():
    assert _answers("here", "--fast", "--fast")["plain"] == Plain("here", fast=True)
    assert _answers("here", "--no-check", "--no-check")["plain"] == Plain("here", check=False)


def test_help_has_unit_choices_default_and_limits(capsys):
    def probe(plain: Plain, plan: Annotated[Mapping[str, Any], Stated(Plan)]) -> None:
        """Do nothing."""

    as_options("probe", probe).main(["--help"], standalone_mode=False)
    page = " ".join(capsys.readouterr().out.split())
    assert "Number of things [1/s]; default 3." in page
    assert "--check / --no-check Check; default where it is quick." in page
    assert "Mode. One of a or b; default a." in page
    assert "--tp <int> Degree; default 1." in page
    assert "hidden" not in page


def test_the_command_of_the_how_to_page_answers(capsys):
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    program = as_options("diameter", names["diameter"])
    assert run(["ring:8", "--bandwidth", "1GB/s", "--latency", "0s", "--json"], program) == 0
    assert json.loads(capsys.readouterr().out) == {"cluster": "ring:8", "diameter_hops": 4}
    assert run(["ring:8", "--engine", "simpy"], program) == 2
    assert "engine 'simpy' is none of" in capsys.readouterr().err


def test_help_breaks_no_name_at_a_hyphen(capsys):
    assert run(["collective", "--help"]) == 0
    assert set(ALGORITHMS) <= {word.strip(",;") for word in capsys.readouterr().out.split()}
