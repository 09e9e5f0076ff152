"""Fields of a plan that nobody stated: the framework's usual values, and plausible others."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.confidence.answers import kernels_assumed, weight_width
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import BARE, FRAMEWORK, PLAN, Prediction, training_kind
from workloads.confidence.split_conformal import interval, margin
from workloads.models.model import Model
from workloads.training.frameworks.framework import (
    Framework,
    framework,
    framework_of,
    framework_text,
    names,
)
from workloads.training.memory.memory import likely, worst
from workloads.training.plan.other_tools import field_value, read_any_plan
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan, check_field
from workloads.training.plan.schedules.registry import (
    DEFAULT,
    pipeline_schedule,
    schedule_of_chunks,
)
from workloads.training.plan.stages import check_model, check_ranks, filling_dp

DEFAULT_SEQ = 4096
"""Tokens of a sequence where none are stated; less for a model with fewer positions."""
DEFAULT_MICROBATCHES = 16  # microbatches of a replica where no global batch is stated


def runnable_fields(path: Path, cluster: Cluster) -> dict[str, Any]:
    """Return the fields of a plan's file, without the framework of a tool that lacks the chips."""
    filed = read_any_plan(path)
    fields = dict(filed.fields)
    if filed.implied and not framework(filed.implied).trains_on(cluster):
        del fields["framework"]  # the answer says so
    if filed.tool == "MaxText" and "microbatch" in fields:
        # A batch is one of each device, of which a chip may have two.
        fields["microbatch"] *= cluster.numbers.integer(cluster.chip, "jax_devices", 1)
    return fields


def complete(
    stated: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    *,
    lnc: int | None = None,
    chips: int | None = None,
) -> ParallelPlan:
    """Return a plan with the framework's usual values for the fields that are not stated."""
    # ``stated``: fields of :class:`ParallelPlan`, or ``microbatches`` of a replica in place of the
    # global batch; None counts as not stated.
    named = {name: value for name, value in stated.items() if value not in (None, "")}
    microbatches = named.pop("microbatches", None)
    plan_fields = {name: field_value(name, value) for name, value in named.items()}
    room = cluster.chips if chips is None else chips
    text = framework_text(plan_fields.get("framework", ""), cluster, {"chips": room, **plan_fields})
    stack = framework(text)
    plan_fields = {**stack.usual, **recomputation(plan_fields, stack)}
    _set_ranks_per_chip(plan_fields, cluster, lnc, room)
    plan_fields.setdefault("seq", min(DEFAULT_SEQ, model.positions or DEFAULT_SEQ))
    # Each size is checked before the next ones are computed from it.
    tp, pp, cp, per_chip, microbatch = (
        _size(plan_fields, name) for name in ("tp", "pp", "cp", "ranks_per_chip", "microbatch")
    )
    if "dp" not in plan_fields:
        plan_fields["dp"] = filling_dp(tp, pp, cp, room, per_chip)
    dp = _size(plan_fields, "dp")
    # With one microbatch a replica, so that ranks are refused before a batch that follows from dp.
    smallest = {**plan_fields, "global_batch": dp * microbatch, "vpp": 1, "schedule": DEFAULT}
    check_ranks(ParallelPlan(**{**smallest, "stage_layers": ()}), room)
    if microbatches and "global_batch" not in named:
        plan_fields["global_batch"] = named["global_batch"] = dp * microbatch * microbatches
    elif microbatches and "microbatch" not in named:
        microbatch = max(1, plan_fields["global_batch"] // (dp * microbatches))
        plan_fields["microbatch"] = named["microbatch"] = microbatch
    plan_fields.setdefault("global_batch", dp * microbatch * DEFAULT_MICROBATCHES)
    plan_fields |= usual_chunks(plan_fields, model, room, stack)
    # With tp 1 there is nothing to split; the default stays, so that it is not named as idle.
    plan_fields.setdefault("sequence_parallel", tp == 1 or plan_fields["seq"] % (cp * tp) == 0)
    if pp > 1 and "zero" not in named:
        plan_fields["zero"] = min(plan_fields.get("zero", 1), 1)
    if stack.selective == "layers" and pp > 1:
        plan_fields.setdefault("reshard", False)  # PyTorch's FSDP keeps what it gathers there
    assumed = tuple(name for name in PLAN_FIELDS if name not in named)
    if plan_fields.get("framework", "").startswith(":"):
        assumed += ("framework",)  # settings alone name none
    plan = ParallelPlan(**plan_fields, assumed=assumed)
    if framework_text(plan.framework, cluster, vars(plan)) != text:
        plan = replace(plan, framework=text)  # it followed from what was left open
    on_stack = stack.on(cluster, model)
    plan = _with_large_microbatches(_with_room(plan, model, on_stack), model, cluster)
    if model.experts is None and DIVIDING & set(named) and not fits(model, plan, on_stack):
        for savings in _savings(plan):
            try:
                roomy = complete({**named, **savings}, model, cluster, lnc=lnc, chips=chips)
            except InputError:
                continue
            if fits(model, roomy, framework_of(roomy, cluster).on(cluster, model)):
                return replace(roomy, assumed=(*roomy.assumed, *savings))
    return plan


DIVIDING = frozenset({"tp", "pp", "dp", "cp", "zero"})
"""Fields that divide a model. Who states none of them leaves the plan to a search."""


def _savings(plan: ParallelPlan) -> Iterator[dict[str, Any]]:
    """Yield values of fields that nobody stated that need less memory, ascending by cost."""
    # A published plan did fit. Models with experts are left out, as their frameworks compute single
    # modules again, which costs far less than whole layers.
    open_fields, sharding = set(plan.assumed), {}
    if "zero" in open_fields and plan.tp == plan.pp == 1 and plan.zero < SHARDED and plan.dp > 1:
        sharding = {"zero": SHARDED}
        yield sharding
    if "recompute" in open_fields and not plan.lora_rank:
        yield from ({**sharding, "recompute": name} for name in ("selective", "full"))


SHARDED = 3  # ZeRO stage under which parameters are sharded


def _with_room(plan: ParallelPlan, model: Model, cluster: Cluster) -> ParallelPlan:
    """Return a plan with one chunk a stage where only the chunks that nobody stated do not fit."""
    # Chunks hold more microbatches at once; who lacks the memory for them does without.
    if plan.vpp == 1 or not {"vpp", "schedule"} <= set(plan.assumed):
        return plan
    whole = replace(plan, vpp=1, schedule=DEFAULT)
    too_large = not fits(model, plan, cluster) and fits(model, whole, cluster)
    return whole if too_large else plan


def _with_large_microbatches(plan: ParallelPlan, model: Model, cluster: Cluster) -> ParallelPlan:
    """Return a plan whose microbatches, where nobody stated their size, surely fit in memory."""
    # Layers that are divided, and hosts that issue the kernels of small ones, fill their chips with
    # larger ones only, against which without a pipeline nothing but memory speaks. Whoever shards
    # parameters has chosen for memory; on Trainium one is usual.
    open_fields = {"microbatch", "global_batch"} & {*plan.assumed}
    on_neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    sharded = plan.tp == 1 and plan.zero == 3
    if open_fields != {"microbatch"} or sharded or plan.pp > 1 or on_neuron:
        return plan
    catalogue = framework_of(plan, cluster).on(cluster, model).numbers
    for size in reversed(MICROBATCHES):
        other = _runnable(plan, {"microbatch": size}, model, cluster)
        memory = other and worst(model, other, catalogue, cluster.chip)
        if other and memory and memory.most <= memory.capacity:
            return other
    return plan


def fits(model: Model, plan: ParallelPlan, cluster: Cluster) -> bool:
    """Return whether a plan fits in the memory of the stage that needs most."""
    # What has room for the likely need has it for the least, which takes many times as long.
    return any(need(model, plan, cluster.numbers, cluster.chip).fits for need in (likely, worst))


TUNED_CHIPS = 1024
"""Chips from which a run is assumed to interleave; on fewer, sweeps also measure poor plans."""
MOST_BUBBLE = 0.25
"""Bubble of 1F1B beyond which a plan that states no schedule is taken to interleave. Published
plans of plain 1F1B stay below (GPT-NeoX 9 %, BLOOM 9 %, MT-NLG 14 to 21 %, Falcon 22 %)."""


def usual_chunks(
    plan_fields: Mapping[str, Any], model: Model, chips: int, stack: Framework
) -> dict[str, Any]:
    """Return ``vpp`` and ``schedule`` of a pipeline where one or both are not stated."""
    # A framework that interleaves does so with experts, for which Megatron-Core's guide asks, and
    # where the bubble of one chunk a stage would be long on many chips.
    pp, vpp, schedule = (plan_fields.get(name) for name in ("pp", "vpp", "schedule"))
    if (pp or 1) == 1 or (vpp is not None and schedule):
        return {}
    if vpp is not None:
        return {"schedule": schedule_of_chunks(vpp) if vpp > 1 else DEFAULT}
    layers_of_a_chunk = stack.layers_of_a_chunk.get("experts" if model.experts else "dense")
    if schedule is None and layers_of_a_chunk and _interleaves(plan_fields, model, chips):
        schedule = schedule_of_chunks(2)
    chosen = pipeline_schedule(schedule or DEFAULT)
    if len(chosen.chunks_searched) > 1:
        # The nearest number of chunks that divides a stage, if one does.
        pp = plan_fields["pp"]
        each = layers_of_a_chunk or 2
        most = model.layers // pp
        usual = max(1, min(most, max(2, round(most / each))))
        whole = [count for count in range(2, most + 1) if model.layers % (pp * count) == 0]
        vpp = min(whole, key=lambda count: abs(count - usual), default=usual)
    return {"vpp": vpp or chosen.chunks_allowed[0], "schedule": chosen.name}


def _interleaves(plan_fields: Mapping[str, Any], model: Model, chips: int) -> bool:
    """Return whether a pipeline of no stated schedule is assumed to have several chunks a stage."""
    pp, microbatch = plan_fields["pp"], plan_fields.get("microbatch", 1)
    if model.layers // pp < 2:
        return False
    if model.experts:
        return True
    bubble = (pp - 1) * plan_fields["dp"] * microbatch / plan_fields["global_batch"]
    return chips >= TUNED_CHIPS and bubble > MOST_BUBBLE


def recomputation(plan_fields: Mapping[str, Any], stack: Framework) -> dict[str, Any]:
    """Return a plan's fields with *selective* recomputation as the framework means it."""
    selective = plan_fields.get("recompute") == "selective" and "recompute_every" not in plan_fields
    if selective and stack.selective == "layers":
        return {**plan_fields, "recompute": "full", "recompute_every": 2}
    return dict(plan_fields)


def _size(plan_fields: Mapping[str, Any], name: str) -> int:
    """Value of a whole-number field, checked; 1 where it is not stated."""
    value: int = plan_fields.get(name, 1)
    check_field(name, value)
    return value


def _set_ranks_per_chip(
    plan_fields: dict[str, Any], cluster: Cluster, lnc: int | None, room: int
) -> None:
    """Set the ranks of a chip where they are not stated, and refuse others than ``lnc`` makes."""
    # Stated degrees of more ranks than chips are taken to run one rank on each logical core.
    default_ranks = ranks_per_chip(cluster, lnc)
    if lnc is None and "ranks_per_chip" not in plan_fields and cluster.catalogue:
        stated = math.prod(_size(plan_fields, name) for name in ("tp", "pp", "cp", "dp"))
        if stated > room * default_ranks and cluster.catalogue.has(cluster.chip, "ranks_per_chip"):
            rows = cluster.catalogue.variants(cluster.chip, "ranks_per_chip")
            rooms = {int(row.value): room * int(row.value) for row in rows}
            filled = [
                count
                for count, ranks in rooms.items()
                if ranks == stated or ("dp" not in plan_fields and ranks % stated == 0)
            ]
            default_ranks = min(filled, default=default_ranks)
            if not filled and room == 1 and stated < max(rooms):
                raise InputError(
                    f"A plan of {stated} ranks leaves some of the {cluster.chip}'s "
                    f"{' or '.join(map(str, sorted(rooms)))} idle. State ranks per chip or fill it."
                )
    per_chip = plan_fields.setdefault("ranks_per_chip", default_ranks)
    if lnc is not None and per_chip != default_ranks:
        raise InputError(
            f"--lnc {lnc} makes {default_ranks} ranks a chip, but ranks_per_chip is {per_chip}. "
            "State one of them."
        )


def ranks_per_chip(cluster: Cluster, lnc: int | None = None) -> int:
    """Ranks of a chip, of whose logical cores each has ``lnc`` physical ones."""
    # Without ``lnc`` it is one, or as many as the catalogue's only row of the chip says: two on
    # Trainium1, whose cores cannot be joined.
    catalogue, chip = cluster.catalogue, cluster.chip
    if catalogue is None or not chip:
        return 1
    family = chip_family(chip, catalogue)
    if lnc is None:
        fixed = family.is_neuron and len(catalogue.variants(chip, "ranks_per_chip")) == 1
        return family.ranks_per_chip if fixed else 1
    if not family.is_neuron:
        raise InputError(f"--lnc is for Trainium, not for {chip}. Leave it out.")
    cores = catalogue.integer(chip, "cores")
    if lnc < 1 or cores % lnc:
        raise InputError(f"--lnc {lnc} does not divide the {cores} cores of {chip}. Use 1 or 2.")
    return cores // lnc


# Alternatives of a plan: other values of the fields that nobody stated, and the times they give.
#
# The hull of the plausible times is what a question leaves open that states fewer fields.

Times = Callable[[ParallelPlan], float]  # function that returns the time of a step of a plan [s]


class Alternative(NamedTuple):
    """Another value of a field that nobody stated."""

    field: str  # field of the plan
    value: Any  # its other value
    ratio: float  # time of a step with it, over that of the plan as completed
    # Fields that it changes: a framework brings its own values of what nobody stated.
    changes: frozenset[str] = frozenset()


def alternatives(
    plan: ParallelPlan, model: Model, cluster: Cluster, times: Times
) -> tuple[Alternative, ...]:
    """Return the plausible values of each field that nobody stated, with their times."""
    # One field is changed at a time. A value that the plan refuses, or with which it does not fit
    # in memory, is not plausible. The cluster is that without the numbers of the plan's framework,
    # as others have their own. ``times`` is called for the plan itself too, so that all are of one
    # level of detail.
    tried = list(_changes(plan, model, cluster))
    if not tried:
        return ()
    others, seconds = [], times(plan)
    for changes in tried:
        other = _runnable(plan, changes, model, cluster)
        if other is None or other == plan:
            continue
        (name, value), *_ = changes.items()
        if changes.get("recompute_every", 1) > 1:
            value = f"{value} in every other layer"
        try:
            ratio = times(other) / seconds
        except InputError:
            continue
        moved = {field for field in PLAN_FIELDS if getattr(other, field) != getattr(plan, field)}
        others.append(Alternative(name, value, ratio, frozenset(moved)))
    return tuple(others)


def _runnable(
    plan: ParallelPlan, changes: Mapping[str, Any], model: Model, cluster: Cluster
) -> ParallelPlan | None:
    """Return the plan with changes if its framework runs it and it fits in memory, else None."""
    # Parameters that are sharded are gathered for each microbatch, so whoever shards them has few
    # and large ones: the largest that fits, where nobody stated its size.
    sizes = [plan.microbatch]
    if "microbatch" in plan.assumed and changes.get("zero") == 3 and plan.zero < 3 and plan.pp == 1:
        sizes = [
            each
            for each in range(plan.global_batch // plan.dp, 0, -1)
            if plan.global_batch // plan.dp % each == 0
        ]
    for size in sizes:
        try:
            other = replace(plan, **{"microbatch": size, **changes})
            check_model(other, model)
            on_stack = framework_of(other, cluster).on(cluster, model)
            if fits(model, other, on_stack):
                return other
        except InputError:
            continue
    return None


def hull(others: Sequence[Alternative]) -> tuple[float, float]:
    """Return the least and the greatest ratio that all fields together leave open."""
    return math.exp(-math.sqrt(_reach(others, -1))), math.exp(math.sqrt(_reach(others, 1)))


def _reach(others: Sequence[Alternative], side: int) -> float:
    """Return the greatest sum of squared logarithms of alternatives that go together."""
    # What one field is says nothing of another, so not all are at their ends at once and their
    # squares add. But a framework that shards parameters and sharded parameters under another are
    # one effect.
    if not others:
        return 0.0
    field = others[0].field
    rest = [other for other in others if other.field != field]
    squares = [_reach(rest, side)]
    for other in others:
        logarithm = side * math.log(other.ratio)
        if other.field == field and logarithm > 0:
            beside = [each for each in rest if not each.changes & other.changes]
            squares.append(logarithm**2 + _reach(beside, side))
    return max(squares)


MICROBATCHES = (2, 4)  # sequences of a microbatch that are usual where it has more than one


def _changes(plan: ParallelPlan, model: Model, cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield changes of the plan, each of one field that nobody stated and what depends on it."""
    assumed, several = set(plan.assumed), plan.dp * plan.cp > 1
    stack = framework_of(plan, cluster)
    if "framework" in assumed:
        for name in common_frameworks(plan, cluster):
            if name == stack.name:
                continue
            usual = framework(name).usual.items()
            # Each framework with its own usual values of what is open as well.
            open_too = {key: value for key, value in usual if key in assumed}
            if plan.pp > 1 and "zero" in open_too:
                open_too["zero"] = min(1, open_too["zero"])
            settings = ",".join(word for word in stack.chosen if framework(name).has(word))
            yield {"framework": f"{name}:{settings}" if settings else name, **open_too}
    # Who names a framework alone, without settings or a date, has not said how tokens are sent.
    if plan.ep > 1 and ":" not in plan.framework:
        yield from ({"framework": f"{stack.name}:{word}"} for word in stack.experts_may)
    # Benchmarks balance the router by force; who trains a model leaves it to its loss.
    if "routing_skew" in assumed and plan.ep > 1 and not plan.capacity_factor:
        natural = cluster.numbers.value("training", "natural_skew")
        yield {"routing_skew": min(natural, float(plan.ep))}
    on_neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    if "runtime" in assumed and on_neuron and plan.ranks <= plan.ranks_per_chip:
        # Work on one chip is often run by PyTorch itself, or traced lazily.
        issued_by = {"framework": "torch-neuronx"} if "framework" in assumed else {}
        yield from ({"runtime": name, **issued_by} for name in ("eager", "xla"))
    if "recompute" in assumed:
        yield {"recompute": "full", "recompute_every": 1}
        yield {"recompute": "none", "recompute_every": 1}
        if stack.selective == "layers":
            yield {"recompute": "full", "recompute_every": 2}
        else:
            yield {"recompute": "selective"}
    if "overlap" in assumed:
        yield from ({"overlap": name} for name in ("none", "dp", "all"))
    if "zero" in assumed and several:
        stages = (0, 1, 3) if plan.tp == plan.pp == 1 else (0, 1)
        yield from ({"zero": stage} for stage in stages)
    if "sequence_parallel" in assumed and plan.tp > 1:
        yield {"sequence_parallel": not plan.sequence_parallel}
    if "microbatch" in assumed:
        sequences = plan.global_batch // plan.dp
        sizes = [size for size in (1, *MICROBATCHES) if sequences % size == 0]
        # Nobody has fewer microbatches than stages, which then wait for most of the step.
        yield from ({"microbatch": size} for size in sizes if sequences // size >= plan.pp)
    if plan.pp > 1 and {"vpp", "schedule"} <= assumed:
        yield {"vpp": 1, "schedule": DEFAULT}
        layers = model.layers // plan.pp
        counts = {count for count in (2, layers) if 1 < count <= layers}
        yield from ({"vpp": count, "schedule": schedule_of_chunks(count)} for count in counts)


def common_frameworks(plan: ParallelPlan, cluster: Cluster) -> tuple[str, ...]:
    """Return the frameworks in use today that may run a plan on a cluster."""
    runtime = chip_family(cluster.chip, cluster.catalogue).runtime
    if plan.attention == "unfused":
        kinds = {"unfused"}
    elif plan.ranks == 1:
        kinds = {"alone"}
    elif plan.pp > 1:
        kinds = {"divided"}
    else:
        kinds = {"divided", "tensor"} if plan.tp > 1 else {"sharded"}
        # One chip of a server is as much alone as a machine of one chip.
        kinds |= {"alone"} if plan.ranks <= plan.ranks_per_chip else set()
    stacks = (framework(name) for name in names())
    return tuple(
        stack.name for stack in stacks if runtime in stack.usual_on and kinds & {*stack.usual_for}
    )


# Interval of a step, which is wider where less was told of how it runs.

OPEN = frozenset({"recompute"})  # fields of a plan without which little is known of how it runs


def training_interval(
    model: Model,
    plan: ParallelPlan,
    cluster: Cluster,
    seconds: float,
    left_open: tuple[float, float] = (1.0, 1.0),
    share_of_peak: float = 0.0,
) -> Interval:
    """Interval of the predicted time of a training step [s]."""
    # ``left_open`` has the least and the greatest time that fields of no stated value leave open,
    # over the predicted one. No step is shorter than its arithmetic at the peak, of which it
    # reaches ``share_of_peak``.
    ends = interval(seconds, training_features(model, plan, cluster, left_open))
    return replace(ends, low=max(ends.low, seconds * share_of_peak))


def training_features(
    model: Model, plan: ParallelPlan, cluster: Cluster, left_open: tuple[float, float] = (1.0, 1.0)
) -> Prediction:
    """Return the features of a training step."""
    stack = framework_of(plan, cluster)
    need = likely(model, plan, stack.on(cluster, model).numbers, cluster.chip)
    level = PLAN if not plan.names_framework else "" if ":" in plan.framework else FRAMEWORK
    if OPEN & {*plan.assumed}:
        level = FRAMEWORK if plan.names_framework else BARE
    return Prediction(
        training_kind(
            experts=model.experts is not None,
            zero=plan.zero,
            unfused=plan.attention == "unfused",
            adapters=plan.lora_rank > 0,
        ),
        cluster.measured_chip,
        tp=plan.tp,
        cp=plan.cp,
        ranks=max(1, plan.ranks // plan.ranks_per_chip),
        assumed=kernels_assumed(cluster.chip, cluster.catalogue),
        family=weight_width(plan.precision),
        framework=stack.name,
        stated=level,
        filled=need.total / need.capacity,
        below=math.log(left_open[0]),
        above=math.log(left_open[1]),
    )


# Plans that a search found for a step whose degrees of parallelism nobody stated.

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "stage_layers")
"""Fields of which one that is stated makes a plan the user's own."""
BATCH_TOKENS = 64_000_000
"""Most tokens of a step unless stated; published runs train on up to 16 M (Llama 3) or 63 M
(DeepSeek-V3) at once."""


class RunnerUp(NamedTuple):
    """Plan that comes after the best one."""

    plan: ParallelPlan
    ratio: float  # its estimated time over that of the best plan
    tied: bool  # whether the ratio is within the error of a ratio of two predictions


@dataclass(frozen=True)
class Choice:
    """Outcome of a search for a plan."""

    considered: int  # plans that divide model, batch and cluster
    best: ParallelPlan  # plan with the shortest estimated step among those that fit in memory
    others: tuple[RunnerUp, ...]  # the next best plans
    # Fields of a plan that were stated, and so are the same in all plans
    stated: Collection[str] = ()
    # Estimated time of the data-parallel plan that the step has, over that of the best; None where
    # the step has the best plan.
    default_ratio: float | None = None


def is_open(stated: Mapping[str, Any]) -> bool:
    """Return whether no degree of parallelism is stated."""
    return all(stated.get(name) in (None, "", ()) for name in DEGREES)


def tied(
    model: Model, cluster: Cluster, best: ParallelPlan, other: ParallelPlan, ratio: float
) -> bool:
    """Return whether a plan's time over that of the best is within the error of a ratio."""
    # Plans of one search share the errors of machine, model and kernels, so their ratio is more
    # certain than either time.
    one, two = (training_features(model, plan, cluster) for plan in (best, other))
    return math.log(ratio) <= margin(one, two)


def describe(plan: ParallelPlan) -> str:
    """Describe a plan in one line, without fields that have no influence on it."""
    words = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}"]
    words += [
        f"{name} {getattr(plan, name)}" for name in ("cp", "ep", "vpp") if getattr(plan, name) > 1
    ]
    words.append(f"microbatch {plan.microbatch}")
    words += [f"zero {plan.zero}"] * (plan.dp > 1)
    words += ["sequence parallel"] * (plan.tp > 1 and plan.sequence_parallel)
    words += [f"schedule {plan.schedule}"] * (plan.pp > 1)
    some = f" in one of {plan.recompute_every} layers" * (plan.recompute_every > 1)
    words.append(f"recompute {plan.recompute}{some}")
    words += [f"order {'-'.join(plan.order)}"] * (plan.pp > 1 and plan.dp > 1)
    words += [f"LoRA of rank {plan.lora_rank} on {plan.lora_on} matrices"] * (plan.lora_rank > 0)
    stages = [(len(list(same)), count) for count, same in groupby(plan.stage_layers)]
    alike = (f"{number} × {count}" if number > 1 else str(count) for number, count in stages)
    words += [f"layers {' + '.join(alike)}"] * bool(stages)
    return ", ".join(words)


def fields_of(plan: ParallelPlan) -> dict[str, Any]:
    """Return the fields of a plan that a row contains, each as a number or a word."""
    values = {name: getattr(plan, name) for name in PLAN_FIELDS}
    joined = {name: "-".join(map(str, values[name])) for name in ("order", "stage_layers")}
    return values | joined | {"etp": plan.expert_tp}


def differing(plan: ParallelPlan, other: ParallelPlan) -> dict[str, Any]:
    """Return the fields of a plan in which it differs from another one, with its values."""
    mine, others = fields_of(plan), fields_of(other)
    follows = ("etp",) if plan.ep == other.ep == 1 else ()
    names = [name for name in PLAN_FIELDS if name not in follows]
    return {name: mine[name] for name in names if mine[name] != others[name]}


def named(values: Mapping[str, Any]) -> str:
    """Return fields and their values in words.

    >>> named({"dp": 3906, "sequence_parallel": False})
    'dp 3,906, sequence parallel off'
    """
    words = {name: ("off", "on")[v] if isinstance(v, bool) else v for name, v in values.items()}
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{word:,}' if isinstance(word, int) else word or 'even'}"
        for name, word in words.items()
    )
