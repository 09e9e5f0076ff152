"""Predicting serving rows: a replica at a constant number of requests in flight.

Each of ``concurrency`` requests decodes one token an iteration; whenever one ends the next prompt
is run in between, so every request waits for the prompts of the others while it decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.validation.collectives import machines_for
from experiments.validation.outcome import Outcome, infeasible
from topologies.errors import InputError
from workloads.huggingface import model
from workloads.serving.profile import Profile, profile


def predict(values: Mapping[str, Any]) -> Outcome:
    """Time to first token, time per later token [s], and output tokens a second of one row."""
    tp = values["tp"] or values["chips"]
    pieces = (values["pp"] or 1) * (values["ep"] or 1)
    if values["pp"] and values["pp"] > 1:
        raise InputError(f"pp {values['pp']} of a served model is not supported. Use pp 1.")
    machine = machines_for(values["cluster"], values["chips"] or tp or 1)
    served = profile(
        model(values["model"]), machine, tp=tp, precision=(values["precision"] or "bf16").lower()
    )
    users = values["concurrency"] or 1
    prompt, output = values["prompt_tokens"], values["output_tokens"]
    if users * (prompt + output) > served.kv_tokens:
        return infeasible(
            f"concurrency {users} × {prompt + output} tokens need room for "
            f"{users * (prompt + output):,}, the cache holds {served.kv_tokens:,}."
        )
    predicted = steady(served, users, prompt, output)
    known = {"kernels": "assumed" if served.chips and pieces > 1 else "interpolated"}
    return Outcome(predicted, provenance={**known, "requests": "assumed: a closed loop"})


def steady(served: Profile, users: int, prompt: int, output: int) -> dict[str, float]:
    """Steady state of a closed loop of requests of one length."""
    first_s = served.prefill_s(prompt)
    decode_s = served.decode_s(users, users * (prompt + output / 2))
    between_s = (users - 1) * first_s / max(1, output)
    token_s = decode_s + between_s
    waited_s = first_s + (decode_s / 2 if users > 1 else 0.0)
    return {
        "ttft_s": waited_s,
        "tpot_s": token_s,
        "tokens_per_s": users * output / (waited_s + (output - 1) * token_s),
    }
