"""Refusals of functions."""

import re

import pytest

from topologies.support.errors import InputError


def refused(message, call, *values, **words):
    """Assert that a call is refused in one line with a message, which is a pattern."""
    text = refusal_by(call, *values, **words)
    assert re.search(message, text), text


def refusal_by(call, *values, **words):
    """Words with which a call is refused, all of them on one line."""
    with pytest.raises(InputError) as refusal:
        call(*values, **words)
    text = str(refusal.value)
    assert "\n" not in text
    return text
