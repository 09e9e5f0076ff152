"""``cluster-sim serve``: one replica at token level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.answer import request
from experiments.cli.common import Json, Out, Overlay, Quiet, Seed, Variant, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.reports.run_directory import Run
    from workloads.serving import Batching, Requests, Served
    from workloads.serving import Slo as Limits

MOST_PER_S = 1e9
"""Bound of a drawn rate [1/s]."""
PREFILLS = ("auto", "separate", "chunked")
CHUNK = 512
"""Tokens of a mixed iteration unless the user says."""


Model = Annotated[str, typer.Option("--model", help="A config.json, or a named model.")]
Cluster = Annotated[str, typer.Option("--cluster", help="CLUSTER; a replica is on its start.")]
Source = Annotated[
    str, typer.Option("--requests", metavar="FILE.csv|poisson:RATE", help="Log, or rate in 1/s.")
]
Slo = Annotated[
    str, typer.Option("--slo", help="Limits that count as kept; either may be left out.")
]
Tp = Annotated[
    int | None,
    typer.Option(
        "--tp", help="Chips of the replica, or its cores if more; by default one server's chips."
    ),
]
Precision = Annotated[str, typer.Option("--precision", help="bf16, fp8 or fp4.")]
Prefill = Annotated[
    str,
    typer.Option(
        "--prefill", help="separate: whole prompts, decode waits; chunked: pieces ride along."
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option("--chunk", min=1, help=f"Tokens of a mixed iteration; {CHUNK} if left out."),
]
Slots = Annotated[int, typer.Option("--slots", min=1, help="Requests that decode at once.")]
Count = Annotated[int, typer.Option("--count", help="Requests drawn for poisson.")]
Prompt = Annotated[
    int | None, typer.Option("--prompt", help="Prompt tokens of drawn requests; else Azure's.")
]
Output = Annotated[
    int | None, typer.Option("--output", help="Output tokens of drawn requests; else Azure's.")
]
Service = Annotated[str | None, typer.Option("--service", help="Keep one service of the file.")]


def serve(
    model: Model,
    cluster: Cluster,
    requests: Source = "poisson:0.1",
    slo: Slo = "ttft=6s,tpot=175ms",
    tp: Tp = None,
    precision: Precision = "bf16",
    prefill: Prefill = "auto",
    chunk: Chunk = None,
    slots: Slots = 64,
    count: Count = 2000,
    prompt: Prompt = None,
    output: Output = None,
    service: Service = None,
    variant: Variant = None,
    catalogue: Overlay = None,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Serve requests on one replica, iteration by iteration."""
    asked = request("serve", locals())
    from topologies.catalogue.catalogue import choose
    from topologies.clusters.names import machine as named
    from workloads.models.huggingface import model as read_model
    from workloads.serving import parse_slo, profile, serving_summary
    from workloads.serving import serve as run

    limits = parse_slo(slo)
    machine = named(cluster, catalogue=choose(variant or (), catalogue))
    replica = profile(read_model(model), machine, tp=tp, precision=precision)
    arriving = _requests(requests, count, prompt, output, service, seed)
    batching = _batching(prefill, chunk, slots, trainium=machine.chip.startswith("trn"))
    served = run(replica, arriving, batching)
    document = {
        "model": model,
        "cluster": cluster,
        "chips": replica.chips,
        **serving_summary(served, replica, limits),
    }
    asked.answer(
        lambda: document,
        lambda: _print(document),
        lambda run: _write(run, document, served, limits),
    )


def _requests(
    text: str,
    count: int,
    prompt: int | None,
    output: int | None,
    service: str | None,
    seed: int,
) -> Requests:
    import numpy as np

    from topologies.errors import InputError
    from workloads.serving import azure_lengths, fixed_lengths, poisson, read_requests

    kind, colon, rate = text.partition(":")
    if kind != "poisson" or not colon:
        return read_requests(text, service=service)
    try:
        per_s = float(rate)
    except ValueError:
        raise InputError(f"--requests {text!r} has no rate; write poisson:0.5.") from None
    if not 0 < per_s < MOST_PER_S:
        raise InputError(
            f"--requests {text}: the rate must be above 0 and below {MOST_PER_S:g} requests/s."
        )
    lengths = azure_lengths(service or "conv")
    if prompt is not None or output is not None:
        lengths = fixed_lengths(
            round(lengths.prompt.mean()) if prompt is None else prompt,
            round(lengths.output.mean()) if output is None else output,
        )
    return poisson(per_s, count, lengths, np.random.default_rng(seed))


def _batching(prefill: str, chunk: int | None, slots: int, *, trainium: bool) -> Batching:
    from topologies.errors import InputError, suggestion
    from workloads.serving import BUCKETS, Batching

    if prefill not in PREFILLS:
        raise InputError(
            f"unknown prefill {prefill!r}; choose from {', '.join(PREFILLS)}."
            + suggestion(prefill, PREFILLS)
        )
    if prefill == "chunked" or (prefill == "auto" and not trainium):
        return Batching(slots, chunk or CHUNK)
    if chunk is not None:
        raise InputError(
            f"--chunk {chunk} cuts prompts, but prefill is separate here; "
            "add --prefill chunked, or leave --chunk out."
        )
    return Batching(slots, 0, BUCKETS if trainium else ())


def _print(document: Mapping[str, Any]) -> None:
    from topologies.units import format_bytes, format_seconds

    rows = [
        [
            name,
            *(
                "–" if document[key][level] is None else format_seconds(document[key][level])
                for level in ("p50", "p90", "p99", "mean")
            ),
        ]
        for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"))
    ]
    title = f"{document['model']} on {document['chips']} chips of {document['cluster']}"
    print_table(title, ["", "p50", "p90", "p99", "mean"], rows)
    facts = [
        ["requests", f"{document['requests']:,}"],
        ["output tokens/s", f"{document['tokens_per_s']:,.1f}"],
        ["requests/s within the SLO", f"{document['request_goodput_per_s']:.4g}"],
        ["requests within the SLO", f"{document['slo_attainment']:.2%}"],
        ["mean decode batch", f"{document['batch_mean']:.2f}"],
        ["KV cache, peak", format_bytes(int(document["kv_peak_bytes"]))],
        ["KV cache, room", format_bytes(int(document["kv_budget_bytes"]))],
    ]
    print_table("", ["", ""], facts)


def _write(run: Run, document: Mapping[str, Any], served: Served, limits: Limits) -> None:
    import pandas as pd

    from experiments.figures.serving import latencies

    asked = served.requests
    frame = pd.DataFrame(
        {
            "arrival_s": asked.arrival_s,
            "prompt_tokens": asked.prompt,
            "output_tokens": asked.output,
            "ttft_s": served.ttft_s,
            "tpot_s": served.tpot_s,
            "end_s": served.end_s,
        }
    )
    title = (
        f"{document['model']} on {document['chips']} chips of {document['cluster']}: "
        f"{document['slo_attainment']:.2%} of {document['requests']:,} requests within the SLO"
    )
    run.figure("latency", latencies(served, limits, title), title="Latency of requests")
    run.json("summary", document, title="Results")
    run.table("metrics", frame, title="Requests", parquet=True)
