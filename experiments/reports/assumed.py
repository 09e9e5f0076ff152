"""The fields of a plan that nobody stated, and what other values of them would do to the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration
    from workloads.training.plan.other_tools import OtherPlan

WORTH_NAMING = 0.03
"""Smallest relative change of the time for which an alternative is named in a sentence."""
NAMED = ("framework", "runtime", "recompute", "overlap", "zero", "sequence_parallel", "vpp")
"""Fields in the order in which they are named."""
SAVING = {"zero": 3, "recompute": "full"}
"""Values that need least memory. They may have been taken because the usual ones do not fit."""


def assumed_document(step: Iteration) -> dict[str, Any]:
    """Return the key ``assumed``: each field that was varied, its value, and the alternatives.

    ``ratio`` is the time with an alternative over that of the answer.
    """
    fields: dict[str, Any] = {}
    for other in step.alternatives:
        entry = fields.setdefault(other.field, {"value": _value(step, other.field)})
        entry.setdefault("alternatives", []).append({"value": other.value, "ratio": other.ratio})
    if not step.plan.names_framework:
        fields.setdefault("framework", {"value": step.framework.text, "alternatives": []})
    return {"framework": step.framework.text, **({"assumed": fields} if fields else {})}


def _value(step: Iteration, name: str) -> Any:
    return step.framework.text if name == "framework" else getattr(step.plan, name)


def assumed_sentences(step: Iteration) -> list[str]:
    """Return a sentence about the framework, and one about other fields that matter."""
    alternatives_of = {name: _alternatives(step, name) for name in NAMED}
    sentences = []
    if not step.plan.names_framework:
        others = f"; {alternatives_of['framework']}" if alternatives_of["framework"] else ""
        sentences.append(f"Framework not stated: predicted as {step.framework.text}{others}.")
    shown = [
        f"{name.replace('_', ' ')} {_word(_value(step, name))} ({text})"
        for name, text in alternatives_of.items()
        if text and name != "framework"
    ]
    if shown:
        sentences.append(f"Not stated, and taken as usual: {', '.join(shown)}.")
    return sentences


def left_out_framework(step: Iteration, filed: OtherPlan | None) -> str:
    """Return a sentence where the framework of another tool's file does not train on the chips."""
    from workloads.training.frameworks.framework import framework  # costly, for the help of train

    implied = filed.implied if filed and not step.plan.names_framework else ""
    if not filed or not implied or framework(implied).trains_on(step.cluster):
        return ""
    chip = step.cluster.chip
    return f"{filed.tool}'s framework {implied} does not train on {chip} and is left out."


def _alternatives(step: Iteration, name: str) -> str:
    """Return the alternatives of a field that change the time, in words."""
    open_field = name in step.plan.assumed and (name != "zero" or step.plan.dp > 1)
    if open_field and _value(step, name) == SAVING.get(name) and not _varied(step, name):
        return "less would not fit in memory"
    texts = []
    for other in step.alternatives:
        change = other.ratio - 1
        if other.field == name and abs(change) >= WORTH_NAMING:
            way = "longer" if change > 0 else "shorter"
            texts.append(f"{_word(other.value)} would be {abs(change):.0%} {way}")
    return ", ".join(texts)


def _varied(step: Iteration, name: str) -> bool:
    return any(other.field == name for other in step.alternatives)


def _word(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
