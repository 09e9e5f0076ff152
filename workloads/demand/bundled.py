"""Demand traces that ship with the package, by name; they are shapes, to be scaled to a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from topologies.support.errors import InputError, suggestion
from workloads.demand.read import read_demand
from workloads.demand.request_logs import is_json_log
from workloads.demand.trace import Demand, mix

DATA = Path(__file__).parents[1] / "data"
AZURE_CODE_OUTPUT_TOKENS = 27.9
"""Mean output tokens of Azure's 2023 code trace; the 2024 plots do not resolve them."""


def azure_code() -> Demand:
    """Azure's LLM code-completion service, 10–16 May 2024, by the minute."""
    # Origin: Azure LLM inference trace 2024 (CC BY 4.0; Stojkovic et al., HPCA 2025), counts summed
    # from 10 s as republished under Apache-2.0. Size: 10,080 minutes, 16,803,695 requests (exact).
    # Columns: requests per minute; prompt tokens per request from hourly estimates (mean 2,561,
    # about 3 % an hour); output tokens 27.9 throughout, the mean of the 2023 trace. Starts on a
    # Friday; busiest at 19 UTC, and 33 times quieter in the quietest hour of the week.
    return _azure("code", AZURE_CODE_OUTPUT_TOKENS)


def azure_conv() -> Demand:
    """Azure's LLM conversation service, 12–18 May 2024, by the minute."""
    # Origin and licence as ``azure_code``. Size: 10,080 minutes, 27,303,999 requests (exact).
    # Columns: requests per minute; prompt (mean 1,618) and output (mean 110) tokens per request
    # from hourly estimates. Starts on a Sunday; busiest at 14 UTC; a real spike of +35 % for four
    # minutes on 16 May, 01:47.
    return _azure("conv", 110.0)


def burstgpt() -> Demand:
    """Two services of a university on Azure, ``conversation`` and ``api``, 61 days, hourly."""
    # Origin: BurstGPT part 1 (CC BY 4.0; Wang et al., KDD 2025), hourly counts as republished under
    # MIT. Size: 1,464 hours, 154,219 and 1,275,518 requests (exact). The calendar is not published:
    # day 0 is taken as a Wednesday, so that days 3 and 4 of each seven are the weekend. No tokens.
    hourly = read_demand(data_file("burstgpt_1_hourly.csv"))
    return replace(hourly, start="2024-01-03T00:00", absolute=False)


def servegen(model: str = "m-large") -> Demand:
    """Load of a model of Alibaba Cloud's Model Studio, 14 days, in windows of 10 minutes."""
    # The models are ``m-large``, ``m-mid`` and ``m-small``. Origin: ServeGen (Apache-2.0; Xiang et
    # al., arXiv:2505.09999), rates of all clients summed. Size: 14 days each (``deepseek-r1``: one
    # day). Columns: requests; mean tokens of the clients whose lengths are published (43–100 % of
    # the requests). Windows without requests are gaps in the source and are filled linearly here.
    # Times presumably UTC+8; day 0 is not dated.
    rates = read_demand(data_file("servegen_10min.csv"), service=model)
    requests = rates.requests[0]
    gaps = requests <= 0
    minutes = np.arange(rates.minutes)
    requests = np.where(gaps, np.interp(minutes, minutes[~gaps], requests[~gaps]), requests)
    return replace(rates, requests=requests[None, :], absolute=False)


def deepseek_day() -> Demand:
    """DeepSeek-V3/R1's load from 27 February 2025, 04:00 UTC, as a share of the peak, hourly."""
    # Origin: DeepSeek's inference system overview (CC0), token income at list price read off a
    # figure (0.2 % in total). Size: 24 hours. Its ``requests`` are shares of the peak load, not
    # counts: scale them to a fleet before use. ``deepseek_nodes`` has the nodes that the operator
    # used.
    hourly = read_demand(data_file("deepseek_2025_day_hourly.csv"), prompt_tokens=4989.0)
    shares = hourly.requests * 60.0
    return replace(hourly, services=("deepseek",), start="2025-02-27T04:00", requests=shares)


def deepseek_nodes() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Nodes (8 H800 each) that served on the :func:`deepseek_day`, every 15 minutes; (96,)."""
    # Mean 226.75 and maximum 278, exactly the two numbers printed in the source (CC0).
    rows = np.loadtxt(
        data_file("deepseek_2025_day_nodes_15min.csv"), delimiter=",", skiprows=1, usecols=2
    )
    return np.asarray(rows, float)


def azure_mix() -> Demand:
    """Both Azure services on the week of the conversation trace, aligned by time of the week."""
    return mix([azure_conv(), azure_code()])


BUNDLED: Mapping[str, Callable[[], Demand]] = {
    "azure-code": azure_code,
    "azure-conv": azure_conv,
    "azure-mix": azure_mix,
    "burstgpt": burstgpt,
    "servegen-large": servegen,
    "servegen-mid": partial(servegen, "m-mid"),
    "servegen-small": partial(servegen, "m-small"),
    "deepseek-day": deepseek_day,
}


def demand(text: str, *, service: str | None = None) -> Demand:
    """Read a demand by its bundled name, or from a file in CSV, JSON or JSON lines.

    >>> demand("azure-code").minutes
    10080
    """
    if text in BUNDLED:
        bundled = replace(BUNDLED[text](), notes=())
        return bundled if service is None else bundled.only(service)
    looks_like_a_path = (
        text.endswith(".csv") or is_json_log(text) or "/" in text or Path(text).exists()
    )
    if not looks_like_a_path:
        raise InputError(
            f"unknown demand {text!r}; give a CSV file or one of {', '.join(BUNDLED)}."
            + (suggestion(text, BUNDLED) or " Rates are for serve --requests." * (":" in text))
        )
    return read_demand(text, service=service)


def data_file(name: str) -> Path:
    """Path of a data file that ships with the package."""
    return DATA / name


@cache
def _azure(service: str, output_tokens: float) -> Demand:
    """Join the counts by the minute with the token estimates by the hour."""
    counts = read_demand(data_file("azure_llm_2024_requests_1min.csv"), service=service)
    hourly = read_demand(
        data_file("azure_llm_2024_hourly.csv"), service=service, output_tokens=output_tokens
    )
    for shared in (counts.requests, hourly.prompt_tokens, hourly.output_tokens):
        shared.flags.writeable = False  # all callers have the same arrays
    return replace(
        counts,
        prompt_tokens=hourly.prompt_tokens,
        output_tokens=hourly.output_tokens,
        absolute=False,
    )


def demand_from(
    names: Sequence[str],
    *,
    service: str | None = None,
    weights: Sequence[float] = (),
    average_minutes: int = 1,
) -> Demand:
    """Read one demand, or several that arrive side by side."""
    # Files with counts of requests are taken as they are; a bundled trace, which is only a shape,
    # is scaled to the same mean beside them. With weights, or with bundled traces alone, the result
    # is itself a shape (``absolute`` is False).
    if not names:
        raise InputError("no demand given; name a bundled trace or a CSV file.")
    parts = [demand(name, service=service) for name in names]
    if weights:
        if len(weights) != len(parts) or min(weights) <= 0:
            raise InputError(
                f"{len(weights)} weights for {len(parts)} demands; give one above 0 each."
            )
        parts = [
            replace(each.times(weight / each.requests.sum(axis=0).mean()), absolute=False)
            for each, weight in zip(parts, weights, strict=True)
        ]
    parts = _sized(parts, names)
    joined = mix(parts) if len(parts) > 1 else parts[0]
    if average_minutes > joined.minutes:
        raise InputError(
            f"cannot average over {average_minutes:,} minutes: the demand has {joined.minutes:,}. "
            "Average over fewer."
        )
    return joined.averaged(average_minutes) if average_minutes > 1 else joined


def _sized(parts: Sequence[Demand], names: Sequence[str]) -> list[Demand]:
    """Scale shapes that stand beside counts to the mean requests of a demand with counts."""
    sizes = [float(part.requests.sum(axis=0).mean()) for part in parts]
    counted = [size for part, size in zip(parts, sizes, strict=True) if part.absolute]
    if not counted or len(counted) == len(parts):
        return list(parts)
    mean = sum(counted) / len(counted)
    result = []
    for part, size, name in zip(parts, sizes, names, strict=True):
        if not part.absolute:
            note = (
                f"{name}, a shape without a size for this fleet, was taken as large as the counts "
                f"beside it, {mean / 60:,.3g} requests/s on average; --weight sets shares."
            )
            part = replace(part.times(mean / size), absolute=True, notes=(*part.notes, note))
        result.append(part)
    return result
