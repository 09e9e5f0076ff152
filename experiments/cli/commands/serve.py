"""``cluster-sim serve``: one replica, simulated token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import (
    Invocation,
    ModelOnCluster,
    PricedInputs,
    SensitivityInputs,
    target_of,
)
from experiments.cli.output.printing import print_rows, print_table, print_text
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from experiments.reports.certainty import ends_text, facts, price_sentences
from experiments.reports.formatting import Column, value_text
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from topologies.support.files.writing import whole_file
from topologies.support.options import setting
from topologies.support.units import format_seconds
from workloads.economics import Economics
from workloads.options.serving import DeploymentInputs, ReplicaInputs, RequestInputs

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.models.model import Model
    from workloads.serving import Slo as Limits
    from workloads.serving.deployment import Deployed
    from workloads.serving.engine_files import EngineFile


USUAL_FILE = "serve.sh"  # name of a launch in a folder
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
        "scheduler then runs it. A path is a file, which is replaced, or a folder, by default the "
        "current one, in which none is",
        metavar="ENGINE[:PATH]",
        recorded=False,
    )

    def __post_init__(self) -> None:
        if self.write is not None:
            target_of(self.write, USUAL_FILE)

    def read(self, stated: Mapping[str, Any], model: Model) -> EngineFile | None:
        """Read the file of an engine, if there is one, for a model that is simulated."""
        from workloads.serving.engine_files import read_engine_file

        return read_engine_file(self.deployment, stated).beside(model) if self.deployment else None

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
        deployed: Deployed,
        model: Model,
        cluster: Cluster,
    ) -> dict[str, Any]:
        """Write the command that launches the replica; return what was read and written."""
        from workloads.serving.engine_files import launch_command, launched

        read = filed.document() if filed else {}
        if self.write is None:
            return read
        engine, path = self.write.partition(":")[0], target_of(self.write, USUAL_FILE)
        options = self.options(stated, filed, cluster)
        try:
            text = launch_command(engine, launched(options, deployed, model), model.name)
        except InputError as mistake:
            raise InputError(f"--write {engine}: {mistake}") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(text)
        return {**read, "written": {"engine": engine, "file": str(path), "command": text}}


LATENCY = tuple(Column(level, level, like="_s") for level in ("p50", "p90", "p95", "p99", "mean"))
RATES = (
    Column("max_rate_per_s", "highest rate within the SLO, requests/s", write="{:,.4g}".format),
    Column("binds", "  what binds"),
    Column("requests_at_once", "  requests in work at once", write="{:,.1f}".format),
    Column("needed", "such deployments"),
    Column("together", "  together"),
    Column("requests", "requests"),
    Column("tokens_per_s", "output tokens/s", write="{:,.1f}".format),
    Column("request_goodput_per_s", "requests/s within the SLO", write="{:.4g}".format),
    Column("slo_attainment", "requests within the SLO", write="{:.2%}".format),
    Column("batch_mean", "mean decode batch", write="{:.2f}".format),
    Column("kv_peak_bytes", "KV cache, peak", like="_memory_bytes"),
    Column("room", "KV cache, room"),
    Column("prefix_hit_share", "prompt tokens in the prefix cache"),
    Column("speculation.expected_tokens_per_pass", "tokens of a pass, expected"),
    Column("prefill_replicas", "prefill replicas"),
    Column("prefill_utilisation", "  busy"),
    Column("decode_replicas", "decode replicas"),
    Column("decode_utilisation", "  busy"),
    Column("kv_transfer_s.p50", "KV transfer, median"),
    Column("kv_transfer_bytes_per_s", "  at"),
    Column("kv_network.transfer_at_low_s.p50", "  over the slowest network (assumed)"),
    Column("kv_network.low_bytes_per_s", "  at"),
    Column("usd_per_million_tokens", "price, USD a million output tokens"),
    Column("cost_usd", "price of the run"),
    Column("energy_joules", "energy of the run"),
    Column("joules_per_token", "  an output token", write="{:,.3g} J".format),
)
DEPLOYMENTS = (
    Column("options", "options"),
    Column("chips", "chips"),
    Column("max_rate_per_s", "requests/s", write="{:,.4g}".format),
    Column("max_rate_per_s_per_chip", "for each chip", write="{:,.4g}".format),
)


def print_serving(document: Mapping[str, Any]) -> None:
    """Print latencies, rates and the KV cache of a replica."""
    from workloads.serving.remarks import unsure_share

    if "deployments" in document:
        print_deployments(document)
    title = f"{document['model']} on {chips_of(document)}"
    times = [{"": name.upper(), **document[f"{name}_s"]} for name in ("ttft", "tpot", "itl")]
    print_rows(title, (Column("", ""), *LATENCY), times)
    room = value_text("_memory_bytes", document["kv_budget_bytes"])
    room += f", in {document['kv_precision']}"
    shown = {**document, "room": room, **_demand(document)}
    if any(unsure_share(document)):
        del shown["slo_attainment_interval"], shown["request_goodput_per_s_interval"]
    print_table("", ["", ""], facts(RATES, shown))
    click.echo(
        "TTFT: time to first token; TPOT: mean time of a request's later tokens; ITL: each gap "
        "between two tokens."
    )
    spans = [
        f"{name} between {format_seconds(ends['low'])} and {format_seconds(ends['high'])}"
        for name, key in (("TTFTs", "interval"), ("TPOTs", "tpot_interval"))
        if (ends := document.get(key))
    ]
    click.echo(f"80 % of measured medians would lie within these: {'; '.join(spans)}.")
    network = NETWORK if "kv_network" in document else ""
    basis = document["price_basis"]
    prices = document.get("prices") or (f"Price: {basis}." if basis else "")
    for sentence in (document.get("weights"), prices, network, *price_sentences(document)):
        if sentence:
            print_text(sentence)
    click.echo(
        f"Prompts are processed {document['prompts']}; at most {document['slots']:,} requests "
        "decode at once."
    )
    if document["runs_empty_slots"] and 2 * document["batch_mean"] < document["slots"]:
        print_text(
            f"A pass of decode takes as long as with {document['slots']:,} requests; in the mean "
            f"{document['batch_mean']:.2g} decode. With fewer --slots tokens come sooner."
        )
    if document.get("binds") == "slots":
        print_text("More slots would serve more: --slots sets them, --search finds how many.")
    within = ", ".join(
        f"{name.removesuffix('_s').upper()} {format_seconds(limit)}"
        for name, limit in document["slo"].items()
        if limit is not None
    )
    print_text(
        f"Requests have {document['prompt_tokens_mean']:,.0f} prompt and "
        f"{document['output_tokens_mean']:,.0f} output tokens in the mean. SLO: {within or 'none'}."
    )


def _demand(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the deployments and chips that a stated rate needs, in words; nothing without one."""
    if "demand" not in document:
        return {}
    demand = document["demand"]
    ends = demand["deployments_interval"]
    usd = ""
    if demand["usd_per_h"] is not None:
        between = ends_text(
            "_usd", demand["usd_per_h_interval"], "{:,.0f}".format, demand["usd_per_h"]
        )
        usd = f", {demand['usd_per_h']:,.2f} USD/h{f' ({between})' * bool(between)}"
    return {
        "needed": f"{demand['deployments']:,} for {demand['requests_per_s']:g} requests/s "
        f"(80 %: {ends['low']:,} – {ends['high']:,})",
        "together": f"{demand['machines']:,} whole machine{'s' * (demand['machines'] != 1)}{usd}; "
        f"{demand['chips']:,} of {demand['machine_chips']:,} chips in use",
    }


def print_deployments(document: Mapping[str, Any]) -> None:
    """Print the best deployments that a search found, and how many there are."""
    title = (
        f"{document['model']} on {document['cluster']}: the most requests for each chip, of "
        f"{document['candidates']} deployments"
    )
    print_rows(title, DEPLOYMENTS, document["deployments"])
    if "prefill_cluster" in document:
        print_text(f"Chips of {document['prefill_cluster']} count by their price over the others'.")
    click.echo("Below is the first, at its highest rate.\n")


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
    if "," in (replica.precision or "") and not replica.search:
        raise InputError(
            f"--precision {replica.precision} is several, of which --search finds the best. Add "
            "--search, or name one."
        )


def serve(
    inputs: ModelOnCluster,
    load: RequestInputs,
    replica: ReplicaInputs,
    faster: DeploymentInputs,
    sure: SensitivityInputs,
    engines: EngineInputs,
    catalogue_inputs: PricedInputs,
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
    filed = engines.read(stated, inputs.read_model())
    beside = [faster.prefill_cluster] if faster.prefill_cluster else []
    answers: dict[str, Deployed] = {}

    def simulate(name: str, catalogue: Catalogue) -> Deployed:
        """Serve on one of the clusters, at the stated or the highest rate."""
        cluster = replace(inputs, cluster=name).read_cluster(catalogue)
        options = engines.options(stated, filed, cluster)
        answers[name] = answered(inputs.read_model(), cluster, limits, options, watch=call.watch)
        return answers[name]

    if len(names) > 1:
        answer_beside(
            *("serve", f"{inputs.model}: a replica on each of {len(names)} clusters", names),
            lambda at, of: _document(replace(inputs, cluster=at), of, simulate(at, of), limits),
            {"--sensitivity": sure.sensitivity, "--write": engines.write},
            *(lambda every: catalogue_inputs.read_side_by_side([*every, *beside]), call.answer),
            lambda run: _draw_frontier(run, inputs.model, answers),
        )
        return
    catalogue = catalogue_inputs.watched(inputs.cluster, *beside)
    deployed = simulate(inputs.cluster, catalogue)
    rankings = sure.rank(
        lambda moved: _ranked(simulate(inputs.cluster, moved)),
        catalogue,
        call,
        "the highest rate" if load.max_rate else "the median time to the first token",
        jumps=True,
    )
    cluster = inputs.read_cluster(catalogue)
    document = _document(inputs, catalogue, deployed, limits)
    document |= catalogue_inputs.other_prices(document, catalogue, inputs.cluster)
    document |= engines.launch(stated, filed, deployed, inputs.read_model(), cluster)
    call.answer(
        document,
        lambda _: _print(document, filed, cluster),
        lambda run, _: _write(run, document, deployed, limits),
        rankings=rankings,
    )


def _print(document: Mapping[str, Any], filed: EngineFile | None, cluster: Cluster) -> None:
    from workloads.serving.engine_files import is_neuron

    if filed and filed.sentence:
        print_text(filed.sentence)
    if filed and is_neuron(cluster):
        print_text(f"Neuron's engine runs prompts one at a time, not {filed.title}'s scheduler.")
    print_serving(document)
    for sentence in document.get("remarks", ()):
        print_text(sentence)
    if launch := document.get("written"):
        print_text(
            f"The launch of {launch['engine']} is written to {launch['file']}; put in the name by "
            "which it loads the model."
        )


def _document(
    inputs: ModelOnCluster, catalogue: Catalogue, deployed: Deployed, limits: Limits
) -> dict[str, Any]:
    """Return the results of a replica with their intervals and price."""
    from workloads.serving.deployment import with_intervals
    from workloads.serving.remarks import serving_remarks

    cluster = inputs.read_cluster(catalogue)
    each = Economics.of(cluster)
    plain = {
        "model": inputs.model,
        "cluster": inputs.cluster,
        "chips": deployed.deployment.chips,
        **deployed.document(limits, each),
        "price_basis": each.price_basis,
    }
    document = with_intervals(plain, inputs.read_model(), cluster, deployed, limits)
    if sentences := serving_remarks(inputs.read_model(), cluster, deployed, document):
        document["remarks"] = sentences
    return document


def _stated(
    load: RequestInputs, replica: ReplicaInputs, faster: DeploymentInputs, seed: int
) -> dict[str, Any]:
    """Return the stated options as the keywords of :func:`workloads.serving.front.serve`."""
    stated: dict[str, Any] = {"requests": load.requests, "seed": seed}
    for inputs in (load, replica, faster):
        values = {each.name: (getattr(inputs, each.name), each.default) for each in fields(inputs)}
        stated |= {name: value for name, (value, usual) in values.items() if value != usual}
    stated.pop("slo", None)
    return stated


def _ranked(deployed: Deployed) -> float:
    """Highest rate [1/s], or else the median time to the first token [s]."""
    import numpy as np

    return deployed.rate_per_s or float(np.median(deployed.served.ttft_s))


def _draw_frontier(run: Run, model: str, answers: Mapping[str, Deployed]) -> None:
    """Draw the output of a chip against the speed for a user, of one cluster or of several."""
    import pandas as pd

    from experiments.figures.serving import frontier

    rows = [
        {**row, "options": f"{name} {row['options']}" if len(answers) > 1 else row["options"]}
        for name, deployed in answers.items()
        for row in (deployed.search.frontier() if deployed.search else ())
    ]
    if rows:
        points = pd.DataFrame(rows)
        heading = f"{model} on {', '.join(answers)}: speed for a user and for a chip"
        run.figure("frontier", frontier(points, heading), title="Speed for a user and for a chip")
        run.table("frontier", points, title="Points of the curves")


def _write(run: Run, document: Mapping[str, Any], deployed: Deployed, limits: Limits) -> None:
    import pandas as pd

    from experiments.figures.serving import latencies

    served = deployed.served
    title = (
        f"{document['model']} on {chips_of(document)}: "
        f"{document['slo_attainment']:.2%} of {document['requests']:,} requests within the SLO"
    )
    run.figure("latency", latencies(served, limits, title), title="Latency of requests")
    if deployed.search:
        _draw_frontier(run, document["model"], {document["cluster"]: deployed})
        run.table("deployments", pd.DataFrame(document["deployments"]), title="Best deployments")
    run.json("summary", document, title="Results")
    run.table("metrics", served.frame(), title="Requests", parquet=True)
