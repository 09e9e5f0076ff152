"""Batching of a replica, and the schedulers of serving engines on GPUs by their documents.

vLLM V1 (``--max-num-batched-tokens``) has 8,192 tokens an iteration on chips with 70 GiB and more,
2,048 on smaller ones and the A100; from 0.14 (January 2026) it plans one iteration ahead by
default. SGLang (``--chunked-prefill-size``) runs prompts first unless ``--enable-mixed-chunk`` is
set: 8,192 tokens on chips of 60 to 160 GiB, 4,096 on smaller ones and TPUs, 16,384 on larger.
TensorRT-LLM (``max_num_tokens``) runs whole prompts beside decode, 8,192 tokens, as
``enable_chunked_prefill`` is off. Both plan one iteration ahead. SGLang fills what memory it does
not keep for iterations and graphs, the others nine tenths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from topologies.catalogue.catalogue import (
    Catalogue,
    chip_family,
    shipped_catalogue,
    usable_hbm_bytes,
)
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError, check_choice
from workloads.serving.releases import DATED, release_month, release_variants

BUCKETS = (128, 256, 512, 1024, 2048, 4096, 8192, 10_240, 16_384, 32_768, 65_536, 131_072)
"""Lengths that a Neuron replica is compiled for; shorter prompts and caches are padded."""

BESIDE, WHOLE, FIRST = "beside", "whole", "first"
PROMPTS = (BESIDE, WHOLE, FIRST)
"""Ways to fill an iteration with prompts, where it has ``chunk_tokens``: pieces of prompts beside
decoding requests, whole prompts beside them, or pieces of prompts while decode pauses."""


@dataclass(frozen=True)
class Batching:
    """Batching of a replica."""

    slots: int = 64  # largest number of requests that decode at once
    # Tokens of an iteration if prompts are cut into chunks that run together with decode; 0 for
    # separate prefill, which runs one whole prompt while decode pauses
    chunk_tokens: int = 0
    # Lengths, ascending, to which shorter separate prompts and caches of decode are padded; empty
    # for no padding
    buckets: tuple[int, ...] = ()
    # Whether a pass of decode takes as long as with all slots, empty ones too, as in a program of
    # Trainium that was compiled for them. Where nobody states the slots it is taken to be compiled
    # for its load
    runs_empty_slots: bool = False
    # Whether a prompt may fill a program, and decode runs the smallest program of a power of two of
    # requests, as by vLLM's plug-in for Neuron
    fills_programs: bool = False
    # Whether prompts arrive with their keys and values, as at a decode replica, and take no time
    arrived: bool = False
    # Way to fill iterations with prompts, one of ``PROMPTS``, where ``chunk_tokens`` is not 0
    prompts: str = BESIDE
    # Whether an iteration is planned while the one before it runs, so that a request that arrives
    # meanwhile waits for one iteration more
    overlapped: bool = False
    # Passes of decode between two looks for new requests. After prompts the next look is at once
    poll_passes: int = 1
    # gather_passes, gather_tokens: passes of decode for which prompts wait for further prompts,
    # unless those that wait fill an iteration to ``gather_tokens`` already; 0 for no wait
    gather_passes: int = 0
    gather_tokens: int = 0
    # Share of the tokens still to be generated for which the cache keeps room, see ``RESERVED``.
    # Below 1 it may fill up, and then the requests admitted last give way
    reserved: float = 1.0
    engine: str = ""
    date: str = ""  # month of the engine's release; empty for today's

    def __post_init__(self) -> None:
        check_choice("prompts", self.prompts, PROMPTS)
        if not self.chunk_tokens and (self.prompts != BESIDE or self.gather_passes):
            raise InputError(
                f"prompts run {self.prompts}, gathered for {self.gather_passes} passes: separate "
                "prompts run one at a time. State chunk_tokens."
            )
        if self.poll_passes < 1 or self.gather_passes < 0 or self.gather_tokens < 0:
            raise InputError(
                f"a look for requests every {self.poll_passes} passes, prompts that wait "
                f"{self.gather_passes} passes for {self.gather_tokens} tokens; use at least 1, 0 "
                "and 0."
            )
        if self.slots < 1 or self.chunk_tokens < 0 or any(size < 1 for size in self.buckets):
            raise InputError(
                f"batching with {self.slots} slots and pieces of {self.chunk_tokens} tokens; slots "
                "and buckets are at least 1, pieces at least 0."
            )
        if 0 < self.chunk_tokens <= self.slots and self.prompts != FIRST:
            raise InputError(
                f"pieces of {self.chunk_tokens} tokens leave no room beside {self.slots} decoding "
                "requests; use more tokens or fewer slots."
            )

    def of_groups(self, count: int) -> Batching:
        """Return the batching of one of some groups that divide the requests."""
        # SGLang divides its tokens among them (``chunked_prefill_size`` of its server_args.py).
        each = 1 if self.engine == "sglang" else count
        return replace(
            self,
            slots=count * self.slots,
            chunk_tokens=each * self.chunk_tokens,
            gather_tokens=each * self.gather_tokens,
        )

    @property
    def prompts_text(self) -> str:
        """Way in which prompts are processed, for people."""
        if not self.chunk_tokens:
            return "whole, while decoding waits"
        if self.prompts == WHOLE:
            return f"whole, up to {self.chunk_tokens:,} tokens at once, beside decoding"
        beside = "while decoding waits" if self.prompts == FIRST else "beside decoding"
        return f"in pieces of {self.chunk_tokens:,} tokens, {beside}"

    def padded(self, tokens: int) -> int:
        """Return the padded length of a prompt, or of a cache that is one token longer."""
        # NxD Inference takes the first program that is longer (``model_wrapper.py``,
        # ``_get_seq_bucket``), so that a prompt of 1,024 tokens takes as long as one of 2,047;
        # vLLM's plug-in one that is as long (``neuron-scheduler.md``, "Bucket Selection Logic").
        least = tokens if self.fills_programs else tokens + 1
        return next((size for size in self.buckets if size >= least), tokens)

    def rows(self, requests: int) -> int:
        """Return the slots that a pass of decode runs for some requests, empty ones too."""
        # The plug-in's programs are of powers of two (``num_seqs_buckets``).
        held = 1 << (requests - 1).bit_length() if self.fills_programs else requests
        return self.slots if self.runs_empty_slots else min(self.slots, held)


LARGE_CHIP_BYTES, LEAST_CHIP_BYTES, SMALL_CHIP_BYTES = 160 * 2**30, 60 * 2**30, 70 * 2**30
"""Memory from which SGLang's pieces of prompts are longer, and below which they, and vLLM's, are
shorter."""
PROMPTS_OF = {"vllm": BESIDE, "sglang": FIRST, "tensorrt-llm": WHOLE}
"""Make-up of each engine's iterations with prompts."""
ENGINES = tuple(PROMPTS_OF)
RESERVED = {"vllm": 0.0, "sglang": 0.098, "tensorrt-llm": 1.0}
"""Room in the cache that each engine keeps for answers of admitted requests, see :class:`Batching`:
vLLM none (``Scheduler.schedule`` of V1), SGLang 0.7 x 0.14 of them once 600 passes went well
(``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR``), TensorRT-LLM all (``GUARANTEED_NO_EVICT``)."""
USUAL_CACHE = {"vllm": "bf16", "sglang": "bf16"}
"""Precision of the cache by engines whose ``--kv-cache-dtype auto`` is the model's own type,
whatever its weights have (vLLM's and SGLang's pages on quantized KV caches). TensorRT-LLM does as
the checkpoint says, and NVIDIA's of 8 bits and fewer say FP8."""
OVERHEADS = (
    *("iteration_overhead", "request_iteration", "graph_tokens", "masked_selection"),
    *("layer_host", "scan_chunk", "cache_share", "request_states", "delta_states"),
    "mixed_attention",
)
"""Constants of ``serving.gpu`` of which an engine may have its own, as a variant of its name."""
CATALOGUES = 32  # catalogues with the numbers of an engine that are kept


def engine_batching(
    cluster: Cluster,
    engine: str,
    slots: int,
    *,
    chunk_tokens: int | None = None,
    overlapped: bool = True,
    mixed_chunk: bool = False,
    poll_passes: int = 1,
    gather: str | None = None,
) -> Batching:
    """Return an engine's batching; unnamed that of vLLM of 2025, which plans nothing ahead."""
    alike, neuron = engine or "vllm", chip_family(cluster.chip, cluster.catalogue).is_neuron
    check_choice("scheduler", alike, ENGINES)
    if engine == "vllm" and neuron and not chunk_tokens and gather is None:
        return Batching(slots, buckets=BUCKETS, fills_programs=True, poll_passes=poll_passes)
    if engine and neuron:
        raise InputError(
            f"scheduler {engine}: {cluster.chip} is served by Neuron's engine or vLLM's plug-in, "
            "which run whole prompts one at a time. Write vllm and no chunk, or leave it out."
        )
    tokens = chunk_tokens or max(_usual_tokens(cluster.chip, cluster.numbers, alike), slots + 1)
    passes, share = read_gather(gather) if gather else (0, 0.0)
    return Batching(
        slots,
        tokens,
        prompts=BESIDE if mixed_chunk else PROMPTS_OF[alike],
        overlapped=overlapped and bool(engine),
        poll_passes=poll_passes,
        gather_passes=passes,
        gather_tokens=int(share * tokens),
        reserved=1.0 if neuron else RESERVED[alike],
        engine=engine,
    )


@lru_cache(CATALOGUES)
def engine_numbers(
    catalogue: Catalogue, engine: str, chip: str = "", date: str = "", groups: int = 1
) -> Catalogue:
    """Return a catalogue with an engine's overheads where it has its own, as of a month."""
    # A value that the catalogue's user has replaced or chosen stays.
    part, shipped = "serving.gpu", shipped_catalogue()
    variants = {
        f"{part}.{quantity}": engine
        for quantity in OVERHEADS
        if engine and any(row.variant == engine for row in catalogue.variants(part, quantity))
    } | release_variants(catalogue, chip, engine, date)
    kept = {
        name: variant
        for name, variant in variants.items()
        if catalogue.entry(*(place := name.rsplit(".", 1))) == shipped.entry(*place)
    }
    numbers = catalogue.with_variants(kept) if kept else catalogue
    family = chip_family(chip, catalogue) if chip and engine == "sglang" else None
    if family is not None and family.serving == part and family.name != "tpu":
        return _with_usual_share(numbers, chip, groups)
    return numbers


def _with_usual_share(catalogue: Catalogue, chip: str, groups: int) -> Catalogue:
    """Return a catalogue with the share of a chip's memory that SGLang fills if none is stated."""
    part, quantity = "serving.gpu", "memory_share"
    entry = catalogue.entry(part, quantity)
    if entry != shipped_catalogue().entry(part, quantity):
        return catalogue
    kept_bytes = (
        catalogue.value(part, "sglang_token_memory") * _usual_tokens(chip, catalogue, "sglang")
        + catalogue.value(part, "sglang_kept_memory")
        + catalogue.value(part, "sglang_group_memory") * (groups if groups > 1 else 0)
    )
    share = Fraction(1 - kept_bytes / usable_hbm_bytes(chip, catalogue))
    return catalogue.with_rows([entry._replace(exact=share, grade="derived", source="SGL; D")])


def _usual_tokens(chip: str, catalogue: Catalogue, engine: str) -> int:
    """Tokens of an iteration with prompts that an engine takes on a chip if none are stated."""
    hbm_bytes = catalogue.value(chip, "hbm_bytes")
    family = chip_family(chip, catalogue).name
    if engine == "sglang" and (family == "tpu" or hbm_bytes < LEAST_CHIP_BYTES):
        return 4_096
    if engine == "sglang" and hbm_bytes >= LARGE_CHIP_BYTES:
        return 16_384
    if engine == "vllm" and family == "tpu":
        return catalogue.integer(chip, "vllm_tokens", 2_048)
    a100 = family == "a100"
    if engine == "vllm" and (hbm_bytes < SMALL_CHIP_BYTES or a100):
        return 2_048
    return 8_192


def usual_slots(cluster: Cluster, engine: str | None = None, chunk: int | None = None) -> int:
    """Return how many requests an engine, or else vLLM, decodes at once if none are stated.

    vLLM's ``max_num_seqs`` is 1,024 where its iterations have 8,192 tokens, and 256 elsewhere;
    SGLang allows at least 2,048 and TensorRT-LLM 2,048, as far as the cache has room for them.
    Iterations of ``chunk`` tokens leave room for one less than these.
    """
    if chip_family(cluster.chip, cluster.catalogue).is_neuron:
        slots = 64  # assumed: vLLM's plugin takes 32 unless told, published programs 1 to 48
    elif engine not in (None, "vllm"):
        slots = 2_048
    else:
        tokens = _usual_tokens(cluster.chip, cluster.numbers, "vllm")
        slots = 1_024 if tokens > 2_048 else 256
    return min(slots, max(1, chunk - 1)) if chunk else slots


def read_gather(text: str) -> tuple[int, float]:
    """Read ``PASSES:SHARE``: passes for which prompts wait, and a share of an iteration."""
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


PREFILLS = ("auto", "separate", "chunked")


def batching_from(
    cluster: Cluster,
    prefill: str = "auto",
    chunk: int | None = None,
    slots: int | None = None,
    *,
    scheduler: str | None = None,
    poll: int = 1,
    gather: str | None = None,
    date: str | None = None,
) -> Batching:
    """Return the batching that these options describe."""
    trainium, month = chip_family(cluster.chip, cluster.catalogue).is_neuron, release_month(date)
    if month and not (trainium or scheduler):
        raise InputError(
            f"--date {month} is the month of an engine's release, and no engine is stated; add "
            f"--scheduler {' or '.join(DATED)}, or leave --date out."
        )
    if month and scheduler in {*ENGINES} - {*DATED}:
        raise InputError(
            f"--date {month}: releases of {scheduler} are not told apart, only those of "
            f"{' and '.join(DATED)}. Leave --date out."
        )
    stated, slots = slots is not None, slots or usual_slots(cluster, scheduler, chunk)
    if scheduler is not None and prefill != "auto":
        raise InputError(
            f"--scheduler {scheduler} states how prompts run; leave --prefill {prefill} out."
        )
    check_choice("prefill", prefill, PREFILLS)
    if scheduler or prefill == "chunked" or (prefill == "auto" and not trainium):
        how = engine_batching(
            cluster, scheduler or "", slots, chunk_tokens=chunk, poll_passes=poll, gather=gather
        )
        return replace(how, date=month)
    if chunk is not None:
        raise InputError(
            f"--chunk {chunk} cuts prompts, but prefill is separate here; "
            "add --prefill chunked, or leave --chunk out."
        )
    if gather is not None:
        raise InputError(
            f"--gather {gather} collects prompts, but they run one at a time here; "
            "add --prefill chunked, or leave --gather out."
        )
    buckets = BUCKETS if trainium else ()
    runs_all = trainium and stated
    return Batching(slots, 0, buckets, runs_empty_slots=runs_all, poll_passes=poll, date=month)
