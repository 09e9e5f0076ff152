"""Numbers of examples that properties are tried on."""

from typing import Any

from hypothesis import settings

USUAL = 50  # examples of a property that states no number


def examples(count: int, **more: Any) -> settings:
    """Settings for ``count`` examples: ``make test`` tries a third of them, EXPLORE=1 twice."""
    return settings(max_examples=max(3, count * settings().max_examples // USUAL), **more)
