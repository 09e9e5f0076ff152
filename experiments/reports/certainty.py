"""Intervals in the results of a run, as texts and as a band: how sure its answer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.reports.formatting import Column, heading, number, value_text
from topologies.support.errors import InputError
from workloads.economics import kind_in_words

Document = Mapping[str, Any]

INTERVAL_OF: Mapping[str, str] = {
    "train": "iteration_s",
    "plan": "rows.0.iteration_s",
    "replay": "iteration_s",
    "serve": "ttft_s.p50",
    "run-job": "goodput",
    "fleet": "unit_capacity_requests_per_s",
}
"""Place of the number that the key ``interval`` of a command's results is about."""
INTERVAL_KEYS = {
    "tpot_s.p50": "tpot_interval",
    "regret.gain_over_static_chip_hours": "regret.gain_interval",
}
"""Keys of other intervals whose name does not follow from the name of their number."""
PAID = {
    "usd_per_million_tokens": "a million tokens",
    "job.cost_usd": "the job",
    "demand.usd_per_h": "an hour for the stated rate",
}
"""Prices of an answer that follow from that of its machine, by their place in it, in words."""
SIMULATED = ("run-job",)  # commands whose interval holds simulated runs and not measurements
EDGE = 0.12  # share of the drawing that is left free on either side of the band


def value_at(results: Document, place: str) -> Any:
    """Value at a place such as ``rows.0.mfu``; None where there is nothing."""
    value: Any = results
    for step in place.split("."):
        if isinstance(value, list) and value and step == "0":
            value = value[0]
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def interval_at(command: str, results: Document, place: str) -> Any:
    """Interval of the number at a place: the results' own, an entry, or under another key."""
    if INTERVAL_OF.get(command) == place:
        return results.get("interval")
    name = place.removeprefix("rows.0.")
    separate = value_at(results, INTERVAL_KEYS.get(place, f"{name}_interval"))
    return value_at(results, f"interval.{name}") if separate is None else separate


def ends_text(
    name: str, interval: Any, write: Callable[[Any], str] | None = None, value: Any = None
) -> str:
    """Interval of a number as it stands beside the number; empty where it has none, or is a point.

    ``write``: function that writes the number, in place of that of its unit. ``value``: the number.

    >>> ends_text("time_s", {"low": 0.01888, "high": 0.0251})
    '80 %: 18.9 ms – 25.1 ms'
    """
    try:
        ends = [_rounded(float(interval[end]), value) for end in ("low", "high")]
        level = float(interval["level"]) if "level" in interval else 0.8
    except (KeyError, TypeError, ValueError, IndexError):
        return ""
    low, high = (write(end) if write else value_text(name, end) for end in ends)
    return f"{100 * level:.0f} %: {low} – {high}" if low != high else ""


def _rounded(end: float, value: Any) -> float:
    """End of an interval to three digits; in full where these would not lie on its side of a value.

    >>> _rounded(31.26, 31.3), _rounded(31.26, 40), _rounded(7437.9, 7438.1)
    (31.26, 31.3, 7437.9)
    """
    rounded = float(f"{end:.3g}")
    crosses = value is not None and (rounded - value) * (end - value) <= 0
    return end if crosses else rounded


def facts(columns: Sequence[Column], results: Document, command: str = "") -> list[tuple[str, str]]:
    """Return heading and text of each number of a document, with its interval if it has one.

    The name of a column is the number's place, such as ``ttft_s.p50``. A number that is missing,
    or is written as nothing, has no row.

    >>> rent = {"usd": 2.5, "energy_joules": None, "interval": {"usd": {"low": 2.25, "high": 2.75}}}
    >>> facts([Column("usd", "rent"), Column("energy_joules", "energy")], rent)
    [('rent', '2.5 USD (80 %: 2.25 USD – 2.75 USD)')]
    """
    rows = []
    for column in columns:
        value = value_at(results, column.name)
        text = "" if value is None else column.written(value)
        ends = interval_at(command, results, column.name)
        like = column.like or column.name
        between = ends_text(like, ends, column.write, value) if text else ""
        rows += [(column.heading, f"{text} ({between})" if between else text)] * bool(text)
    return rows


def price_sentences(document: Document) -> list[str]:
    """Return what an answer costs by each other way to pay; empty without one."""
    others = document.get("other_prices", {})
    prices = {kind_in_words(way): entry for way, entry in others.items()}
    if others and "rows" in document:  # a table of plans has no price beside them
        usd, ends = paid(document)
        first = {**usd, "interval": ends, "price_basis": document["price_basis"]}
        prices = {"of the first plan": first} | prices
    sentences = []
    for way, entry in prices.items():
        amounts = []
        for place, words in PAID.items():
            if (usd_of := entry.get(place)) is not None:
                between = ends_text("_usd", entry["interval"].get(place), _usd, usd_of)
                between = f" ({between})" if between else ""
                amounts.append(f"{value_text('_usd', usd_of)} {words}{between}")
        sentences.append(f"Price {way}: {', '.join(amounts)}; {entry['price_basis']}.")
    return sentences


def _usd(value: Any) -> str:
    """Price without its unit, beside one that has it."""
    return value_text("_usd", value).removesuffix(" USD")


def paid(results: Document) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the prices of an answer by their places, and the intervals of those that have one."""
    usd = {place: value for place in PAID if (value := value_at(results, place))}
    ends = dict[str, Any]()
    for place in usd:
        parent, _, name = place.rpartition(".")
        within = value_at(results, parent) if parent else results
        if (interval := interval_at("", within, name)) is not None:
            ends[place] = interval
    return usd, ends


def interval_band(command: str, results: Document) -> dict[str, Any]:
    """The interval of a command's first number as a band, with the number marked in it."""
    place = INTERVAL_OF.get(command, "")
    interval, middle = results.get("interval"), value_at(results, place)
    if not isinstance(interval, Mapping) or middle is None:
        raise InputError(f"results of {command} have no interval")
    name, low, high = place.removeprefix("rows.0."), float(interval["low"]), float(interval["high"])
    if not high > low:
        raise InputError("the interval has no width")
    span = (high - low) / (1 - 2 * EDGE)
    first = low - EDGE * span
    shown = f"{heading(name)} {value_text(name, middle)}"
    return {
        "kind": "interval",
        "alt": f"Predicted {shown}, {ends_text(name, interval, value=middle)}.",
        "left": f"{100 * EDGE:.2f}",
        "width": f"{100 * (1 - 2 * EDGE):.2f}",
        "right": f"{100 * (1 - EDGE):.2f}",
        "at": f"{min(100.0, max(0.0, 100 * (middle - first) / span)):.2f}",
        "low": value_text(name, low),
        "middle": shown,
        "high": value_text(name, high),
    }


def basis(command: str, results: Document) -> str:
    """One sentence on what the interval holds, and where its width comes from; empty for none."""
    interval = results.get("interval")
    if not isinstance(interval, Mapping):
        return ""
    try:
        share = f"{float(interval['level']):.0%}"
    except (KeyError, TypeError, ValueError):
        return ""
    held = "runs" if command in SIMULATED else "measurements"
    return f"{share} of {held} would lie in this band. Basis: {interval.get('basis', '')}."


Rows = Sequence[Mapping[str, Any]]
PRICE = {"usd_per_million_tokens": "the price of a million tokens"}
COMPARED: Mapping[str, Mapping[str, str]] = {
    "train": {"tokens_per_s": "the tokens a second", **PRICE},
    "serve": {
        "ttft_s.p50": "the median time to first token",
        "tpot_s.p50": "the median time per output token",
        **PRICE,
    },
}
"""Numbers of a command's answers that are compared, by their place in them, in words."""


UNKNOWN = "of no stated kind", ""  # what is known of a machine of which nothing is


def ratios(
    command: str, rows: Rows, machines: Mapping[str, tuple[str, str]] | None = None
) -> list[dict[str, Any]]:
    """Return the ratios of each cluster's numbers to those of the first, with their intervals."""
    # ``machines``: as of ``compared_machine``, by cluster. A ratio of prices of two kinds is no
    # difference of the clusters, and no error of a prediction bounds rates that are assumed.
    from workloads.confidence.split_conformal import ratio_ends  # costly, for the help of train

    entries = []
    first, *others = rows
    for row in others:
        for place, words in COMPARED.get(command, {}).items():
            mine, base = (_ends(command, one, place) for one in (row, first))
            if mine is None or base is None:
                continue
            low, ratio, high = ratio_ends(mine, base)
            named = {"cluster": row["cluster"], "of": first["cluster"], "number": words}
            entry = {**named, "ratio": ratio, "low": low, "high": high}
            both = [(machines or {}).get(one["cluster"], UNKNOWN) for one in (row, first)]
            paid, chips = [kind for kind, _ in both], [chip for _, chip in both if chip]
            entry |= {"price_kinds": paid} if place in PRICE and machines else {}
            entry |= {"invented": chips} if chips else {}
            unlike = chips or (place in PRICE and paid[0] != paid[1])
            even = _break_even(command, row, first) if place in PRICE else {}
            entries.append({**entry, **even, "differs": not (low <= 1 <= high or unlike)})
    return entries


def _break_even(command: str, row: Document, first: Document) -> dict[str, Any]:
    """Return the price of a chip-hour at which a cluster's tokens cost what the first's do."""
    from workloads.confidence.split_conformal import ratio_ends

    mine, base = (_ends(command, one, "tokens_per_s") for one in (row, first))
    # A price of several kinds of chips together has no single one at which it is even.
    if mine is None or base is None or {"prefill_cluster", "stages"} & {*row, *first}:
        return {}
    (price,), (low, ratio, high) = PRICE, ratio_ends(mine, base)
    paid, theirs = (
        one[price] * one["tokens_per_s"] / one["chips"] * 3600 / 1e6 for one in (row, first)
    )
    of_jobs = "job" in row and "job" in first  # with spare chips and lost time
    cost, base_cost = (value_at(one, "job." * of_jobs + price) for one in (row, first))
    usd = paid * base_cost / cost
    ends = {"usd": usd, "low": usd * low / ratio, "high": usd * high / ratio}
    even = {**ends, "paid_usd": paid, "of_usd": theirs, "of_jobs": of_jobs}
    return {"break_even_chip_hour": even}


def _ends(command: str, row: Mapping[str, Any], place: str) -> tuple[float, float, float] | None:
    """Return the interval of a number around it; None where a document has none of them."""
    value, ends = value_at(row, place), interval_at(command, row, place)
    if not value or not isinstance(ends, Mapping) or not ends["low"] > 0:
        return None
    return float(ends["low"]), float(value), float(ends["high"])


def ratio_sentences(entries: Rows, prices: str = "") -> list[str]:
    """Return sentences on the ratios of each cluster, and on the kinds of prices."""
    # ``prices``: a sentence on them that names the machines, where there is one.
    sentences, unlike = [], dict[str, None]()
    for cluster in dict.fromkeys(entry["cluster"] for entry in entries):
        mine = [entry for entry in entries if entry["cluster"] == cluster]
        kinds = dict.fromkeys(kind for entry in mine for kind in entry.get("price_kinds", ()))
        paid = f", {next(iter(kinds))}" if len(kinds) == 1 else ""
        numbers = ", ".join(
            f"{_three(entry['ratio'])} times {entry['number']}"
            f"{paid * ('price_kinds' in entry)} (80 %: {_three(entry['low'])} – "
            f"{_three(entry['high'])})"
            for entry in mine
        )
        sure = " and ".join(entry["number"] for entry in mine if entry["differs"])
        beyond = f"Beyond the error of two predictions: {sure}." if sure else NONE
        if chips := dict.fromkeys(chip for entry in mine for chip in entry.get("invented", ())):
            beyond = f"All rates of {' and '.join(chips)} are assumed: ratios hold if these do."
        sentences.append(f"{cluster} has {numbers} of {mine[0]['of']}. {beyond}")
        sentences += [
            f"Tokens of both{' jobs' * even['of_jobs']} cost the same where a "
            f"chip-hour of {cluster} costs {even['usd']:.4g} USD (80 %: {even['low']:.3g} – "
            f"{even['high']:.3g}); it costs {even['paid_usd']:.4g}, and one of {entry['of']} "
            f"{even['of_usd']:.4g}."
            for entry in mine
            if (even := entry.get("break_even_chip_hour"))
        ]
        unlike |= kinds if len(kinds) > 1 else {}
    if unlike:
        *most, last = unlike
        prices = (
            prices or f"Prices are of {COUNTS[len(unlike)]} kinds, {', '.join(most)} and {last}."
        )
        prices += " Such ratios say little of the machines: --price-basis chooses one kind for all."
    return [*sentences, *filter(None, [prices])]


def _three(value: float) -> str:
    """Write a number to three digits, without a power of ten.

    >>> _three(2804.0), _three(0.7256)
    ('2,800', '0.726')
    """
    return number(float(f"{value:.3g}"))


COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def ratio_title(entries: Rows) -> str:
    """Return the first ratio of two clusters, short enough for a title; nothing for others."""
    if len({entry["cluster"] for entry in entries}) != 1:
        return ""
    first = entries[0]
    sure = "" if first["differs"] else ", within the error of two predictions"
    return "{cluster} has {ratio:.3g} times {number} of {of}".format(**first) + sure


NONE = "No difference is beyond the error of two predictions."
