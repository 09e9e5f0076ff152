"""``cluster-sim fleet --sensitivity``: effects of the catalogue's numbers on lending and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from topologies.errors import InputError
from workloads.confidence.sensitivity import NotingCatalogue

if TYPE_CHECKING:
    from experiments.cli.options.invocation import Invocation
    from experiments.cli.options.sensitivity import Ranking, SensitivityInputs
    from topologies.catalogue.catalogue import Catalogue
    from workloads.fleet.expectation import Expectation
    from workloads.fleet.scenario import Scenario
    from workloads.options.fleet import FleetOptions


def expectation_at(question: FleetOptions, base: Scenario, catalogue: Catalogue) -> Expectation:
    """Return the expectation of a scenario under another catalogue."""
    from topologies.clusters.names import machine
    from workloads.fleet.expectation import at
    from workloads.fleet.from_options import costs_of

    cluster = machine(question.fleet.cluster, catalogue=catalogue)
    return at(base, cluster, costs_of(cluster, question.limits))


def rank_fleet(
    sure: SensitivityInputs,
    question: FleetOptions,
    base: Scenario,
    catalogue: Catalogue,
    call: Invocation,
) -> list[Ranking]:
    """Rank numbers by their effect on lending and on the cost; none without ``--sensitivity``.

    Raises InputError for a fleet that lends nothing.
    """
    if not sure.sensitivity:
        return []
    expectations: dict[str, Expectation] = {}

    def answer(catalogue: Catalogue) -> Expectation:
        """Expectation of the fleet with the numbers of a catalogue."""
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
    price = middle.usd_per_million_tokens
    expected = {
        "expected_lendable_share": middle.lendable_share,
        "expected_usd_per_million_tokens": price,
    }
    what = f"the lendable share ({middle.lendable_share:.1%})"
    shares = sure.rank(
        lambda moved: answer(moved).lendable_share, catalogue, quiet=call.quiet, what=what
    )
    rankings = [replace(ranking, expected=expected) for ranking in shares]
    if price is not None:
        what = f"the price of served tokens ({price:.3f} USD a million)"
        costs = sure.rank(cost, catalogue, quiet=call.quiet, what=what)
        rankings += [replace(ranking, key="sensitivity_cost") for ranking in costs]
    return rankings
