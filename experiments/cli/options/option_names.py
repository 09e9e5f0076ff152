"""Names of options in the messages of the library, which knows them as fields and keywords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from topologies.errors import InputError


@contextmanager
def by_option_names(
    parameters: Sequence[click.Parameter], values: Mapping[str, Any]
) -> Iterator[None]:
    """Name options as the command line spells them in errors that are raised inside.

    ``values``: values by the names of parameters. One that is None was not stated, so that an error
    about its field is about a file's.

    Raises InputError: the error of the library, whose subject is an option instead of a field.
    """
    try:
        yield
    except InputError as mistake:
        stated = [each for each in parameters if values.get(str(each.name)) is not None]
        message = with_option_names(str(mistake), _spelled(stated))
        if message == str(mistake):
            raise
        raise InputError(message) from None


def with_option_names(message: str, spelled: Mapping[str, str]) -> str:
    """Return a message whose subject, if it is a field, is spelled as its option.

    Other places keep their words: a field inside a file is no option.

    ``spelled``: options by the names of their fields.

    >>> with_option_names("seq_len is 0; give 1 or more.", {"seq_len": "--seq-len"})
    '--seq-len is 0; give 1 or more.'
    >>> with_option_names("plan.yaml: seq_len is 0.", {"seq_len": "--seq-len"})
    'plan.yaml: seq_len is 0.'
    """
    subject = re.match(r"(\w+)(?= (is|names|sum) )", message)
    if subject is None or subject[1] not in spelled:
        return message
    return spelled[subject[1]] + message[subject.end() :]


def _spelled(parameters: Sequence[click.Parameter]) -> dict[str, str]:
    """Options by the names of their fields."""
    return {
        str(parameter.name): flag
        for parameter in parameters
        for flag in parameter.opts
        if flag.startswith("--")
    }
