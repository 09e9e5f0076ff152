"""Scenario of a fleet: all inputs of a run, built from options or from objects, and its run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, get_type_hints

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.support.arguments import check_names
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from topologies.support.options import described, in_words
from topologies.support.units import parse_share
from workloads.confidence.sensitivity import AS_STATED, Uncertain
from workloads.demand import Demand, Horizon, demand_from, measured_noise, with_noise
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.demand.what_if import changed, check_texts
from workloads.fleet.inputs.jobs import TrainingJob, read_jobs
from workloads.fleet.inputs.prices import Prices, Tariff, read_tariff
from workloads.fleet.policies.registry import KINDS, bound_of, check_name, policy_named
from workloads.fleet.policies.view import Policy, Situation
from workloads.fleet.setup.demand import (
    Share,
    Sizing,
    batch_work,
    cut_to_period,
    demand_level,
    divided,
    scaled_to_fleet,
    sizing,
)
from workloads.fleet.setup.machines import (
    CHEAPEST,
    Machines,
    Region,
    in_regions,
    kinds_from,
    placed,
    regions_from,
)
from workloads.fleet.setup.night_work import gang_note, host_memory_note
from workloads.fleet.setup.serving import serving_notes
from workloads.fleet.simulation import FleetRun, simulate
from workloads.fleet.state.services import (
    BatchTier,
    BatchWork,
    Fleet,
    Service,
    by_pool,
    pools_from,
    serving_units,
    to_serving_s,
    units_needed,
)
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
from workloads.options.keywords import read_options
from workloads.serving import parse_slo


@dataclass(frozen=True, eq=False)
class Scenario:
    """Inputs of a run except the policy and the seed."""

    kinds: tuple[Machines, ...]  # in the order in which they serve
    options: FleetOptions
    seed: int  # seed of the noise
    horizon: Horizon  # demand of the run and the history before it, scaled but without noise
    # (services,): relative spread of the noise on the demand; 0 for none
    spread: FloatArray | float
    sizing: Sizing
    demand: Demand  # the requests that arrive, noise included
    # Returns the prices of electricity for a run that starts at a time (UTC) and lasts so many
    # minutes; ``prices`` are those of this run
    tariff: Tariff | None = None
    prices: Prices | None = None
    # Requests that may wait; ``batch`` are the requests of this tier in this run
    tier: BatchTier | None = None
    batch: BatchWork | None = None
    # One for each service, or none where the options state a rate in their place
    models: tuple[Model, ...] = ()
    # Factor by which such a stretch of the demand differs from the one before
    demand_level: Uncertain = AS_STATED

    @property
    def cluster(self) -> Cluster:
        """Machines of the first kind; a unit is a scale-up domain of them."""
        return self.kinds[0].cluster

    @property
    def services(self) -> tuple[Service, ...]:
        """Services, with the capacity of a unit of the first kind."""
        return self.kinds[0].services

    @property
    def fleet(self) -> Fleet:
        """Units of the first kind, and the rules of their changes and failures."""
        return self.kinds[0].fleet

    @property
    def jobs(self) -> tuple[TrainingJob, ...]:
        """Jobs of all kinds."""
        return tuple(job for kind in self.kinds for job in kind.jobs)

    @property
    def units(self) -> float:
        """Units that may serve, in units of the first kind."""
        return serving_units(self.horizon.demand, self.kinds)

    def changed(self, change: Callable[[Machines], Mapping[str, Any]]) -> Scenario:
        """Return the scenario with the fields that a function gives for each kind."""
        return replace(self, kinds=tuple(replace(kind, **change(kind)) for kind in self.kinds))

    @property
    def need(self) -> FloatArray:
        """Units that each minute needs in each pool of services; (pools, minutes)."""
        return by_pool(units_needed(self.demand, self.services), pools_from(self.services))

    @property
    def scaling(self) -> str:
        """Sentence that says how the demand was scaled; empty where it was not."""
        sized = self.sizing
        shape = "" if self.demand.absolute else ", a shape without a size for this fleet,"
        if sized.demand_scale == 1.0:
            return ""
        names = [kind.name for kind in self.kinds if kind.serves]
        of = "" if len(names) == len(self.kinds) else f" that serves ({', '.join(names)})"
        if len(self.options.policy.serve_on) > 1:
            of = ", and at most that share of every other placement"
        return (
            f"demand{shape} was scaled by {sized.demand_scale:.6g}: its busiest hour needs "
            f"{sized.units_needed_peak / self.units:.0%} of the fleet{of}; "
            "--scale-to-peak sets another share."
        )

    @property
    def lead_s(self) -> float:
        """Expected time from an order until a unit that trained serves [s]."""
        return max(
            to_serving_s(kind.fleet.costs, kind.services) for kind in self.kinds if kind.serves
        )

    def at(self, horizon: Horizon) -> Scenario:
        """Return the same fleet under another demand, such as a what-if's."""
        demand = horizon.demand
        if np.any(self.spread):
            # The same seed draws the same noise for every what-if.
            draws = np.random.default_rng([self.seed, 1])
            demand = with_noise(demand, draws, relative_sd=self.spread)
        scale = self.sizing.demand_scale
        return replace(
            self,
            horizon=horizon,
            demand=demand,
            sizing=sizing(
                horizon.demand,
                self.services,
                serving_units(horizon.demand, self.kinds),
                scale=scale,
            ),
            prices=None if self.tariff is None else self.tariff(demand.start, demand.minutes),
            batch=batch_work(horizon.demand, self.services, self.tier),
        )


def scenario(
    cluster: Cluster | Sequence[Cluster],
    demand: Demand,
    options: FleetOptions | None = None,
    *,
    models: Model | Sequence[Share] = (),
    seed: int = 0,
    places: Sequence[str] = (),
) -> Scenario:
    """Build the scenario of a fleet from a demand and models that have been read.

    Without models only the shape of the demand counts, or the rate of a unit that options state.
    ``places`` are the regions of the clusters.
    """
    options = options or FleetOptions()
    clusters = [cluster] if isinstance(cluster, Cluster) else cluster
    machines = list(zip(clusters, places or [""] * len(clusters), strict=True))
    regions = regions_from(options.policy, machines)
    period, tier = options.demand, _batch_tier(options.demand)
    tariff = _tariff(options.money, regions)
    shares: Sequence[Share] = [(models, None)] if isinstance(models, Model) else models
    demand, served = divided(demand, shares) if shares else (demand, ())
    now = demand.times(1 - tier.share) if tier else demand  # what may not wait
    window = cut_to_period(now, period.days, period.start_day)
    kinds = kinds_from(machines, window.demand, served, options, regions)
    window = in_regions(window, regions) if regions else window
    if options.policy.serve_on and len(kinds) == 1:
        raise InputError(
            f"--serve-on {', '.join(options.policy.serve_on)} is for a fleet of several kinds of "
            f"units, and all of this one are {kinds[0].name}; state each with --kind."
        )
    placements = [placed(kinds, text, window.demand) for text in options.policy.serve_on or (None,)]
    units = [(each[0].services, serving_units(window.demand, each)) for each in placements]
    horizon, sized = scaled_to_fleet(window, units, period.scale_to_peak)
    spread = period.noise_spread
    services = placements[0][0].services[: len(demand.services)]  # alike in all regions
    noise = measured_noise(demand) if spread is None else spread
    if tier is not None and tier.demand is not None:  # cut to the run, and scaled if it is a shape
        work = cut_to_period(tier.demand, period.days, period.start_day).demand
        tier = replace(tier, demand=work if work.absolute else work.times(sized.demand_scale))
    without_noise = Scenario(
        kinds=placements[0],
        options=options,
        seed=seed,
        horizon=horizon,
        spread=np.tile(noise, max(1, len(regions))) if np.ndim(noise) else noise,
        sizing=sized,
        demand=horizon.demand,
        tariff=tariff,
        tier=tier,
        models=served,
        demand_level=demand_level(
            units_needed(demand, services).sum(axis=0), demand.start, window.demand.minutes
        ),
    )
    return without_noise.at(horizon)  # with noise, prices and batch work, as for a what-if


def _tariff(money: MoneyInputs, regions: Sequence[Region]) -> Tariff | None:
    if money.price is not None:
        return read_tariff(
            money.price,
            cap=math.inf if money.price_cap is None else money.price_cap,
            carbon_usd_per_t=money.carbon_price,
            carbon_g_per_kwh=money.carbon,
            zones={region.name: region.hours for region in regions},
        )
    for name, value in (("price-cap", money.price_cap), ("carbon-price", money.carbon_price)):
        if value is not None and (value or name == "price-cap"):
            raise InputError(f"--{name} {value:g} without prices; add --price FILE.csv.")
    return None


def _batch_tier(inputs: DemandInputs) -> BatchTier | None:
    if inputs.batch_share is None and inputs.batch_demand is None:
        if inputs.batch_deadline != DemandInputs.batch_deadline:
            raise InputError(
                f"--batch-deadline {inputs.batch_deadline} without a batch tier; add --batch-share "
                "20% or --batch-demand FILE.csv."
            )
        return None
    share = 0.0 if inputs.batch_share is None else parse_share(inputs.batch_share, "--batch-share")
    demand = None if inputs.batch_demand is None else demand_from([inputs.batch_demand])
    return BatchTier(share, demand, seconds(inputs.batch_deadline, "--batch-deadline"))


def what_ifs(base: Scenario, texts: Sequence[str]) -> list[tuple[str, Scenario]]:
    """Return the base scenario and one for each what-if, all with their names."""
    return [("base", base), *((text, base.at(changed(base.horizon, text))) for text in texts)]


def side_by_side(base: Scenario) -> list[tuple[str, Scenario]]:
    """Return the base, its what-ifs, and the base with each other placement of serving."""
    first, *others = base.options.policy.serve_on or (CHEAPEST,)
    rows = what_ifs(base, base.options.demand.what_if)
    if others:
        rows[0] = (f"{first} serves", base)
    for text in others:
        kinds = placed(base.kinds, text, base.horizon.demand)
        rows.append((f"{text} serves", replace(base, kinds=kinds).at(base.horizon)))
    return rows


def run(scenario: Scenario, policy: Policy, *, seed: int = 0) -> FleetRun:
    """Run a scenario under a policy."""
    ahead, minutes = _by_place(scenario), scenario.demand.minutes
    return simulate(
        scenario.demand,
        scenario.kinds,
        policy,
        batch=scenario.batch,
        history=scenario.horizon.history,
        held=np.array([each.dear[:minutes] for each in ahead]) if ahead else None,
        prices_usd_per_mwh=[each.weighed_usd_per_mwh for each in ahead],
        rng=np.random.default_rng(seed),
    )


def _by_place(scenario: Scenario) -> list[Prices]:
    """Prices where each kind is, of the run and, where known, the day after; none without any."""
    # A policy that looks a day ahead needs that day until the last minute of the run.
    demand, tariff = scenario.demand, scenario.tariff
    if tariff is None:
        return []
    try:
        ahead = tariff(demand.start, demand.minutes + MINUTES_PER_DAY)
    except InputError:
        ahead = tariff(demand.start, demand.minutes)
    return [ahead.within(kind.region) for kind in scenario.kinds]


def policy_of(name: str, scenario: Scenario, **changes: Any) -> Policy:
    """Return a policy by name, or a user's from a file, as a scenario's options set it.

    ``changes`` are other values of these options.
    """
    settings = replace(scenario.options.policy, **changes)
    days = scenario.demand.minutes / MINUTES_PER_DAY
    capped = settings.power_cap is not None and name in KINDS and "power_cap" in KINDS[name].reads
    if capped and scenario.lead_s > 86400 * days:
        raise InputError(
            f"--power-cap {settings.power_cap:g} with changes of role that take longer than the "
            f"run of {days:.3g} day{'s' * (days != 1)}, in which no policy acts; shorten "
            "--change-time, or lengthen --days."
        )
    situation = Situation(
        need=scenario.need,
        lead_s=scenario.lead_s,
        back_s=max(kind.fleet.costs.to_training_s for kind in scenario.kinds),
        ramp=scenario.fleet.limits.changes_per_minute,
        priced=scenario.prices is not None,
        busy_share=max(
            service.capacity.rate_slo_per_s / service.capacity.rate_max_per_s
            for kind in scenario.kinds
            for service in kind.services
        ),
    )
    return policy_named(name, settings, situation)


NO_KEYWORDS = ("demand", "compare", "intervals", "kind")
"""Options that are a parameter of another name, and what a result always offers."""


def keywords_of(function: Callable[..., Any], *kinds: type) -> list[str]:
    """Names of the options of some dataclasses that a function takes as ``**keywords``."""
    taken = {*signature(function).parameters, *NO_KEYWORDS}
    return [name for kind in kinds for name in described(kind) if name not in taken]


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


def unread_options(stated: PolicyInputs, *, priced: bool) -> list[str]:
    """Return a sentence for each option of policies that was stated and that no policy reads.

    With ``compare`` the policy with foresight and ``static`` run as well, so what these read counts
    as read. An option with its default value counts as not stated.
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


def unread_carbon_price(policy: str, usd_per_t: float, prices: Sequence[Prices] = ()) -> list[str]:
    """Return a sentence for a price of carbon that no policy reads, or that moves no hour.

    ``prices`` are those of each place.

    >>> unread_carbon_price("forecast", 80.0)
    ['--carbon-price 80 changes nothing under policy forecast; mpc, mpc-oracle and price read it.']
    """
    # Policies with a share of prices at which they train are those that weigh prices.
    readers = sorted(kind.name for kind in KINDS.values() if "price_share" in kind.reads)
    if not usd_per_t or policy not in KINDS:
        return []
    if policy in readers:
        # Only the order of the hours of each place counts under price; mpc weighs their distance.
        alike = (
            np.array_equal(
                np.unique(each.usd_per_mwh, return_inverse=True)[1],
                np.unique(each.weighed_usd_per_mwh, return_inverse=True)[1],
            )
            for each in prices
        )
        if policy != "price" or not prices or not all(alike):
            return []
        return [
            f"--carbon-price {usd_per_t:g} changes nothing here: with it hours are in the order of "
            "their prices of electricity, so that the same ones are cheapest."
        ]
    return [
        f"--carbon-price {usd_per_t:g} changes nothing under policy {policy}; "
        f"{in_words(tuple(readers), 'and')} read it."
    ]


def unread_with_unit_rate(fleet: FleetInputs, limits: LimitInputs) -> list[str]:
    """Return a sentence for each option that a stated rate or time of a change leaves unread.

    Settings of replicas beside a stated rate are refused before, by :class:`FleetInputs`.
    """
    remarks = []
    stated, usual = parse_slo(fleet.slo), parse_slo(FleetInputs.slo)
    is_usual = (stated.ttft_s, stated.tpot_s) == (usual.ttft_s, usual.tpot_s)
    if fleet.unit_rate is not None and not is_usual:
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


def scenario_from(options: FleetOptions, catalogue: Catalogue, seed: int) -> Scenario:
    """Build the scenario that the options describe: everything about the fleet but its policy."""
    check_question(options)
    clusters = [machine(name, catalogue=catalogue) for name in options.clusters]
    demand, models = read_demand(options.demand.demand, options), read_models(options.fleet.model)
    return scenario(clusters, demand, options, models=models, seed=seed, places=options.places)


def check_question(options: FleetOptions) -> None:
    """Check the options that can be judged before the cluster and the demand are read."""
    fleet = options.fleet
    if fleet.post_training is not None and fleet.training is not None:
        raise InputError(
            f"--post-training {fleet.post_training} is for the default jobs, which --training "
            f"{fleet.training} replaces. State post_training in its rows, or leave one of them out."
        )
    if fleet.training is not None:
        read_jobs(fleet.training)  # a wrong row is refused before a unit's capacity is measured
    check_name(options.policy.policy)
    if options.policy.policy in KINDS:
        priced = options.money.price is not None
        KINDS[options.policy.policy].check(options.policy, priced=priced)
    check_texts(options.demand.what_if)


def read_models(stated: Model | str | None) -> list[Share]:
    """Return the models that are served with their shares of the requests.

    A text such as ``llama-3.1-405b=20%,llama-3.1-8b=80%`` names several.
    """
    if isinstance(stated, Model):
        return [(stated, None)]
    shares: list[Share] = []
    text = stated or FleetInputs.model
    for part in text.split(","):
        name, equals, share = part.strip().partition("=")
        if not name.strip():
            raise InputError(
                f"--model {text[:80]!r} has an empty name. Write MODEL, or MODEL=20%,MODEL=80%."
            )
        size = parse_share(share, f"share of model {name}") if equals else None
        shares.append((model(name), size))
    return shares


def notes(built: Scenario, options: FleetOptions) -> list[str]:
    """Remarks on the inputs that a reader of the results should see."""
    policy = options.policy.policy
    history = built.horizon.history
    remarks = [
        *built.demand.notes,
        *_by_kind(built, lambda kind: serving_notes(kind.cluster, kind.services, options.fleet)),
        *unread_options(options.policy, priced=built.prices is not None),
        *unread_carbon_price(policy, options.money.carbon_price, _by_place(built)),
        *_by_kind(
            built,
            lambda kind: (block.note(built.demand.minutes * 60.0) for block in kind.fleet.blocks),
        ),
        *unread_with_unit_rate(options.fleet, options.limits),
        *unread_discount(options.money, batch=built.batch is not None),
    ]
    if policy == "forecast" and (history is None or history.minutes < MINUTES_PER_DAY):
        remarks.append(
            "the forecast knows no earlier day when the run begins, so its first hours are "
            "guesses; --start-day 1 gives it a day of history."
        )
    need, units = built.sizing.units_needed_peak, built.units
    if options.fleet.training is None:
        remarks += _by_kind(
            built,
            lambda kind: (
                host_memory_note(kind.jobs, kind.fleet.units),
                gang_note(kind.jobs, kind.fleet),
            ),
        )
    mode = options.fleet.post_training
    if mode is not None and not any(job.post_training for job in built.jobs):
        remarks.append(
            f"--post-training {mode} changes nothing here: a fleet of {units:,.0f} units has no "
            "default post-training job."
        )
    if need > units:
        remarks.append(
            f"the busiest hour needs {need:,.0f} units and the fleet has {units:,.0f}, so requests "
            "wait or are shed."
        )
    return remarks


def _by_kind(built: Scenario, notes: Callable[[Machines], Iterable[str]]) -> list[str]:
    """Return the notes on kinds that are not empty, with their names where there are several."""
    of_kinds: dict[str, list[str]] = {}
    for kind in built.kinds:
        for note in filter(None, notes(kind)):
            of_kinds.setdefault(note, []).append(kind.name)
    if len(built.kinds) == 1:
        return list(of_kinds)
    return [f"{in_words(tuple(names), 'and')}: {note}" for note, names in of_kinds.items()]


def read_demand(demand: Demand | str | Sequence[str], options: FleetOptions) -> Demand:
    """Return a demand as it is, or read the one that names and the options describe."""
    inputs = options.demand
    if isinstance(demand, Demand):
        for name in ("service", "weight", "average"):
            if getattr(inputs, name) != getattr(DemandInputs, name):
                raise InputError(
                    f"{name} is a word about demands by name, and this one has been read; give its "
                    "name or file, or change the Demand itself."
                )
        return demand
    minutes = seconds(inputs.average, "--average") / 60.0
    if minutes < 1 or not minutes.is_integer():
        raise InputError(
            f"--average {inputs.average} is not a whole number of minutes; write 1min or 1h."
        )
    return demand_from(
        [demand] if isinstance(demand, str) else demand or ["azure-code"],
        service=inputs.service,
        weights=inputs.weight,
        average_minutes=int(minutes),
    )
