"""Commands give the documents that were recorded, to the last digit."""

import pytest

from tests.golden.record import answer, commands, differences, recorded


@pytest.mark.slow
@pytest.mark.parametrize("name", commands())
def test_command_answers_as_recorded(name):
    assert list(differences(recorded(name), answer(commands()[name]))) == []
