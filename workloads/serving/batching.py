"""Batching of a replica: the number of decoding requests, and the processing of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.errors import InputError

BUCKETS = (128, 256, 512, 1024, 2048, 4096, 8192, 10_240, 16_384, 32_768, 65_536, 131_072)
"""Lengths that a Neuron replica is compiled for; shorter prompts and caches are padded."""
CHUNK_TOKENS = 512
"""Default number of tokens of an iteration with chunked prefill. From about this number on, the
products of a dense model take longer than reading its weights."""


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
    """

    slots: int = 64
    chunk_tokens: int = 0
    buckets: tuple[int, ...] = ()
    arrived: bool = False

    def __post_init__(self) -> None:
        if self.slots < 1 or self.chunk_tokens < 0 or any(size < 1 for size in self.buckets):
            raise InputError(
                f"batching with {self.slots} slots and pieces of {self.chunk_tokens} tokens; slots "
                "and buckets are at least 1, pieces at least 0."
            )
        if 0 < self.chunk_tokens <= self.slots:
            raise InputError(
                f"pieces of {self.chunk_tokens} tokens leave no room beside {self.slots} decoding "
                "requests; use more tokens or fewer slots."
            )

    def padded(self, tokens: int) -> int:
        """Return the padded length of a prompt or a cache."""
        return next((size for size in self.buckets if size >= tokens), tokens)
