"""Choice of a plan for a step without stated degrees of parallelism: the best by its estimate."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.kernels.precision import TRAINING, check_precision
from workloads.models.model import Model
from workloads.search.candidates import LEAST_TOKENS, ORDERS, Candidates, candidates
from workloads.search.estimate import best_estimates, estimate
from workloads.search.fit import fit
from workloads.training.frameworks.framework import framework, framework_of, framework_text
from workloads.training.memory.memory import FREE, likely, worst
from workloads.training.plan.plan import PLAN_FIELDS, SEARCHED, ParallelPlan
from workloads.training.plan.stages import check_model
from workloads.training.usual_plan import (
    BATCH_TOKENS,
    DEFAULT_SEQ,
    Choice,
    RunnerUp,
    complete,
    recomputation,
    tied,
)

When = Literal["needed", "compared", "always"]
"""Conditions under which a plan without stated degrees is searched."""
LONG_SEQ = 32_768
"""Longest sequence of which several at once are searched at first."""
QUICK: Mapping[str, Any] = {"order": ("tp", "cp", "dp", "pp")}
"""Fields that are fixed at first, so that a search takes seconds."""
QUICK_EXPERTS: Mapping[str, Any] = {**QUICK, "etp": 1, "microbatch": 1}
"""The same for models with experts, of which there are ten times as many plans."""
NAMED = 6  # plans whose order is known
COMPARED_CHIPS = 4096
"""Most chips on which a default plan that fits is compared with a searched one: on more, the search
takes longer than the answer."""
WORTH_NAMING = 1.1
"""Least ratio of the default plan's time to the best one's at which the better one is named."""


def usual_or_searched(
    stated: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    *,
    search: When = "needed",
    watch: Watch = unwatched,
    **size: int | None,
) -> tuple[ParallelPlan, Choice | None]:
    """Return the plan of a step without stated degrees, and the search for it if there was one."""
    # The plan is data parallel over all chips if that likely fits in memory, and not in a sparing
    # stack alone, and else the best of a search.
    # ``stated``: fields of a plan, without degrees; None counts as not stated. ``search``
    # ("needed", "compared", "always"): whether a plan is searched where the data-parallel one fits
    # as well: never; to compare the two, on up to ``COMPARED_CHIPS`` chips, in which case the
    # search is returned if the best is shorter by ``WORTH_NAMING``; or to take the best. ``size``:
    # ``lnc`` and ``chips`` as ``complete`` takes them.
    if cluster.chip and stated.get("precision"):
        check_precision(stated["precision"], cluster.chip, cluster.numbers, TRAINING, "train")
    usual = None if search == "always" else _usual(stated, model, cluster, size)
    if usual is None:
        choice = searched_plan(stated, model, cluster, watch=watch, **size)
        return choice.best, choice
    if search == "needed" or (size.get("chips") or cluster.chips) > COMPARED_CHIPS:
        return usual, None
    sizes = {"global_batch": usual.global_batch, "seq": usual.seq}
    try:
        choice = searched_plan({**stated, **sizes}, model, cluster, watch=watch, **size)
    except InputError:
        return usual, None  # a field that only the default can have, such as an idle one
    default_s, best_s = estimate(model, cluster, [usual, choice.best]).tolist()
    ratio = default_s / best_s
    return usual, replace(choice, default_ratio=ratio) if ratio >= WORTH_NAMING else None


def _usual(
    stated: Mapping[str, Any], model: Model, cluster: Cluster, size: Mapping[str, int | None]
) -> ParallelPlan | None:
    """Return the default plan; None if it does not divide the batch or likely fit in memory."""
    try:
        usual = complete(stated, model, cluster, **size)
        on_stack = framework_of(usual, cluster).on(cluster, model)
    except InputError:
        return None  # the search finds another plan, or says what is wrong
    return usual if likely(model, usual, on_stack.numbers, cluster.chip).fits else None


def searched_plan(
    stated: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    *,
    watch: Watch = unwatched,
    **size: int | None,
) -> Choice:
    """Return the plan with the shortest estimated step among those that fit in memory."""
    # Stated fields are kept, and those that the framework sets if it is named. No step is simulated
    # for the choice: on half a million chips one simulation takes as long as all estimates, and the
    # answer needs one of its own anyway. Unless stated, a step has a sequence a chip and at most
    # ``BATCH_TOKENS``.
    fields = {name: value for name, value in stated.items() if value not in (None, "", ())}
    assumed = tuple(name for name in PLAN_FIELDS if name not in (*fields, *SEARCHED))
    stack = framework(framework_text(fields.get("framework", ""), cluster, fields))
    named = not fields.get("framework", ":").startswith(":")
    assumed += () if named or "framework" in assumed else ("framework",)  # settings name none
    seq = fields.setdefault("seq", min(DEFAULT_SEQ, model.positions or DEFAULT_SEQ))
    batch = fields.pop("global_batch", usual_batch(size.get("chips") or cluster.chips, seq))
    usual = {name: value for name, value in stack.plan.items() if named or name not in SEARCHED}
    # A framework that nobody named gives way to another where it runs none of the plans.
    text = stack.text if named else fields.get("framework", "")
    wide = recomputation({**usual, **fields, "framework": text}, stack)
    try:
        quick = QUICK_EXPERTS if model.experts else QUICK
        quick = {**quick, **({"microbatch": 1} if seq > LONG_SEQ else {})}
        # Shorter sequences leave too little to each of two ranks, and no plan cuts them.
        quick |= {"cp": 1} if seq < 2 * LEAST_TOKENS else {}
        choice = _best(model, cluster, batch, {**quick, **wide}, size, watch)
    except InputError:
        choice = _best(model, cluster, batch, wide, size, watch)
    return replace(choice, best=replace(choice.best, assumed=assumed), stated=frozenset(stated))


def usual_batch(chips: int, seq: int) -> int:
    """Return the sequences of a step where none are stated: one a chip, halved where too many."""
    batch = chips
    while batch * seq > BATCH_TOKENS and batch % 2 == 0:
        batch //= 2
    return batch


def _best(
    model: Model,
    cluster: Cluster,
    batch: int,
    kept: Mapping[str, Any],
    size: Mapping[str, int | None],
    watch: Watch,
) -> Choice:
    """Return the best plans by their estimates among those with the fields that are kept."""
    listed = candidates(model, cluster, batch, stated=kept, spared=set(kept), **size)
    plans = _roomy(listed, set(kept), watch)
    seconds = best_estimates(model, cluster, plans, NAMED, watch)
    best, *others = np.argsort(seconds, kind="stable")[:NAMED].tolist()
    after = [(plans[row], float(seconds[row] / seconds[best])) for row in others]
    return Choice(
        listed.considered,
        plans[best],
        tuple(
            RunnerUp(plan, ratio, tied(model, cluster, plans[best], plan, ratio))
            for plan, ratio in after
        ),
    )


def _roomy(listed: Candidates, settled: Collection[str], watch: Watch) -> list[ParallelPlan]:
    """Return the plans that leave ``FREE`` of a rank's memory; those that fit where none does."""
    model, cluster = listed.model, listed.cluster
    try:
        roomy = fit(listed, settled, watch, margin=FREE)
    except InputError:
        roomy = fit(listed, settled, watch)
    plans = [listed.plans[row] for row in np.flatnonzero(roomy.fits).tolist()]
    # If the first is only possible with a sparing stack, all of them are.
    if likely(model, plans[0], cluster.numbers, cluster.chip).total > roomy.capacity_bytes:
        fits = fit(listed, settled, watch).fits
        plans = [listed.plans[row] for row in np.flatnonzero(fits).tolist()]
    return plans


# Neighbours: plans one change away that fit, and how long their steps take beside the plan's. Of a
# plan that runs, fields that nobody stated are varied by :mod:`workloads.training.usual_plan`, and
# a whole search changes all degrees at once; neighbours say what a user's own choice costs, field
# by field.

VARIED = ("recompute", "zero", "sequence_parallel")
"""Fields whose other values are shown already where nobody stated them."""


def faster_neighbour(
    model: Model, plan: ParallelPlan, cluster: Cluster
) -> tuple[ParallelPlan, float] | None:
    """Return the fastest neighbour, and its estimate over the plan's, if it saves a tenth."""
    # None where the plan does not fill the cluster, and on more than ``COMPARED_CHIPS`` chips,
    # where estimates take long. ``cluster``: without the numbers of the plan's framework.
    if plan.ranks != cluster.chips * plan.ranks_per_chip or cluster.chips > COMPARED_CHIPS:
        return None
    changed = (_changed(plan, changes, model, cluster) for changes in _single_changes(plan))
    plans = [plan, *(other for other in changed if other is not None)]
    seconds = estimate(model, cluster, plans)
    best = int(np.argmin(seconds))
    saves = seconds[best] * WORTH_NAMING <= seconds[0]
    return (plans[best], float(seconds[best] / seconds[0])) if saves else None


def _changed(
    plan: ParallelPlan, changes: dict[str, Any], model: Model, cluster: Cluster
) -> ParallelPlan | None:
    """Plan with changes; None for one that contradicts itself or is likely not to fit."""
    try:
        other = replace(plan, **changes)
        check_model(other, model)
        on_stack = framework_of(other, cluster).on(cluster, model)
    except InputError:
        return None
    needed = worst(model, other, on_stack.numbers, cluster.chip)
    return other if other != plan and needed.fits and not needed.tight else None


def _single_changes(plan: ParallelPlan) -> Iterator[dict[str, Any]]:
    """Yield changes of one field, or of a degree with that of the replicas."""
    stated = [name for name in VARIED if name not in plan.assumed]
    if "recompute" in stated and plan.recompute != "none":
        yield {"recompute": "none", "recompute_every": 1}
    if "recompute" in stated and plan.recompute == "full":
        yield {"recompute": "selective", "recompute_every": 1}
    if "zero" in stated and plan.zero != 1:
        yield {"zero": 1}
    if "sequence_parallel" in stated and plan.tp > 1:
        yield {"sequence_parallel": not plan.sequence_parallel}
    yield {"microbatch": 2 * plan.microbatch}
    if plan.microbatch % 2 == 0:
        yield {"microbatch": plan.microbatch // 2}
    yield from ({"order": order} for order in ORDERS)
    for axis in ("tp", "pp", "cp"):
        degree = getattr(plan, axis)
        if degree % 2 == 0 and not (axis == "pp" and plan.stage_layers):
            halved = {axis: degree // 2, "dp": 2 * plan.dp}
            yield (
                {**halved, "vpp": 1, "schedule": ParallelPlan().schedule}
                if halved.get("pp") == 1
                else halved
            )
