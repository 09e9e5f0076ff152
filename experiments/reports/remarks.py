"""Remarks on a training step: what a reader should know before believing or using the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from experiments.reports.idle import option_name
from experiments.reports.plan_rows import differing, fields_of, named
from workloads.training.choice import BATCH_TOKENS, describe
from workloads.training.iteration import Iteration


def remarks(step: Iteration) -> list[str]:
    """Return the remarks on a step, each a sentence."""
    return [sentence for check in CHECKS for sentence in check(step)]


def remarks_entry(step: Iteration) -> dict[str, Any]:
    """Return the entries of a document: the remarks, and the search for the plan if there was one.

    A step without either has no such entries.
    """
    sentences, choice = remarks(step), step.choice
    entry: dict[str, Any] = {"remarks": sentences} if sentences else {}
    if choice is not None:
        others = [
            {**differing(other.plan, choice.best), "ratio": other.ratio, "tied": other.tied}
            for other in choice.others
        ]
        entry["searched"] = {
            "considered": choice.considered,
            "best": fields_of(choice.best),
            "next": others,
            "default_ratio": choice.default_ratio,
        }
    return entry


def _searched(step: Iteration) -> Iterator[str]:
    """Name the plan that was searched, and what the next best would have cost."""
    choice = step.choice
    if choice is None or choice.default_ratio is not None:
        return
    yield (
        f"No degree of parallelism was stated: of {choice.considered:,} plans this one is the best "
        f"by its estimate: {describe(step.plan)}."
    )
    if choice.others:
        first, ties = choice.others[0], sum(other.tied for other in choice.others)
        # The first fields tell most: those after them follow or matter less.
        change = named(dict(list(differing(first.plan, step.plan).items())[:4]))
        after, many = f"The next best ({change}) takes {_more(first.ratio)}", len(choice.others)
        share = {0: "none", many: "all"}.get(ties, str(ties))
        yield f"{after}; {share} of the next {many} tie with this one, within the error of a ratio."
    if "global_batch" in step.plan.assumed:
        yield (
            f"Global batch not stated: {step.plan.global_batch:,} sequences, one a chip up to "
            f"{BATCH_TOKENS / 1e6:.0f} M tokens."
        )


def _more(ratio: float) -> str:
    return f"{ratio - 1:.1%} longer" if ratio > 1.0005 else "as long"


def _faster(step: Iteration) -> Iterator[str]:
    """Name the plan that is shorter than a default that fits."""
    choice = step.choice
    if choice is not None and choice.default_ratio is not None:
        saved = 1 - 1 / choice.default_ratio
        yield (
            f"No degree of parallelism was stated. By its estimate another plan takes {saved:.0%} "
            f"less: {describe(choice.best)}."
        )


def _large_batch(step: Iteration) -> Iterator[str]:
    """Name a step of more tokens than anybody trains on at once."""
    if step.plan.tokens <= BATCH_TOKENS:
        return
    why = ""
    if "global_batch" in step.plan.assumed:
        why = f", as {step.plan.microbatches} microbatches a replica were assumed"
    yield (
        f"A step has {step.plan.tokens / 1e6:,.0f} M tokens{why}; published runs have up to "
        f"{BATCH_TOKENS / 1e6:.0f} M. State a smaller {option_name('global_batch')}."
    )


CHECKS: tuple[Callable[[Iteration], Iterator[str]], ...] = (_searched, _faster, _large_batch)
"""Checks of a step, each a generator of the remarks that it has to make."""
