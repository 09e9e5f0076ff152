"""Schedulers of serving engines on GPUs, as the engines' documents state their defaults.

- **vLLM** (V1, ``--max-num-batched-tokens``): pieces of prompts beside decoding requests, 8,192
  tokens an iteration behind an API server on chips with 70 GiB and more, 2,048 on smaller ones and
  on the A100. An iteration is planned after the one before, unless ``async-scheduling`` is set, as
  it is by default from 0.14 on (January 2026).
- **SGLang** (``--chunked-prefill-size``): prompts run before decode, in iterations of their own,
  unless ``--enable-mixed-chunk`` is set; 8,192 tokens on chips with less than 160 GiB, 16,384 on
  larger ones. Its overlap scheduler plans one iteration ahead.
- **TensorRT-LLM** (``max_num_tokens``): whole prompts beside decoding requests, as
  ``enable_chunked_prefill`` is off, 8,192 tokens an iteration. Its overlap scheduler plans one
  iteration ahead.

``--scheduler-recv-interval`` of SGLang is ``poll_passes``; ``batch_wait_timeout_iters`` and
``batch_wait_max_tokens_ratio`` of TensorRT-LLM are ``gather_passes`` and ``gather_tokens``. Both
are off by default.
"""

from __future__ import annotations

from functools import lru_cache

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from workloads.serving.batching import BESIDE, FIRST, WHOLE, Batching

LARGE_CHIP_BYTES, SMALL_CHIP_BYTES = 160 * 2**30, 70 * 2**30
"""Memory from which SGLang's pieces of prompts are longer, and below which vLLM's are shorter."""
PROMPTS_OF = {"vllm": BESIDE, "sglang": FIRST, "tensorrt-llm": WHOLE}
"""Make-up of each engine's iterations with prompts."""
PLANS_AHEAD = ("sglang", "tensorrt-llm")
"""Engines that plan an iteration while the one before runs."""
ENGINES = tuple(PROMPTS_OF)
OVERHEADS = ("iteration_overhead", "request_iteration")
"""Constants of ``serving.gpu`` of which an engine may have its own, as a variant of its name."""
CATALOGUES = 32
"""Catalogues with the numbers of an engine that are kept."""


def engine_batching(
    cluster: Cluster,
    engine: str,
    slots: int,
    *,
    chunk_tokens: int | None = None,
    overlapped: bool | None = None,
    poll_passes: int = 1,
    gather: str | None = None,
) -> Batching:
    """Return the batching of a serving engine on the chips of a cluster.

    ``engine``: one of ``ENGINES``. ``slots``: requests that decode at once. ``chunk_tokens``:
    tokens of an iteration with prompts; by default the engine's, or one more than the slots.
    ``overlapped``: whether an iteration is planned while the one before runs; by default as the
    engine does. ``poll_passes``: passes of decode between two looks for new requests. ``gather``:
    ``PASSES:SHARE``: passes of decode for which prompts wait for others, unless they fill this
    share of ``chunk_tokens``; such as ``"20:0.9"``.

    Raises InputError for an unknown engine, one on Trainium, and for a gather that is no such pair.

    >>> import cluster_sim as cs
    >>> engine_batching(cs.cluster("dgx-h200"), "tensorrt-llm", 64, gather="20:0.9").gather_tokens
    7372
    """
    _check_engine(cluster, engine)
    tokens = chunk_tokens or max(_usual_tokens(cluster, engine), slots + 1)
    passes, share = read_gather(gather) if gather else (0, 0.0)
    return Batching(
        slots,
        tokens,
        prompts=PROMPTS_OF[engine],
        overlapped=engine in PLANS_AHEAD if overlapped is None else overlapped,
        poll_passes=poll_passes,
        gather_passes=passes,
        gather_tokens=int(share * tokens),
        engine=engine,
    )


@lru_cache(CATALOGUES)
def engine_numbers(catalogue: Catalogue, engine: str) -> Catalogue:
    """Return a catalogue in which the overheads are those of an engine, where it has its own.

    A value that the catalogue's user has replaced or chosen stays.

    >>> engine_numbers(shipped_catalogue(), "vllm").value("serving.gpu", "request_iteration")
    2e-05
    """
    part, shipped = "serving.gpu", shipped_catalogue()
    variants = {
        f"{part}.{quantity}": engine
        for quantity in OVERHEADS
        if engine
        and catalogue.entry(part, quantity) == shipped.entry(part, quantity)
        and any(row.variant == engine for row in catalogue.variants(part, quantity))
    }
    return catalogue.with_variants(variants) if variants else catalogue


def _check_engine(cluster: Cluster, engine: str) -> None:
    """Refuse an unknown engine, and one on chips that have their own."""
    if engine not in ENGINES:
        near = suggestion(engine, ENGINES)
        raise InputError(
            f"unknown scheduler {engine[:40]!r}; choose from {', '.join(ENGINES)}.{near}"
        )
    if chip_family(cluster.chip, cluster.catalogue).is_neuron:
        raise InputError(
            f"scheduler {engine}: {cluster.chip} is served by Neuron's engine, which runs whole "
            "prompts one at a time. Leave the scheduler out."
        )


def _usual_tokens(cluster: Cluster, engine: str) -> int:
    """Tokens of an iteration with prompts that an engine takes on a chip if none are stated."""
    catalogue = cluster.catalogue or shipped_catalogue()
    hbm_bytes = catalogue.value(cluster.chip, "hbm_bytes")
    if engine == "sglang" and hbm_bytes >= LARGE_CHIP_BYTES:
        return 16_384
    a100 = chip_family(cluster.chip, catalogue).name == "a100"
    if engine == "vllm" and (hbm_bytes < SMALL_CHIP_BYTES or a100):
        return 2_048
    return 8_192


def read_gather(text: str) -> tuple[int, float]:
    """Read ``PASSES:SHARE``: passes for which prompts wait, and a share of an iteration's tokens.

    Raises InputError.
    """
    passes, _, share = text.partition(":")
    try:
        gathered = int(passes), float(share)
    except ValueError:
        gathered = 0, 0.0
    if gathered[0] < 1 or not 0 < gathered[1] <= 1:
        raise InputError(
            f"gather {text[:40]!r} is not passes of decode and a share of the tokens of an "
            "iteration; write 20:0.9."
        )
    return gathered
