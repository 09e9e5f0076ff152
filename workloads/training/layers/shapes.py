"""``RankShapes``: sizes of the tensors that one rank of a plan works on, and its kernels' times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from topologies.catalogue.catalogue import Catalogue
from workloads.kernels import times as kernel_times
from workloads.kernels.chip_share import Timing, family
from workloads.kernels.precision import CASTS, ELEMENT_BYTES
from workloads.models.model import Layer, Model
from workloads.training.plan.plan import ParallelPlan

TWO = 2  # bytes of an activation in bf16


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
    def rank(self) -> dict[str, Any]:
        """Arguments of kernel times that say which part of a chip, with which numbers, runs it."""
        return {"ranks_per_chip": self.plan.ranks_per_chip, "catalogue": self.catalogue}

    def gemm(self, m: int, n: int, k: int, batch: int = 1) -> Timing:
        """Time of ``batch`` matrix products (m, k) × (k, n) in the plan's precision."""
        precision = self.plan.precision
        timing = kernel_times.gemm(self.chip, m, n, k, precision, batch=batch, **self.rank)
        inputs = ELEMENT_BYTES.get(precision, TWO) * (m + n) * k
        timing = timing._replace(size_bytes=round(batch * (inputs + TWO * m * n)))
        if self.recast_bytes:
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
            f"kernels.{family(self.chip, self.catalogue).name}",
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
        how = {"rows": rows, "scattered": scattered, **self.rank}
        timing = kernel_times.gather(self.chip, size_bytes, **how)
        return timing._replace(size_bytes=size_bytes)
