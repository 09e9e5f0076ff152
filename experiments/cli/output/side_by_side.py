"""Several clusters side by side: commands with ``--cluster A,B,C``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.output.printing import print_table, print_text
from experiments.reports.certainty import ratio_sentences, ratios, value_at
from experiments.reports.formatting import Column, days_text, idle_sentences, value_text
from topologies.catalogue.catalogue import Catalogue
from topologies.support.errors import InputError
from workloads.economics import compared_machine

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run

Rows = list[dict[str, Any]]
MOST = 20
MOST_BATCHES = 8  # of the largest usual batch that one for all clusters may have
REFUSED = "refused"
STEP = (
    Column("chips", "chips"),
    Column("ranks", "ranks"),
    Column("iteration_s", "step"),
    Column("low_s", "80 % from"),
    Column("high_s", "to"),
    Column("tokens_per_s", "tokens a second"),
    Column("tokens_per_s_per_chip", "  a chip"),
    Column("mfu", "MFU"),
    Column("memory_bytes", "memory a rank"),
    Column("usd_per_million_tokens", "USD a million tokens"),
    Column("energy_joules", "energy a step"),
    Column("tokens_per_s_per_mw", "tokens a second a MW"),
)
"""Lines of training steps side by side."""
PLAN = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "recompute", "global_batch",
    "framework",
)  # fmt: skip
"""Fields of a plan that have a line where they differ."""
UNITS = (
    Column("fewest", "fewest units in time"),
    Column("sure", "  by the end of their interval"),
)
"""Lines of a deadline's units."""
JOB = (
    Column("days", "length of the job", write=days_text),
    Column("interval.days.low", "  80 % from", write=days_text),
    Column("interval.days.high", "  to", write=days_text),
    Column("spare_chips", "  spare chips, in price and energy"),
    Column("cost_usd", "  USD"),
    Column("interval.cost_usd.low", "    80 % from"),
    Column("interval.cost_usd.high", "    to"),
    Column("energy_joules", "  energy"),
)
"""Lines of the whole job, where its tokens are stated."""
BOUGHT = (
    Column("tokens", "tokens that the budget buys"),
    Column("interval.tokens.low", "  80 % from"),
    Column("interval.tokens.high", "  to"),
    Column("days", "  length", write=days_text),
    *JOB[3:],
)
"""Lines of the whole job, where its budget is stated."""
SERVING = (
    Column("chips", "chips"),
    Column("ttft_s.p50", "time to first token, median"),
    Column("ttft_s.p99", "  99 % within"),
    Column("tpot_s.p50", "time per output token, median"),
    Column("tpot_s.p99", "  99 % within"),
    Column("tokens_per_s", "output tokens a second"),
    Column("tokens_per_s_per_chip", "  a chip"),
    Column("request_goodput_per_s", "requests a second within the SLO"),
    Column("max_rate_per_s", "highest rate within the SLO"),
    Column("demand.deployments", "replicas for the stated rate"),
    Column("demand.chips", "  their chips"),
    Column("demand.machines", "  whole machines"),
    Column("demand.usd_per_h", "    USD an hour"),
    Column("slo_attainment", "requests within the SLO"),
    Column("batch_mean", "mean decode batch"),
    Column("kv_peak_bytes", "KV cache, peak"),
    Column("usd_per_million_tokens", "USD a million output tokens"),
    Column("joules_per_token", "joules an output token"),
)
"""Lines of replicas side by side, by their place in an answer."""


def cluster_names(text: str) -> list[str]:
    """Read names of clusters, ``A,B,C``; a file whose name has commas is one cluster."""
    if "," not in text or Path(text).is_file():
        return [text]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"cluster {text[:80]!r} has an empty name. Write A or A,B,C.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"cluster {twice[:80]!r} appears twice. Keep one.")
    if len(names) > MOST:
        raise InputError(f"{len(names)} clusters side by side, the limit is {MOST}. Name fewer.")
    return names


def each(names: Sequence[str], answer: Callable[[str], Rows]) -> Rows:
    """Return the rows of every cluster; a cluster that is refused has a row with the reason."""
    rows: Rows = []
    first: InputError | None = None
    for name in names:
        try:
            rows += [{**row, "status": "ok", "why": ""} for row in answer(name)]
        except InputError as mistake:
            first = first or mistake
            rows.append({"cluster": name, "status": REFUSED, "why": str(mistake)})
    if first is not None and all(row["status"] == REFUSED for row in rows):
        raise first
    return rows


def answer_beside(
    command: str,
    title: str,
    names: Sequence[str],
    answer: Callable[..., dict[str, Any]],
    single: Mapping[str, Any],
    read: Callable[[Sequence[str]], tuple[Catalogue, str]],
    put_out: Callable[..., None],
    draw: Callable[[Run], None] = lambda run: None,
) -> None:
    """Answer for several clusters in one table: of steps (``train``) or of replicas (``serve``)."""
    is_step = command == "train"
    check_single(single)
    catalogue, prices = read(names)
    rows = each(names, lambda name: [{**answer(name, catalogue), "cluster": name}])
    batches = ""
    if is_step:
        rows, batches = _of_one_batch(
            rows, lambda name, size: answer(name, catalogue, global_batch=size)
        )
    machines = {name: compared_machine(catalogue, name) for name in names}
    both = document(rows, command, prices, machines)
    both |= {"batches": batches} if batches else {}
    flat = [_flat_step(row) if is_step else _flat_serving(row) for row in answered(rows)]

    def write(run: Run, _: object) -> None:
        """Write the rows, parts of steps as a figure, and what the command draws of all."""
        run.table(
            "metrics",
            flat,
            title="Results" if is_step else title,
            note="\n".join(_sentences(both)),
        )
        if is_step:
            _draw_steps(run, title, answered(rows))
        run.json("results", both, title="Results")
        draw(run)

    lines = _step_lines(flat) if is_step else SERVING
    put_out(both, lambda _: _show(title, both, flat, lines), write)


def check_single(options: Mapping[str, Any]) -> None:
    """Refuse options that are for one cluster, by their names, where they are stated."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name} is for one cluster, not several. Name one.")


def _of_one_batch(rows: Rows, answer: Callable[[str, int], dict[str, Any]]) -> tuple[Rows, str]:
    """Return steps of one batch that all can divide where none is stated, and a sentence on it."""
    good = answered(rows)
    usual = {row["cluster"]: row["plan"]["global_batch"] for row in good}
    if len(set(usual.values())) <= 1:
        return rows, ""
    most, alike = math.lcm(*usual.values()), []
    if most > MOST_BATCHES * max(usual.values()):
        most = max(usual.values())
    for row in rows:
        name = row["cluster"]
        if usual.get(name, most) != most:
            with suppress(InputError):
                row = {**row, **answer(name, most), "cluster": name}
        alike.append(row)
    left = [
        row["cluster"] for row in alike if row.get("plan", {}).get("global_batch", most) != most
    ]
    sizes = ", ".join(f"{name} {size:,}" for name, size in usual.items())
    unlike = f" {', '.join(left)} cannot take it, and keeps the usual one." if left else ""
    return alike, (
        f"Global batch not stated: {most:,} sequences on all clusters, as their usual ones differ "
        f"({sizes}).{unlike}"
    )


def document(
    rows: Rows,
    command: str = "",
    prices: str = "",
    machines: Mapping[str, tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """Return all rows under the keys of one cluster's answer, with ratios for a ``command``."""
    good = answered(rows)
    first = good[0]
    ends = first.get("interval") or {"low": first["low"], "high": first["high"], "level": 0.8}
    more = {"ratios": ratios(command, good, machines)} if command else {}
    return {"rows": rows, "interval": ends, **more, **({"prices": prices} if prices else {})}


def _flat_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a training step's document to numbers, for a table."""
    ends, memory = row["interval"], row["memory_bytes"]
    cells = {line.name: row[line.name] for line in STEP if line.name in row}
    tokens, joules = row["tokens_per_s"] * row["iteration_s"], row["energy_joules"]
    cells["tokens_per_s_per_mw"] = 1e6 * tokens / joules if joules else None
    cells |= {"low_s": ends["low"], "high_s": ends["high"], "memory_bytes": memory["total"]}
    parts = {f"{name}_s": seconds for name, seconds in row["breakdown_s"].items()}
    fields = {name: row["plan"][name] for name in PLAN} | {"framework": row["framework"]}
    lines = dict.fromkeys(line.name for line in (*JOB, *BOUGHT)) if "job" in row else {}
    job = {f"job_{name}": value_at(row["job"], name) for name in lines}
    job |= {line.name: row["sizes"][line.name] for line in UNITS} if "sizes" in row else {}
    return {"cluster": row["cluster"], **cells, **parts, **fields, **job}


def _flat_serving(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a replica's document to numbers, for a table."""
    return {"cluster": row["cluster"], **{line.name: value_at(row, line.name) for line in SERVING}}


def _step_lines(flat: Rows) -> list[Column]:
    """Return the lines of steps: what differs in their plans, the steps, the job, and the parts."""
    from experiments.figures.training import NAMES

    fields = [name for name in PLAN if len({row[name] for row in flat}) > 1]
    lines = [*(Column(name, f"  {name}") for name in fields), *STEP]
    bought = flat[0].get("job_interval.tokens.low") is not None
    units = (Column("fewest", "units"),) if bought else UNITS
    lines += [line for line in units if line.name in flat[0]]
    if "job_days" in flat[0]:
        lines += [line._replace(name=f"job_{line.name}") for line in (BOUGHT if bought else JOB)]
    parts = {f"{name}_s": words for name, words in NAMES.items()}
    return lines + [
        Column(name, f"  {words}")
        for name, words in parts.items()
        if any(row.get(name) for row in flat)
    ]


def _show(title: str, answer: Mapping[str, Any], flat: Rows, lines: Sequence[Column]) -> None:
    """Print a line for each number with a column for each cluster, and what is said of them."""
    cells = [
        [line.heading, *("–" if row[line.name] is None else line.text(row) for row in flat)]
        for line in lines
        if any(row[line.name] is not None for row in flat)
    ]
    print_table(title, ["", *(row["cluster"] for row in flat)], cells, right=True)
    for sentence in _sentences(answer):
        print_text(sentence)
    tell_idle(answer["rows"])
    tell_refused(answer["rows"])
    for row in answered(answer["rows"]):
        if "train" in row:
            click.echo(f"Run that of {row['cluster']}: {row['train']}")
        elif "options" in row:
            print_text(f"{row['cluster']}: found {row['options']}")


def _draw_steps(run: Run, title: str, rows: Rows) -> None:
    """Draw the parts of steps side by side."""
    from experiments.figures.training import stacked

    notes = [f"{row['chips']:,} chips, MFU {row['mfu']:.0%}" for row in rows]
    names, parts = [row["cluster"] for row in rows], [row["breakdown_s"] for row in rows]
    figure = stacked(names, parts, notes, title=title)
    run.figure("steps", figure, title="Where the time goes, side by side")


def _sentences(answer: Mapping[str, Any]) -> list[str]:
    """Return what is said of all rows together."""
    sentences = ratio_sentences(answer["ratios"], answer.get("prices", ""))
    usd = {row["cluster"]: value_at(row, "job.cost_usd") for row in answered(answer["rows"])}
    if len(usd) > 1 and all(usd.values()) and len(set(usd.values())) > 1:
        least = min(usd, key=usd.__getitem__)
        sentences.insert(0, f"The job costs least on {least}: {value_text('_usd', usd[least])}.")
    return [*sentences, *filter(None, [answer.get("batches")])]


def tell_idle(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the options that change nothing on each cluster, and the remarks on its answer."""
    for row in rows:
        for line in (*idle_sentences(row.get("without_effect", {})), *row.get("remarks", ())):
            print_text(f"{row['cluster']}: {line}")


def tell_refused(rows: Rows) -> None:
    """Print the reason for each cluster that was refused."""
    for row in rows:
        if row["status"] == REFUSED:
            click.echo(f"{row['cluster']}: {row['why']}")


def answered(rows: Rows) -> Rows:
    """Return the rows whose clusters were not refused."""
    return [row for row in rows if row["status"] != REFUSED]
