"""A toy replica and requests for the tests of serving."""

import numpy as np

from workloads.serving import Profile, Requests


def toy_replica(**changes: object) -> Profile:
    """A replica of 1 s an iteration, 0.1 s a token in it and 0.01 s a cached token."""
    values: dict[str, object] = {
        "name": "toy", "chips": 1, "tokens": np.array([0.0, 1e6]),
        "linear_s": np.array([1.0, 1.0 + 1e5]), "decode_kv_s": 0.01, "prefill_token_s": 0.0,
        "prefill_square_s": 0.0, "weights_bytes": 1.0, "kv_bytes_per_token": 2.0,
        "kv_budget_bytes": 2000.0,
    }  # fmt: skip
    return Profile(**{**values, **changes})  # type: ignore[arg-type]


def requests_of(*rows: tuple[float, int, int]) -> Requests:
    """Requests from rows of arrival [s], prompt and output [tokens]."""
    arrival, prompt, output = zip(*rows, strict=True)
    return Requests(np.array(arrival, float), np.array(prompt), np.array(output))
