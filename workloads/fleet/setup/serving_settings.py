"""Settings of serving on the units of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from topologies.errors import InputError, shown, suggestion
from workloads.fleet.setup.replica import AUTO, KNOWN
from workloads.serving import Slo

DEFAULT_SLO = Slo(ttft_s=6.0, tpot_s=0.175)
"""Limits of MLPerf's server scenario for Llama-3.1-405B."""
USUAL = "auto"
"""Way of running prompts where none is stated."""


@dataclass(frozen=True)
class Serving:
    """Settings of serving on the units of a fleet.

    Attributes
    ----------
    slo : Slo
    tp : int, optional
        Chips of a replica; by default the fewest that fit, from one server on.
    prefill : str
        Processing of prompts: ``chunked``, beside decoding, ``separate``, with which decode waits
        for whole prompts and keeps no tight TPOT, or ``auto``, the usual way of the machine (see
        :func:`workloads.fleet.setup.prompts.prompts_of`).
    chunk_tokens : int, optional
        Tokens of the pieces into which prompts are cut: by default 512, for mixtures of experts
        8,192. With 0, prompts run whole.
    unit_rate_per_s : float, optional
        Requests that a unit serves, instead of a model's capacity [1/s]. There is no latency model
        then: a request that is not queued keeps the SLO.
    cache : Path, optional
        Folder in which capacity tables are kept.
    precision : str
        Precision of weights and products; ``auto``: BF16, or FP8 where the weights do not fit in
        BF16.
    prefix_share : float
        Share of every prompt that a replica's prefix cache holds once it has been filled.
    speculate : str
        ``TOKENS:ACCEPTANCE[:DRAFT]``, see :func:`workloads.serving.parse_speculation`; empty for
        none.
    disaggregate : str
        ``P:D``, the prefill and decode replicas of a group that serves together; empty for those
        of ``prefill``.
    """

    slo: Slo = DEFAULT_SLO
    tp: int | None = None
    prefill: str = USUAL
    chunk_tokens: int | None = None
    unit_rate_per_s: float | None = None
    cache: Path | None = None
    precision: str = AUTO
    prefix_share: float = 0.0
    speculate: str = ""
    disaggregate: str = ""

    def __post_init__(self) -> None:
        if self.unit_rate_per_s is not None:
            self._check_alone()
        if self.disaggregate and self.chunk_tokens:
            raise InputError(
                f"pieces of {self.chunk_tokens} tokens are for replicas that decode beside a "
                "prompt, and --disaggregate gives prompts replicas of their own. Leave --chunk out."
            )
        if self.disaggregate and self.prefill != USUAL:
            raise InputError(
                f"--prefill {self.prefill} is for replicas that decode as well, and --disaggregate "
                f"{self.disaggregate} gives prompts replicas of their own, where they run whole. "
                "Leave one of them out."
            )
        if self.precision not in KNOWN:
            near = suggestion(self.precision, KNOWN)
            raise InputError(
                f"precision {shown(self.precision)!r} is none of {', '.join(KNOWN)}.{near}"
            )

    def _check_alone(self) -> None:
        """Refuse settings of replicas beside a unit's rate, which holds whatever they are."""
        replicas = {
            "--tp": self.tp is not None,
            "--precision": self.precision != AUTO,
            "--prefill": self.prefill != USUAL,
            "--chunk": self.chunk_tokens is not None,
            "--prefix-cache": bool(self.prefix_share),
            "--speculate": bool(self.speculate),
            "--disaggregate": bool(self.disaggregate),
            "--cache": self.cache is not None,
        }
        stated = [name for name, is_stated in replicas.items() if is_stated]
        if stated:
            verb, names = "changes" if len(stated) == 1 else "change", " and ".join(stated)
            raise InputError(
                f"{names} {verb} nothing beside --unit-rate, as a unit's rate "
                f"holds whatever its replicas are; leave out --unit-rate, or {names}."
            )
