"""Intervals of whole answers: a replica's tokens, a collective; kinds of models and chips.

Some tables were timed through a framework: PyTorch issues calls tens of microseconds apart, or
waits for each, and the first nccom-test waited for each program. The addition differs between
machines, so it is a range, whose ends widen the interval of the row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from topologies.catalogue.catalogue import NCCL, Catalogue, chip_family
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import (
    FIRST_TOKEN,
    FIRST_TOKEN_EXPERTS,
    SERVING,
    SERVING_EXPERTS,
    Prediction,
    collective_kind,
)
from workloads.confidence.split_conformal import interval
from workloads.kernels.precision import ELEMENT_BYTES

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model


QUEUED, WAITED, CALLED = "pytorch", "pytorch-waited", "pytorch-called"
"""Ways of timing through PyTorch: calls back to back, waiting for each, kernels alone."""
FIRST_NCCOM = "nccom-first"  # way of timing of the first nccom-test
PYTORCH_NEURON = "pytorch-neuron"
"""Calls of PyTorch's own backend for Trainium, one after the other."""
NCCL_TESTS, NCCOM_TEST = "nccl-tests", "nccom-test"  # the vendors' own tests, which add nothing
ONE_PROCESS = "nccl-tests-one-process"
"""The same test with one process for all GPUs of a server, as by its option ``-g 8``."""
# Parts of the catalogue.
COLLECTIVES, KERNELS, NCCOM = "nccl.pytorch", "runtime.pytorch", "nccom-test.first"
LAUNCHES = "nccl.one-process"
NEURON = "runtime.neuron"


class Shown(NamedTuple):
    """Time that a tool shows."""

    seconds: float  # time that the tool usually shows [s]
    # Least and most that it may show on other machines [s]; None where it adds nothing.
    ends: tuple[float, float] | None = None


def collective_shown(
    through: str, seconds: float, catalogue: Catalogue, domains: int = 1, devices: int = 8
) -> Shown:
    """Time of a collective as the row's tool shows it."""
    # Calls back to back take at least the time between two calls; where a captured graph is
    # replayed they may take that of the collective alone. Waiting for each adds the wait. The first
    # nccom-test adds the wait of its host, which is far longer where servers wait for one another.
    # One process for all GPUs launches their kernels one by one. ``through``: tool of the row;
    # empty for the vendor's own test. ``seconds``: time of the collective itself [s]. ``devices``:
    # chips of a server that take part.
    if through == FIRST_NCCOM:
        return _added(seconds, catalogue, NCCOM, "within_server" if domains == 1 else "servers")
    if through == PYTORCH_NEURON:
        return _added(seconds, catalogue, NEURON, "pytorch_collective_added")
    if through == WAITED:
        return _added(seconds, catalogue, COLLECTIVES, "waited")
    if through == ONE_PROCESS:
        each = catalogue.entry(LAUNCHES, "launch")
        low, high = (each.value if end is None else end for end in (each.low, each.high))
        least, usual, most = (
            max(seconds, devices * launch_s) for launch_s in (low, each.value, high)
        )
        return Shown(usual, (least, most))
    if through != QUEUED:
        return Shown(seconds)
    call = catalogue.entry(COLLECTIVES, "call")
    longest = call.value if call.high is None else call.high
    return Shown(max(seconds, call.value), (seconds, max(seconds, longest)))


def vendors_test(chip: str) -> str:
    """Return the vendor's own test of collectives on a chip."""
    return NCCOM_TEST if chip_family(chip).is_neuron else NCCL_TESTS


def hull(
    tool: str,
    runtime: str,
    seconds: float,
    catalogue: Catalogue,
    domains: int = 1,
    devices: int = 8,
) -> tuple[float, float]:
    """Return the least and most that tools may show for a collective of a runtime [s]."""
    # Without a tool, all that time NCCL count, of which its own tests add nothing. A program of the
    # Neuron runtime has its collectives inside.
    tools = [tool] if tool or runtime != NCCL else [QUEUED, WAITED]
    shown = [collective_shown(each, seconds, catalogue, domains, devices).ends for each in tools]
    ends = [(seconds, seconds) if each is None else each for each in shown]
    return min(least for least, _ in ends), max(most for _, most in ends)


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


WIDTHS = (4, 8, 16)  # bits of weights, the next larger of which names a family


def serving_features(
    model: Model, cluster: Cluster, chips: int, *, precision: str = "", engine: str = ""
) -> Prediction:
    """Return the features of a replica's time per token, which its rate shares."""
    # ``precision`` is that of the weights, by default of the stored ones; ``engine`` may be empty.
    return Prediction(
        SERVING if model.experts is None else SERVING_EXPERTS,
        cluster.measured_chip,
        ranks=chips,
        tool=engine,
        family=model_family(model, precision or model.precision),
    )


def of_first_token(per_token: Prediction) -> Prediction:
    """Return the features of a replica's time to first token from those of its time per token."""
    kinds = {SERVING: FIRST_TOKEN, SERVING_EXPERTS: FIRST_TOKEN_EXPERTS}
    return replace(per_token, kind=kinds[per_token.kind])


def model_family(model: Model, precision: str) -> str:
    """Return the family of a served model, whose members have similar errors."""
    keys = {layer.keys for layer in model.each_layer if layer.window}
    words = ["dense" if model.experts is None else "experts"]
    words += ["latent attention"] * (model.latent is not None)
    words += ["recurrent layers"] * (model.recurrence is not None)
    words += ["attention in windows"] * ("last" in keys)
    words += ["selected keys"] * ("selected" in keys)
    return "; ".join([*words, weight_width(precision)])


def weight_width(precision: str) -> str:
    """Return the width of weights in words."""
    bits = int(8 * ELEMENT_BYTES.get(precision.rpartition("-")[2], 2.0))  # those of experts
    return f"{next((width for width in WIDTHS if bits <= width), bits)} bits"


def kernels_assumed(chip: str, catalogue: Catalogue | None = None) -> bool:
    """Return whether the kernels of a chip rest on assumed numbers, by default the shipped ones."""
    return chip_family(chip, catalogue).provenance == "assumed"


def collective_interval(
    cluster: Cluster,
    ranks: int,
    size_bytes: int,
    seconds: float,
    *,
    ideal: bool = False,
    tool: str = "",
    crosses: bool | None = None,
) -> Interval:
    """Interval of the predicted time of a collective [s]."""
    # A plain shape, or a machine run as ``ideal``, is the α–β model itself: its interval is a
    # point. ``tool`` is the one that times it, see :mod:`workloads.confidence.answers`: without
    # one the interval holds what any of them shows. ``crosses`` says whether the group lies on
    # several servers, where that is known.
    if cluster.plain or not cluster.chip or ideal:
        return Interval(seconds, seconds, basis="rates and latencies as given, no machine behind")
    if not seconds:
        return Interval(0.0, 0.0, basis="one rank alone, which sends nothing")
    # More ranks than a server has chips lie on several servers, where the cluster has several.
    if crosses is None:
        crosses = ranks > cluster.chips_per_domain
    runtime = chip_family(cluster.chip, cluster.numbers).runtime
    devices = min(ranks, cluster.chips_per_server)
    least, most = hull(tool, runtime, seconds, cluster.numbers, cluster.domains, devices)
    features = Prediction(
        collective_kind(size_bytes),
        cluster.measured_chip,
        ranks=ranks,
        tool=tool,
        crosses=crosses and cluster.domains > 1,
        below=math.log(least / seconds),
        above=math.log(most / seconds),
    )
    return interval(seconds, features)
