"""Values that each field of a plan may have, whatever the other fields are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Literal

from topologies.errors import EXCERPT, InputError, excerpt, suggestion
from workloads.kernels.precision import CASTS, TRAINING
from workloads.training.plan.schedules.registry import pipeline_schedule

Recompute = Literal["none", "selective", "full"]
Overlap = Literal["none", "dp", "all"]
CpExchange = Literal["ring", "all-gather"]

CHOICES = {
    "recompute": ("none", "selective", "full"),
    "overlap": ("none", "dp", "all"),
    "precision": TRAINING,
    "fp8_recipe": tuple(CASTS),
    "attention": ("fused", "unfused"),
    "zero": (0, 1, 2, 3),
    "cp_exchange": ("ring", "all-gather"),
    "lora_on": ("all", "attention"),
    "train_only": ("", "attention", "mlp", "output"),
    "optimizer": ("adamw", "muon", "adafactor", "sgd"),
    "runtime": ("compiled", "eager", "xla"),
}
"""Allowed values of fields with a fixed list; ``schedule`` may have any name of the registry."""


@cache
def framework_names() -> tuple[str, ...]:
    """Return the names of the shipped frameworks, sorted."""
    folder = files("workloads.training") / "frameworks"
    stems = (entry.name for entry in folder.iterdir())
    return tuple(sorted(stem.removesuffix(".yaml") for stem in stems if stem.endswith(".yaml")))


ORDER = ("tp", "cp", "dp", "pp")  # axes of ranks in their default order, the fastest-changing first
COUNTS = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "global_batch", "seq", "ranks_per_chip",
    "recompute_every",
)  # fmt: skip
"""Fields that are whole numbers of at least 1."""
SEARCHED = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero", "sequence_parallel",
    "schedule", "recompute", "order",
)  # fmt: skip
"""Fields of a plan that a search varies unless they are stated."""
OPTIONAL = ("etp", "bucket_bytes", "lora_rank", "routed_nodes")
"""Fields that are whole numbers, of which 0 stands for the default."""
FLAGS = ("reshard", "sequence_parallel", "fp8_exchange")  # fields that are true or false
MOST_CAPACITY = 1024
"""Largest capacity factor and skew: with it, each of 1,024 experts has room for all tokens."""


def _optional(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value:
        _positive(name, value, most=2**50)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {excerpt(value)}; it must be true or false.")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} is {excerpt(value)}; it must be a text.")


def _schedule(_name: str, value: object) -> None:
    pipeline_schedule(" ".join(str(value).split()))


def _load(name: str, value: object, least: float, kind: str, limits: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {excerpt(value)}; it must be {kind}.")
    if not least <= value <= MOST_CAPACITY:
        raise InputError(
            f"{name} is {excerpt(value)}; it must be {limits} at most {MOST_CAPACITY}."
        )


def _stage_layers(name: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise InputError(f"{name} is {excerpt(value)}; it must be a tuple, such as (9, 7).")
    for number in value:
        _positive(name, number, least=0)


def _order(_name: str, value: object) -> None:
    axes = [str(axis) for axis in value] if isinstance(value, tuple | list) else [excerpt(value)]
    if sorted(axes) != sorted(ORDER):
        raise InputError(
            f"rank order {'-'.join(axes)[:EXCERPT]} does not name each of {', '.join(ORDER)} "
            f"once. Write it as {'-'.join(ORDER)}."
        )


def _positive(name: str, value: object, most: int = 2**31, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        above = f" and at most {most:,}" if isinstance(value, int) and value > most else ""
        raise InputError(
            f"{name} is {excerpt(value)}; it must be a whole number of at least {least}{above}."
        )


def _choice(name: str, value: object) -> None:
    choices = CHOICES[name]
    if not isinstance(value, str | int) or value not in choices:
        texts = [str(choice) for choice in choices if choice != ""]
        near = suggestion(str(value), texts)
        raise InputError(f"{name} is {excerpt(value)}; it must be one of {', '.join(texts)}.{near}")


CHECKS: dict[str, Callable[[str, object], None]] = {
    **dict.fromkeys(COUNTS, _positive),
    **dict.fromkeys(OPTIONAL, _optional),
    **dict.fromkeys(FLAGS, _flag),
    **dict.fromkeys(CHOICES, _choice),
    "schedule": _schedule,
    "framework": _text,
    "routing_skew": partial(
        _load, least=1.0, kind="a number of at least 1", limits="at least 1 and"
    ),
    "capacity_factor": partial(_load, least=0.0, kind="a number", limits="0, for no limit, or"),
    "order": _order,
    "stage_layers": _stage_layers,
}
"""Checks of fields by name; each refuses a value that its field cannot have."""


def check_field(name: str, value: object) -> None:
    """Refuse a value that a field of a plan cannot have, whatever the other fields are."""
    check = CHECKS.get(name)
    if check:
        check(name, value)


def nearest(degree: int, size: int, heads: int = 1) -> int:
    """Return the degree nearest to the stated one that divides a size, for a message's remedy."""
    # Of two that are equally near, it is the smaller one.
    divisors = [d for d in range(1, min(size, 4 * degree) + 1) if size % d == 0]
    fitting = [d for d in divisors if heads % d == 0 or d % heads == 0]
    return min(fitting, key=lambda d: abs(d - degree))
