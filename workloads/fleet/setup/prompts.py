"""Prompts of a fleet's replicas: in pieces, whole, or whole on replicas of their own.

This is the one place that decides. Engines of GPUs run pieces of prompts beside decoding; those of
Neuron pause decoding for every prompt, and so their prompts have replicas of their own where a unit
holds several. Sources: AWS Neuron documentation,
``nxd-inference/developer_guides/vllm-user-guide-v1.rst`` ("Chunked prefill is not supported on
Neuron"), and ``neuron-scheduler.md`` and ``disaggregated-inference.md`` in
``vllm-neuron/docs/design/vllm``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from workloads.fleet.setup.serving_settings import USUAL, Serving
from workloads.fleet.setup.split import groups_in_units
from workloads.models.model import Model
from workloads.serving import Batching, Pools, Profile, batching_from

MIXTURE_PIECE_TOKENS = 8192
"""Tokens of a piece of a prompt for a mixture of experts: pieces are long because even one of few
tokens reads most experts."""
USUAL_GROUP = 4
"""Most replicas of a group on Neuron by default: three for prompts and one that decodes serve most,
by the table of ways in ``docs/background/fleet.md``."""


@dataclass(frozen=True)
class Prompts:
    """Way in which the replicas of a unit run prompts.

    Attributes
    ----------
    batching : Batching
        Its pieces of prompts have 0 tokens where prompts run whole.
    apart : Pools, optional
        Prefill and decode replicas of a group; None where every replica does both.
    """

    batching: Batching
    apart: Pools | None = None


def prompts_of(serving: Serving, model: Model, cluster: Cluster, served: Profile) -> Prompts:
    """Return the way that settings state, or the usual one of the machine.

    The usual way is in pieces beside decoding. On Neuron machines it is groups of as many prefill
    replicas to one decode replica as fill units of a cluster, 3:1 at most; where a unit holds a
    single replica, decoding waits for whole prompts.

    Raises
    ------
    InputError
        For groups that do not fill units.
    """
    split = serving.disaggregate or _usual_split(serving, cluster, served)
    if split:
        apart = groups_in_units(split, cluster, served)
        return Prompts(batching_from(cluster, "separate"), apart)
    if serving.chunk_tokens == 0 or _waits(serving, cluster):
        return Prompts(batching_from(cluster, "separate", serving.chunk_tokens or None))
    batching = batching_from(cluster, "chunked", serving.chunk_tokens)
    if serving.chunk_tokens is None and model.experts:
        return Prompts(replace(batching, chunk_tokens=MIXTURE_PIECE_TOKENS))
    return Prompts(batching)


def is_usual(serving: Serving) -> bool:
    """Return whether the way of running prompts is left to the machine."""
    unstated = serving.prefill == USUAL and not serving.disaggregate
    return unstated and serving.chunk_tokens is None


def _usual_split(serving: Serving, cluster: Cluster, served: Profile) -> str:
    """Prefill and decode replicas of the usual group, such as 3:1; empty where there is none."""
    if not is_usual(serving) or not _is_neuron(cluster):
        return ""
    in_a_unit = cluster.chips_per_domain // served.chips
    group = max((size for size in range(1, USUAL_GROUP + 1) if in_a_unit % size == 0), default=1)
    return f"{group - 1}:1" if group > 1 else ""


def _waits(serving: Serving, cluster: Cluster) -> bool:
    """Return whether decoding waits for prompts; a stated size of pieces means that it does not."""
    if serving.prefill == USUAL:
        return serving.chunk_tokens is None and _is_neuron(cluster)
    return serving.prefill == "separate"


def _is_neuron(cluster: Cluster) -> bool:
    return chip_family(cluster.chip, cluster.catalogue).is_neuron
