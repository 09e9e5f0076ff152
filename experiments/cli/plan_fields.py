"""Options that are fields of a parallel plan, as ``train`` and ``plan`` share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Option("--model", help="A config.json, or a named model.")]
Cluster = Annotated[str, typer.Option("--cluster", help="Named machine or YAML; all of it.")]
Tp = Annotated[int | None, typer.Option("--tp", help="Tensor parallel degree.")]
Pp = Annotated[int | None, typer.Option("--pp", help="Pipeline parallel degree.")]
Vpp = Annotated[int | None, typer.Option("--vpp", help="Model chunks of a stage.")]
Dp = Annotated[int | None, typer.Option("--dp", help="Data parallel degree; what fills it.")]
Cp = Annotated[int | None, typer.Option("--cp", help="Context parallel degree.")]
Ep = Annotated[int | None, typer.Option("--ep", help="Expert parallel degree.")]
Etp = Annotated[int | None, typer.Option("--etp", help="Tensor parallel degree of experts; tp.")]
Zero = Annotated[
    int | None, typer.Option("--zero", help="0 to 3: shard nothing, optimizer, gradients, all.")
]
Reshard = Annotated[
    bool | None,
    typer.Option("--reshard/--no-reshard", help="ZeRO 2, 3: shard anew after each pass."),
]
SequenceParallel = Annotated[
    bool | None,
    typer.Option("--sequence-parallel/--no-sequence-parallel", help="Default with tp above 1."),
]
Schedule = Annotated[
    str | None, typer.Option("--schedule", help="gpipe, 1f1b, interleaved, zero-bubble.")
]
StageLayers = Annotated[
    str | None,
    typer.Option("--stage-layers", metavar="N-N-…", help="Layers of each chunk."),
]
Microbatch = Annotated[
    int | None, typer.Option("--microbatch", help="Sequences at once on a rank.")
]
GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", help="Sequences a step; default 16 microbatches.")
]
Seq = Annotated[int | None, typer.Option("--seq", help="Tokens of a sequence, default 4096.")]
Recompute = Annotated[str | None, typer.Option("--recompute", help="none, selective or full.")]
Precision = Annotated[str | None, typer.Option("--precision", help="bf16 or fp8.")]
Overlap = Annotated[str | None, typer.Option("--overlap", help="none, dp (default) or all.")]
Attention = Annotated[str | None, typer.Option("--attention", help="fused or unfused kernels.")]
Lnc = Annotated[int | None, typer.Option("--lnc", help="Physical cores of a logical NeuronCore.")]
RanksPerChip = Annotated[
    int | None, typer.Option("--ranks-per-chip", help="Default 1; Trainium1 2.")
]
Order = Annotated[
    str | None, typer.Option("--order", help="Axes, fastest rank number first: tp-cp-dp-pp.")
]
CpExchange = Annotated[
    str | None, typer.Option("--cp-exchange", help="Keys and values: ring or all-gather.")
]
RoutingSkew = Annotated[
    float | None, typer.Option("--routing-skew", help="Tokens of the busiest rank over the mean.")
]
Bucket = Annotated[
    str | None,
    typer.Option("--bucket", help="Gradients reduced together, as 160MB; as the library."),
]


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of all options those that are fields of a plan and were given."""
    from dataclasses import fields

    from workloads.training.plan.plan import ParallelPlan

    names = [field.name for field in fields(ParallelPlan)]
    return {name: given[name] for name in names if given.get(name) is not None}
