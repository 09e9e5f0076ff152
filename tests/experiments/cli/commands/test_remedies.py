"""A refusal names the nearest plan that works; only then is the search loaded."""

import pytest

from experiments.cli.commands.train import remedied
from tests.support.toy_training import TOY, sixteen
from topologies.errors import InputError
from workloads.training.usual_plan import complete


def test_a_refusal_names_it_in_the_same_line() -> None:
    with (
        pytest.raises(InputError, match=r"The nearest plan that works: tp 4\.$") as caught,
        remedied({"tp": 3}, TOY, sixteen()),
    ):
        complete({"tp": 3}, TOY, sixteen())
    assert "\n" not in str(caught.value)
    with (
        pytest.raises(InputError, match=r"^something else$"),
        remedied({"tp": 4}, TOY, sixteen()),
    ):
        raise InputError("something else")


def test_a_plan_that_the_refusal_names_already_is_not_named_twice() -> None:
    refusal = "12 attention heads of gpt2 are not divisible by tp 8. Use tp 4."
    with (
        pytest.raises(InputError) as caught,
        remedied({"tp": 3}, TOY, sixteen()),
    ):
        raise InputError(refusal)
    assert str(caught.value) == refusal
