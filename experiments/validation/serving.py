"""Predicting serving rows: a replica at a constant number of requests in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.validation.conditions import engine
from experiments.validation.machines import machines_for, model_for
from experiments.validation.outcome import Outcome
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.families import chip_family
from topologies.errors import InputError
from workloads.serving.batching import BUCKETS, Batching
from workloads.serving.predict import GPU_CHUNK, Steady, benchmark, continuous, static_batch
from workloads.serving.profile import Profile, profile


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time to first token, time per later token [s], and output tokens a second of one row.

    Raises
    ------
    InputError
        For pipeline stages, unknown models, and what does not fit into the replica's memory.
    """
    if values["pp"] and values["pp"] > 1:
        raise InputError(f"pp {values['pp']} of a served model is not supported. Use pp 1.")
    tp, chips = values["tp"] or values["chips"], values["chips"]
    whole = machines_for(values["cluster"], chips or tp or 1, _engine_numbers(values, catalogue))
    replica = profile(
        model_for(str(values["model"])),
        whole,
        tp=tp,
        precision=(values["precision"] or "bf16").lower(),
        chips=chips if chips and tp > chips else None,
        ep=values.get("ep") or 1,
    )
    answer = _answered(replica, values, neuron=chip_family(whole.chip, whole.catalogue).is_neuron)
    predicted = {
        "ttft_s": answer.ttft_s,
        "tpot_s": answer.tpot_s,
        "tokens_per_s": answer.tokens_per_s,
    }
    return Outcome(predicted, provenance=_provenance(values))


def _engine_numbers(values: Mapping[str, Any], catalogue: Catalogue | None) -> Catalogue:
    """Catalogue with the variants of the software that a row was measured with."""
    catalogue = catalogue or shipped_catalogue()
    return catalogue.with_variants(
        engine(values, machines_for(values["cluster"], 1, catalogue).chip, catalogue)
    )


def _answered(replica: Profile, values: Mapping[str, Any], *, neuron: bool) -> Steady:
    """Times with the row's batching, or else with that of the chip's usual engine."""
    prompt, output = values["prompt_tokens"], values["output_tokens"]
    users = values["concurrency"] or 1
    static = neuron if values.get("batching") is None else values["batching"] == "static"
    buckets = BUCKETS if neuron else ()
    if static:
        return static_batch(replica, prompt, output, users, buckets)
    batching = Batching(users, 0 if neuron else max(GPU_CHUNK, users + 1), buckets)
    if values.get("rounds") is not None:
        shortest = values.get("shortest_lengths") or 1.0
        return benchmark(replica, (prompt, output), shortest, values["rounds"], batching)
    return continuous(replica, prompt, output, users, batching)


def _provenance(values: Mapping[str, Any]) -> dict[str, str]:
    """Assumptions of a row: lengths and arrivals are always those of a closed loop."""
    empty = [name for name in ("tp", "precision", "concurrency") if values[name] is None]
    grades = {"kernels": "interpolated", "requests": "assumed: a closed loop"}
    return {**grades, "columns": f"assumed: {', '.join(empty)}"} if empty else grades
