"""Conditions of a run that its plan does not say: release, compiler, launches, power limit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from topologies.catalogue.catalogue import chip_family
from topologies.support.errors import InputError
from topologies.support.options import setting

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster

LIMITED_W = 400, 600
"""Power limits from and below which an H100 (of 700 W) is predicted with the rates of 500 W."""
LIMITED = "500-watt"  # setting of a framework on chips of a low power limit


@dataclass(frozen=True)
class Conditions:
    """Conditions of a run, each of which stands for a setting of its framework."""

    date: str | None = setting(
        None,
        "Month of the training software, such as 2024-06",
        default="that of the framework (`list frameworks`)",
    )
    compiled: bool | None = setting(None, "Compile the layers", default="as the framework does")
    graphs: bool | None = setting(
        None,
        "Capture the layers in CUDA graphs, which are launched at once",
        default="as the framework does",
    )
    launch_blocking: bool | None = setting(
        None, "Let each launch wait for its kernel, as CUDA_LAUNCH_BLOCKING=1 does"
    )
    power_limit_w: float | None = setting(
        None, "Power limit of a chip", unit="W", default="that of the chip", least=1
    )

    def framework_text(self, stated: Mapping[str, Any], cluster: Cluster) -> str:
        """Return the framework of a plan with the settings that the conditions stand for."""
        # A plan that names no framework keeps to the usual one, and the text begins with the colon.
        text = str(stated.get("framework") or "")
        words = self._words(cluster)
        if not words:
            return text
        # The help of a command lists these fields and loads no numbers for it.
        from workloads.training.frameworks.framework import framework, usual_framework

        stated_name, _, more = text.partition(":")
        name = stated_name or usual_framework(cluster, stated)
        stack, chosen = framework(name), [word for word in more.split(",") if word]
        for word, opposite, condition in words:
            chosen = [other for other in chosen if not re.fullmatch(opposite, other)]
            if not word or (not stack.has(word) and stack.has(opposite)):
                continue  # it is so where the opposite is not chosen
            if not stack.has(word):
                raise InputError(
                    f"{condition} is no condition of framework {name}. Leave it out, or name "
                    "another framework."
                )
            chosen.append(word)
        return f"{stated_name}:{','.join(dict.fromkeys(chosen))}" if chosen else stated_name

    def _words(self, cluster: Cluster) -> list[tuple[str, str, str]]:
        """Return settings with the pattern of those they replace, and the fields they are from."""
        words = []
        if self.date is not None:
            from workloads.training.frameworks.framework import DATE

            if not re.fullmatch(DATE, str(self.date)):
                raise InputError(f"date is {str(self.date)[:20]!r}, no month. Write it as 2024-06.")
            words.append((str(self.date), DATE, "date"))
        if self.compiled is not None:
            pair = ("compiled", "eager") if self.compiled else ("eager", "compiled")
            words.append((*pair, "compiled"))
        for word, stands in (("graphs", self.graphs), ("blocking", self.launch_blocking)):
            if stands is not None:
                condition = "graphs" if word == "graphs" else "launch_blocking"
                words.append((word if stands else "", word, condition))
        if self.power_limit_w is not None:
            limited = _limited(cluster, self.power_limit_w)
            words.append((LIMITED if limited else "", LIMITED, "power_limit_w"))
        return words


def _limited(cluster: Cluster, limit_w: float) -> bool:
    """Return whether a limit is below a chip's power, and refuse one that nobody measured."""
    catalogue = cluster.numbers
    most_w = catalogue.value(cluster.chip, "tdp", math.inf)
    if most_w < limit_w:
        raise InputError(
            f"power_limit_w is {limit_w:g}, above the {most_w:g} W that {cluster.chip} takes at "
            "most. Leave it out."
        )
    kernels = chip_family(cluster.chip, catalogue).kernels
    measured = catalogue.has(kernels, "gemm_sustained") and any(
        row.variant == LIMITED for row in catalogue.variants(kernels, "gemm_sustained")
    )
    if not measured:
        raise InputError(
            f"power_limit_w is {limit_w:g}, but kernels of {cluster.chip} were not measured under "
            "a limit, only those of h100. Leave it out."
        )
    least_w, below_w = LIMITED_W
    if not least_w <= limit_w < below_w and limit_w != most_w:
        raise InputError(
            f"power_limit_w is {limit_w:g}, but kernels of {cluster.chip} were measured under "
            f"500 W, which holds from {least_w} W to below {below_w} W, and without a limit, at "
            f"{most_w:g} W. State one of these."
        )
    return limit_w < most_w


CONDITIONS = frozenset(entry.name for entry in fields(Conditions))  # names of the conditions
