"""Remarks on options that change nothing beside others: of policies, of serving, of changes."""

from __future__ import annotations

from topologies.options import described
from workloads.fleet.policies.registry import KINDS, bound_of
from workloads.options.fleet import FleetInputs, LimitInputs, MoneyInputs, PolicyInputs
from workloads.serving import parse_slo


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
    read = {option for name in names if name in KINDS for option in KINDS[name].reads}
    if not priced:
        read.discard("price_share")
    default, remarks = PolicyInputs(), []
    for option in described(PolicyInputs):
        value = getattr(stated, option)
        readers = [kind.name for kind in KINDS.values() if option in kind.reads]
        if value == getattr(default, option) or option in read or not readers:
            continue
        written = f"--{option.replace('_', '-')} {value}"
        if option == "price_share" and stated.policy in readers:
            remarks.append(f"{written} changes nothing without prices; add --price FILE.csv.")
            continue
        remarks.append(
            f"{written} changes nothing under policy {stated.policy}; {_listed(readers)} it."
        )
    return remarks


def unread_with_unit_rate(fleet: FleetInputs, limits: LimitInputs) -> list[str]:
    """Return a sentence for each option that a stated rate or time of a change leaves unread.

    Settings of replicas beside a stated rate are refused before
    (:class:`workloads.fleet.setup.serving_settings.Serving`).

    Examples
    --------
    >>> unread_with_unit_rate(FleetInputs(), LimitInputs(weights="host", change_time="0s"))
    ['--weights host changes nothing beside --change-time, which states what a change takes.']
    """
    remarks = []
    if fleet.unit_rate is not None and _latencies(fleet.slo) != _latencies(FleetInputs.slo):
        remarks.append(
            f"--slo {fleet.slo} changes nothing by its limits of latency beside --unit-rate, "
            "which states what a unit serves."
        )
    if limits.weights != LimitInputs().weights:
        if limits.change_time is not None:
            remarks.append(
                f"--weights {limits.weights} changes nothing beside --change-time, which states "
                "what a change takes."
            )
        elif fleet.unit_rate is not None:
            remarks.append(
                f"--weights {limits.weights} changes nothing beside --unit-rate, with which a "
                "unit has no weights to load."
            )
    return remarks


def unread_discount(money: MoneyInputs, *, batch: bool) -> list[str]:
    """Return a sentence for a discount of batch requests that no request gets.

    Examples
    --------
    >>> unread_discount(MoneyInputs(batch_discount=0.3, token_price=2.0), batch=False)
    ['--batch-discount 0.3 changes nothing without a batch tier; add --batch-share 20%.']
    """
    if money.batch_discount is None or (batch and money.token_price):
        return []
    missing = (
        "a price of tokens; add --token-price 2"
        if batch
        else ("a batch tier; add --batch-share 20%")
    )
    return [f"--batch-discount {money.batch_discount:g} changes nothing without {missing}."]


def _latencies(slo: str) -> tuple[float, float]:
    """Limits of latency of an SLO [s], without the share of requests that keep them."""
    limits = parse_slo(slo)
    return limits.ttft_s, limits.tpot_s


def _listed(readers: list[str]) -> str:
    """Names of policies and the verb that belongs to their number."""
    if len(readers) == 1:
        return f"{readers[0]} reads"
    return f"{', '.join(readers[:-1])} and {readers[-1]} read"
