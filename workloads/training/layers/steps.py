"""Steps of one rank for a layer, an embedding or an output layer, in program order.

A step waits for the one before on its own stream, and for the one that ``after`` names, by default
the step just before; one that waits for an earlier one runs beside those in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from topologies.catalogue.catalogue import Catalogue, chip_family
from workloads.kernels import times as kernel_times
from workloads.kernels.chip_share import Part, Timing
from workloads.kernels.precision import CASTS, ELEMENT_BYTES
from workloads.models.model import Layer, Model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import part

ENGINE, CC, CC_DP, SEND, RECEIVE, RECEIVE_BACK, HOST, RETURN, RETURN_BACK = range(9)
"""Streams of a rank, each of which runs one step at a time: the compute engine; collectives within
a replica; collectives between replicas; sends to other stages; receives from the previous and from
the next stage; the host that issues kernels; and receives of activations and of gradients where
the model is on its way back to the first stage."""

STREAM_KINDS = (
    ("engine", 0),
    ("cc", 0),
    ("cc", 1),
    ("send", 0),
    ("receive", 0),
    ("receive", 1),
    ("host", 0),
    ("receive", 2),
    ("receive", 3),
)
"""Kind of resource of each stream, and its number among the resources of that kind."""
CATEGORY = {"etp": "tp", "edp": "dp"}
"""Category of the communication of experts' own tensor-parallel groups and replicas."""
PREVIOUS = "previous"  # value of ``after`` for a step that waits for the one just before it
NOTHING = ""  # value of ``after`` for a step that waits for no other stream


class LayerOp(NamedTuple):
    """One kernel or communication of a rank."""

    # It is a tuple because programs find thousands of them by their contents.

    name: str  # name such as ``attention.qkv``
    what: str  # category: ``compute``, ``optimizer``, ``host``, or the axis that communicates
    stream: int
    seconds: float = 0.0  # time of a kernel [s]; communication is timed on the group that does it
    # Size of a communication as nccl-tests count it, or bytes that a kernel reads and writes [B]
    size_bytes: int = 0
    axis: str = ""  # axis of the groups that communicate; empty for a kernel
    collective: str = ""  # operation of a communication, such as ``all-reduce``
    # ``PREVIOUS``, ``NOTHING``, or the name of an earlier step of the same block
    after: str = PREVIOUS
    provenance: str = ""  # worst grade among the inputs of a kernel's time
    # Time that issuing the step takes on the host, in units of a plain kernel's: 0 where it is
    # issued together with an earlier step, more than 1 where it has a product for each expert
    issued: float = 1.0


def stream_kinds(steps: Sequence[LayerOp]) -> tuple[tuple[str, int], ...]:
    """Return the kinds of a rank's streams, without those that only returning chunks need."""
    highest = max((step.stream for step in steps), default=0)
    return STREAM_KINDS[: HOST + 1] if highest <= HOST else STREAM_KINDS


def kernel(name: str, timing: Timing, what: str = "compute", after: str = PREVIOUS) -> LayerOp:
    """Return a step on the engine."""
    seconds, size_bytes, provenance = timing.seconds, timing.size_bytes, timing.provenance
    return LayerOp(name, what, ENGINE, seconds, size_bytes, after=after, provenance=provenance)


def collective(
    name: str, axis: str, op: str, size_bytes: int, *, after: str = PREVIOUS, stream: int = CC
) -> LayerOp:
    """Return a step in which all ranks of the axis' group take part."""
    return LayerOp(name, CATEGORY.get(axis, axis), stream, 0.0, size_bytes, axis, op, after)


def prefixed(steps: Sequence[LayerOp], prefix: str) -> list[LayerOp]:
    """Return the same steps with a prefix before their names."""
    names = {step.after: prefix + step.after for step in steps}
    names |= {PREVIOUS: PREVIOUS, NOTHING: NOTHING}
    return [step._replace(name=prefix + step.name, after=names[step.after]) for step in steps]


def without(steps: Sequence[LayerOp], prefix: str, parts: tuple[str, ...]) -> list[LayerOp]:
    """Leave out the steps whose names begin with ``prefix`` and one of ``parts``."""
    # Steps that waited for one of them wait for the step before instead.
    starts = tuple(prefix + part for part in parts)
    dropped = {step.name for step in steps if step.name.startswith(starts)}
    return [
        step._replace(after=PREVIOUS) if step.after in dropped else step
        for step in steps
        if step.name not in dropped
    ]


def back(steps: Sequence[LayerOp]) -> list[int]:
    """Distance of each step to the step that its ``after`` names, in steps; 0 for none."""
    place: dict[str, int] = {}
    distances = []
    for number, step in enumerate(steps):
        if step.after == PREVIOUS:
            distances.append(1)
        else:
            distances.append(number - place[step.after] if step.after else 0)
        place[step.name] = number
    return distances


# ``RankShapes``: sizes of the tensors that one rank of a plan works on, and its kernels' times.

TWO = 2  # bytes of an activation in bf16


def keeps_projections(plan: ParallelPlan, catalogue: Catalogue) -> bool:
    """Return whether recomputation keeps attention's projections and runs the rest again."""
    kept = catalogue.integer("training", "selective_keeps")
    return plan.recompute == "selective" and kept > 0


@dataclass(frozen=True)
class RankShapes:
    """Sizes of the tensors that one rank of a plan works on, and times of its kernels."""

    model: Model
    plan: ParallelPlan
    chip: str  # catalogue part of the chip
    catalogue: Catalogue
    # Whether products run beside what tensor-parallel ranks exchange under ``overlap all``
    beside_tp: bool = True

    def of_kind(self, kind: Layer) -> RankShapes:
        """Return the shapes of layers of one kind."""
        return replace(self, model=self.model.of_kind(kind))

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on this rank, before sequence parallelism."""
        return self.plan.microbatch * self.plan.local_seq

    @property
    def wide_bytes(self) -> int:
        """Size of a microbatch's hidden state on this rank, before sequence parallelism [B]."""
        return TWO * self.tokens * self.model.hidden

    @property
    def gathered_bytes(self) -> int:
        """Size of a microbatch's hidden state as it is gathered for a product [B]."""
        return round(self.cast_bytes * self.tokens * self.model.hidden)

    @property
    def cast_bytes(self) -> float:
        """Size of an element that is cast before it is gathered for a product [B]."""
        # Where one scale holds for a whole tensor, inputs and gradients are cast before they are
        # gathered, as torchao does in fp8 (``float8_tensor_parallel.py``). Sums stay in two bytes.
        return TWO if self.recast_bytes else min(TWO, ELEMENT_BYTES.get(self.plan.precision, TWO))

    @property
    def heads(self) -> int:
        """Query heads of this rank."""
        return self.model.heads // self.plan.tp

    @property
    def kv_heads(self) -> int:
        """Key-value heads of this rank: at least one; under latent attention as many as heads."""
        if self.model.latent:
            return self.heads
        return max(1, self.model.kv_heads // self.plan.tp)

    @property
    def values(self) -> int:
        """Columns of attention's result on this rank, before the output projection."""
        return self.model.value_width // self.plan.tp

    @property
    def rank(self) -> Part:
        """Arguments of kernel times that say which part of a chip, with which numbers, runs it."""
        return {"ranks_per_chip": self.plan.ranks_per_chip, "catalogue": self.catalogue}

    def gemm(self, m: int, n: int, k: int, batch: int = 1, precision: str = "") -> Timing:
        """Time of ``batch`` matrix products (m, k) × (k, n), by default in the plan's precision."""
        stated, precision = precision, precision or self.plan.precision
        timing = kernel_times.gemm(self.chip, m, n, k, precision, batch=batch, **self.rank)
        inputs = ELEMENT_BYTES.get(precision, TWO) * (m + n) * k
        timing = timing._replace(size_bytes=round(batch * (inputs + TWO * m * n)))
        if self.recast_bytes and not stated:
            cast = self.stream(round(batch * self.recast_bytes * (m + n) * k))
            timing = timing._replace(seconds=timing.seconds + cast.seconds)
        return self._with_fewer_processors(timing) if self._exchanges_beside else timing

    @property
    def recast_bytes(self) -> float:
        """Memory traffic of casting an element of a product's input [B]; 0 without such casts."""
        # torchao, which keeps inputs in bf16, casts both of each product to blocks of mxfp8, too.
        kept_wide = self.catalogue.integer("training", "fp8_input_bytes") == TWO
        by_blocks = self.plan.precision == "mxfp8" and kept_wide
        return CASTS["blockwise" if by_blocks else self.plan.fp8_recipe]

    @property
    def keeps_projections(self) -> bool:
        """Return whether recomputation keeps attention's projections and runs the rest again."""
        return keeps_projections(self.plan, self.catalogue)

    @property
    def _exchanges_beside(self) -> bool:
        """Return whether all products run beside exchanges of experts, which occupy processors."""
        return self.plan.pipeline.pairs_passes and self.plan.ep > 1

    def beside(self, alone: Timing) -> Timing:
        """Time of a product beside a reduction, from its time alone."""
        # On NVIDIA's chips a reduction takes processors from the product. Gathering does not: copy
        # engines do it (Transformer Engine's user buffers). Trainium's collectives have cores of
        # their own.
        # Beside exchanges of experts, ``gemm`` has taken the processors away already.
        return alone if self._exchanges_beside else self._with_fewer_processors(alone)

    def _with_fewer_processors(self, alone: Timing) -> Timing:
        """Time of a kernel without the processors that communication occupies."""
        part, taken = (
            chip_family(self.chip, self.catalogue).kernels,
            "communication_processors",
        )
        if not self.catalogue.has(part, taken):
            return alone
        processors = self.catalogue.value(part, "processors")
        left = processors - self.catalogue.value(part, taken)
        return alone._replace(seconds=alone.seconds * processors / left)

    def stream(self, size_bytes: int, work: kernel_times.Work = "streaming") -> Timing:
        """Time of an element-wise kernel that reads and writes ``size_bytes`` in all."""
        timing = kernel_times.elementwise(self.chip, size_bytes, work, **self.rank)
        return timing._replace(size_bytes=size_bytes)

    def passes(self, size_bytes: int) -> Timing:
        """Time of kernels whose ``size_bytes`` count every pass over memory, fused or not."""
        timing = kernel_times.passes(self.chip, size_bytes, **self.rank)
        return timing._replace(size_bytes=size_bytes)

    def gather(self, size_bytes: int, rows: int = 0, *, scattered: bool = False) -> Timing:
        """Time of a look-up of rows by index, or where ``scattered`` of adding to such rows."""
        # ``size_bytes`` counts reads and writes of all rows.
        timing = kernel_times.gather(
            self.chip, size_bytes, rows=rows, scattered=scattered, **self.rank
        )
        return timing._replace(size_bytes=size_bytes)


# Tensor parallelism of a layer's products, and the norms and residuals around them.
#
# Attention and the feed-forward part begin with a column-parallel and end with a row-parallel
# product (arXiv 1909.08053). With sequence parallelism an all-gather comes before and a
# reduce-scatter after such a pair; without it an all-reduce comes after it (arXiv 2205.05198,
# section 4.2.2).

PIECES = 4
"""Largest number of pieces of an overlapped product: the splits of Transformer Engine's pipelined
user buffers."""
LEAST_PIECE_BYTES = 2**23
"""Smallest piece of an overlapped product [B]; below it the latency of further collectives would
exceed the time that they hide."""


def enter(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Return the steps that gather the sequence before a column-parallel product."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    gather = collective(f"{name}.gather", "tp", "all-gather", shapes.gathered_bytes, after=after)
    return [gather, *_reordered(shapes, gather.name, shapes.gathered_bytes)]


def leave(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Return the steps that sum the partial results of a row-parallel product."""
    if shapes.plan.tp == 1:
        return []
    if not shapes.plan.sequence_parallel:
        return [collective(f"{name}.reduce", "tp", "all-reduce", shapes.wide_bytes, after=after)]
    scatter = collective(f"{name}.scatter", "tp", "reduce-scatter", shapes.wide_bytes, after=after)
    return [*_reordered(shapes, scatter.name, shapes.wide_bytes), scatter]


def _reordered(shapes: RankShapes, name: str, size_bytes: int) -> list[LayerOp]:
    """Kernel that copies what is gathered or scattered, where its parts are not consecutive."""
    copies = shapes.catalogue.integer("training", "sequence_copies")
    if not copies or overlaps(shapes):
        return []
    return [kernel(f"{name}.copy", shapes.passes(2 * copies * size_bytes))]


def gathered_product(shapes: RankShapes, block: str, name: str, n: int, k: int) -> list[LayerOp]:
    """Return the steps that gather the sequence and multiply it, (t, k) × (k, n), in pieces."""
    parts = pieces(shapes)
    if parts == 1:
        return [*enter(shapes, block), kernel(name, shapes.gemm(shapes.tokens, n, k))]
    size = part(shapes.gathered_bytes, parts)
    product = shapes.gemm(part(shapes.tokens, parts), n, k)
    # Gathers follow each other on their stream, and each piece of the product waits for its gather.
    gathers = [
        collective(f"{block}.gather{suffix}", "tp", "all-gather", size, after=after)
        for suffix, after in zip(_suffixes(parts), [PREVIOUS] + [NOTHING] * parts, strict=False)
    ]
    products = [
        kernel(f"{name}{suffix}", product, after=gather.name)
        for suffix, gather in zip(_suffixes(parts), gathers, strict=True)
    ]
    return [*_with_first(gathers), *_with_first(products)]


def product_scattered(shapes: RankShapes, block: str, name: str, n: int, k: int) -> list[LayerOp]:
    """Return the steps that multiply, (t, k) × (k, n), and sum partial results, in pieces."""
    parts = pieces(shapes)
    if parts == 1:
        return [kernel(name, shapes.gemm(shapes.tokens, n, k)), *leave(shapes, block)]
    size, product = part(shapes.wide_bytes, parts), shapes.gemm(part(shapes.tokens, parts), n, k)
    # Only the first piece has nothing to be reduced beside it.
    timings = [product] + [shapes.beside(product)] * (parts - 1)
    afters = [PREVIOUS] + [NOTHING] * (parts - 1)
    products = [
        kernel(f"{name}{suffix}", timing, after=after)
        for suffix, timing, after in zip(_suffixes(parts), timings, afters, strict=True)
    ]
    sums = [
        collective(f"{block}.scatter{suffix}", "tp", "reduce-scatter", size)
        for suffix in _suffixes(parts)
    ]
    pairs = zip(_with_first(products), _with_first(sums), strict=True)
    return [step for pair in pairs for step in pair]


def pieces(shapes: RankShapes) -> int:
    """Return the number of pieces in which a product runs beside its gathering or reduction."""
    # With ``overlap all`` and sequence parallelism the communication of all pieces but one is
    # hidden (Megatron-LM's ``tp_comm_overlap``). Otherwise there is one piece.
    overlapped = overlaps(shapes) and shapes.plan.sequence_parallel
    return max(1, min(PIECES, shapes.wide_bytes // LEAST_PIECE_BYTES)) if overlapped else 1


def overlaps(shapes: RankShapes) -> bool:
    """Return whether products run beside what tensor-parallel ranks exchange."""
    return shapes.plan.overlap == "all" and shapes.plan.tp > 1 and shapes.beside_tp


def _with_first(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the pieces of a step so that the host issues all of them together with the first."""
    return [steps[0], *(step._replace(issued=0.0) for step in steps[1:])]


def _suffixes(parts: int) -> list[str]:
    """Endings of the names of pieces; the first piece has the name of the whole step."""
    return ["", *(f".{number}" for number in range(2, parts + 1))]


def norm(shapes: RankShapes, name: str, *, backward: bool = False) -> LayerOp:
    """Return the step of a norm, which reads or writes the hidden state in two passes or four."""
    # Where a framework writes it out, each of its operations is a kernel, and so are the casts and
    # sums for the products that read its result.
    direction, numbers = "backward" if backward else "forward", shapes.catalogue
    readers = {"attention": 3, "mlp": 1 + shapes.model.gated_mlp}.get(name.partition(".")[0], 1)
    moved = numbers.integer("training", f"norm_{direction}_bytes")
    moved += readers * numbers.integer("training", f"reader_{direction}_bytes")
    if moved:
        elements = shapes.tokens * shapes.model.hidden // shapes.plan.sp
        return kernel(name, shapes.passes(moved * elements))
    passes = 4 if backward else 2
    return kernel(name, shapes.stream(passes * shapes.wide_bytes // shapes.plan.sp, "norm"))


def residual(shapes: RankShapes, name: str) -> LayerOp:
    """Return the step that adds to the residual, with the mask of dropout if there is one."""
    mask = shapes.tokens * shapes.model.hidden if shapes.model.dropout else 0
    return kernel(name, shapes.stream((3 * shapes.wide_bytes + mask) // shapes.plan.sp))


def column_backward(shapes: RankShapes, block: str, name: str, columns: int) -> list[LayerOp]:
    """Return the steps of both gradients of a column-parallel product and of its norm."""
    # The product's input is gathered again for the gradient of the weight, if only a part was kept.
    # With ``overlap all`` it runs beside the gradient of the input, whose reduction runs beside the
    # gradient of the weight; the norm waits for the reduction.
    t, h = shapes.tokens, shapes.model.hidden
    data, weight = shapes.gemm(t, h, columns), shapes.gemm(h, columns, t)
    norm_backward = norm(shapes, f"{block}.norm.data", backward=True)
    gathers = shapes.plan.sp > 1 and shapes.catalogue.integer("training", "input_gathers")
    gathered = enter(shapes, f"{block}.input") * gathers
    if not overlaps(shapes):
        return [
            *gathered,
            kernel(f"{name}.data", data),
            *leave(shapes, f"{block}.input"),
            kernel(f"{name}.weight", weight),
            norm_backward,
        ]
    reduced = leave(shapes, f"{block}.input", after=f"{name}.data")
    return [
        *gathered,
        kernel(f"{name}.data", data, after=NOTHING),
        *reduced,
        kernel(
            f"{name}.weight", shapes.beside(weight), after=gathered[0].name if gathered else NOTHING
        ),
        norm_backward._replace(after=reduced[0].name),
    ]
