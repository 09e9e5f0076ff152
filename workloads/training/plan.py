"""The ParallelPlan: how an iteration is divided among ranks, checked before anything is built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from topologies.errors import InputError, suggestion
from workloads.model import Model

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "full"]
Overlap = Literal["none", "dp", "all"]

CHOICES = {
    "schedule": ("gpipe", "1f1b"),
    "recompute": ("none", "selective", "full"),
    "overlap": ("none", "dp", "all"),
    "precision": ("bf16", "fp8"),
    "attention": ("fused", "unfused"),
    "zero": (0, 1),
}
"""What each field may be."""

LATER = {
    "schedule": ("interleaved", "zero-bubble"),
    "zero": (2, 3),
}
"""Known to the field and not built yet: refused as such."""

ORDER = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True)
class ParallelPlan:
    """Degrees of parallelism, the pipeline, memory savings and overlap.

    Attributes
    ----------
    tp, pp, dp, cp, ep : int
        Tensor, pipeline, data, context, expert parallel degree.
    vpp : int
        Model chunks of one pipeline stage.
    microbatch : int
        Sequences that one rank works on at once.
    global_batch : int
        Sequences of one optimizer step.
    seq : int
        Tokens of a sequence.
    zero : int
        What is sharded over dp: 0 nothing, 1 the optimizer's state (arXiv 1910.02054).
    sequence_parallel : bool
        Whether norms and residuals are split along the sequence over tp (arXiv 2205.05198).
    schedule : {"gpipe", "1f1b"}
    recompute : {"none", "selective", "full"}
        ``selective``: the attention core; ``full``: whole layers.
    precision : {"bf16", "fp8"}
        Of the inputs of the layers' matrix products.
    overlap : {"none", "dp", "all"}
        Which communication runs beside compute: none, that of gradients and parameters, or also
        that of tensor and pipeline parallelism where the data allow it.
    attention : {"fused", "unfused"}
        One kernel that keeps no scores, or one for each step.
    ranks_per_chip : int
        Ranks (logical cores) of one chip.
    order : tuple of str
        Axes from the fastest changing rank number to the slowest.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    microbatch: int = 1
    global_batch: int = 1
    seq: int = 4096
    zero: int = 1
    sequence_parallel: bool = True
    schedule: Schedule = "1f1b"
    recompute: Recompute = "selective"
    precision: str = "bf16"
    overlap: Overlap = "none"
    attention: str = "fused"
    ranks_per_chip: int = 1
    order: tuple[str, ...] = ORDER

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "global_batch", "seq"):
            _positive(name, getattr(self, name))
        _positive("ranks_per_chip", self.ranks_per_chip)
        for name, known in CHOICES.items():
            _choice(name, getattr(self, name), known)
        for name in ("cp", "ep", "vpp"):
            if getattr(self, name) > 1:
                raise InputError(
                    f"{name} {getattr(self, name)} is not supported yet. Use {name} 1."
                )
        if sorted(self.order) != sorted(ORDER):
            raise InputError(
                f"rank order {'-'.join(self.order)} does not name each of {', '.join(ORDER)} "
                f"once. Write it as {'-'.join(ORDER)}."
            )
        self._check_batch()

    def _check_batch(self) -> None:
        once = self.dp * self.microbatch
        if self.global_batch % once:
            below = self.global_batch // once * once
            raise InputError(
                f"global batch {self.global_batch} is not a multiple of dp {self.dp} × microbatch "
                f"{self.microbatch} = {once}. Use {below or once} or {below + once}."
            )

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def microbatches(self) -> int:
        """Microbatches of one iteration on each rank."""
        return self.global_batch // (self.dp * self.microbatch)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch * self.seq

    @property
    def sp(self) -> int:
        """Parts that norms and residuals are split into along the sequence."""
        return self.tp if self.sequence_parallel else 1


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def _choice(name: str, value: object, known: tuple[object, ...]) -> None:
    if value in LATER.get(name, ()):
        built = ", ".join(map(str, known))
        raise InputError(f"{name} {value} is not supported yet. Use one of {built}.")
    if value not in known:
        texts = [str(one) for one in known]
        near = suggestion(str(value), texts)
        raise InputError(f"{name} is {value!r}; it must be one of {', '.join(texts)}.{near}")


def check_model(plan: ParallelPlan, model: Model) -> None:
    """Refuse a plan that does not divide the model.

    Raises
    ------
    InputError
        With the numbers and the nearest that works.
    """
    if model.experts or model.latent:
        what = "experts" if model.experts else "latent attention"
        raise InputError(f"{model.name} has {what}, which training does not support yet.")
    _check_tp(plan, model)
    stages = plan.pp * plan.vpp
    if stages > model.layers:
        raise InputError(
            f"pp {plan.pp} × vpp {plan.vpp} = {stages} stages, but {model.name} has "
            f"{model.layers} layers. Use pp {_nearest(plan.pp, model.layers)} or less."
        )
    _divides("pp × vpp", stages, "layers", model.layers, model)


def _check_tp(plan: ParallelPlan, model: Model) -> None:
    """Refuse a tensor parallel degree that leaves a remainder anywhere."""
    sizes = {"attention heads": model.heads, "feed-forward columns": model.ffn}
    if plan.sequence_parallel:
        sizes["tokens of a sequence (sequence parallel)"] = plan.seq
    common = math.gcd(*sizes.values())
    near = _nearest(plan.tp, common, model.kv_heads)
    for what, size in sizes.items():
        if size % plan.tp:
            raise InputError(
                f"{size:,} {what} of {model.name} are not divisible by tp {plan.tp}. Use tp {near}."
            )
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        raise InputError(
            f"tp {plan.tp} neither divides the {model.kv_heads} key-value heads of {model.name} "
            f"nor is a multiple of them. Use tp {near}."
        )


def _divides(name: str, degree: int, what: str, size: int, model: Model) -> None:
    if size % degree:
        raise InputError(
            f"{size:,} {what} of {model.name} are not divisible by {name} {degree}. "
            f"Use {name} {_nearest(degree, size)}."
        )


def _nearest(degree: int, size: int, heads: int = 1) -> int:
    """Divisor of a size nearest to a degree, the smaller of two; it divides some heads or they it.

    Examples
    --------
    >>> _nearest(3, 8), _nearest(6, 24, 8)
    (2, 4)
    """
    divisors = [d for d in range(1, min(size, 4 * degree) + 1) if size % d == 0]
    fitting = [d for d in divisors if heads % d == 0 or d % heads == 0]
    return min(fitting, key=lambda d: abs(d - degree))


def check_ranks(plan: ParallelPlan, chips: int) -> None:
    """Refuse a plan whose degrees do not multiply to the ranks of the cluster.

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_ranks(ParallelPlan(dp=8, tp=4, pp=3, global_batch=8), 64)
    Traceback (most recent call last):
    topologies.errors.InputError: dp 8 × tp 4 × pp 3 = 96 ranks, but the cluster has 64 chips. \
Reduce dp to 5 or use 96 chips.
    """
    room = chips * plan.ranks_per_chip
    if plan.ranks == room:
        return
    each = f" of {plan.ranks_per_chip} ranks" if plan.ranks_per_chip > 1 else ""
    degrees = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp}" + (f" × cp {plan.cp}" * (plan.cp > 1))
    fits = room * plan.dp // plan.ranks
    wanted = -(-plan.ranks // plan.ranks_per_chip)
    verb = "Reduce" if plan.ranks > room else "Raise"
    remedy = f"{verb} dp to {fits}" if fits and fits != plan.dp else "Change tp or pp"
    raise InputError(
        f"{degrees} = {plan.ranks:,} ranks, but the cluster has {chips:,} chips{each}. "
        f"{remedy} or use {wanted:,} chips."
    )


def filling_dp(tp: int, pp: int, cp: int, chips: int, ranks_per_chip: int) -> int:
    """Data parallel degree that fills a cluster.

    Raises
    ------
    InputError
        When the other degrees do not divide the cluster.
    """
    room, replica = chips * ranks_per_chip, tp * pp * cp
    if replica > room or room % replica:
        near = _nearest(replica, room)
        raise InputError(
            f"tp {tp} × pp {pp} × cp {cp} = {replica:,} ranks of one replica do not divide the "
            f"{room:,} ranks of the cluster. Use a product of {near:,}, or state dp."
        )
    return room // replica
