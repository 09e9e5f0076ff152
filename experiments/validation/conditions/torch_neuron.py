"""Work beside a collective in PyTorch's own backend for Trainium, which issues each by itself.

The backend (``torch.distributed`` with ``neuron``, 2026) turns every collective into a graph of its
own. A collective cannot read or write the tensors of its graph, so the longer buffer is copied
between them and the collective's buffers. A broadcast clears the buffers of the receivers and sums
all of them. All-gathers and reduce-scatters above 512 MiB run in pieces that are put together by
copies, and an all-to-all joins the tensors of a list before and divides them after. All of this is
read in its source; nothing is fitted. Sources: ``torch_neuronx/distributed`` (``backend.py``,
``utils.py``) as published by parmoham-aws on GitHub at 98154b86, and the NKI library of AWS, whose
kernels copy because a "collective instruction cannot read/write" tensors of a graph.
"""

from __future__ import annotations

from topologies.catalogue.catalogue import Catalogue
from workloads.kernels.times import elementwise_s

PYTORCH = "pytorch"
"""Runtime of rows that this backend issued."""
PIECE_BYTES = 512 * 2**20
"""Buffer above which all-gathers and reduce-scatters run in pieces [B]."""
IN_PIECES = ("all-gather", "reduce-scatter")
OF_LISTS = {"all-to-all": 2}
"""Copies of the whole buffer to join and to divide the tensors of a list."""


def issued(op: str) -> str:
    """Operation that the backend runs for another: a broadcast is an all-reduce.

    >>> issued("broadcast"), issued("all-gather")
    ('all-reduce', 'all-gather')
    """
    return "all-reduce" if op == "broadcast" else op


def beside_s(
    op: str, size_bytes: int, chips: int, ranks: int, chip: str, numbers: Catalogue
) -> float:
    """Time of the copies and of clearing beside a collective on the device [s].

    The constants of collectives inside one chip were measured on calls like these, and contain the
    copies of every call.

    ``op``: operation that was called. ``size_bytes``: buffer as nccl-tests counts it [B]. ``chips,
    ranks``: chips and ranks of the group. ``chip``: part of the catalogue.

    >>> from topologies.catalogue.catalogue import shipped_catalogue
    >>> half, whole = (
    ...     beside_s("all-gather", size, 4, 16, "trn2", shipped_catalogue())
    ...     for size in (PIECE_BYTES, 2 * PIECE_BYTES)
    ... )
    >>> round(whole / half)
    4
    """
    copies = 0 if chips == 1 else 1 + OF_LISTS.get(op, 0)
    copies += op in IN_PIECES and size_bytes > PIECE_BYTES
    cleared = op == "broadcast"  # written, not read
    traffic = (2 * copies + cleared) * size_bytes
    return float(
        elementwise_s(chip, traffic, ranks_per_chip=max(1, ranks // chips), catalogue=numbers)
        if traffic
        else 0.0
    )
