"""Plans of a search as rows of a table, with times, memory, breakdown and interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reports.formatting import values_of
from workloads.confidence.interval import Interval
from workloads.training.memory.memory import Memory
from workloads.training.program.breakdown import PARTS
from workloads.training.usual_plan import differing, fields_of, hull, tied, training_interval

if TYPE_CHECKING:
    import pandas as pd

    from workloads.search.search import Finalist, Search


def plan_interval(search: Search, finalist: Finalist) -> Interval:
    """Interval of the time of one plan."""
    answer = search.model, finalist.plan, search.cluster, finalist.iteration_s
    left_open, share = hull(search.first.alternatives), max(finalist.mfu, finalist.hfu)
    return training_interval(*answer, left_open, share)


def ranked(search: Search, top: int) -> list[dict[str, Any]]:
    """Return the best plans as rows, each with its interval and whether it ties with the first."""
    return [row(search, each, at) for at, each in enumerate(search.finalists[:top], start=1)]


def own_row(search: Search) -> dict[str, Any] | None:
    """Return the user's own plan compared with the first: loss, differences, best single change."""
    mine, best = search.own_plan, search.finalists[0]
    if mine is None:
        return None
    plan, other = mine.finalist.plan, differing(best.plan, mine.finalist.plan)
    change = differing(mine.changed.plan, plan) if mine.changed else {}
    return {
        **row(search, mine.finalist, mine.rank),
        "among": len(search.plans),
        "loss": mine.finalist.iteration_s / best.iteration_s - 1,
        "differs": {name: {"own": fields_of(plan)[name], "first": other[name]} for name in other},
        "change": change,
        "changed_s": mine.changed.iteration_s if mine.changed else None,
    }


def row(search: Search, finalist: Finalist, place: int) -> dict[str, Any]:
    """Return one plan as a row: place, fields, times, memory, breakdown, interval and tie."""
    # Plans of one search share the errors of machine, model and kernels: their ratio is more
    # certain than either time, and a tie is a ratio within that error.
    plan, best, ends = finalist.plan, search.finalists[0], plan_interval(search, finalist)
    ratio = finalist.iteration_s / best.iteration_s
    return {
        "rank": place,
        **fields_of(plan),
        "microbatches": plan.microbatches,
        **values_of(finalist, "estimate_rank", "estimate_s", "iteration_s", "estimate_error"),
        **values_of(finalist, "tokens_per_s", "mfu", "hfu"),
        **values_of(finalist.cost, "cost_usd", "energy_joules", "usd_per_million_tokens"),
        "memory_bytes": memory_document(finalist.memory),
        "tight": finalist.memory.tight,
        "breakdown_s": dict(finalist.breakdown_s),
        **values_of(ends, "low", "high"),
        "tied": tied(search.model, search.cluster, best.plan, plan, ratio),
    }


def memory_document(memory: Memory) -> dict[str, int]:
    """Return the parts of a rank's memory, their sum and what the rank has [B]."""
    return {**memory.parts(), "total": memory.total, "capacity": memory.capacity}


def estimates(search: Search) -> pd.DataFrame:
    """Return a table of all plans that fit, the best estimate first: fields, time and memory."""
    import pandas as pd

    rows = pd.DataFrame([fields_of(plan) for plan in search.plans])
    rows["estimate_s"], rows["memory_total_bytes"] = search.estimate_s, search.total_bytes
    return rows.sort_values(["estimate_s", "memory_total_bytes"], kind="stable")


COMPARED = ("among", "loss", "differs", "change", "changed_s")
"""Keys of the user's own plan that others do not have."""


def frame(search: Search, top: int) -> pd.DataFrame:
    """Return the ranked plans as a table, with breakdown and memory in columns of their own."""
    import pandas as pd

    rows, mine = [], own_row(search)
    for row in [*ranked(search, top), *([{**mine, "own": True}] if mine else [])]:
        memory, parts = row.pop("memory_bytes"), row.pop("breakdown_s")
        row |= {f"memory_{name}_bytes": size for name, size in memory.items()}
        row = {name: value for name, value in row.items() if name not in COMPARED}
        rows.append(row | {f"{part}_s": seconds for part, seconds in parts.items()})
    return pd.DataFrame(rows)


BRIEF = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "sequence_parallel", "schedule",
    "recompute", "order", "overlap", "global_batch", "seq", "estimate_s", "iteration_s",
    "low_s", "high_s", "mfu", "memory_total_bytes", *(f"{part}_s" for part in PARTS),
)  # fmt: skip


def brief(search: Search, top: int) -> pd.DataFrame:
    """Return the most important columns of :func:`frame`, after ``model`` and ``cluster``."""
    rows = frame(search, top).rename(columns={"low": "low_s", "high": "high_s"})[[*BRIEF]]
    rows.insert(0, "cluster", search.cluster.name)
    rows.insert(0, "model", search.model.name)
    return rows
