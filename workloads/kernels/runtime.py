"""Time that the host adds to an operation, by the runtime that issues it.

Inside a compiled graph the device goes from one operation to the next by itself. A framework that
calls single operations, or single graphs, adds time of the host to each call, and no call is
shorter than the host's time for it. Source: the same operations measured eagerly, through
``torch.compile`` and through torch-xla on one logical NeuronCore of a Trn2 chip (catalogue part
``runtime.neuron``).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.errors import check_choice
from workloads.kernels.chip_share import plain

Runtime = Literal["graph", "compiled", "eager", "xla"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
"""Ways to issue an operation: inside a graph; as a compiled graph of its own; by itself; lazily
traced through torch-xla."""
PART = "runtime.neuron"  # catalogue part with the constants of Trainium's runtimes


def collective_seen_by_host(
    chip: str,
    device_s: float,
    runtime: str = "compiled",
    *,
    kind: str = "",
    catalogue: Catalogue | None = None,
) -> float:
    """Return the time of one collective as its host sees it [s]."""
    # ``device_s``: time inside a compiled graph, where the host adds nothing [s]. ``runtime``
    # ("compiled", "eager", "xla").
    check_choice("runtime", runtime, RUNTIMES[1:])
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    if runtime == "compiled" or not chip_family(chip, catalogue).is_neuron:
        return device_s
    added, least = (
        _collective_constant(runtime, kind, name, catalogue) for name in ("added", "least")
    )
    return max(least, device_s + added)


def _collective_constant(runtime: str, kind: str, name: str, catalogue: Catalogue) -> float:
    """Constant of a runtime for an operation, or for all collectives if it has none [s]."""
    quantity = f"{runtime}_{kind.replace('-', '_')}_{name}"
    if not catalogue.has(PART, quantity):
        quantity = f"{runtime}_collective_{name}"
    return catalogue.value(PART, quantity)


def seen_by_host(
    chip: str,
    device_s: npt.ArrayLike,
    runtime: str = "graph",
    *,
    catalogue: Catalogue | None = None,
) -> Any:
    """Return the time of one call as its host sees it [s]."""
    # ``device_s``: time on the device [s]. ``runtime`` ("graph", "compiled", "eager", "xla").
    check_choice("runtime", runtime, RUNTIMES)
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    if runtime == "graph" or not chip_family(chip, catalogue).is_neuron:
        return plain(device_s)
    added, least = (catalogue.value(PART, f"{runtime}_{name}") for name in ("added", "least"))
    return plain(np.maximum(least, np.asarray(device_s, float) + added))
