"""Choice of a plan for a step without stated degrees of parallelism: the best by its estimate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search.candidates import Candidates, candidates
from workloads.search.estimate import best_estimates, estimate
from workloads.search.fit import fit
from workloads.training.alternatives import BATCH_TOKENS, Choice, RunnerUp, tied
from workloads.training.frameworks.framework import framework, framework_of, framework_text
from workloads.training.memory.memory import likely
from workloads.training.plan.fields import SEARCHED
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.usual_plan import DEFAULT_SEQ, complete, recomputation

When = Literal["needed", "compared", "always"]
"""Conditions under which a plan without stated degrees is searched."""
LONG_SEQ = 32_768
"""Longest sequence that is searched without context parallelism at first; longer ones are searched
with it, and one at once."""
QUICK: Mapping[str, Any] = {"order": ("tp", "cp", "dp", "pp")}
"""Fields that are fixed at first, so that a search takes seconds."""
QUICK_EXPERTS: Mapping[str, Any] = {**QUICK, "etp": 1, "microbatch": 1}
"""The same for models with experts, of which there are ten times as many plans."""
FREE = 0.05  # share of a rank's memory that the plan leaves free if one does: stacks differ by more
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
    lnc: int | None = None,
    search: When = "needed",
    watch: Watch = unwatched,
) -> tuple[ParallelPlan, Choice | None]:
    """Return the plan of a step without stated degrees, and the search for it if there was one."""
    # The plan is data parallel over all chips if that likely fits in memory, and not in a sparing
    # stack alone, and else the best of a search.
    # ``stated``: fields of a plan, without degrees; None counts as not stated. ``search``
    # ("needed", "compared", "always"): whether a plan is searched where the data-parallel one fits
    # as well: never; to compare the two, on up to ``COMPARED_CHIPS`` chips, in which case the
    # search is returned if the best is shorter by ``WORTH_NAMING``; or to take the best.
    usual = None if search == "always" else _usual(stated, model, cluster, lnc)
    if usual is None:
        choice = searched_plan(stated, model, cluster, lnc=lnc, watch=watch)
        return choice.best, choice
    if search == "needed" or cluster.chips > COMPARED_CHIPS:
        return usual, None
    sizes = {"global_batch": usual.global_batch, "seq": usual.seq}
    try:
        choice = searched_plan({**stated, **sizes}, model, cluster, lnc=lnc, watch=watch)
    except InputError:
        return usual, None  # a field that only the default can have, such as an idle one
    default_s, best_s = estimate(model, cluster, [usual, choice.best]).tolist()
    ratio = default_s / best_s
    return usual, replace(choice, default_ratio=ratio) if ratio >= WORTH_NAMING else None


def _usual(
    stated: Mapping[str, Any], model: Model, cluster: Cluster, lnc: int | None
) -> ParallelPlan | None:
    """Return the default plan; None if it does not divide the batch or likely fit in memory."""
    try:
        usual = complete(stated, model, cluster, lnc=lnc)
        on_stack = framework_of(usual, cluster).on(cluster, model)
    except InputError:
        return None  # the search finds another plan, or says what is wrong
    catalogue = on_stack.catalogue or shipped_catalogue()
    return usual if likely(model, usual, catalogue, cluster.chip).fits else None


def searched_plan(
    stated: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    *,
    lnc: int | None = None,
    watch: Watch = unwatched,
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
    batch = fields.pop("global_batch", usual_batch(cluster.chips, seq))
    usual = {name: value for name, value in stack.plan.items() if named or name not in SEARCHED}
    wide = recomputation({**usual, **fields, "framework": stack.text}, stack)
    try:
        quick = QUICK_EXPERTS if model.experts else QUICK
        quick = {**quick, **({"microbatch": 1} if seq > LONG_SEQ else {"cp": 1})}
        choice = _best(model, cluster, batch, {**quick, **wide}, lnc, watch)
    except InputError:
        choice = _best(model, cluster, batch, wide, lnc, watch)
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
    lnc: int | None,
    watch: Watch,
) -> Choice:
    """Return the best plans by their estimates among those with the fields that are kept."""
    listed = candidates(model, cluster, batch, stated=kept, spared=set(kept), lnc=lnc)
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
    catalogue = cluster.catalogue or shipped_catalogue()
    try:
        roomy = fit(listed, settled, watch, margin=FREE)
    except InputError:
        roomy = fit(listed, settled, watch)
    plans = [listed.plans[row] for row in np.flatnonzero(roomy.fits).tolist()]
    # If the first is only possible with a sparing stack, all of them are.
    if likely(model, plans[0], catalogue, cluster.chip).total > roomy.capacity_bytes:
        fits = fit(listed, settled, watch).fits
        plans = [listed.plans[row] for row in np.flatnonzero(fits).tolist()]
    return plans
