"""One call of a command: the options that every command has, and the output of its answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.output.printing import print_json
from experiments.cli.process import load_matplotlib
from experiments.reports.result_checks import check_results
from topologies.errors import InputError, printable, suggestion
from topologies.options import setting

if TYPE_CHECKING:
    from experiments.cli.options.sensitivity import Ranking
    from experiments.reports.run_directory import Run

ENGINES = ("fast", "reference")
QUIET = "CLUSTER_SIM_QUIET"
"""Environment variable that suppresses notices about functions being compiled."""


@dataclass(frozen=True)
class Invocation:
    """Every command: output, seed and engine of a call.

    ``inputs``: all options on which results depend, as a run directory records them.
    """

    json: bool = setting(False, "Print one JSON document, in SI units", recorded=False)
    out: Path | None = setting(
        None,
        "Write a run directory with a record, tables, figures and a report",
        metavar="DIR",
        recorded=False,
    )
    seed: int = setting(0, "Seed of all random draws", least=0, recorded=False)
    engine: str = setting(
        "fast", "Simulation engine, compiled or SimPy, with equal results", choices=ENGINES
    )
    quiet: bool = setting(False, "Show no progress on stderr", recorded=False)
    command: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            near = suggestion(self.engine, ENGINES)
            raise InputError(f"unknown engine {self.engine!r}.{near} Use {' or '.join(ENGINES)}.")

    def hush(self) -> None:
        """Suppress the notices of compiled functions under ``--quiet``."""
        if self.quiet:
            os.environ[QUIET] = "1"  # processes that this one starts are quiet, too

    @property
    def program(self) -> click.Command | None:
        """Program to which the command belongs; None outside a command line."""
        context = click.get_current_context(silent=True)
        return None if context is None else context.find_root().command

    def check_out(self) -> None:
        """Check before the work begins that ``--out`` is no directory with other files."""
        if self.out is not None:
            from experiments.reports.out_directory import check_replaceable

            check_replaceable(self.out)

    def answer(
        self,
        document: Callable[[], Mapping[str, Any]],
        show: Callable[[], None],
        write: Callable[[Run], None],
        *,
        inputs: Mapping[str, Any] | None = None,
        rankings: Sequence[Ranking] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """Write the run directory if ``--out`` names one, then print JSON or tables.

        ``document``: returns the document of ``--json``. ``show``: prints tables for people.
        ``write``: adds the results to the run directory. ``inputs``: inputs to be recorded; by
        default the stated options. ``rankings``: effects of the catalogue's numbers, which come
        last in every output. ``notes``: remarks printed on stderr after the answer.
        """
        results = dict(document())
        for ranking in rankings:
            results |= ranking.document()
        check_results(results)
        if self.out is not None:
            load_matplotlib()
            from experiments.reports.run_directory import run_directory

            with run_directory(
                self.out,
                command=self.command,
                inputs=self.inputs if inputs is None else inputs,
                seed=self.seed,
                program=self.program,
            ) as run:
                write(run)
                for ranking in rankings:
                    ranking.write(run)
        if self.json:
            print_json(results)
        else:
            show()
            for ranking in rankings:
                ranking.show()
        for note in filter(None, (*notes, self._left_out())):
            sys.stderr.write(f"{printable(note)}\n")

    def _left_out(self) -> str:
        """Sentence on what of the command's model is not simulated; empty if all of it is."""
        named = self.inputs.get("model")
        if not isinstance(named, str) or self.command == "train":  # which says it among its results
            return ""
        from workloads.models.huggingface import model

        try:
            left_out = model(named).left_out
        except InputError:  # several models, as a fleet may have
            return ""
        return f"Left out of {named}: {', '.join(left_out)}." if left_out else ""
