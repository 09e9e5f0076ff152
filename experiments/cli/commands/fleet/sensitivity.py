"""``cluster-sim fleet --sensitivity``: effects of the catalogue's numbers on lending and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError
from workloads.confidence.sensitivity import NotingCatalogue

if TYPE_CHECKING:
    from experiments.cli.options.invocation import Invocation
    from experiments.cli.options.sensitivity import Ranking, SensitivityInputs
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.fleet.expectation import Expectation
    from workloads.fleet.scenario import Scenario
    from workloads.options.fleet import Question

SHARE, COST = "sensitivity", "sensitivity_cost"
"""Keys of the two rankings in JSON, and their names in a run directory."""
WHAT = {SHARE: "the lendable share", COST: "the price of served tokens"}


@dataclass(frozen=True)
class FleetRanking:
    """Rankings of the catalogue's numbers by their effect on lending and on the cost of serving.

    Attributes
    ----------
    base : Expectation
        Lendable share and cost by closed forms, with the catalogue's values.
    rankings : dict of str to Ranking
        Rankings by their key in the JSON; without a price there is no ranking of the cost.
    """

    base: Expectation
    rankings: dict[str, Ranking]

    def document(self) -> dict[str, Any]:
        """Return the keys of the command line's JSON."""
        results: dict[str, Any] = {
            "expected_lendable_share": self.base.lendable_share,
            "expected_usd_per_million_tokens": self.base.usd_per_million_tokens,
        }
        for key, ranking in self.rankings.items():
            results |= ranking.document(key)
        return results

    def show(self) -> None:
        """Print both rankings."""
        for key, ranking in self.rankings.items():
            ranking.show(f"{WHAT[key]}, expected {self._value(key)},")

    def write(self, run: Run) -> None:
        """Put tables and tornado plots into a run directory."""
        for key, ranking in self.rankings.items():
            ranking.write(run, f"{WHAT[key]} ({self._value(key)})", key)

    def _value(self, key: str) -> str:
        if key == SHARE:
            return f"{self.base.lendable_share:.1%}"
        return f"{self.base.usd_per_million_tokens:.3f} USD a million"


def expectation_at(question: Question, base: Scenario, catalogue: Catalogue) -> Expectation:
    """Return the expectation of a scenario under another catalogue."""
    from topologies.clusters.names import machine
    from workloads.fleet.expectation import at
    from workloads.fleet.from_options import costs_of

    cluster = machine(question.fleet.cluster, catalogue=catalogue)
    return at(base, cluster, costs_of(cluster, question.limits))


def rank_fleet(
    sure: SensitivityInputs,
    question: Question,
    base: Scenario,
    catalogue: Catalogue,
    call: Invocation,
) -> FleetRanking | None:
    """Vary every number that the answers read; None without ``--sensitivity``.

    Raises
    ------
    InputError
        For a fleet that lends nothing.
    """
    if not sure.sensitivity:
        return None
    expectations: dict[str, Expectation] = {}

    def answer(catalogue: Catalogue) -> Expectation:
        # A catalogue that records reads has to be read again for each of the two answers.
        if catalogue.digest not in expectations or isinstance(catalogue, NotingCatalogue):
            expectations[catalogue.digest] = expectation_at(question, base, catalogue)
        return expectations[catalogue.digest]

    def cost(catalogue: Catalogue) -> float:
        return answer(catalogue).usd_per_million_tokens or 0.0

    middle = answer(catalogue)
    if not middle.lendable_share > 0:
        raise InputError(
            f"--sensitivity of a fleet that lends nothing: its {base.cluster.domains:,} units are "
            "all needed. Use a larger --cluster, or a smaller --scale-to-peak."
        )
    rankings = {SHARE: sure.rank(lambda moved: answer(moved).lendable_share, catalogue, call)}
    if middle.usd_per_million_tokens is not None:
        rankings[COST] = sure.rank(cost, catalogue, call)
    return FleetRanking(
        middle, {key: ranking for key, ranking in rankings.items() if ranking is not None}
    )
