"""Messages for searches without any plan: the field in the way, and a value that works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.search.grid import divisors
from workloads.training.plan.checks import check_model
from workloads.training.plan.fields import ORDER
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT, pipeline_schedule

ALONE = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero", "sequence_parallel",
    "schedule", "recompute",
)  # fmt: skip
"""Fields that can be wrong whatever the other fields are."""
REPLICA = ("tp", "pp", "dp", "cp")  # degrees whose product is the number of ranks


def check_alone(model: Model, base: ParallelPlan, fixed: Mapping[str, Any]) -> None:
    """Refuse a stated field that is wrong whatever the other fields are.

    Each field is checked in a plan whose other fields allow as much as possible.
    """
    check_model(base, model)
    alone = {name: fixed[name] for name in ALONE if name in fixed}
    alone.setdefault("vpp", pipeline_schedule(fixed.get("schedule", DEFAULT)).chunks_allowed[0])
    once = _positive(fixed.get("dp")) * _positive(fixed.get("microbatch"))
    # As many replicas as any division of experts needs, and two stages if there are chunks.
    room = _positive(fixed.get("ep")) * _positive(fixed.get("etp"))
    pipe = {"pp": 2} if _positive(alone["vpp"]) > 1 and "pp" not in fixed else {}
    wide = {"dp": room, "global_batch": room * once} if "dp" not in fixed else {}
    split = {"sequence_parallel": False} if "sequence_parallel" not in fixed else {}
    order = fixed.get("order", ORDER)
    ParallelPlan(**{"global_batch": once, **alone, **pipe, **wide, **split, "order": order})
    for name in ("tp", "pp", "cp", "ep", "etp", "vpp"):
        if name in fixed:
            stated = {name: fixed[name], **({"pp": fixed.get("pp", 2)} if name == "vpp" else {})}
            flags = bool(fixed.get("sequence_parallel", False)) and name == "tp"
            how = {"seq": base.seq, "sequence_parallel": flags, "attention": base.attention}
            replicas = {"dp": room, "global_batch": room} if name in ("ep", "etp") else {}
            check_model(ParallelPlan(**{**stated, **how, **replicas}), model)


def _positive(value: Any) -> int:
    """Value itself if it is a positive whole number, else 1."""
    return value if isinstance(value, int) and value > 0 else 1


def no_degrees(model: Model, cluster: Cluster, fixed: Mapping[str, Any], ranks: int) -> str:
    """Return the message for stated degrees that no others complete to the number of ranks."""
    stated = " × ".join(f"{name} {fixed[name]}" for name in REPLICA if name in fixed)
    if not stated:
        stated = ", ".join(f"{name} {fixed[name]}" for name in ("ep", "etp") if name in fixed)
    possible = divisors(ranks)
    shown = ", ".join(map(str, possible[:12])) + " …" * (len(possible) > 12)
    return (
        f"{stated} cannot be completed to the {ranks:,} ranks of {cluster.name} with degrees that "
        f"divide {model.name}. Use divisors of {ranks:,} ({shown}) or state fewer degrees."
    )


def no_batch(base: ParallelPlan, fewest: int, fixed: Mapping[str, Any]) -> str:
    """Return the message for a batch that no plan divides, with batches that work.

    ``fewest`` is the smallest number of replicas that a plan has.
    """
    microbatch = fixed.get("microbatch", 1)
    sequences = fewest * microbatch
    below = base.global_batch // sequences * sequences
    near = f"{below:,} or {below + sequences:,}" if below else f"{sequences:,}"
    return (
        f"global batch {base.global_batch:,} is not a multiple of dp × microbatch for any plan: "
        f"the fewest replicas are dp {fewest:,} with microbatch {microbatch} = {sequences:,}. "
        f"Use {near}."
    )


def no_pipeline(model: Model, cluster: Cluster, fixed: Mapping[str, Any], ranks: int) -> str:
    """Return the message for stated chunks that no number of stages leaves a layer each."""
    chunks = fixed.get("vpp", 1)
    stages = fixed.get("pp") or next((degree for degree in divisors(ranks) if degree > 1), 1)
    stated = f"vpp {chunks} with pp {stages}" if "pp" in fixed else f"vpp {chunks}"
    if stages == 1 or model.layers < 2 * stages:
        return (
            f"{stated} divides the stages of a pipeline, and {model.name} with {model.layers} "
            f"layers has none to divide on the {ranks:,} ranks of {cluster.name}. Leave vpp out."
        )
    return (
        f"{stated} cannot divide the {model.layers} layers of {model.name} on the {ranks:,} ranks "
        f"of {cluster.name}: the fewest stages are {stages}, and each chunk needs a layer. Use vpp "
        f"{model.layers // stages} or less."
    )
