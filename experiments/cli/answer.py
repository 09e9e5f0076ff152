"""How every command ends: a run directory if one was asked for, then one document or a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.common import print_json

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run

HOW = ("json", "out", "quiet", "seed", "explain", "best")
"""Options that say how results are told, on which none depends, and the seed, which is recorded by
itself."""


@dataclass(frozen=True)
class Request:
    """What a command was asked.

    Attributes
    ----------
    command : str
    given : mapping of str to value
        All options.
    """

    command: str
    given: Mapping[str, Any]

    @property
    def inputs(self) -> dict[str, Any]:
        """Options that results depend on, as a run directory records them."""
        return {name: value for name, value in self.given.items() if name not in HOW}

    def answer(
        self,
        document: Callable[[], Mapping[str, Any]],
        show: Callable[[], None],
        write: Callable[[Run], None],
    ) -> None:
        """Write the run directory if one was asked for, then tell programs or people.

        Parameters
        ----------
        document : function
            Makes the one document of ``--json``.
        show : function
            Prints tables for people.
        write : function of a Run
            Puts results into the run directory.
        """
        out: Path | None = self.given["out"]
        if out is not None:
            from experiments.reports.run_directory import run_directory

            seed = self.given.get("seed")
            with run_directory(out, command=self.command, inputs=self.inputs, seed=seed) as run:
                write(run)
        if self.given["json"]:
            print_json(document())
        else:
            show()


def request(command: str, given: Mapping[str, Any]) -> Request:
    """What a command was asked; call it before anything that takes long.

    Raises
    ------
    InputError
        When the directory of ``--out`` holds something else.
    """
    if given["out"] is not None:
        from experiments.reports.run_directory import check_foreign

        check_foreign(given["out"])
    return Request(command, dict(given))
