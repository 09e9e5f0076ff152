"""The usual plan: the framework's values for the fields of a plan that nobody stated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from topologies.catalogue.catalogue import chip_family, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.frameworks.framework import (
    Framework,
    framework,
    framework_of,
    framework_text,
)
from workloads.training.memory.memory import likely, worst
from workloads.training.plan.checks import check_ranks, filling_dp
from workloads.training.plan.other_tools import field_value
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan, check_field
from workloads.training.plan.schedules.registry import (
    DEFAULT,
    pipeline_schedule,
    schedule_of_chunks,
)

DEFAULT_SEQ = 4096
"""Tokens of a sequence where none are stated; less for a model with fewer positions."""
DEFAULT_MICROBATCHES = 16  # microbatches of a replica where no global batch is stated


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
    plan_fields = {**stack.plan, **recomputation(plan_fields, stack)}
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
    check_ranks(ParallelPlan(**smallest), room)
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
    plan = _with_room(plan, model, on_stack)
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


def fits(model: Model, plan: ParallelPlan, cluster: Cluster) -> bool:
    """Return whether a plan fits in the memory of the stage that needs most."""
    catalogue = cluster.catalogue or shipped_catalogue()
    # What has room for the likely need has it for the least, which takes many times as long.
    return any(need(model, plan, catalogue, cluster.chip).fits for need in (likely, worst))


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
    if (pp or 1) == 1 or (vpp and schedule):
        return {}
    if vpp:
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
