"""Refusals of functions."""

import pytest

from topologies.errors import InputError


def refused(message, call, *values, **words):
    """Assert that a call is refused with a message, which is a pattern."""
    with pytest.raises(InputError, match=message):
        call(*values, **words)
