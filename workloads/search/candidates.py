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
ZERO = (0, 1)
"""What is tried of ZeRO unasked; the estimate knows no gathering within a pass."""
SCHEDULES = ("1f1b",)
"""Schedules that are tried unasked: GPipe has the same bubble and holds more activations, and the
others are not estimated."""
USUAL = {"overlap": "all", "cp": 1, "ep": 1, "vpp": 1}
"""Fields that are not varied, and what they are unless stated."""
ALONE = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "sequence_parallel", "schedule",
    "recompute",
)  # fmt: skip
"""Fields that can be wrong by themselves."""
SHARED = ("global_batch", "seq", "precision", "overlap", "attention", "ranks_per_chip")
"""Fields that are the same in all candidates."""
VARIED = ("microbatch", "zero", "schedule", "recompute", "sequence_parallel", "order")
"""Fields that are varied for the same degrees."""

Stated = Mapping[str, Any]


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


@dataclass(frozen=True)
class Degrees:
    """How one replica of a model is divided, and how many replicas fill the cluster.

    Attributes
    ----------
    tp, pp, dp : int
    sequence_parallel : tuple of bool
        What the model allows.
    """

    tp: int
    pp: int
    dp: int
    sequence_parallel: tuple[bool, ...]


def candidates(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    stated: Stated | None = None,
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
        Fields of :class:`~workloads.training.plan.ParallelPlan` that are not to be varied; None
        counts as not stated.
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
    degrees = _degrees(model, cluster, base, known)
    found = tuple(plan for one in degrees for plan in _variants(base, one, known))
    if not found:
        raise InputError(_no_batch(base, degrees, known))
    return Candidates(model, cluster, found)


def _base(
    model: Model, cluster: Cluster, global_batch: int, known: Stated, lnc: int | None
) -> ParallelPlan:
    """What all candidates share; refuses a stated field that is wrong whatever the others are."""
    alone = {name: known[name] for name in ALONE if name in known}
    once = _positive(known.get("dp")) * _positive(known.get("microbatch"))
    ParallelPlan(**{**alone, "order": _order(known) or ORDER, "global_batch": once})
    # A replica of one rank on every rank of the cluster is a plan of any cluster.
    sizes = {name: known[name] for name in ("seq", "ranks_per_chip") if name in known}
    usual = complete(sizes, model, cluster, lnc=lnc)
    base = ParallelPlan(
        seq=usual.seq,
        ranks_per_chip=usual.ranks_per_chip,
        global_batch=global_batch,
        overlap=known.get("overlap", USUAL["overlap"]),
        sequence_parallel=False,
        **{name: known.get(name, USUAL[name]) for name in ("cp", "ep", "vpp")},
        **{name: known[name] for name in ("attention", "precision") if name in known},
    )
    check_model(base, model)
    return base


def _positive(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _order(known: Stated) -> tuple[str, ...] | None:
    stated = known.get("order")
    return tuple(stated.split("-")) if isinstance(stated, str) else stated


def _degrees(
    model: Model, cluster: Cluster, base: ParallelPlan, known: Stated
) -> tuple[Degrees, ...]:
    """All tp × pp × dp that divide the model and make up the cluster's ranks."""
    ranks = cluster.chips * base.ranks_per_chip
    inner = ranks // base.cp if ranks % base.cp == 0 else 0
    sides = [
        [
            d
            for d in divisors(inner)
            if known.get(name, d) == d and _flags(model, base, known, name, d)
        ]
        for name in ("tp", "pp")
    ]
    found = [
        Degrees(tp, pp, inner // (tp * pp), _flags(model, base, known, "tp", tp))
        for tp, pp in product(*sides)
        if inner % (tp * pp) == 0
    ]
    wanted = tuple(one for one in found if one.dp == known.get("dp", one.dp))
    if not wanted:
        raise InputError(_no_degrees(model, cluster, base, known))
    return wanted


def _flags(
    model: Model, base: ParallelPlan, known: Stated, name: str, degree: int
) -> tuple[bool, ...]:
    """With and without sequence parallelism, as far as a degree divides the model so."""
    stated = known.get("sequence_parallel")
    kinds = (True, False) if stated is None else (bool(stated),)
    if name != "tp" or degree == 1:
        kinds = (False,)
    return tuple(kind for kind in kinds if not _mistake(model, base, name, degree, kind))


def _mistake(model: Model, base: ParallelPlan, name: str, degree: int, split: bool) -> str:
    """What the trainer says to a degree; nothing where the model can be divided so."""
    try:
        how = {name: degree, "seq": base.seq, "sequence_parallel": split}
        check_model(ParallelPlan(vpp=base.vpp, cp=base.cp, ep=base.ep, **how), model)  # type: ignore[arg-type]
    except InputError as mistake:
        return str(mistake)
    return ""


def divisors(size: int) -> list[int]:
    """All divisors of a number, ascending; none of 0.

    Examples
    --------
    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, int(size**0.5) + 1) if size % part == 0]
    return sorted({*low, *(size // part for part in low)})


def _variants(base: ParallelPlan, one: Degrees, known: Stated) -> Iterator[ParallelPlan]:
    """All plans with these degrees."""
    if base.global_batch % one.dp:
        return
    sizes = divisors(base.global_batch // one.dp)
    order = _order(known)
    choices = (
        [size for size in sizes if known.get("microbatch", size) == size],
        _choices(known, "zero", ZERO if one.dp > 1 else (1,)),
        _choices(known, "schedule", SCHEDULES if one.pp > 1 else ("1f1b",)),
        _choices(known, "recompute", _recompute(base)),
        one.sequence_parallel,
        [order] if order else ORDERS if one.dp > 1 and one.pp > 1 else ORDERS[:1],
    )
    same = {name: getattr(base, name) for name in (*SHARED, "cp", "ep", "vpp")}
    same |= {"tp": one.tp, "pp": one.pp, "dp": one.dp}
    for values in product(*choices):
        yield ParallelPlan(**{**same, **dict(zip(VARIED, values, strict=True))})


def _choices(known: Stated, name: str, choices: Sequence[Any]) -> Sequence[Any]:
    return [known[name]] if name in known else choices


def _recompute(base: ParallelPlan) -> Sequence[Any]:
    """A fused kernel keeps no scores, so there is nothing selective to compute again."""
    useless = "none" if base.attention == "fused" else None
    return [kind for kind in CHOICES["recompute"] if kind != useless]


def _no_degrees(model: Model, cluster: Cluster, base: ParallelPlan, known: Stated) -> str:
    """Why no degrees are left: what the trainer says of a stated one, or that they do not fill."""
    split = bool(known.get("sequence_parallel", False))
    for name in ("tp", "pp"):
        said = _mistake(model, base, name, known.get(name, 1), split and name == "tp")
        if said:
            return said
    ranks = cluster.chips * base.ranks_per_chip
    stated = " × ".join(
        f"{name} {known[name]}" for name in ("tp", "pp", "dp", "cp") if name in known
    )
    some = divisors(ranks)
    shown = ", ".join(map(str, some[:12])) + " …" * (len(some) > 12)
    return (
        f"{stated} cannot be completed to the {ranks:,} ranks of {cluster.name} with degrees that "
        f"divide {model.name}. Use divisors of {ranks:,} ({shown}) or state fewer degrees."
    )


def _no_batch(base: ParallelPlan, degrees: Sequence[Degrees], known: Stated) -> str:
    """Which batch would do, with the fewest replicas that the cluster can hold."""
    fewest, each = min(one.dp for one in degrees), known.get("microbatch", 1)
    once = fewest * each
    below = base.global_batch // once * once
    near = f"{below:,} or {below + once:,}" if below else f"{once:,}"
    return (
        f"global batch {base.global_batch:,} is not a multiple of dp × microbatch for any plan: "
        f"the fewest replicas are dp {fewest:,} with microbatch {each} = {once:,}. Use {near}."
    )
