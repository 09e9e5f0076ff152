"""Every form in which a user may name a cluster, turned into a Cluster."""

from __future__ import annotations

from topologies.catalogue import Catalogue
from topologies.catalogue import catalogue as shipped
from topologies.clusters import Cluster
from topologies.errors import InputError, suggestion
from topologies.plain_shapes import PLAIN, plain_shape

_LONGEST = 4096


def cluster(
    text: str,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    catalogue: Catalogue | None = None,
) -> Cluster:
    """Make the cluster that a text names.

    Parameters
    ----------
    text : str
        A plain shape such as ``ring:8`` or ``torus:4x4x4``.
    bandwidth, latency : str, optional
        Of each directed link of a plain shape, as ``100GB/s`` and ``1us``; refused for others.
    catalogue : Catalogue, optional
        By default the shipped one.

    Raises
    ------
    InputError
        For an unknown name, with the nearest one, and for bad sizes.

    Examples
    --------
    >>> cluster("torus:4x4x4", bandwidth="100GB/s", latency="1us").chips
    64
    """
    numbers = shipped() if catalogue is None else catalogue
    kind = text.partition(":")[0]
    if kind in PLAIN:
        shape = plain_shape(text, bandwidth, latency)
        return Cluster(text, shape, plain=True, catalogue=numbers)
    raise InputError(f"unknown cluster {text[:80]!r}.{suggestion(kind, PLAIN)}")
