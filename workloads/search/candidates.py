"""Candidates: every plan that divides a model, a batch and a cluster, each written once.

What makes no difference is not varied: a plan without tensor parallelism has no sequence
parallelism, one without pipeline stages no pipeline schedule, one with a single replica no
sharding over replicas and no order of axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from topologies.clusters import Cluster
from topologies.errors import InputError
from workloads.model import Model
from workloads.training.plan import CHOICES, ORDER, ParallelPlan, check_model
from workloads.training.plan_options import complete

ORDERS = (ORDER, ("tp", "cp", "pp", "dp"))
"""Orders of the axes that are tried: replicas or pipeline stages next to each other."""
DOMINATED = ("gpipe",)
"""Schedules that are not tried unasked: 1F1B has the same bubble and holds fewer activations."""
USUAL = {"overlap": "all", "cp": 1, "ep": 1, "vpp": 1}
"""Fields that are not varied, and what they are unless stated."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans to choose from.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    plans : tuple of ParallelPlan
    """

    model: Model
    cluster: Cluster
    plans: tuple[ParallelPlan, ...]

    def __len__(self) -> int:
        return len(self.plans)


def candidates(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    stated: Mapping[str, Any] | None = None,
    lnc: int | None = None,
) -> Candidates:
    """Return every plan that uses all of a cluster and divides the model and the batch.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    global_batch : int
        Sequences of one optimizer step.
    stated : mapping, optional
        Fields of :class:`~workloads.training.plan.ParallelPlan` that are not to be varied.
    lnc : int, optional
        Physical cores of a logical one, which says how many ranks a chip has.

    Raises
    ------
    InputError
        For a field that is wrong by itself, and when no plan divides everything.

    Examples
    --------
    >>> from topologies.machines import cluster
    >>> from workloads.huggingface import named
    >>> found = candidates(named("llama-3.1-8b"), cluster("trn2.48xlarge"), 64)
    >>> sorted({plan.tp for plan in found.plans})
    [1, 2, 4, 8, 16]
    """
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    known = {name: value for name, value in (stated or {}).items() if value is not None}
    base = _base(model, cluster, global_batch, known, lnc)
    ranks = cluster.chips * base.ranks_per_chip
    replicas = list(_replicas(model, base, known, ranks))
    found = tuple(plan for one in replicas for plan in _variants(one, known, ranks))
    if not found:
        raise InputError(_nothing_divides(model, cluster, base, replicas, ranks))
    return Candidates(model, cluster, found)


def _base(
    model: Model, cluster: Cluster, global_batch: int, known: Mapping[str, Any], lnc: int | None
) -> ParallelPlan:
    """What all candidates share; refuses a stated field that is wrong whatever the others are."""
    alone = {name: known[name] for name in ALONE if name in known}
    once = _positive(known.get("dp")) * _positive(known.get("microbatch"))
    ParallelPlan(**{**alone, "order": _order(known) or ORDER, "global_batch": once})
    # A replica of one rank on every rank of the cluster is a plan of any cluster.
    per_chip = {name: known[name] for name in ("seq", "ranks_per_chip") if name in known}
    usual = complete(per_chip, model, cluster, lnc=lnc)
    return ParallelPlan(
        seq=usual.seq,
        ranks_per_chip=usual.ranks_per_chip,
        global_batch=global_batch,
        overlap=known.get("overlap", USUAL["overlap"]),
        sequence_parallel=False,
        **{name: known[name] for name in ("attention", "precision") if name in known},
    )


def _order(known: Mapping[str, Any]) -> tuple[str, ...] | None:
    stated = known.get("order")
    return tuple(stated.split("-")) if isinstance(stated, str) else stated


ALONE = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "sequence_parallel", "schedule",
    "recompute",
)  # fmt: skip
"""Fields that can be wrong by themselves."""


def _positive(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


@dataclass(frozen=True)
class _Replica:
    """Degrees of one replica of the model that divide it and the cluster."""

    base: ParallelPlan
    tp: int
    pp: int
    dp: int
    fixed: tuple[tuple[str, int], ...]
    sequence_parallel: tuple[bool, ...]


def _replicas(
    model: Model, base: ParallelPlan, known: Mapping[str, Any], ranks: int
) -> Iterator[_Replica]:
    fixed = {name: known.get(name, USUAL[name]) for name in ("cp", "ep", "vpp")}
    inner = ranks // fixed["cp"] if ranks % fixed["cp"] == 0 else 0
    for tp, pp in product(_degrees(known, "tp", inner), _degrees(known, "pp", inner)):
        if inner % (tp * pp) or known.get("dp", inner // (tp * pp)) != inner // (tp * pp):
            continue
        kinds = _flag(known) if tp > 1 else (False,)
        kinds = tuple(kind for kind in kinds if _divides(model, base, tp, pp, fixed, kind))
        if kinds:
            yield _Replica(base, tp, pp, inner // (tp * pp), tuple(fixed.items()), kinds)


def _divides(
    model: Model, base: ParallelPlan, tp: int, pp: int, fixed: Mapping[str, int], split: bool
) -> bool:
    how = {"tp": tp, "pp": pp, "global_batch": 1, "seq": base.seq, "sequence_parallel": split}
    try:
        check_model(ParallelPlan(**{**fixed, **how}), model)  # type: ignore[arg-type]
    except InputError:
        return False
    return True


def _degrees(known: Mapping[str, Any], name: str, size: int) -> list[int]:
    return [known[name]] if name in known else divisors(size)


def _flag(known: Mapping[str, Any]) -> tuple[bool, ...]:
    stated = known.get("sequence_parallel")
    return (True, False) if stated is None else (bool(stated),)


def divisors(size: int) -> list[int]:
    """All divisors of a number, ascending; none of 0.

    Examples
    --------
    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, int(size**0.5) + 1) if size % part == 0]
    return sorted({*low, *(size // part for part in low)})


def _variants(one: _Replica, known: Mapping[str, Any], ranks: int) -> Iterator[ParallelPlan]:
    """All plans with these degrees."""
    base, batch = one.base, one.base.global_batch
    if batch % one.dp:
        return
    each = batch // one.dp
    microbatches = [size for size in _degrees(known, "microbatch", each) if each % size == 0]
    schedules: Sequence[Any] = [
        name for name in CHOICES["schedule"] if name not in DOMINATED and name != "interleaved"
    ]
    written = _order(known)
    choices = (
        microbatches,
        _choices(known, "zero", CHOICES["zero"], 1, varied=one.dp > 1),
        _choices(known, "schedule", schedules, "1f1b", varied=one.pp > 1),
        _choices(known, "recompute", _recompute(base), "selective", varied=True),
        one.sequence_parallel,
        [written] if written else ORDERS if one.dp > 1 and one.pp > 1 else ORDERS[:1],
    )
    shared = {name: getattr(base, name) for name in SHARED} | dict(one.fixed)
    degrees = {"tp": one.tp, "pp": one.pp, "dp": one.dp}
    for values in product(*choices):
        yield ParallelPlan(**{**shared, **degrees, **dict(zip(VARIED, values, strict=True))})


VARIED = ("microbatch", "zero", "schedule", "recompute", "sequence_parallel", "order")
SHARED = ("global_batch", "seq", "precision", "overlap", "attention", "ranks_per_chip")


def _recompute(base: ParallelPlan) -> Sequence[Any]:
    """A fused kernel keeps no scores, so there is nothing selective to compute again."""
    useless = "none" if base.attention == "fused" else None
    return [kind for kind in CHOICES["recompute"] if kind != useless]


def _choices(
    known: Mapping[str, Any], name: str, choices: Sequence[Any], usual: Any, *, varied: bool
) -> Sequence[Any]:
    if name in known:
        return [known[name]]
    return choices if varied else [usual]


def _nothing_divides(
    model: Model, cluster: Cluster, base: ParallelPlan, replicas: Sequence[_Replica], ranks: int
) -> str:
    what = f"no plan divides {model.name} over the {ranks:,} ranks of {cluster.name}"
    if not replicas:
        return (
            f"{what}: no tp × pp × dp of the degrees that are allowed makes {ranks:,}. "
            "State fewer degrees, or use another number of chips."
        )
    fewest = min(one.dp for one in replicas)
    below = base.global_batch // fewest * fewest
    near = f"{below:,} or {below + fewest:,}" if below else f"{fewest:,}"
    return (
        f"{what} with a global batch of {base.global_batch:,}: a multiple of the data parallel "
        f"degree, {fewest:,} or more, is needed. Use {near}."
    )
