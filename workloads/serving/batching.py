"""Batching of a replica: the number of decoding requests, and the processing of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.errors import InputError, suggestion

BUCKETS = (128, 256, 512, 1024, 2048, 4096, 8192, 10_240, 16_384, 32_768, 65_536, 131_072)
"""Lengths that a Neuron replica is compiled for; shorter prompts and caches are padded."""
CHUNK_TOKENS = 512
"""Default number of tokens of an iteration with chunked prefill. From about this number on, the
products of a dense model take longer than reading its weights."""

BESIDE, WHOLE, FIRST = "beside", "whole", "first"
PROMPTS = (BESIDE, WHOLE, FIRST)
"""Ways to fill an iteration with prompts, where it has ``chunk_tokens``: pieces of prompts beside
decoding requests, whole prompts beside them, or pieces of prompts while decode pauses."""


@dataclass(frozen=True)
class Batching:
    """Batching of a replica.

    Attributes
    ----------
    slots : int
        Largest number of requests that decode at once.
    chunk_tokens : int
        Tokens of an iteration if prompts are cut into chunks that run together with decode; 0 for
        separate prefill, which runs one whole prompt while decode pauses.
    buckets : tuple of int
        Lengths, ascending, to which separate prompts and the caches of decode are padded; empty
        for no padding.
    arrived : bool
        Whether prompts arrive with their keys and values, as at a decode replica, and take no time.
    prompts : str
        Way to fill iterations with prompts, one of ``PROMPTS``, where ``chunk_tokens`` is not 0.
    overlapped : bool
        Whether an iteration is planned while the one before it runs, so that a request that arrives
        meanwhile waits for one iteration more.
    poll_passes : int
        Passes of decode between two looks for new requests. After prompts the next look is at once.
    gather_passes, gather_tokens : int
        Passes of decode for which prompts wait for further prompts, unless those that wait fill an
        iteration to ``gather_tokens`` already; 0 for no wait.
    engine : str
        Serving engine whose scheduler this is; empty for none in particular.
    """

    slots: int = 64
    chunk_tokens: int = 0
    buckets: tuple[int, ...] = ()
    arrived: bool = False
    prompts: str = BESIDE
    overlapped: bool = False
    poll_passes: int = 1
    gather_passes: int = 0
    gather_tokens: int = 0
    engine: str = ""

    def __post_init__(self) -> None:
        if self.prompts not in PROMPTS:
            near = suggestion(self.prompts, PROMPTS)
            names = ", ".join(PROMPTS)
            raise InputError(f"unknown way to run prompts {self.prompts!r}; use {names}.{near}")
        if not self.chunk_tokens and (self.prompts != BESIDE or self.gather_passes):
            raise InputError(
                f"prompts run {self.prompts}, gathered for {self.gather_passes} passes: separate "
                "prompts run one at a time. State chunk_tokens."
            )
        if self.poll_passes < 1 or self.gather_passes < 0 or self.gather_tokens < 0:
            raise InputError(
                f"a look for requests every {self.poll_passes} passes, prompts that wait "
                f"{self.gather_passes} passes for {self.gather_tokens} tokens; use at least 1, 0 "
                "and 0."
            )
        if self.slots < 1 or self.chunk_tokens < 0 or any(size < 1 for size in self.buckets):
            raise InputError(
                f"batching with {self.slots} slots and pieces of {self.chunk_tokens} tokens; slots "
                "and buckets are at least 1, pieces at least 0."
            )
        if 0 < self.chunk_tokens <= self.slots and self.prompts != FIRST:
            raise InputError(
                f"pieces of {self.chunk_tokens} tokens leave no room beside {self.slots} decoding "
                "requests; use more tokens or fewer slots."
            )

    @property
    def prompts_text(self) -> str:
        """Way in which prompts are processed, for people.

        >>> Batching().prompts_text, Batching(chunk_tokens=512).prompts_text
        ('whole, while decoding waits', 'in pieces of 512 tokens, beside decoding')
        """
        if not self.chunk_tokens:
            return "whole, while decoding waits"
        if self.prompts == WHOLE:
            return f"whole, up to {self.chunk_tokens:,} tokens at once, beside decoding"
        beside = "while decoding waits" if self.prompts == FIRST else "beside decoding"
        return f"in pieces of {self.chunk_tokens:,} tokens, {beside}"

    def padded(self, tokens: int) -> int:
        """Return the padded length of a prompt or a cache."""
        return next((size for size in self.buckets if size >= tokens), tokens)
