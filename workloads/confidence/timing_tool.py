"""Time that the tool which timed a row adds to that of the collective or kernel itself.

Some tables were timed through a framework rather than inside a compiled graph: PyTorch issues calls
at least some tens of microseconds apart, or waits for each. The first nccom-test waited for each
program on its host. The addition differs between machines, so it is a range, whose ends widen the
interval of the row.
"""

from __future__ import annotations

from typing import NamedTuple

from topologies.catalogue.catalogue import NCCL, Catalogue, chip_family

QUEUED, WAITED, CALLED = "pytorch", "pytorch-waited", "pytorch-called"
"""Ways of timing through PyTorch: calls back to back, waiting for each, kernels alone."""
FIRST_NCCOM = "nccom-first"  # way of timing of the first nccom-test
PYTORCH_NEURON = "pytorch-neuron"
"""Calls of PyTorch's own backend for Trainium, one after the other."""
NCCL_TESTS, NCCOM_TEST = "nccl-tests", "nccom-test"  # the vendors' own tests, which add nothing
# Parts of the catalogue.
COLLECTIVES, KERNELS, NCCOM = "nccl.pytorch", "runtime.pytorch", "nccom-test.first"
NEURON = "runtime.neuron"


class Shown(NamedTuple):
    """Time that a tool shows."""

    seconds: float  # time that the tool usually shows [s]
    # Least and most that it may show on other machines [s]; None where it adds nothing.
    ends: tuple[float, float] | None = None


def collective_shown(through: str, seconds: float, catalogue: Catalogue, domains: int = 1) -> Shown:
    """Time of a collective as the row's tool shows it."""
    # Calls back to back take at least the time between two calls; where a captured graph is
    # replayed they may take that of the collective alone. Waiting for each adds the wait. The first
    # nccom-test adds the wait of its host, which is far longer where servers wait for one another.
    # ``through``: tool of the row; empty for the vendor's own test. ``seconds``: time of the
    # collective itself [s].
    if through == FIRST_NCCOM:
        return _added(seconds, catalogue, NCCOM, "within_server" if domains == 1 else "servers")
    if through == PYTORCH_NEURON:
        return _added(seconds, catalogue, NEURON, "pytorch_collective_added")
    if through == WAITED:
        return _added(seconds, catalogue, COLLECTIVES, "waited")
    if through != QUEUED:
        return Shown(seconds)
    call = catalogue.entry(COLLECTIVES, "call")
    longest = call.value if call.high is None else call.high
    return Shown(max(seconds, call.value), (seconds, max(seconds, longest)))


def vendors_test(chip: str) -> str:
    """Return the vendor's own test of collectives on a chip."""
    return NCCOM_TEST if chip_family(chip).is_neuron else NCCL_TESTS


def hull(
    tool: str, runtime: str, seconds: float, catalogue: Catalogue, domains: int = 1
) -> tuple[float, float]:
    """Return the least and most that tools may show for a collective of a runtime [s]."""
    # Without a tool, all that time NCCL count, of which its own tests add nothing. A program of the
    # Neuron runtime has its collectives inside.
    tools = [tool] if tool or runtime != NCCL else [QUEUED, WAITED]
    shown = [collective_shown(each, seconds, catalogue, domains).ends for each in tools]
    ends = [(seconds, seconds) if each is None else each for each in shown]
    least = min(end[0] for end in ends)
    return least if tool else seconds, max(end[1] for end in ends)


def kernel_shown(through: str, kernel: str, seconds: float, catalogue: Catalogue) -> Shown:
    """Time of a kernel as the row's tool shows it; see :func:`collective_shown`."""
    if through != CALLED:
        return Shown(seconds)
    work = "product" if kernel == "gemm" else "elementwise"
    return _added(seconds, catalogue, KERNELS, f"{work}_called")


def _added(seconds: float, catalogue: Catalogue, part: str, quantity: str) -> Shown:
    """Time with an addition from the catalogue and from the ends of its range."""
    more = catalogue.entry(part, quantity)
    low, high = (more.value if end is None else end for end in (more.low, more.high))
    return Shown(seconds + more.value, (seconds + low, seconds + high))
