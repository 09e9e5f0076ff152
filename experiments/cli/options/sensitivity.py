"""``--sensitivity``: effect of each number of the catalogue on the answer of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.cli.output.printing import print_table
from topologies.options import setting

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.confidence.sensitivity import Sensitivity

SHOWN = 15
"""Numbers that are printed; JSON and the run directory have all with an effect."""


@dataclass(frozen=True)
class SensitivityInputs:
    """Effect of the catalogue's numbers on the answer."""

    sensitivity: bool = setting(False, "Rank the catalogue's numbers by their effect on the answer")

    def rank(
        self,
        answer: Callable[[Catalogue], float],
        catalogue: Catalogue,
        *,
        what: str,
        quiet: bool,
        jumps: bool = False,
    ) -> list[Ranking]:
        """Vary every number that the answer reads; an empty list without ``--sensitivity``.

        ``what`` names the answer, and ``jumps`` says that it comes in jumps and needs wider steps.
        """
        if not self.sensitivity:
            return []
        from cluster_sim.progress import progress
        from workloads.confidence.sensitivity import STEP, WIDE_STEP, sensitivity

        def watch(entries: Sequence[Any]) -> Any:
            return progress(entries, "sensitivity", quiet=quiet)

        step = WIDE_STEP if jumps else STEP
        return [Ranking(tuple(sensitivity(answer, catalogue, watch, step)), what)]


@dataclass(frozen=True)
class Ranking:
    """Numbers of the catalogue with an effect on an answer, the largest effect first.

    ``what``: name of the answer, such as ``the time of the first size``.
    ``key``: key in the command line's JSON, and name of the table in a run directory.
    ``expected``: further keys of the JSON, with the answer itself where the results do not have it.
    """

    rows: tuple[Sensitivity, ...]
    what: str
    key: str = "sensitivity"
    expected: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> Mapping[str, Any]:
        """Return the keys of the command line's JSON."""
        from workloads.confidence.sensitivity import sensitivity_frame

        return {**self.expected, self.key: sensitivity_frame(self.rows).to_dict("records")}

    def show(self) -> None:
        """Print the numbers with the largest effect."""
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
        print_table(f"What {self.what} depends on{more}", columns, cells, left=2)

    def write(self, run: Run) -> None:
        """Add the table and a tornado plot to a run directory."""
        from experiments.figures.sensitivity import tornado
        from workloads.confidence.sensitivity import sensitivity_frame

        picture, title = self.key.replace("sensitivity", "tornado"), f"Sensitivity of {self.what}"
        run.table(self.key, sensitivity_frame(self.rows), title=title)
        run.figure(picture, tornado(self.rows, self.what), title=title)


def _percent(change: float | None) -> str:
    return "–" if change is None else f"{100 * change:+.1f}"
