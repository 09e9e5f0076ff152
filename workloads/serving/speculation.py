"""Speculative decoding: a draft proposes tokens, and one pass of the model verifies them all.

Of k proposals, each accepted with probability a, a pass gives ``(1 - a^(k+1)) / (1 - a)`` tokens in
the mean (arXiv 2211.17192, equation 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from topologies.support.units import share_of
from workloads.serving.profile import Profile, Tokens

MOST = 64  # most proposals of one pass


@dataclass(frozen=True, eq=False)
class Speculation:
    """Proposals that a draft makes and one pass of the model verifies."""

    tokens: int  # number of proposals of a pass
    acceptance: float  # probability that a proposal is accepted if all before it were
    # Model that proposes, on the same chips; or the time of a proposal over that of a token of the
    # model, 0 for a look-up in the prompt
    draft: Profile | float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST:
            raise InputError(f"{self.tokens} proposals of a pass; use 1 to {MOST}.")
        if not 0 <= self.acceptance <= 1:
            raise InputError(
                f"an acceptance of {self.acceptance}; it is a share between 0 and 1, such as 0.8."
            )
        if isinstance(self.draft, int | float) and not 0 <= self.draft < 1:
            raise InputError(
                f"a draft that takes {self.draft} of the model's time; it must be at least 0 and "
                "below 1, or the name of a model."
            )

    @property
    def expected_tokens(self) -> float:
        """Mean tokens that a pass gives a request."""
        if self.acceptance == 1:
            return self.tokens + 1.0
        return (1 - self.acceptance ** (self.tokens + 1)) / (1 - self.acceptance)

    @property
    def free_remark(self) -> str:
        """Sentence that says what a draft that takes no time stands for."""
        stated = f"--speculate {self.tokens}:{self.acceptance:g}"
        return (
            f"The {self.tokens} proposals of a pass take no time and no memory here, as those "
            f"looked up in the prompt (n-grams). A draft model is named, as in {stated}:MODEL, and "
            f"prediction heads take a share of a pass for each proposal, as in {stated}:0.03."
        )

    def draw(self, requests: int, rng: np.random.Generator) -> IntArray:
        """Draw the tokens that one pass gives each request, int64 (requests,)."""
        most = self.tokens + 1
        if self.acceptance == 1:
            return np.full(requests, most, np.int64)
        drawn: IntArray = np.minimum(rng.geometric(1 - self.acceptance, requests), most)
        return drawn

    def beside(self, profile: Profile) -> Profile:
        """Return the replica with the draft's weights and cache in its memory, if they fit."""
        if not isinstance(self.draft, Profile):
            return profile
        budget = profile.kv_budget_bytes - self.draft.weights_bytes
        if budget <= 0:
            raise InputError(
                f"{self.draft.name} has {self.draft.weights_bytes / 1e9:,.1f} GB of weights, and "
                f"{profile.name} leaves {profile.kv_budget_bytes / 1e9:,.1f} GB. Use a smaller "
                "draft or more chips."
            )
        return replace(
            profile,
            weights_bytes=profile.weights_bytes + self.draft.weights_bytes,
            kv_budget_bytes=budget,
            kv_bytes_per_token=profile.kv_bytes_per_token + self.draft.kv_bytes_per_token,
        )

    def draft_s(self, profile: Profile, requests: int, cached_tokens: Tokens) -> Tokens:
        """Time in which the draft proposes for all requests, one token after the other [s]."""
        if isinstance(self.draft, Profile):
            return self.tokens * self.draft.decode_s(requests, cached_tokens)
        return self.tokens * self.draft * profile.decode_s(requests, cached_tokens)

    def prefill_s(self, tokens: int, before: int) -> float:
        """Time in which a draft model reads a prompt, 0 for other drafts [s]."""
        return self.draft.prefill_s(tokens, before) if isinstance(self.draft, Profile) else 0.0

    def step_s(self, profile: Profile, requests: int, cached_tokens: Tokens) -> Tokens:
        """Time of a pass: the proposals for all requests, and their verification [s]."""
        verified = profile.linear(requests * (self.tokens + 1))
        attention = profile.attention_s(requests, cached_tokens)
        return self.draft_s(profile, requests, cached_tokens) + verified + attention

    def speedup(self, profile: Profile, requests: int, cached_tokens: float) -> float:
        """Rate of decoding relative to the rate without proposals, at a fixed batch.

        With verification as fast as one token and a draft of share c this is
        ``(1 - a^(k+1)) / ((1 - a) (k c + 1))`` (arXiv 2211.17192, theorem 3.8).
        """
        replica = self.beside(profile)
        plain_s = replica.decode_s(requests, cached_tokens)
        return plain_s * self.expected_tokens / self.step_s(replica, requests, cached_tokens)


def parse_speculation(text: str, draft: Callable[[str], Profile]) -> Speculation:
    """Read ``TOKENS:ACCEPTANCE[:DRAFT]``, such as ``4:0.8`` or ``7:80%:llama-3.2-1b``."""
    parts = [part.strip() for part in text.split(":", 2)]
    remedy = "write TOKENS:ACCEPTANCE[:DRAFT], such as 4:0.8 or 7:0.9:llama-3.2-1b."
    if len(parts) < 2 or not parts[0].isdecimal() or len(parts[0]) > 9:
        raise InputError(f"--speculate {text[:80]!r} does not begin with two numbers; {remedy}")
    if (acceptance := share_of(parts[1])) is None:
        raise InputError(f"--speculate {text[:80]!r} has no acceptance; {remedy}")
    proposer: Profile | float = 0.0
    if len(parts) > 2:
        try:
            proposer = float(parts[2])
        except ValueError:
            proposer = draft(parts[2])
    try:
        return Speculation(int(parts[0]), acceptance, proposer)
    except InputError as mistake:
        raise InputError(f"--speculate {text[:80]}: {mistake}") from None
