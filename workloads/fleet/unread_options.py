"""Remarks on options of policies that change nothing under the chosen policy."""

from __future__ import annotations

from workloads.fleet.policies.registry import KINDS, bound_of
from workloads.options.policy import PolicyInputs

SETTINGS = {
    "headroom": "headroom",
    "hysteresis": "hysteresis",
    "hold": "hold_s",
    "quantile": "quantile",
    "night": "night",
    "night_share": "night_share",
    "static_units": "static_units",
    "price_share": "price_share",
    "power_cap": "power_cap_w",
}
"""Field of the policies' settings by the name of its option."""


def unread_options(stated: PolicyInputs, *, priced: bool) -> list[str]:
    """Return a sentence for each option of policies that was stated and that no policy reads.

    With ``compare`` the policy with foresight and ``static`` run as well, so what these read counts
    as read. An option with its default value counts as not stated.

    Parameters
    ----------
    stated : PolicyInputs
    priced : bool
        Whether prices of electricity are known, without which no policy reads ``price_share``.

    Examples
    --------
    >>> unread_options(PolicyInputs(policy="oracle", night="1-5", compare=False), priced=False)
    ['--night 1-5 changes nothing under policy oracle; clock reads it.']
    """
    names = {stated.policy}
    if stated.compare:
        names |= {"static", bound_of(stated.policy)}
    read = {field for name in names if name in KINDS for field in KINDS[name].reads}
    if not priced:
        read.discard("price_share")
    default, remarks = PolicyInputs(), []
    for option, field in SETTINGS.items():
        value = getattr(stated, option)
        if value == getattr(default, option) or field in read:
            continue
        written = f"--{option.replace('_', '-')} {value}"
        readers = [kind.name for kind in KINDS.values() if field in kind.reads]
        if field == "price_share" and stated.policy in readers:
            remarks.append(f"{written} changes nothing without prices; add --price FILE.csv.")
            continue
        remarks.append(
            f"{written} changes nothing under policy {stated.policy}; {_listed(readers)} it."
        )
    return remarks


def _listed(readers: list[str]) -> str:
    """Names of policies and the verb that belongs to their number."""
    if len(readers) == 1:
        return f"{readers[0]} reads"
    return f"{', '.join(readers[:-1])} and {readers[-1]} read"
