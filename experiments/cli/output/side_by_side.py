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
from experiments.reports.formatting import days_text, idle_sentences, value_text
from topologies.support.errors import InputError

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue

Rows = list[dict[str, Any]]
MOST = 20
MOST_BATCHES = 8  # of the largest usual batch that one for all clusters may have
REFUSED = "refused"
STEP = (
    ("chips", "chips"),
    ("ranks", "ranks"),
    ("iteration_s", "step"),
    ("low_s", "80 % from"),
    ("high_s", "to"),
    ("tokens_per_s", "tokens a second"),
    ("tokens_per_s_per_chip", "  a chip"),
    ("mfu", "MFU"),
    ("memory_bytes", "memory a rank"),
    ("usd_per_million_tokens", "USD a million tokens"),
    ("energy_joules", "energy a step"),
    ("tokens_per_s_per_mw", "tokens a second a MW"),
)
"""Lines of training steps side by side."""
PLAN = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "recompute", "global_batch",
    "framework",
)  # fmt: skip
"""Fields of a plan that have a line where they differ."""
UNITS = (("fewest", "fewest units in time"), ("sure", "  by the end of their interval"))
"""Lines of a deadline's units."""
JOB = (
    ("days", "length of the job"),
    ("interval.days.low", "  80 % from"),
    ("interval.days.high", "  to"),
    ("spare_chips", "  spare chips, in price and energy"),
    ("cost_usd", "  USD"),
    ("interval.cost_usd.low", "    80 % from"),
    ("interval.cost_usd.high", "    to"),
    ("energy_joules", "  energy"),
)
"""Lines of the whole job, where its tokens are stated."""
BOUGHT = (
    ("tokens", "tokens that the budget buys"),
    ("interval.tokens.low", "  80 % from"),
    ("interval.tokens.high", "  to"),
    ("days", "  length"),
    *JOB[3:],
)
"""Lines of the whole job, where its budget is stated."""
SERVING = (
    ("chips", "chips"),
    ("ttft_s.p50", "time to first token, median"),
    ("ttft_s.p99", "  99 % within"),
    ("tpot_s.p50", "time per output token, median"),
    ("tpot_s.p99", "  99 % within"),
    ("tokens_per_s", "output tokens a second"),
    ("tokens_per_s_per_chip", "  a chip"),
    ("request_goodput_per_s", "requests a second within the SLO"),
    ("max_rate_per_s", "highest rate within the SLO"),
    ("demand.deployments", "replicas for the stated rate"),
    ("demand.chips", "  their chips"),
    ("demand.machines", "  whole machines"),
    ("demand.usd_per_h", "    USD an hour"),
    ("slo_attainment", "requests within the SLO"),
    ("batch_mean", "mean decode batch"),
    ("kv_peak_bytes", "KV cache, peak"),
    ("usd_per_million_tokens", "USD a million output tokens"),
    ("joules_per_token", "joules an output token"),
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

    def write_all(run: Run, _: object) -> None:
        """Add the rows to the run directory, and what the command draws of all clusters."""
        write(run, command, title, both)
        draw(run)

    from workloads.economics import compared_machine

    show = show_steps if command == "train" else show_serving
    check_single(single)
    catalogue, prices = read(names)
    rows = each(names, lambda name: [{**answer(name, catalogue), "cluster": name}])
    batches = ""
    if command == "train":
        rows, batches = _of_one_batch(
            rows, lambda name, size: answer(name, catalogue, global_batch=size)
        )
    machines = {name: compared_machine(catalogue, name) for name in names}
    both = document(rows, command, prices, machines)
    both |= {"batches": batches} if batches else {}
    put_out(both, lambda _: show(title, both), write_all)


def check_single(options: Mapping[str, Any]) -> None:
    """Refuse options that are for one cluster, by their names, where they are stated."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name} is for one cluster, not several. Name one.")


def _of_one_batch(rows: Rows, answer: Callable[[str, int], dict[str, Any]]) -> tuple[Rows, str]:
    """Return steps of one batch that all can divide where none is stated, and a sentence on it."""
    good = [row for row in rows if row["status"] != REFUSED]
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
    good = [row for row in rows if row["status"] == "ok"]
    first = good[0]
    ends = first.get("interval") or {"low": first["low"], "high": first["high"], "level": 0.8}
    more = {"ratios": ratios(command, good, machines)} if command else {}
    return {"rows": rows, "interval": ends, **more, **({"prices": prices} if prices else {})}


def flat_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a training step's document to numbers, for a table."""
    ends, memory = row["interval"], row["memory_bytes"]
    cells = {name: row[name] for name, _ in STEP if name in row}
    tokens, joules = row["tokens_per_s"] * row["iteration_s"], row["energy_joules"]
    cells["tokens_per_s_per_mw"] = 1e6 * tokens / joules if joules else None
    cells |= {"low_s": ends["low"], "high_s": ends["high"], "memory_bytes": memory["total"]}
    parts = {f"{name}_s": seconds for name, seconds in row["breakdown_s"].items()}
    fields = {name: row["plan"][name] for name in PLAN} | {"framework": row["framework"]}
    job = (
        {f"job_{name}": value_at(row["job"], name) for name in dict([*JOB, *BOUGHT])}
        if "job" in row
        else {}
    )
    job |= {name: row["sizes"][name] for name, _ in UNITS} if "sizes" in row else {}
    return {"cluster": row["cluster"], **cells, **parts, **fields, **job}


def flat_serving(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a replica's document to numbers, for a table."""
    return {"cluster": row["cluster"], **{place: value_at(row, place) for place, _ in SERVING}}


def show_steps(title: str, answer: Mapping[str, Any]) -> None:
    """Print a table of training steps with a column for each cluster."""
    from experiments.figures.training import NAMES

    flat = [flat_step(row) for row in answered(answer)]
    parts = [f"{name}_s" for name in NAMES if any(row.get(f"{name}_s") for row in flat)]
    fields = [name for name in PLAN if len({row[name] for row in flat}) > 1]
    lines = [*((name, f"  {name}") for name in fields), *STEP]
    bought = flat[0].get("job_interval.tokens.low") is not None
    units = (("fewest", "units"),) if bought else UNITS
    lines += [line for line in units if line[0] in flat[0]]
    job = BOUGHT if bought else JOB
    lines += [(f"job_{name}", words) for name, words in job if "job_days" in flat[0]]
    lines += [(part, f"  {NAMES[part.removesuffix('_s')]}") for part in parts]
    _show_columns(title, answer, flat, lines)
    for row in answered(answer):
        if "train" in row:
            click.echo(f"Run that of {row['cluster']}: {row['train']}")


def show_serving(title: str, answer: Mapping[str, Any]) -> None:
    """Print a table of replicas with a column for each cluster."""
    good = answered(answer)
    flat = [flat_serving(row) for row in good]
    _show_columns(title, answer, flat, SERVING)
    for row in good:
        if "options" in row:
            print_text(f"{row['cluster']}: found {row['options']}")


def _show_columns(
    title: str, answer: Mapping[str, Any], flat: Rows, lines: Sequence[tuple[str, str]]
) -> None:
    """Print a line for each number with a column for each cluster, and what is said of them."""
    shown = [line for line in lines if any(row[line[0]] is not None for row in flat)]
    cells = [
        [heading, *("–" if row[name] is None else _text(name, row[name]) for row in flat)]
        for name, heading in shown
    ]
    print_table(title, ["", *(row["cluster"] for row in flat)], cells, right=True)
    for sentence in _sentences(answer):
        print_text(sentence)
    tell_idle(answer["rows"])
    tell_refused(answer["rows"])


def _sentences(answer: Mapping[str, Any]) -> list[str]:
    """Return what is said of all rows together."""
    sentences = ratio_sentences(answer["ratios"], answer.get("prices", ""))
    usd = {row["cluster"]: value_at(row, "job.cost_usd") for row in answered(answer)}
    if len(usd) > 1 and all(usd.values()) and len(set(usd.values())) > 1:
        least = min(usd, key=usd.__getitem__)
        sentences.insert(0, f"The job costs least on {least}: {value_text('_usd', usd[least])}.")
    return [*sentences, *filter(None, [answer.get("batches")])]


def _text(name: str, value: Any) -> str:
    """Text of a number of a cluster's answer; the length of a job is in days."""
    is_length = name.removesuffix(".low").removesuffix(".high").endswith("days")
    return days_text(value) if is_length else value_text(name, value)


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


def write(run: Run, command: str, title: str, answer: Mapping[str, Any]) -> None:
    """Add the rows to a run directory; those of steps with a figure of their parts."""
    good = answered(answer)
    is_step = command == "train"
    rows = [(flat_step if is_step else flat_serving)(row) for row in good]
    sentences = "\n".join(_sentences(answer))
    run.table("metrics", rows, title="Results" if is_step else title, note=sentences)
    if is_step:
        from experiments.figures.training import stacked

        notes = [f"{row['chips']:,} chips, MFU {row['mfu']:.0%}" for row in good]
        names, parts = [row["cluster"] for row in good], [row["breakdown_s"] for row in good]
        figure = stacked(names, parts, notes, title=title)
        run.figure("steps", figure, title="Where the time goes, side by side")
    run.json("results", answer, title="Results")


def answered(answer: Mapping[str, Any]) -> Rows:
    """Return the rows of an answer whose clusters were not refused."""
    return [row for row in answer["rows"] if row["status"] != REFUSED]
