"""Options that change nothing, as documents and tables name them."""

from __future__ import annotations

from collections.abc import Mapping

OPTIONS = {"bucket_bytes": "bucket"}


def option_name(field: str) -> str:
    """Return the option that sets a field of the inputs.

    >>> option_name("bucket_bytes"), option_name("cp_exchange")
    ('--bucket', '--cp-exchange')
    """
    return f"--{OPTIONS.get(field, field).replace('_', '-')}"


def idle_entry(idle: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """Return the entry of a document for options that change nothing; none where there are none.

    >>> idle_entry({"cp_exchange": "cp is 1"})
    {'without_effect': {'cp_exchange': 'cp is 1'}}
    >>> idle_entry({})
    {}
    """
    return {"without_effect": idle} if idle else {}


def idle_sentences(idle: Mapping[str, str]) -> list[str]:
    """Return a sentence for each option that changes nothing, as commands print them.

    >>> idle_sentences({"cp_exchange": "cp is 1"})
    ['--cp-exchange changes nothing here: cp is 1.']
    """
    return [f"{option_name(name)} changes nothing here: {reason}." for name, reason in idle.items()]
