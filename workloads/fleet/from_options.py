"""Scenarios and runs of a fleet from its command-line options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from topologies.arguments import check_fields, check_names
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.errors import InputError, shown, suggestion
from topologies.options import Option, described, in_words
from workloads.demand import Demand, demand_from
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.demand.what_if import check_texts
from workloads.fleet.inputs.jobs import MODES
from workloads.fleet.policies.registry import KINDS, bound_of, check_name
from workloads.fleet.scenario import Scenario, scenario
from workloads.fleet.setup.demand import Share
from workloads.fleet.setup.night_work import gang_note, host_memory_note
from workloads.fleet.setup.sureness import serving_notes
from workloads.models.huggingface import model
from workloads.models.model import Model
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
    seconds,
)
from workloads.serving import parse_share, parse_slo

OLDER = {"chunk_tokens": "chunk", "unit_rate_per_s": "unit_rate", "prefix_share": "prefix_cache"}
"""Older keywords, which are read as their newer names."""
NO_KEYWORDS = ("demand", "peak", "compare", "intervals")
"""Options that are a parameter of another name, an older name, and what a result always offers."""
Inputs = TypeVar("Inputs")


def keywords_of(function: Callable[..., Any], *kinds: type) -> list[str]:
    """Names of the options of some dataclasses that a function takes as ``**keywords``."""
    taken = {*signature(function).parameters, *NO_KEYWORDS}
    names = [name for kind in kinds for name in described(kind) if name not in taken]
    return [*names, *OLDER]


def fleet_options(
    function: Callable[..., Any], kinds: Sequence[type], words: Mapping[str, Any], **parameters: Any
) -> FleetOptions:
    """Return the options of a fleet that the keywords of a function describe."""
    names = [*signature(function).parameters, *keywords_of(function, *kinds)]
    check_names(function.__name__, words, names)
    groups = get_type_hints(FleetOptions)
    return FleetOptions(
        **{name: read_options(kind, {**words, **parameters}) for name, kind in groups.items()}
    )


def read_options(kind: type[Inputs], words: Mapping[str, Any]) -> Inputs:
    """Fill a dataclass of options with those words that are fields of it.

    >>> from workloads.options.fleet import PolicyInputs
    >>> read_options(PolicyInputs, {"hold": 600, "tp": 8}).hold
    '600s'
    """
    stated = {OLDER.get(name, name): value for name, value in words.items() if value is not None}
    hints = get_type_hints(kind)
    values = {
        name: _as_typed(option, hints[name], stated[name])
        for name, option in described(kind).items()
        if name in stated
    }
    check_fields(kind, values)
    for name, option in described(kind).items():
        if name in values:
            _check(name, option, values[name])
    return kind(**values)


def _as_typed(option: Option, hint: Any, value: Any) -> Any:
    """Return a Python value in the form that its option has on the command line."""
    kinds = {hint, *get_args(hint)}
    if get_origin(hint) is tuple:
        several = isinstance(value, Iterable) and not isinstance(value, str)
        return tuple(value) if several else (value,)
    if str in kinds and not isinstance(value, bool) and isinstance(value, Real):
        return f"{value:g}" + (option.plain if math.isfinite(value) else "")
    if str in kinds and isinstance(value, Path):
        return str(value)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def _check(name: str, option: Option, value: Any) -> None:
    choices = option.choices() if callable(option.choices) else option.choices
    if choices and value not in choices:
        near = suggestion(str(value), [str(each) for each in choices])
        raise InputError(
            f"{name} is {shown(repr(value))}; choose from {', '.join(map(str, choices))}.{near}"
        )
    least = -math.inf if option.least is None else option.least
    most = math.inf if option.most is None else option.most
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, Real) and not least <= float(number) <= most:
            raise InputError(
                f"{name} is {shown(repr(value))}; it must be a number from {least:g} to {most:g}."
            )


def unread_options(stated: PolicyInputs, *, priced: bool) -> list[str]:
    """Return a sentence for each option of policies that was stated and that no policy reads.

    With ``compare`` the policy with foresight and ``static`` run as well, so what these read counts
    as read. An option with its default value counts as not stated.

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
        verb = "reads" if len(readers) == 1 else "read"
        those = in_words(tuple(readers), "and")
        remarks.append(
            f"{written} changes nothing under policy {stated.policy}; {those} {verb} it."
        )
    return remarks


def unread_with_unit_rate(fleet: FleetInputs, limits: LimitInputs) -> list[str]:
    """Return a sentence for each option that a stated rate or time of a change leaves unread.

    Settings of replicas beside a stated rate are refused before, by :class:`FleetInputs`.

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


FAILURES = ("on", "off", "domains")


def scenario_from(options: FleetOptions, catalogue: Catalogue, seed: int) -> Scenario:
    """Build the scenario that the options describe: everything about the fleet but its policy."""
    check_question(options)
    cluster = machine(options.fleet.cluster, catalogue=catalogue)
    return scenario_on(
        cluster, demand_of(options.demand), models_of(options.fleet.model), options, seed
    )


def check_question(options: FleetOptions) -> None:
    """Check the options that can be judged before the cluster and the demand are read."""
    if options.fleet.failures not in FAILURES:
        raise InputError(f"--failures {options.fleet.failures!r}; write {', '.join(FAILURES)}.")
    _check_post_training(options.fleet)
    check_name(options.policy.policy)
    check_texts(options.demand.what_if)


def _check_post_training(fleet: FleetInputs) -> None:
    mode = fleet.post_training
    if mode is None:
        return
    if mode not in MODES:
        raise InputError(
            f"--post-training {mode[:40]!r} is none of {', '.join(MODES)}.{suggestion(mode, MODES)}"
        )
    if fleet.training is not None:
        raise InputError(
            f"--post-training {mode} is for the default jobs, which --training {fleet.training} "
            "replaces. State post_training in its rows, or leave one of them out."
        )


def scenario_on(
    cluster: Cluster, demand: Demand, models: Sequence[Share], options: FleetOptions, seed: int
) -> Scenario:
    """Build a scenario of a cluster, a demand and models that have been read."""
    return scenario(cluster, demand, options, models=models, seed=seed)


def models_of(text: str) -> list[Share]:
    """Read ``llama-3.1-405b=20%,llama-3.1-8b=80%``: models, perhaps with shares of the requests."""
    shares = []
    for part in text.split(","):
        name, equals, share = part.strip().partition("=")
        if not name.strip():
            raise InputError(
                f"--model {text[:80]!r} has an empty name. Write MODEL, or MODEL=20%,MODEL=80%."
            )
        size = parse_share(share, f"share of model {name}") if equals else None
        shares.append(Share(model(name), size))
    return shares


def notes(built: Scenario, options: FleetOptions) -> list[str]:
    """Remarks on the inputs that a reader of the results should see."""
    policy = options.policy.policy
    history_minutes = 0 if built.history is None else built.history.minutes
    remarks = [
        *built.demand.notes,
        *serving_notes(built.cluster, built.services, is_usual=options.fleet.is_usual),
        *unread_options(options.policy, priced=built.prices is not None),
        *unread_with_unit_rate(options.fleet, options.limits),
        *unread_discount(options.money, batch=built.batch is not None),
    ]
    if policy == "forecast" and history_minutes < MINUTES_PER_DAY:
        remarks.append(
            "the forecast knows no earlier day when the run begins, so its first hours are "
            "guesses; --start-day 1 gives it a day of history."
        )
    need, units = built.sizing.units_needed_peak, built.cluster.domains
    if options.fleet.training is None:
        remarks += filter(
            None, (host_memory_note(built.jobs, units), gang_note(built.jobs, built.fleet))
        )
    mode = options.fleet.post_training
    if mode is not None and not any(job.post_training for job in built.jobs):
        remarks.append(
            f"--post-training {mode} changes nothing here: a fleet of {units:,} units has no "
            "default post-training job."
        )
    if need > units:
        remarks.append(
            f"the busiest hour needs {need:,.0f} units and the fleet has {units:,}, so requests "
            "wait or are shed."
        )
    return remarks


def read_demand(demand: Demand | str | Sequence[str], options: FleetOptions) -> Demand:
    """Return a demand as it is, or read the one that names and the options describe."""
    if not isinstance(demand, Demand):
        names = (demand,) if isinstance(demand, str) else tuple(demand)
        return demand_of(replace(options.demand, demand=names))
    default = FleetOptions().demand
    for name in ("service", "weight", "average"):
        if getattr(options.demand, name) != getattr(default, name):
            raise InputError(
                f"{name} is a word about demands by name, and this one has been read; give its "
                "name or file, or change the Demand itself."
            )
    return demand


def read_models(model: Model | str | None) -> list[Share]:
    """Return the models that are served with their shares of the requests."""
    if isinstance(model, Model):
        return [Share(model)]
    return models_of(model or FleetInputs.model)


def demand_of(inputs: DemandInputs) -> Demand:
    """Read a demand by its names or files, service, weights and averaging time."""
    minutes = seconds(inputs.average, "--average") / 60.0
    if minutes < 1 or not minutes.is_integer():
        raise InputError(
            f"--average {inputs.average} is not a whole number of minutes; write 1min or 1h."
        )
    return demand_from(
        inputs.demand or ["azure-code"],
        service=inputs.service,
        weights=inputs.weight,
        average_minutes=int(minutes),
    )
