"""``--sensitivity``: effect of each number of the catalogue on the answer of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.cli.output.printing import print_table
from topologies.options import option

if TYPE_CHECKING:
    from experiments.cli.options.invocation import Invocation
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.confidence.sensitivity import Sensitivity

SHOWN = 15
"""Numbers that are printed; JSON and the run directory have all with an effect."""


@dataclass(frozen=True)
class SensitivityInputs:
    """Option that ranks the catalogue's numbers by their effect."""

    sensitivity: bool = field(
        default=False,
        metadata=option("Rank the catalogue's numbers by their effect on the answer"),
    )

    def rank(
        self,
        answer: Callable[[Catalogue], float],
        catalogue: Catalogue,
        call: Invocation,
        *,
        jumps: bool = False,
    ) -> Ranking | None:
        """Vary every number that the answer reads; None without ``--sensitivity``.

        ``jumps`` says that the answer comes in jumps, and needs wider steps.
        """
        if not self.sensitivity:
            return None
        from cluster_sim.progress import progress
        from workloads.confidence.sensitivity import STEP, WIDE_STEP, sensitivity

        def watch(entries: Sequence[Any]) -> Any:
            return progress(entries, "sensitivity", quiet=call.quiet)

        return Ranking(tuple(sensitivity(answer, catalogue, watch, WIDE_STEP if jumps else STEP)))


@dataclass(frozen=True)
class Ranking:
    """Numbers of the catalogue with an effect on the answer, the largest effect first."""

    rows: tuple[Sensitivity, ...]

    def document(self, key: str = "sensitivity") -> Mapping[str, Any]:
        """Return the key of the command line's JSON."""
        from workloads.confidence.sensitivity import sensitivity_frame

        return {key: sensitivity_frame(self.rows).to_dict("records")}

    def show(self, what: str = "the answer") -> None:
        """Print the numbers with the largest effect on ``what``."""
        cells = [
            [
                row.input,
                row.grade,
                f"{row.elasticity:+.3f}",
                _percent(row.change_low),
                _percent(row.change_high),
            ]
            for row in self.rows[:SHOWN]
        ]
        columns = ["number", "grade", "per 1 % more [%]", "at low [%]", "at high [%]"]
        hidden = len(self.rows) - SHOWN
        more = f"; {hidden} more in --json and --out" if hidden > 0 else ""
        print_table(f"What {what} depends on{more}", columns, cells, left=2)

    def write(self, run: Run, what: str, name: str = "sensitivity") -> None:
        """Add the table and a tornado plot to a run directory."""
        from experiments.figures.sensitivity import tornado
        from workloads.confidence.sensitivity import sensitivity_frame

        picture = name.replace("sensitivity", "tornado")
        run.table(name, sensitivity_frame(self.rows), title=f"Sensitivity of {what}")
        run.figure(picture, tornado(self.rows, what), title=f"Sensitivity of {what}")


def _percent(change: float | None) -> str:
    return "–" if change is None else f"{100 * change:+.1f}"
