"""Decode runs in stretches between events, which must be as long runs of single passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from workloads.serving import replica
from workloads.serving.batching import PROMPTS, Batching
from workloads.serving.profile import Profile
from workloads.serving.replica import serve
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation

TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 131_072.0])
SECONDS = np.array([0.003, 0.004, 0.009, 0.031, 3.1])
REPLICA = Profile("a", 1, TOKENS, SECONDS, 1e-7, 1e-6, 1e-10, 1e9, 1e5, 1e5 * 3000)


def batchings() -> st.SearchStrategy[Batching]:
    """Batchings of all kinds: with and without pieces of prompts, polls, gathering and buckets."""
    usual = {
        "slots": st.sampled_from([1, 2, 7]),
        "buckets": st.sampled_from([(), (128, 256, 512, 1024)]),
        "overlapped": st.booleans(),
        "poll_passes": st.sampled_from([1, 3]),
    }
    in_pieces = {
        "chunk_tokens": st.sampled_from([64, 512]),
        "prompts": st.sampled_from(PROMPTS),
        "gather_passes": st.sampled_from([0, 4]),
        "gather_tokens": st.sampled_from([0, 300]),
    }
    return st.builds(Batching, **usual) | st.builds(Batching, **usual, **in_pieces)


@given(
    how=batchings(),
    seed=st.integers(0, 10**6),
    apart_s=st.sampled_from([0.0, 0.001, 1.0]),
    speculation=st.sampled_from([None, None, Speculation(2, 0.6), Speculation(1, 0.0, 0.2)]),
)
@examples(60)
def test_a_stretch_of_passes_is_as_long_as_single_passes(
    how: Batching, seed: int, apart_s: float, speculation: Speculation | None
) -> None:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 14))
    requests = Requests(
        np.cumsum(draw.uniform(0, apart_s, count)),
        draw.integers(1, 400, count),
        draw.integers(1, 80, count),
    )
    stretches, passes = (
        outcome(requests, how, speculation, single=single) for single in (False, True)
    )
    np.testing.assert_allclose(stretches.first_token_s, passes.first_token_s, rtol=1e-9)
    np.testing.assert_allclose(stretches.end_s, passes.end_s, rtol=1e-9)
    assert stretches.iterations == passes.iterations
    assert stretches.kv_peak_tokens == passes.kv_peak_tokens


def outcome(
    requests: Requests, how: Batching, speculation: Speculation | None, *, single: bool
) -> Served:
    """Serve the requests with decode in stretches, or in single passes."""
    with pytest.MonkeyPatch.context() as patch:
        if single:
            patch.setattr(replica, "most_passes", lambda state: 1)
        return serve(REPLICA, requests, how, speculation=speculation, seed=1)


@pytest.mark.parametrize("how", [{"overlapped": True}, {"poll_passes": 3}])
def test_a_request_that_is_there_waits_for_no_further_pass(how: dict[str, Any]) -> None:
    """An overlapped scheduler sees it when the next pass begins, one that polls at its looks."""
    flat = replace(REPLICA, linear_s=np.full(5, 0.01), decode_kv_s=0.0, prefill_square_s=0.0)
    flat = replace(flat, prefill_token_s=0.0)
    requests = Requests(np.array([0.0, 0.005]), np.array([1, 1]), np.array([20, 2]))
    first_s = serve(flat, requests, Batching(**how)).first_token_s
    # The prompt of the first takes 10 ms; then the pass that is planned, or three, and the prompt.
    passes = 1 if "overlapped" in how else 0
    assert first_s[1] == pytest.approx(0.01 + passes * 0.01 + 0.01)
