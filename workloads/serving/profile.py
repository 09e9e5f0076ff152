"""Time of one iteration of a replica: the roofline and collectives of training, plus overheads.

An iteration runs some tokens through all layers: one for each request that decodes, and a piece of
a prompt for each that prefills. Its time is the sum of

- the matrix products of those tokens on one rank (:func:`workloads.kernels.times.gemm_s`), which
  stream the weights once;
- attention over the cached keys and values;
- two all-reduces a layer over the tensor-parallel group: a floor and a rate;
- an overhead for each iteration, and one for each prompt token and layer: what makes batch-1 decode
  two to six times slower than a pure roofline. Part ``serving.<family>`` of the catalogue.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.families import chip_family
from topologies.catalogue.memory import usable_hbm_bytes
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.kernels.precision import ELEMENT_BYTES, SERVING, check_precision
from workloads.models.model import Model, expert_parameters
from workloads.serving.rank.attention import (
    decode_kv_s,
    decode_request_s,
    prefill_square_s,
    scan_token_s,
)
from workloads.serving.rank.experts import EXPERT_BLOCK
from workloads.serving.rank.layers import products_s, small_kernels_s
from workloads.serving.rank.reduces import reduces_s
from workloads.serving.rank.share import RankShare, check_cache

MAX_TOKENS = 131_072
"""Most tokens of one iteration."""
Tokens = TypeVar("Tokens", float, FloatArray)
"""Cached tokens: a number, or an array with one for each of several iterations, as their times."""
LNC1 = "lnc1"
"""Variant of a Trainium chip whose logical cores are single physical ones."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Times and sizes of one replica.

    Attributes
    ----------
    name : str
    chips : int
        Chips of one replica.
    tokens : float array (sizes,)
        Tokens of an iteration at which ``linear_s`` is known, ascending.
    linear_s : float array (sizes,)
        Matrix products, all-reduces and the overhead of an iteration [s].
    decode_kv_s : float
        Per cached token of each decoding request [s].
    prefill_token_s : float
        Overhead per prompt token, all layers [s].
    prefill_square_s : float
        Attention per prompt token and token before it [s].
    weights_bytes, kv_bytes_per_token, kv_budget_bytes : float
        Sizes of the whole replica [B].
    decode_request_s : float
        Per decoding request beside its cached tokens [s].
    request_s : float
        Network, tokenizer and scheduler before the engine sees a request [s].
    prompt_linear_s : float array (sizes,), optional
        The same as ``linear_s`` of an iteration in which prompts run, where that differs [s].
    expert_groups : int
        Groups of ranks that divide the experts of a mixture while prompts run.
    """

    name: str
    chips: int
    tokens: FloatArray
    linear_s: FloatArray
    decode_kv_s: float
    prefill_token_s: float
    prefill_square_s: float
    weights_bytes: float
    kv_bytes_per_token: float
    kv_budget_bytes: float
    request_s: float = 0.0
    decode_request_s: float = 0.0
    prompt_linear_s: FloatArray | None = None
    expert_groups: int = 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds."""
        return int(self.kv_budget_bytes / self.kv_bytes_per_token)

    def linear(self, tokens: float) -> float:
        """Time that depends on the number of tokens alone [s]."""
        return float(np.interp(tokens, self.tokens, self.linear_s))

    def prompt_linear(self, tokens: float) -> float:
        """Time that depends on the number of tokens alone, where some are of prompts [s]."""
        seconds = self.linear_s if self.prompt_linear_s is None else self.prompt_linear_s
        return float(np.interp(tokens, self.tokens, seconds))

    def prefill_s(self, tokens: int, before: int = 0) -> float:
        """Time of a prompt, or of a piece of it after ``before`` tokens, alone [s]."""
        return self.prompt_linear(tokens) + self.prefill_extra_s(tokens, before)

    def prefill_extra_s(self, tokens: int, before: int) -> float:
        """Time that a piece of a prompt adds to the linear part [s]."""
        square = tokens * (before + 0.5 * tokens)
        return self.prefill_token_s * tokens + self.prefill_square_s * square

    def decode_s(self, requests: int, cached_tokens: Tokens) -> Tokens:
        """Time of one token for each of so many requests with so many cached tokens in all [s]."""
        return self.linear(requests) + self.attention_s(requests, cached_tokens)

    def attention_s(self, requests: int, cached_tokens: Tokens) -> Tokens:
        """Attention of one token for each of so many requests over their cached tokens [s]."""
        return self.decode_request_s * requests + self.decode_kv_s * cached_tokens

    def digest(self) -> str:
        """Hash of every number in it."""
        state = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            state.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
        return state.hexdigest()


def profile(
    model: Model,
    cluster: Cluster,
    *,
    tp: int | None = None,
    precision: str | None = None,
    chips: int | None = None,
    catalogue: Catalogue | None = None,
    ep: int = 1,
    cache_precision: str | None = None,
) -> Profile:
    """Return the times of a replica of a model on the first chips of a cluster.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    tp : int, optional
        Chips of the replica: its tensor-parallel group, every rank of every chip in it. By default
        one server. More than a domain has counts cores, as Neuron does: 64 on a trn2.48xlarge.
        As many as a chip has physical cores, where one chip is all there is, sets LNC=1.
    precision : str, optional
        Precision of weights and products; by default that of the model's stored weights.
    chips : int, optional
        Chips that the replica lies on, where ``tp`` counts their cores.
    catalogue : Catalogue, optional
        By default the cluster's.
    ep : int
        Groups of ranks that divide the experts; on Trainium for prompts, decode holds them again.
    cache_precision : str, optional
        ``bf16`` or ``fp8``; by default that which comes with the weights'.

    Raises
    ------
    InputError
        For more chips than a scale-up domain has, degrees that do not divide them, a precision
        that the chip lacks, weights that do not fit, a model without attention.
    """
    _check_mixers(model)
    precision = precision or model.precision
    catalogue = catalogue or cluster.catalogue or shipped_catalogue()
    rank = replica_share(model, cluster, tp, precision, catalogue, chips=chips)
    rank = replace(rank, ep=ep, cache_precision=check_cache(cache_precision))
    _check_groups(rank)
    check_precision(precision, cluster.chip, rank.catalogue, SERVING, "serve")
    return _profile_of(rank)


def _profile_of(rank: RankShare) -> Profile:
    """Return the times and sizes of a replica of which every rank has such a share."""
    model = rank.model
    weights = (model.parameters + _experts_held_again(rank)) * ELEMENT_BYTES[rank.precision]
    tokens = _token_counts(model)
    beside_s = _beside_products_s(rank, tokens)
    return Profile(
        name=f"{model.name} on {rank.chips} x {rank.cluster.chip}",
        expert_groups=rank.ep,
        chips=rank.chips,
        tokens=tokens,
        linear_s=beside_s + products_s(rank, tokens),
        prompt_linear_s=_issued(beside_s + products_s(rank, tokens, prompts=True), rank),
        decode_kv_s=decode_kv_s(rank),
        decode_request_s=decode_request_s(rank),
        prefill_token_s=_prompt_token_s(rank),
        prefill_square_s=prefill_square_s(rank),
        weights_bytes=weights,
        kv_bytes_per_token=rank.kv_bytes_per_token(),
        kv_budget_bytes=_left_for_cache(model, weights, rank),
        request_s=rank.overhead("request_overhead"),
    )


def _prompt_token_s(rank: RankShare) -> float:
    """Overhead and scan of a prompt's token, all layers [s]."""
    overhead = constant(rank.catalogue, rank.cluster.chip, "prompt_token_layer")
    return rank.model.layers * overhead + scan_token_s(rank)


def _issued(seconds: FloatArray, rank: RankShare) -> FloatArray:
    """Times of iterations with prompts, which a GPU's host issues kernel by kernel, (sizes,) [s].

    Iterations of decode are captured as graphs; of prompts the host can be the slower part.
    """
    return np.maximum(seconds, rank.model.moe_layers * rank.overhead("expert_layer_host"))


def _beside_products_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Overhead of an iteration, its small kernels and its all-reduces, (sizes,) [s]."""
    model, chip, book = rank.model, rank.cluster.chip, rank.catalogue
    family = chip_family(chip, book).serving
    overhead = constant(book, chip, "iteration_overhead") * share_of_overhead(model, chip, book)
    return overhead + small_kernels_s(rank, tokens, family) + reduces_s(rank, tokens, family)


def _token_counts(model: Model) -> FloatArray:
    """Tokens of an iteration at which its time is taken, ascending: closer where it jumps."""
    tokens = np.rint(np.geomspace(1, MAX_TOKENS, 120))
    if model.experts:
        first = -(-EXPERT_BLOCK // model.experts.per_token)
        tokens = np.append(tokens, [first - 1, first])
    return np.unique(tokens[tokens >= 1])


def _left_for_cache(model: Model, weights: float, rank: RankShare) -> float:
    """Memory that the weights leave to the cache [B]."""
    chip, book = rank.cluster.chip, rank.catalogue
    share = book.value(chip_family(chip, book).serving, "memory_share")
    budget = rank.ranks / rank.per_chip * usable_hbm_bytes(chip, book) * share
    if weights >= budget:
        raise InputError(
            f"{model.name} has {weights / 1e9:,.0f} GB of weights, {rank.chips} chips hold "
            f"{budget / 1e9:,.0f} GB; use more chips or a smaller precision."
        )
    return budget - weights


def replica_share(
    model: Model,
    cluster: Cluster,
    tp: int | None,
    precision: str,
    catalogue: Catalogue,
    *,
    chips: int | None = None,
) -> RankShare:
    """Return one rank's part of a model in a replica of a tensor-parallel degree.

    Parameters as for :func:`profile`. The catalogue of the result has LNC=1 where the degree is
    that of all physical cores of the chips.
    """
    if not cluster.chip:
        raise InputError("nothing can be served on a cluster without chips; name a machine.")
    logical = chip_family(cluster.chip, catalogue).ranks_per_chip
    room = chips or cluster.chips_per_domain
    physical = (
        catalogue.integer(cluster.chip, "cores") if catalogue.has(cluster.chip, "cores") else 1
    )
    if tp and logical < physical and tp == room * physical and (room == 1 or chips):
        catalogue = catalogue.with_variants({f"{cluster.chip}.ranks_per_chip": LNC1})
        return RankShare(model, cluster, room, precision, catalogue, tp)
    if tp and logical > 1 and (chips or room == 1) and room < tp <= room * logical:
        return RankShare(model, cluster, -(-tp // logical), precision, catalogue, tp)
    return RankShare(model, cluster, _chips(model, cluster, tp), precision, catalogue)


def _chips(model: Model, cluster: Cluster, tp: int | None) -> int:
    """Chips of a replica: a degree above a domain's chips counts cores, where there are so many."""
    if tp is None:
        return cluster.chips_per_server
    domain = cluster.chips_per_domain
    cores = chip_family(cluster.chip, cluster.catalogue).ranks_per_chip
    if not 1 <= tp <= domain * cores:
        also = f", or up to {domain * cores} cores" if cores > 1 else ""
        raise InputError(
            f"tp {tp}: a replica lies within one scale-up domain of {domain} chips. "
            f"Use 1 to {domain} chips{also}."
        )
    chips = tp if tp <= domain else tp // cores
    whole = tp <= domain or tp % cores == 0
    if not whole or (domain % chips and model.heads % chips):
        sizes = [str(size) for size in range(1, domain + 1) if domain % size == 0]
        raise InputError(
            f"tp {tp} divides neither the {model.heads} heads of {model.name} nor the {domain} "
            f"chips of a domain evenly. Use {', '.join(sizes)} chips."
        )
    return chips


def share_of_overhead(model: Model, chip: str, catalogue: Catalogue) -> float:
    """Share of the overhead of an iteration: that of a program grows with its first layers."""
    family = chip_family(chip, catalogue).serving
    if not catalogue.has(family, "overhead_layers"):
        return 1.0
    return min(1.0, model.layers / constant(catalogue, chip, "overhead_layers"))


def _check_mixers(model: Model) -> None:
    """Refuse a model without any keys and values: requests would take no room."""
    if model.recurrence is not None and all(
        layer.mixer != "attention" for layer in model.each_layer
    ):
        raise InputError(
            f"cannot serve {model.name}: all its mixers are {model.recurrence.name} layers, which "
            "keep a state and no keys and values. Use a model with some attention."
        )


def _experts_held_again(rank: RankShare) -> int:
    """Parameters of experts that lie in memory a second time, divided for prompts."""
    model = rank.model
    if rank.ep == 1 or model.experts is None or not rank.overhead("expert_block"):
        return 0
    return model.moe_layers * model.experts.count * expert_parameters(model)


def _check_groups(rank: RankShare) -> None:
    """Refuse groups of experts that leave some ranks or experts over."""
    some, ep = rank.model.experts, rank.ep
    if ep == 1:
        return
    if some is None:
        raise InputError(f"ep {ep}: {rank.model.name} has no experts to divide. Use 1.")
    most = math.gcd(rank.ranks, some.count)
    if ep < 1 or most % ep:
        raise InputError(
            f"ep {ep}: groups must divide the {rank.ranks} ranks of the replica and the "
            f"{some.count} experts of {rank.model.name}. Use a divisor of {most}."
        )


def forward_s(model: Model, cluster: Cluster, tokens: int, *, precision: str = "bf16") -> float:
    """Forward pass of one sequence over the chips of a server, without engine overheads [s].

    Raises
    ------
    InputError
        For a cluster without chips.
    """
    if not cluster.chip:
        raise InputError(f"{cluster.name} has no chip; name a machine.")
    catalogue = cluster.catalogue or shipped_catalogue()
    rank = RankShare(model, cluster, cluster.chips_per_server, precision, catalogue)
    size = np.array([float(tokens)])
    family = chip_family(cluster.chip, catalogue).serving
    attention = prefill_square_s(rank) * 0.5 * tokens**2
    return float((products_s(rank, size) + reduces_s(rank, size, family))[0]) + attention


def constant(catalogue: Catalogue, chip: str, quantity: str) -> float:
    """Constant of serving of a chip, of its own or of its family."""
    part = f"serving.{chip}"
    in_part = part in catalogue.parts() and catalogue.has(part, quantity)
    return catalogue.value(part if in_part else chip_family(chip, catalogue).serving, quantity)
