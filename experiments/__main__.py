"""``python -m experiments NAME``: run one experiment script, or list them.

An experiment is a module of this package with ``run(...) -> DataFrame`` and
``plot(frame) -> Figure``; the parameters of ``run`` are its options. With ``--out DIR`` frame and
figure are written to a run directory, the figure under the name of the module or its ``FIGURE``,
and whatever else an optional ``save(run, frame, **options)`` adds
(:class:`experiments.reports.run_directory.Run`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments.cli.common import plain, print_json, print_table
from experiments.scripts.registry import Experiment, experiment, experiments
from topologies.errors import InputError, file_fault


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise InputError(f"{message}. See python -m {self.prog} --help.")


def main(arguments: Sequence[str]) -> int:
    """Run the experiment named first, or list them all; gives the exit status."""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print_table("Experiments", ["name", "question"], _listing(), left=2)
            return 0
        _run(experiment(arguments[0]), arguments[1:])
    except InputError as mistake:
        return _refuse(str(mistake))
    except OSError as fault:
        return _refuse(file_fault(fault))
    except KeyboardInterrupt:
        return _refuse("interrupted; nothing half-written was left behind", status=130)
    return 0


def _listing() -> list[tuple[str, str]]:
    return [(found.name, found.summary) for found in experiments()]


def _refuse(message: str, status: int = 2) -> int:
    sys.stderr.write("experiments: " + " ".join(message.split()) + "\n")
    return status


def _run(chosen: Experiment, arguments: Sequence[str]) -> None:
    given = vars(_parser(chosen).parse_args(list(arguments)))
    out, as_json = given.pop("out"), given.pop("json")
    if out is not None:
        from experiments.reports.run_directory import check_foreign

        check_foreign(out)
    module = chosen.load()
    frame = module.run(**given)
    if out is not None:
        _write(out, chosen, given, frame)
    if as_json:
        rows = frame.reset_index() if frame.index.name else frame
        print_json({"experiment": chosen.name, "inputs": plain(given), "rows": _records(rows)})
    else:
        from experiments.reports.formatting import constants, table_text

        same, rest = constants(frame)
        print_table("\n".join(line for line in (chosen.summary, same) if line), *table_text(rest))
        if out is not None:
            sys.stderr.write(f"written to {out}\n")


def _parser(chosen: Experiment) -> _Parser:
    parser = _Parser(prog=f"experiments {chosen.name}", description=chosen.summary)
    for name, option in chosen.options().items():
        parser.add_argument(f"--{name.replace('_', '-')}", **option)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a run directory there")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _records(frame: Any) -> list[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False)]


def _write(out: Path, chosen: Experiment, given: dict[str, Any], frame: Any) -> None:
    from experiments.reports.run_directory import run_directory

    module, command = chosen.load(), f"experiment {chosen.name}"
    seed = given.get("seed")
    with run_directory(out, command=command, inputs=given, seed=seed) as run:
        called = getattr(module, "FIGURE", chosen.name)
        run.figure(called, module.plot(frame), title=chosen.summary)
        run.table("metrics", frame, title="Rows", parquet=True)
        if hasattr(module, "save"):
            module.save(run, frame, **given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
