"""Predicting serving rows: a replica at a constant number of requests in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.validation.machines import machines_for
from experiments.validation.outcome import Outcome
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from workloads.models.huggingface import model
from workloads.serving.predict import steady


def predict(values: Mapping[str, Any], numbers: Catalogue | None = None) -> Outcome:
    """Time to first token, time per later token [s], and output tokens a second of one row.

    Raises
    ------
    InputError
        For pipeline stages, unknown models, and what does not fit into the replica's memory.
    """
    if values["pp"] and values["pp"] > 1:
        raise InputError(f"pp {values['pp']} of a served model is not supported. Use pp 1.")
    tp = values["tp"] or values["chips"]
    found = steady(
        model(values["model"]),
        machines_for(values["cluster"], values["chips"] or tp or 1, numbers),
        tp=tp,
        precision=(values["precision"] or "bf16").lower(),
        prompt_tokens=values["prompt_tokens"],
        output_tokens=values["output_tokens"],
        concurrency=values["concurrency"] or 1,
    )
    predicted = {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s, "tokens_per_s": found.tokens_per_s}
    return Outcome(predicted, provenance=_provenance(values))


def _provenance(values: Mapping[str, Any]) -> dict[str, str]:
    """Assumptions of a row: lengths and arrivals are always those of a closed loop."""
    empty = [name for name in ("tp", "precision", "concurrency") if values[name] is None]
    known = {"kernels": "interpolated", "requests": "assumed: a closed loop"}
    return {**known, "columns": f"assumed: {', '.join(empty)}"} if empty else known
