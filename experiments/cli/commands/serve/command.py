"""``cluster-sim serve``: one replica, simulated token by token."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.cli.commands.serve.tables import chips_of, print_serving
from experiments.cli.options.inputs import CatalogueInputs, ModelOnCluster
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from topologies.options import setting
from workloads.kernels.precision import SERVING, SERVING_CACHES
from workloads.options.speculation import SPECULATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.serving import Highest
    from workloads.serving import Slo as Limits


MOST_SLOTS = 100_000
"""Most requests that decode at once: hundreds of times those of a measured replica."""
MOST_PASSES = 1_000_000
"""Most passes of decode without a look for new requests: longer than any answer."""


@dataclass(frozen=True)
class RequestInputs:
    """Requests that arrive."""

    requests: str = setting(
        "poisson:0.1",
        "Log of requests in CSV, JSON or JSON lines (Azure, BurstGPT, Mooncake, vLLM, "
        "ShareGPT), or the rate of a Poisson process in requests/s",
        metavar="FILE|poisson:RATE",
    )
    count: int | None = setting(
        None,
        "Number of requests: drawn for poisson, or read from the beginning of a log",
        least=1,
        default="2,000 drawn, all of a log",
    )
    max_rate: bool = setting(
        False,
        "Search for the highest rate that keeps the SLO, and answer for that rate; its share "
        "of the requests is that of --slo",
    )
    concurrency: int | None = setting(
        None,
        "Users of a closed loop, in place of a rate: each sends the next request when the last "
        "is answered",
        least=1,
        most=MOST_SLOTS,
    )
    rate: float | None = setting(
        None, "Arrival rate for a log that states no times", unit="requests/s"
    )
    prompt: int | None = setting(
        None, "Prompt tokens of drawn requests", default="drawn from the lengths of Azure's trace"
    )
    output: int | None = setting(
        None,
        "Output tokens of drawn requests, and of requests of a log that state none",
        least=1,
        default="drawn from the lengths of Azure's trace",
    )
    service: str | None = setting(None, "Only service to keep, where a log has several")


@dataclass(frozen=True)
class ReplicaInputs:
    """The replica that serves the requests, and the limits on latency."""

    search: bool = setting(
        False,
        "Search for the tensor-parallel degree, the way to run prompts, the split and the "
        "slots that serve most requests a chip within the SLO; what is stated stays",
    )
    slo: str = setting(
        "ttft=6s,tpot=175ms",
        "Limits of time to first token and time per output token; either may be left out",
    )
    tp: int | None = setting(
        None,
        "Tensor-parallel degree: chips, or logical cores if more or if the chip is alone",
        default="the chips of one server",
    )
    precision: str | None = setting(
        None, "Precision of weights", choices=SERVING, default="that of the model's stored weights"
    )
    prefill: str = setting(
        "auto",
        "Processing of prompts: separate (whole, while decoding waits), chunked (in pieces, "
        "together with decoding), or auto for the usual way of the chip",
    )
    chunk: int | None = setting(
        None, "Tokens of an iteration with chunked prefill", least=1, default="512"
    )
    slots: int | None = setting(
        None, "Requests that decode at once", least=1, most=MOST_SLOTS, default="64"
    )
    scheduler: str | None = setting(
        None,
        "Serving engine on GPUs whose scheduler runs the replica, in place of --prefill",
        choices=("vllm", "sglang", "tensorrt-llm"),
    )
    poll: int = setting(
        1, "Passes of decode between two looks for new requests", least=1, most=MOST_PASSES
    )
    gather: str | None = setting(
        None,
        "Passes of decode for which prompts wait for others, unless they fill this share of an "
        "iteration's tokens, as PASSES:SHARE",
        default="no wait",
    )
    ep: int = setting(
        1,
        "Groups of ranks among which the experts of a mixture are divided; on Trainium only "
        "while prompts run, with the experts' weights held twice",
        least=1,
    )
    cache_precision: str | None = setting(
        None,
        "Precision of cached keys and values",
        choices=SERVING_CACHES,
        default="FP8 where the weights have 8 bits or fewer",
    )


@dataclass(frozen=True)
class DeploymentInputs:
    """Ways to serve faster."""

    prefix_cache: str | None = setting(
        None,
        "Share of the prompt tokens that the prefix cache holds, such as 50%, or 50%:cold for "
        "a cache that is empty at first; trace takes the hits from the log",
        metavar="SHARE[:cold]|trace",
    )
    speculate: str | None = setting(None, SPECULATION, metavar="TOKENS:ACCEPTANCE[:DRAFT]")
    disaggregate: str | None = setting(
        None,
        "Numbers of replicas that process prompts and that decode, such as 1:3; keys and "
        "values are sent from the former to the latter",
        metavar="P:D",
    )


def serve(
    inputs: ModelOnCluster,
    load: RequestInputs,
    replica: ReplicaInputs,
    faster: DeploymentInputs,
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Serve requests on one replica, token by token.

    With --disaggregate, prompts and decoding run on separate replicas. Several clusters, written
    --cluster A,B,C, serve the same requests and are compared side by side.
    """
    from cluster_sim.progress import progress
    from topologies.errors import InputError
    from workloads.serving import parse_slo
    from workloads.serving.front import answered

    limits, names = parse_slo(replica.slo), cluster_names(inputs.cluster)
    stated = _stated(load, replica, faster, call.seed)
    if replica.search and sure.sensitivity:
        raise InputError(
            "--sensitivity is for stated replicas. State the options that --search finds."
        )

    def simulate(name: str, catalogue: Catalogue) -> Highest:
        """Serve on one of the clusters, at the stated or the highest rate."""
        cluster = replace(inputs, cluster=name).read_cluster(catalogue)
        watch = partial(progress, quiet=call.quiet)
        return answered(inputs.read_model(), cluster, limits, stated, watch=watch)

    def answer(name: str, catalogue: Catalogue, highest: Highest) -> dict[str, Any]:
        return _document(replace(inputs, cluster=name), catalogue, highest, limits)

    if len(names) > 1:
        answer_beside(
            *("serve", f"{inputs.model}: a replica on each of {len(names)} clusters", names),
            lambda name, catalogue: answer(name, catalogue, simulate(name, catalogue)),
            {"--sensitivity": sure.sensitivity},
            *(catalogue_inputs.read_side_by_side, call.answer),
        )
        return
    catalogue = catalogue_inputs.read(inputs.cluster)
    highest = simulate(inputs.cluster, catalogue)
    rankings = sure.rank(
        lambda moved: _ranked(simulate(inputs.cluster, moved)),
        catalogue,
        quiet=call.quiet,
        what="the highest rate" if load.max_rate else "the median time to the first token",
        jumps=True,
    )
    document = answer(inputs.cluster, catalogue, highest)
    call.answer(
        lambda: document,
        lambda: print_serving(document),
        lambda run: _write(run, document, highest, limits),
        rankings=rankings,
    )


def _document(
    inputs: ModelOnCluster, catalogue: Catalogue, highest: Highest, limits: Limits
) -> dict[str, Any]:
    """Return the results of a replica with their intervals and price."""
    from workloads.economics import Economics
    from workloads.serving.deployment import with_intervals

    cluster, deployed = inputs.read_cluster(catalogue), highest.deployed
    plain = {
        "model": inputs.model,
        "cluster": inputs.cluster,
        "chips": deployed.deployment.chips,
        **deployed.summary(limits),
        **deployed.cost(Economics.of(cluster)),
        **highest.summary(Economics.of(cluster)),
    }
    return with_intervals(plain, inputs.read_model(), cluster, deployed)


def _stated(
    load: RequestInputs, replica: ReplicaInputs, faster: DeploymentInputs, seed: int
) -> dict[str, Any]:
    """Return the stated options as the keywords of :func:`workloads.serving.front.serve`."""
    from topologies.errors import InputError

    if (faster.prefix_cache or "").strip() == "trace" and load.service is not None:
        raise InputError("--prefix-cache trace is for all requests of a log; leave --service out.")
    stated: dict[str, Any] = {"requests": load.requests, "seed": seed}
    for inputs in (load, replica, faster):
        values = {each.name: (getattr(inputs, each.name), each.default) for each in fields(inputs)}
        stated |= {name: value for name, (value, usual) in values.items() if value != usual}
    stated.pop("slo", None)
    return stated


def _ranked(highest: Highest) -> float:
    """Highest rate [1/s], or else the median time to the first token [s]."""
    import numpy as np

    return highest.rate_per_s or float(np.median(highest.deployed.served.ttft_s))


def _write(run: Run, document: Mapping[str, Any], highest: Highest, limits: Limits) -> None:
    import pandas as pd

    from experiments.figures.serving import frontier, latencies
    from workloads.serving.deployment_search import BestDeployment

    served = highest.deployed.served
    requests = served.requests
    frame = pd.DataFrame(
        {
            "arrival_s": requests.arrival_s,
            "prompt_tokens": requests.prompt,
            "output_tokens": requests.output,
            "ttft_s": served.ttft_s,
            "tpot_s": served.tpot_s,
            "end_s": served.end_s,
        }
    )
    title = (
        f"{document['model']} on {chips_of(document)}: "
        f"{document['slo_attainment']:.2%} of {document['requests']:,} requests within the SLO"
    )
    run.figure("latency", latencies(served, limits, title), title="Latency of requests")
    if isinstance(highest, BestDeployment):
        points = pd.DataFrame(highest.search.frontier())
        heading = f"{document['model']} on {document['cluster']}: speed for a user and for a chip"
        run.figure("frontier", frontier(points, heading), title="Speed for a user and for a chip")
        run.table("frontier", points, title="Points of the curves")
        run.table("deployments", pd.DataFrame(document["deployments"]), title="Best deployments")
    run.json("summary", document, title="Results")
    run.table("metrics", frame, title="Requests", parquet=True)
