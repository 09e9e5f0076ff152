"""``cluster-sim serve``: one replica, simulated token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import (
    CatalogueInputs,
    Invocation,
    ModelOnCluster,
    SensitivityInputs,
    target_of,
)
from experiments.cli.output.printing import amount, print_table, print_text
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from topologies.options import setting
from topologies.units import format_memory, format_rate, format_seconds
from workloads.options.serving import DeploymentInputs, ReplicaInputs, RequestInputs

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model
    from workloads.serving import Highest
    from workloads.serving import Slo as Limits
    from workloads.serving.engine_files import EngineFile


NETWORK = (
    "No source says what joins the two clusters: a prefill replica is assumed to send as fast as "
    "the slower side's adapters allow, or slower within the range of joined-clusters in the "
    "catalogue."
)


@dataclass(frozen=True)
class EngineInputs:
    """Files of serving engines."""

    deployment: Path | None = setting(
        None,
        "Replica from a file: a launch of vLLM, SGLang or TensorRT-LLM as a script or command, "
        "their YAML, or a manifest with the command. A script's variables may stand before it, "
        "as in 'TP=8 launch.sh'. Options take precedence",
        metavar="FILE",
    )
    write: str | None = setting(
        None,
        "Write the command that launches the replica: vllm, sglang or tensorrt-llm, whose "
        "scheduler then runs it. A path is a file or a folder, by default the current one",
        metavar="ENGINE[:PATH]",
        recorded=False,
    )

    def read(self, stated: Mapping[str, Any]) -> EngineFile | None:
        """Read the file of an engine, if there is one."""
        from workloads.serving.engine_files import read_engine_file

        return read_engine_file(self.deployment, stated) if self.deployment else None

    def options(
        self, stated: Mapping[str, Any], filed: EngineFile | None, cluster: Cluster
    ) -> dict[str, Any]:
        """Return stated options with those of a file, and the engine whose command is written."""
        from workloads.serving.engine_files import engine_on

        options = filed.options(stated, cluster) if filed else dict(stated)
        if self.write is not None and "prefill" not in options:
            options = {**engine_on(cluster, self.write.partition(":")[0]), **options}
        return options

    def launch(
        self,
        stated: Mapping[str, Any],
        filed: EngineFile | None,
        highest: Highest,
        model: Model,
        cluster: Cluster,
    ) -> dict[str, Any]:
        """Write the command that launches the replica; return what was read and written."""
        from topologies.files.writing import whole_file
        from workloads.serving.engine_files import launch_command, launched

        read = filed.document() if filed else {}
        if self.write is None:
            return read
        engine, path = self.write.partition(":")[0], target_of(self.write, "serve.sh")
        options = self.options(stated, filed, cluster)
        try:
            text = launch_command(engine, launched(options, highest, model), model.name)
        except InputError as mistake:
            raise InputError(f"--write {engine}: {mistake}") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(text)
        return {**read, "written": {"engine": engine, "file": str(path), "command": text}}


def print_serving(document: Mapping[str, Any]) -> None:
    """Print latencies, rates and the KV cache of a replica."""
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
    if "deployments" in document:
        print_deployments(document)
    title = f"{document['model']} on {chips_of(document)}"
    print_table(title, ["", "p50", "p90", "p99", "mean"], rows)
    facts = [
        *_highest_rate(document),
        ["requests", f"{document['requests']:,}"],
        ["output tokens/s", _with_interval(document, "tokens_per_s", ",.1f")],
        ["requests/s within the SLO", _with_interval(document, "request_goodput_per_s", ".4g")],
        ["requests within the SLO", _with_interval(document, "slo_attainment", ".2%")],
        ["mean decode batch", f"{document['batch_mean']:.2f}"],
        ["KV cache, peak", format_memory(int(document["kv_peak_bytes"]))],
        [
            "KV cache, room",
            f"{format_memory(int(document['kv_budget_bytes']))}, in {document['kv_precision']}",
        ],
        *_ways_to_serve_faster(document),
    ]
    print_table("", ["", ""], facts)
    click.echo(
        "TTFT: time to first token; TPOT: mean time of a request's later tokens; ITL: each gap "
        "between two tokens."
    )
    click.echo(_sentence_of_intervals(document))
    network = NETWORK if "kv_network" in document else ""
    basis = document["price_basis"]
    prices = document.get("prices") or (f"Price: {basis}." if basis else "")
    for sentence in (document.get("weights"), prices, network):
        if sentence:
            print_text(sentence)
    click.echo(
        f"Prompts are processed {document['prompts']}; at most {document['slots']:,} requests "
        "decode at once."
    )
    if document.get("binds") == "slots":
        print_text("More slots would serve more: --slots sets them, --search finds how many.")


def print_deployments(document: Mapping[str, Any]) -> None:
    """Print the best deployments that a search found, and how many there are."""
    rows = [
        [
            each["options"],
            f"{each['chips']:,}",
            f"{each['max_rate_per_s']:,.4g}",
            f"{each['max_rate_per_s_per_chip']:,.4g}",
        ]
        for each in document["deployments"]
    ]
    title = (
        f"{document['model']} on {document['cluster']}: the most requests for each chip, of "
        f"{document['candidates']} deployments"
    )
    print_table(title, ["options", "chips", "requests/s", "for each chip"], rows)
    if "prefill_cluster" in document:
        print_text(f"Chips of {document['prefill_cluster']} count by their price over the others'.")
    click.echo("Below is the first, at its highest rate.\n")


def _highest_rate(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows with the highest rate within the SLO, and what binds; none for a stated rate."""
    if "max_rate_per_s" not in document:
        return []
    return [
        [
            "highest rate within the SLO, requests/s",
            _with_interval(document, "max_rate_per_s", ",.4g"),
        ],
        ["  what binds", document["binds"]],
        *_demand(document),
    ]


def _demand(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows with the deployments and chips that a stated rate needs; none without one."""
    if "demand" not in document:
        return []
    demand = document["demand"]
    ends = demand["deployments_interval"]
    usd = "" if demand["usd_per_h"] is None else f", {demand['usd_per_h']:,.0f} USD/h"
    return [
        [
            f"such deployments for {demand['requests_per_s']:g} requests/s",
            f"{demand['deployments']:,} (80 %: {ends['low']:,} – {ends['high']:,})",
        ],
        ["  together", f"{demand['chips']:,} chips{usd}"],
    ]


def _with_interval(document: Mapping[str, Any], name: str, style: str) -> str:
    """Text of a number and its interval."""
    text = f"{{:{style}}}".format
    return amount(document, name, text=text, ends=document[f"{name}_interval"])


def _sentence_of_intervals(document: Mapping[str, Any]) -> str:
    """Sentence with the intervals of the medians."""
    named = (("TTFTs", "interval"), ("TPOTs", "tpot_interval"))
    spans = [
        f"{name} between {format_seconds(ends['low'])} and {format_seconds(ends['high'])}"
        for name, key in named
        if (ends := document.get(key))
    ]
    return f"80 % of measured medians would lie within these: {'; '.join(spans)}."


def _ways_to_serve_faster(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows about the prefix cache, speculation, pools and the price, as far as they apply."""
    facts = []
    if "prefix_hit_share" in document:
        facts.append(["prompt tokens in the prefix cache", f"{document['prefix_hit_share']:.1%}"])
    if "speculation" in document:
        expected = document["speculation"]["expected_tokens_per_pass"]
        facts.append(["tokens of a pass, expected", f"{expected:.2f}"])
    if "prefill_replicas" in document:
        moved, rate = document["kv_transfer_s"]["p50"], document["kv_transfer_bytes_per_s"]
        facts += [
            [f"{kind} replicas", f"{document[f'{kind}_replicas']:,}, "
             f"{document[f'{kind}_utilisation']:.0%} busy"] for kind in ("prefill", "decode")
        ]  # fmt: skip
        facts.append(["KV transfer, median", f"{format_seconds(moved)} at {format_rate(rate)}"])
    if "kv_network" in document:
        network = document["kv_network"]
        moved, rate = network["transfer_at_low_s"]["p50"], network["low_bytes_per_s"]
        text = f"{format_seconds(moved)} at {format_rate(rate)}"
        facts.append(["  over the slowest network (assumed)", text])
    if document["usd_per_million_tokens"] is not None:
        price = _with_interval(document, "usd_per_million_tokens", ",.3g")
        facts.append(["price, USD a million output tokens", price])
        facts.append(["price of the run, USD", _with_interval(document, "cost_usd", ",.3g")])
    if document["energy_joules"] is not None:
        facts.append(["energy of the run, J", _with_interval(document, "energy_joules", ",.3g")])
    return facts


def chips_of(document: Mapping[str, Any]) -> str:
    """Text of the chips of a replica and their cluster."""
    prompts = document.get("prefill_chips", 0)
    count = document["chips"] - prompts
    other = f" and {prompts:,} of {document['prefill_cluster']} for prompts" if prompts else ""
    return f"{count:,} chip{'s' * (count != 1)} of {document['cluster']}{other}"


def _check_search(replica: ReplicaInputs, sure: SensitivityInputs) -> None:
    if replica.search and sure.sensitivity:
        raise InputError(
            "--sensitivity is for stated replicas. State the options that --search finds."
        )


def serve(
    inputs: ModelOnCluster,
    load: RequestInputs,
    replica: ReplicaInputs,
    faster: DeploymentInputs,
    sure: SensitivityInputs,
    engines: EngineInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Serve requests on one replica, token by token.

    With --disaggregate, prompts and decoding run on separate replicas. Several clusters, written
    --cluster A,B,C, serve the same requests and are compared side by side.
    """
    from workloads.serving import parse_slo
    from workloads.serving.front import answered

    limits, names = parse_slo(replica.slo), cluster_names(inputs.cluster)
    _check_search(replica, sure)
    stated = _stated(load, replica, faster, call.seed)
    filed = engines.read(stated)
    beside = [faster.prefill_cluster] if faster.prefill_cluster else []

    def simulate(name: str, catalogue: Catalogue) -> Highest:
        """Serve on one of the clusters, at the stated or the highest rate."""
        cluster = replace(inputs, cluster=name).read_cluster(catalogue)
        options = engines.options(stated, filed, cluster)
        return answered(inputs.read_model(), cluster, limits, options, watch=call.watch)

    if len(names) > 1:
        answer_beside(
            *("serve", f"{inputs.model}: a replica on each of {len(names)} clusters", names),
            lambda name, catalogue: _document(
                replace(inputs, cluster=name), catalogue, simulate(name, catalogue), limits
            ),
            {"--sensitivity": sure.sensitivity, "--write": engines.write},
            *(lambda every: catalogue_inputs.read_side_by_side([*every, *beside]), call.answer),
        )
        return
    catalogue = catalogue_inputs.read(inputs.cluster, *beside)
    highest = simulate(inputs.cluster, catalogue)
    rankings = sure.rank(
        lambda moved: _ranked(simulate(inputs.cluster, moved)),
        catalogue,
        call,
        "the highest rate" if load.max_rate else "the median time to the first token",
        jumps=True,
    )
    cluster = inputs.read_cluster(catalogue)
    document = _document(inputs, catalogue, highest, limits)
    document |= engines.launch(stated, filed, highest, inputs.read_model(), cluster)
    call.answer(
        document,
        lambda _: _print(document, filed, cluster),
        lambda run, _: _write(run, document, highest, limits),
        rankings=rankings,
    )


def _print(document: Mapping[str, Any], filed: EngineFile | None, cluster: Cluster) -> None:
    from workloads.serving.engine_files import is_neuron

    if filed and filed.sentence:
        print_text(filed.sentence)
    if filed and is_neuron(cluster):
        print_text(f"Neuron's engine runs prompts one at a time, not {filed.title}'s scheduler.")
    print_serving(document)
    if launch := document.get("written"):
        print_text(
            f"The launch of {launch['engine']} is written to {launch['file']}; put in the name by "
            "which it loads the model."
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
        "price_basis": Economics.of(cluster).price_basis,
    }
    return with_intervals(plain, inputs.read_model(), cluster, deployed, limits)


def _stated(
    load: RequestInputs, replica: ReplicaInputs, faster: DeploymentInputs, seed: int
) -> dict[str, Any]:
    """Return the stated options as the keywords of :func:`workloads.serving.front.serve`."""
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
    run.table("metrics", served.frame(), title="Requests", parquet=True)
