"""Time that the host adds to an operation, by the runtime that issues it.

Inside a compiled graph the device goes from one operation to the next by itself. A framework that
calls one operation, or one graph, at a time adds what its host does, and no call is shorter than
the host takes for it. Source: the same operations measured eagerly, through ``torch.compile`` and
through torch-xla on one logical NeuronCore of a Trn2 chip (catalogue part ``runtime.neuron``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.errors import InputError, suggestion
from workloads.kernels.chip_share import plain

Runtime = Literal["graph", "compiled", "eager", "xla"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
"""Inside a graph; a compiled graph of its own; one by one; lazily traced through torch-xla."""
PART = "runtime.neuron"
NEURON = "trn"


def collective_seen_by_host(
    chip: str,
    device_s: float,
    runtime: str = "compiled",
    *,
    kind: str = "",
    catalogue: Catalogue | None = None,
) -> float:
    """Time of one collective as its runtime shows it [s].

    Parameters
    ----------
    chip : str
        Part of the catalogue; only Trainium's runtimes are known.
    device_s : float
        Time inside a compiled graph, where it costs nothing more [s].
    runtime : {"compiled", "eager", "xla"}
    kind : str
        Operation, such as ``all-gather``: some runtimes do more for some than for the others.
    catalogue : Catalogue, optional

    Raises
    ------
    InputError
        For an unknown runtime.

    Examples
    --------
    >>> round(collective_seen_by_host("trn2", 8e-6, "eager") * 1e6)
    108
    """
    _check_runtime(runtime, RUNTIMES[1:])
    if runtime == "compiled" or not chip.startswith(NEURON):
        return device_s
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    added, least = (_of_collective(runtime, kind, name, catalogue) for name in ("added", "least"))
    return max(least, device_s + added)


def _of_collective(runtime: str, kind: str, name: str, catalogue: Catalogue) -> float:
    """Constant of a runtime's collectives: the operation's own where there is one [s]."""
    of_kind = f"{runtime}_{kind.replace('-', '_')}_{name}"
    return catalogue.value(
        PART, of_kind if catalogue.has(PART, of_kind) else f"{runtime}_collective_{name}"
    )


def seen_by_host(
    chip: str,
    device_s: npt.ArrayLike,
    runtime: str = "graph",
    *,
    catalogue: Catalogue | None = None,
) -> Any:
    """Time of one call as its host sees it [s].

    Parameters
    ----------
    chip : str
        Part of the catalogue; only Trainium's runtimes are known.
    device_s : float or float array
        Time on the device [s].
    runtime : {"graph", "compiled", "eager", "xla"}
    catalogue : Catalogue, optional

    Raises
    ------
    InputError
        For an unknown runtime.

    Examples
    --------
    >>> round(seen_by_host("trn2", 1e-6, "eager") * 1e6), seen_by_host("trn2", 1e-6)
    (49, 1e-06)
    """
    _check_runtime(runtime, RUNTIMES)
    if runtime == "graph" or not chip.startswith(NEURON):
        return plain(device_s)
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    added, least = (catalogue.value(PART, f"{runtime}_{name}") for name in ("added", "least"))
    return plain(np.maximum(least, np.asarray(device_s, float) + added))


def _check_runtime(runtime: str, runtimes: Sequence[str]) -> None:
    if runtime not in runtimes:
        near = suggestion(runtime, runtimes)
        raise InputError(
            f"unknown runtime {runtime[:40]!r}; there are {', '.join(runtimes)}.{near}"
        )
