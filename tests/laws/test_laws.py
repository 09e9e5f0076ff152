"""Every law in a case or many; a violation shows its commands."""

from dataclasses import replace

import pytest

from tests.laws import draws
from tests.laws.changes import in_other_units, own
from tests.laws.law import Law
from tests.laws.laws import COLLECTIVES, LAWS, QUEUES

QUICK = [law for law in (*COLLECTIVES, *QUEUES) if law.holds == "=="]
CASES = 25


def violations(law, cases):
    """Return what some cases break of a law."""
    return [shown for shown in map(law.violation, range(cases)) if shown]


@pytest.mark.parametrize("law", QUICK, ids=lambda law: law.name)
def test_a_cheap_law_holds(law):
    assert not violations(law, 2)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_holds_widely(law):
    assert not violations(law, CASES)


def test_a_step_in_other_units_is_as_sure_over_the_plans_that_it_leaves_open(other_plans):
    ends = ("interval.low", "interval.high")  # those over all plans, which other laws leave out
    law = Law("other units are as sure", own(draws.train), in_other_units, "==", ends)
    assert not violations(law, 2)


def test_laws_have_names_of_their_own_and_there_are_enough():
    assert len({law.name for law in LAWS}) == len(LAWS) >= 217


def test_a_broken_law_shows_both_commands_and_what_differs():
    law = next(law for law in LAWS if law.name.startswith("more bytes do not speed"))
    shown = replace(law, holds="==").violation(0)
    assert shown.count("  cluster-sim collective ") == 2
    assert "is not ==" in shown


def test_a_law_whose_cases_are_all_refused_says_so():
    refused = replace(LAWS[0], draw=lambda rng: LAWS[0].draw(rng).but(ranks=0))
    with pytest.raises(LookupError, match="40 cases were refused"):
        refused.violation(0)
