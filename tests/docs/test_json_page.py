"""The page on JSON names every key that the recorded answers have."""

import json
import re

import pytest

from tests.docs.rerun import ROOT
from tests.golden.record import EXPECTED, commands

PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", commands())
def test_every_key_of_an_answer_has_a_meaning(name):
    command = commands()[name][0]
    (section,) = re.findall(rf"^## [^\n]*\b{command}\b[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    named = set(re.findall(r"`(\w+)`", section))
    document = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    if command == "collective":
        document = document["rows"][0]
    # An answer for each hour has a line each; a refusal is no document.
    answers = document if isinstance(document, list) else [document]
    for answer in answers:
        assert answer.keys() <= named or answer.keys() == {"status", "stderr"}
