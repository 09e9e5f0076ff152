"""Time of one kernel on one rank: GEMMs, attention, element-wise work, look-ups.

Every function takes a chip's catalogue name and shapes (integers, or arrays that broadcast) and
returns a :class:`Timing`, which has seconds and their provenance; functions whose names end in
``_s`` return only seconds. Backward GEMMs are GEMMs of other shapes: for ``y = x w`` with x (m,
k) and w (k, n), the data gradient is the product (m, n=k, k=n) and the weight gradient (m=k, n,
k=m).

``ranks_per_chip`` divides a chip between ranks (NeuronCores of Trainium), each of which has its
share of the peak and of the memory bandwidth.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.support.errors import check_choice
from workloads.kernels.attention import (
    AttentionShape,
    attention,
    decode_attention,
    unfused_attention,
)
from workloads.kernels.chip_share import Part, Rank, Timing, plain, rank_of, worst
from workloads.kernels.gemm import gemm

__all__ = [
    "AttentionShape", "Timing", "attention", "decode_attention", "elementwise",
    "gather", "gemm", "host_dispatch_s", "passes", "step_overhead_s",
    "unfused_attention", "worst",
]  # fmt: skip

Work = Literal["streaming", "activation", "norm", "softmax"]
SHARES: dict[str, str] = {
    "streaming": "elementwise_efficiency",
    "activation": "activation_efficiency",
    "norm": "norm_efficiency",
    "softmax": "softmax_efficiency",
}
"""Constant of each class of element-wise work: the share of the memory's rate that it reaches."""


def elementwise(
    chip: str,
    size_bytes: npt.ArrayLike,
    work: Work = "streaming",
    *,
    precision: str = "bf16",
    **part: Unpack[Part],
) -> Timing:
    """Time of one kernel that streams through memory: a norm, activation, residual or optimizer."""
    # ``size_bytes``: bytes that the kernel reads and writes in all [B]. ``work`` ("streaming",
    # "activation", "norm", "softmax"): class of the operation: sums and copies, transcendental
    # functions, or reductions over a row. A chip without a constant for a class runs it at its rate
    # of streaming. Where an engine works element by element, elements of a wider ``precision``
    # reach a larger share of the memory's rate.
    rank = rank_of(chip, **part)
    names = (f"{SHARES[work]}_{precision}", SHARES[work], SHARES["streaming"])
    share = next(name for name in names if rank.knows(name))
    return _streamed(rank, share, size_bytes)


def passes(chip: str, size_bytes: npt.ArrayLike, **part: Unpack[Part]) -> Timing:
    """Time of kernels of which every pass over memory is counted in ``size_bytes``."""
    # A framework that does not fuse kernels moves more bytes than :func:`elementwise` is told, and
    # the constants of that function allow for it. Here the bytes include every pass, so the share
    # of the bandwidth is that of a single pass. The parameters are those of :func:`elementwise`.
    rank, share = rank_of(chip, **part), "pass_efficiency"
    return _streamed(rank, share if rank.knows(share) else "elementwise_efficiency", size_bytes)


def gather(
    chip: str,
    size_bytes: npt.ArrayLike,
    *,
    rows: npt.ArrayLike = 0,
    scattered: bool = False,
    **part: Unpack[Part],
) -> Timing:
    """Time of an embedding look-up, or of its gradient, which is ``scattered``: added to rows."""
    # Each of the ``rows`` takes a DMA descriptor on chips that state its time.
    rank = rank_of(chip, **part)
    scatters = scattered and rank.knows("scatter_efficiency")
    share = "scatter_efficiency" if scatters else "gather_efficiency"
    streamed = _streamed(rank, share, size_bytes)
    if not rank.knows("gather_descriptor"):
        return streamed
    issue_s = rank.constant("launch") + np.asarray(rows, float) * rank.constant("gather_descriptor")
    return Timing(plain(np.maximum(streamed.seconds, issue_s)), streamed.provenance)


def _streamed(rank: Rank, share: str, size_bytes: npt.ArrayLike) -> Timing:
    """Time of a launch and of bytes at the share of the memory's rate that a constant states."""
    rate = rank.hbm_bytes_per_s * rank.constant(share)
    seconds = rank.constant("launch") + np.asarray(size_bytes, float) / rate
    provenance = "measured" if rank.grade(share) == "measured" else "assumed"
    return Timing(plain(seconds), worst(rank.family.provenance, provenance))


def host_dispatch_s(chip: str, *, catalogue: Catalogue | None = None) -> float:
    """Return the time in which an eager host issues one step of a layer, a few kernels [s]."""
    # The host runs ahead of the chip, so a layer takes the longer of its kernels' time and the
    # host's time to issue them. A captured graph or a compiled program does not wait for the host.
    rank = rank_of(chip, catalogue=catalogue)
    return rank.constant("host_dispatch") / rank.catalogue.value(chip, "host_speed", 1.0)


def step_overhead_s(chip: str, ranks: int, *, catalogue: Catalogue | None = None) -> float:
    """Return the time at the end of a step with a sharded optimizer besides its kernels [s]."""
    # Published steps on Trn1 have it, whatever parameters a rank holds: as much for each doubling
    # of the ranks beyond those of one server. It is 0 for a chip without such a row.
    rank, name = rank_of(chip, "bf16", 1, catalogue), f"step_overhead_{chip}"
    if not rank.knows(name):
        return 0.0
    doublings = math.log2(max(1.0, ranks / rank.constant("step_overhead_ranks")))
    return float(rank.constant(name) * doublings)


# Time that the host adds to an operation, by the runtime that issues it.
#
# Inside a compiled graph the device goes from one operation to the next by itself. A framework that
# calls single operations, or single graphs, adds time of the host to each call, and no call is
# shorter than the host's time for it. Source: the same operations measured eagerly, through
# ``torch.compile`` and through torch-xla on one logical NeuronCore of a Trn2 chip (catalogue part
# ``runtime.neuron``).

Runtime = Literal["graph", "compiled", "eager", "xla"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
"""Ways to issue an operation: inside a graph; as a compiled graph of its own; by itself; lazily
traced through torch-xla."""
PART = "runtime.neuron"  # catalogue part with the constants of Trainium's runtimes


def seen_by_host(
    chip: str,
    device_s: npt.ArrayLike,
    runtime: str = "graph",
    *,
    collective: str = "",
    catalogue: Catalogue | None = None,
) -> Any:
    """Return the time of one call, which may be a collective, as its host sees it [s]."""
    # ``device_s``: time on the device [s], or of a collective inside a compiled graph, to which the
    # host adds nothing. ``runtime`` ("graph", "compiled", "eager", "xla").
    runtimes = RUNTIMES[1:] if collective else RUNTIMES  # the first adds nothing
    check_choice("runtime", runtime, runtimes)
    parts = shipped_catalogue() if catalogue is None else catalogue
    if runtime == runtimes[0] or not chip_family(chip, parts).is_neuron:
        return plain(device_s)

    def constant(name: str) -> float:
        """Constant of this collective, else of any, or of calls that are none [s]."""
        of_kind = f"{runtime}_{collective.replace('-', '_')}_{name}"
        of_any = f"{runtime}_collective_{name}" if collective else f"{runtime}_{name}"
        return parts.value(PART, of_kind if parts.has(PART, of_kind) else of_any)

    seconds = np.asarray(device_s, float) + constant("added")
    return plain(np.maximum(constant("least"), seconds))
