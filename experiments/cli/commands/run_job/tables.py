"""Tables that ``cluster-sim run-job`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from experiments.cli.output.job_amounts import amount, spent
from experiments.cli.output.printing import print_table, print_text
from experiments.reports.idle import idle_sentences
from topologies.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workloads.job import JobResult

PART_NAMES = {
    "useful": "useful",
    "lost_work": "lost work",
    "checkpoint": "checkpoints",
    "restart": "restarts",
    "detection": "detection",
    "waiting_for_spares": "waiting for spares",
    "stragglers": "stragglers",
}


def print_job(result: JobResult, document: Mapping[str, Any]) -> None:
    """Print a job's goodput, where its time goes, and its failures by cause."""
    plan, ends = result.step.plan, result.interval
    title = (
        f"{document['model']} on {document['cluster']}, {document['chips']:,} chips "
        f"(tp {plan.tp}, pp {plan.pp}, dp {plan.dp}), {document['days']:,.4g} days"
    )
    for line in idle_sentences(document.get("without_effect", {})):
        click.echo(line)
    print_table(title, ["result", "value"], _results(result, document), left=2)
    for line in document.get("remarks", ()):
        print_text(line)
    shares = [[PART_NAMES[part], f"{share:.2%}"] for part, share in result.breakdown.items()]
    print_table("", ["where the time goes", "share"], shares)
    causes = sorted(result.failures_by_cause.items(), key=lambda item: -item[1])
    rows = [[name.replace("_", " "), f"{count:,.1f}"] for name, count in causes]
    print_table("", ["failures", "in the run"], rows)
    click.echo(f"80 % of runs lie between {ends.low:.1%} and {ends.high:.1%}: {ends.basis}.")


def _results(result: JobResult, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows about the whole run: failures, checkpoints, spares, tokens, price and energy."""
    from experiments.reports.formatting import format_interval, number

    def time(name: str) -> str:
        value = document[name]
        return "none" if value is None else format_seconds(value)

    tokens, step = result.tokens_interval, result.step.interval
    state = format_bytes(int(document["checkpoint_bytes"]))
    rows = [
        ("goodput", f"{result.goodput:.1%} of the time"),
        ("failures", f"{document['failures']:,.1f}; one every {time('mtbf_s')} expected"),
        ("checkpoint every", time("checkpoint_interval_s")),
        (
            "  best, Young and Daly",
            f"{time('best_checkpoint_interval_s')}, {time('young_daly_interval_s')}",
        ),
        (
            "  of",
            f"{state}, stall {time('checkpoint_stall_s')}, write {time('checkpoint_write_s')}",
        ),
        *_peer_rows(document, time),
        ("detection, restart", f"{time('detection_s')}, {time(_restart(document))}"),
        ("repair", time("repair_s")),
        ("spares", f"{document['spares']:,} of {result.unit_chips} chips"),
        ("step", f"{format_seconds(document['iteration_s'])} {format_interval(step)}"),
    ]
    if result.goal is None:
        few, many = number(tokens.low), number(tokens.high)
        rows.append(("tokens", f"{number(result.tokens)} (80 %: {few} – {many})"))
    else:
        rows.append(("tokens", number(result.tokens)))
        rows.append(("length", amount(document, "days", "days")))
    return [*rows, *spent(document)]


def _restart(document: Mapping[str, Any]) -> str:
    """Key of the restart time after an ordinary failure."""
    restarts = ("warm_restart_s", "peer_restart_s", "restart_s")
    return next(name for name in restarts if name in document)


def _peer_rows(document: Mapping[str, Any], time: Callable[[str], str]) -> list[tuple[str, str]]:
    """Rows about the copies in host memory; none if the job keeps no copies."""
    if "peer_copy_s" not in document:
        return []
    held, host = document["peer_bytes_per_server"], document["host_bytes_per_server"]
    of = "" if host is None else f" of {host / 1e9:,.0f} GB"
    return [
        ("copies with peers every", f"{time('peer_copy_interval_s')}, in {time('peer_copy_s')}"),
        ("  in host memory", f"{held / 1e9:,.0f} GB a server{of}"),
        ("  pairs lost, back to the store", f"{document['peer_pairs_lost']:,.2g}"),
    ]
