"""Ops of one rank of a pipeline stage in an iteration, in program order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from cluster_sim.schedule.table import PS_PER_S
from topologies.support.arrays import BoolArray, IntArray, distinct
from workloads.kernels.chip_share import Timing
from workloads.training.layers import replicas
from workloads.training.layers.adapters import whole, without_frozen
from workloads.training.layers.layer import (
    backward,
    data_half,
    embedding,
    embedding_backward,
    forward,
    output,
    output_backward,
    weight_half,
)
from workloads.training.layers.steps import (
    CC,
    CC_DP,
    ENGINE,
    HOST,
    NOTHING,
    RECEIVE,
    RECEIVE_BACK,
    RETURN,
    RETURN_BACK,
    SEND,
    STREAM_KINDS,
    LayerOp,
    RankShapes,
    collective,
    kernel,
    overlaps,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.schedule import FORWARD, Passes, PipelineSchedule
from workloads.training.program.ops import (
    Catalog,
    LaidOut,
    Ops,
    block_s,
    edges,
    join,
    pairs,
    past_asynchronous,
    repeat,
    sequence,
    side_by_side,
)

# Transfers between stages of a pipeline: activations forward, their gradients backward.

RETURNING = ".return"
"""Ending of the names of axes on which the model is on its way back to the first stage."""
STREAMS = {
    "forward": RECEIVE,
    "backward": RECEIVE_BACK,
    "forward" + RETURNING: RETURN,
    "backward" + RETURNING: RETURN_BACK,
}
"""Stream that receives the transfers of each axis."""


def _sent(shapes: RankShapes, number: int, way: str) -> list[LayerOp]:
    """Return the step that sends the result of a chunk to the next chunk, if it is elsewhere."""
    # ``number``: number of the chunk in order of the model. ``way`` ("forward", "backward").
    axis = _axis(shapes.plan, number, way, leaves=True)
    return [LayerOp(f"{way}.send", "pp", SEND, 0.0, _carried(shapes), axis, "send")] if axis else []


def _received(shapes: RankShapes, number: int, way: str) -> list[LayerOp]:
    """Return the steps that receive a chunk's input, and gather it where ranks need all of it."""
    plan, size = shapes.plan, _carried(shapes)
    axis = _axis(plan, number, way, leaves=False)
    if not axis:
        return []
    receive = LayerOp(f"{way}.receive", "pp", STREAMS[axis], 0.0, size, axis, "send", after=NOTHING)
    if plan.sp == plan.tp:
        return [receive]
    return [receive, collective(f"{way}.gather", "tp", "all-gather", plan.tp * size)]


def _axis(plan: ParallelPlan, number: int, way: str, *, leaves: bool) -> str:
    """Axis of a chunk's transfer; empty at an end of the model and between chunks of a stage."""
    # Chunk whose result is sent forward, or whose gradient comes back.
    before = number - ((way == "forward") != leaves)
    if not 0 <= before < plan.pp * plan.vpp - 1:
        return ""
    if not plan.pipeline.turns:
        return way
    turn = (before + 1) % plan.pp == 0
    return "" if turn else way + RETURNING * (before // plan.pp % 2)


def _carried(shapes: RankShapes) -> int:
    """Size of a transfer between stages: each rank of a tensor-parallel group sends a part [B]."""
    # With sequence parallelism a rank has only this part. Without it every rank has the whole,
    # sends a part, and the next stage gathers the parts (arXiv 2104.04473, section 4.1;
    # Megatron-LM's default).
    copies = shapes.model.streams.count if shapes.model.streams else 1
    return copies * shapes.wide_bytes // shapes.plan.tp


StepTime = Callable[[LayerOp], float]  # function that returns the time of a communication [s]
Exchanged = Callable[[LayerOp], tuple[float, float]]


def as_tried(shapes: RankShapes, time_s: StepTime) -> RankShapes:
    """Return shapes whose products run beside communication only where layers are faster so."""
    # Who overlaps tensor parallelism turns it off again where it makes a step longer. Stacks leave
    # the pieces as they are: with the best of one, two and four, steps of MLPerf and DGX Cloud come
    # out 2 and 4 % too fast. ``time_s``: time of a step's communication [s].
    # Where a schedule pairs passes, each runs beside the other's exchanges, and pieces only add.
    if not overlaps(shapes):
        return shapes
    if shapes.plan.pipeline.pairs_passes:
        return replace(shapes, beside_tp=False)

    def layers_s(way: RankShapes) -> float:
        """Time of all layers and the output layer, forward and backward [s]."""
        passes = [(1, [*output(way), *output_backward(way)])]
        for kind in shapes.model.kinds:
            alike, count = way.of_kind(kind), shapes.model.each_layer.count(kind)
            there, back = (run(alike, moe=kind.experts) for run in (forward, backward))
            passes.append((count, [*there, *back]))
        return sum(count * block_s(steps, time_s) for count, steps in passes)

    return min(shapes, replace(shapes, beside_tp=False), key=layers_s)


Blocks = Sequence[Sequence[Sequence[LayerOp]]]
"""Steps of a layer of each kind, first with its activations recomputed, then with them kept."""
Runs = Sequence[replicas.Stretch]


def _gathered_ops(catalog: Catalog, stretches: Sequence[replicas.Stretch]) -> list[Ops]:
    """Return the ops that gather each stretch's parameters, labelled with its first layer."""
    return [repeat(catalog.ops(steps), layers[:1]) for layers, steps in stretches]


LEAST_HOST_S = 1e-6
"""Time of issuing a pass below which the host is left out, as it never holds the chip up [s]."""


class StagePasses:
    """Builder of the ops of a rank of one stage; its shapes may show a part of a job's plan."""

    # ``laid_out`` has passes that other stages with these shapes have built. ``exchanged``: time of
    # an exchange [s], and the share of a server's channels that it uses.

    def __init__(
        self,
        shapes: RankShapes,
        stage: int,
        catalog: Catalog,
        job: ParallelPlan | None = None,
        laid_out: dict[Hashable, LaidOut] | None = None,
        exchanged: Exchanged = lambda step: (0.0, 0.0),
    ):
        self.shapes, self.stage, self.catalog = shapes, stage, catalog
        self.job = job or shapes.plan
        self.exchange = replicas.ReplicaExchange(shapes, stage, self.job)
        self._laid_out = {} if laid_out is None else laid_out
        self._exchanged = exchanged

    def pass_ops(self, phase: int, chunk: int, *, last: bool) -> Ops:
        """Return the ops of a pass in phase ``FORWARD``, ``BACKWARD`` or ``WEIGHT``."""
        layers = self.exchange.chunks[chunk]
        begin = int(layers[0]) if len(layers) else 0
        # Passes of any stages share a key if only their layers' numbers differ.
        plan, pipeline = self.shapes.plan, self.shapes.plan.pipeline
        # Under ZeRO-2 and 3 each backward pass reduces gradients.
        reduces = phase != FORWARD and (plan.sharding >= 2 or (last and plan.overlap != "none"))
        at_turn = pipeline.turns and self.stage in (0, plan.pp - 1)
        kinds = self.exchange.kinds[layers].tobytes(), self.exchange.kept[layers].tobytes()
        turned = chunk if pipeline.turns else 0
        key = phase, reduces, turned, self._begins(chunk), self._ends(chunk), at_turn, kinds
        if key not in self._laid_out:
            make = (self._forward, self._backward, self._weights)[phase]
            self._laid_out[key] = begin, make(chunk, reduces=reduces)
        first, ops = self._laid_out[key]
        return ops if first == begin else ops.of_layers(begin - first)

    def start(self) -> Ops:
        """Return the ops that gather parameters which the step before updated, in buckets."""
        # There are some under ZeRO-1 and 2 with overlap.
        plan, catalog = self.shapes.plan, self.catalog
        if plan.overlap == "none" or plan.sharding not in (1, 2):
            return catalog.ops([])
        edges = catalog.ops(self.exchange.gathered_edges())
        return join([edges, *_gathered_ops(catalog, self.exchange.gathered_ahead())])

    def finish(self) -> Ops:
        """Return the ops after the last pass: reduce gradients, update and gather parameters."""
        return self.catalog.ops(self.exchange.finish())

    def _forward(self, chunk: int, *, reduces: bool) -> Ops:
        shapes, layers = self.shapes, self.exchange.chunks[chunk]
        begins, ends, number = self._begins(chunk), self._ends(chunk), self._number(chunk)
        sharded = shapes.plan.sharding == 3
        edges = self.exchange.gathered_edges() if sharded and (begins or ends) else []
        return self._ops(
            (
                embedding(shapes) if begins else _received(shapes, number, "forward"),
                output(shapes) if ends else _sent(shapes, number, "forward"),
            ),
            blocks=[
                [forward(shapes.of_kind(kind), moe=kind.experts)] * 2 for kind in shapes.model.kinds
            ],
            stretches=self.exchange.stretches(layers, reduces=reduces)[0],
            waits=self.exchange.waits(layers, gathers=True, reduces=reduces),
            traced=1,
            gathered=(edges, self._gathered(layers)),
        )

    def _backward(self, chunk: int, *, reduces: bool) -> Ops:
        """Ops of a backward pass, which reduces each bucket of gradients once it is full."""
        # Where the schedule splits backward passes, this one has no gradients of weights.
        shapes, number = self.shapes, self._number(chunk)
        begins, ends = self._begins(chunk), self._ends(chunk)
        splits = shapes.plan.pipeline.splits_weights
        leaves = reduces and not splits
        begin = _received(shapes, number, "backward")
        if ends:
            begin = without_frozen(shapes, output_backward(shapes))
        blocks = self._layers_backward()
        if splits:
            begin = data_half(begin)
            blocks = [[data_half(block) for block in kind] for kind in blocks]
        layers = self.exchange.chunks[chunk][::-1]
        stretches, left = self.exchange.stretches(layers, reduces=leaves)
        end = embedding_backward(shapes) if begins and whole(shapes.plan) else []
        if leaves:
            end = [*end, *self.exchange.reduced(left, edges=begins or ends)]
        return self._ops(
            (begin, [*end, *_sent(shapes, number, "backward")]),
            blocks=blocks,
            stretches=stretches,
            waits=self.exchange.waits(layers, gathers=True, reduces=not splits),
            traced=2 if shapes.plan.recompute == "full" else 1,
            gathered=([], self._gathered(layers)),
        )

    def _weights(self, chunk: int, *, reduces: bool) -> Ops:
        """Ops of a pass over gradients of weights, where the backward pass is split."""
        shapes, layers = self.shapes, self.exchange.chunks[chunk]
        begins, ends = self._begins(chunk), self._ends(chunk)
        stretches, left = self.exchange.stretches(layers[::-1], reduces=reduces)
        begin = without_frozen(shapes, output_backward(shapes)) if ends else []
        return self._ops(
            (
                weight_half(begin),
                self.exchange.reduced(left, edges=begins or ends) if reduces else [],
            ),
            blocks=[[weight_half(block) for block in kind] for kind in self._layers_backward()],
            stretches=stretches,
            waits=self.exchange.waits(layers, gathers=False, reduces=True),
            traced=0,
        )

    def _layers_backward(self) -> Blocks:
        """Steps of a layer's backward pass, by its kind and whether its activations are kept."""
        return [
            [
                backward(self.shapes.of_kind(kind), moe=kind.experts, again=again)
                for again in (True, False)
            ]
            for kind in self.shapes.model.kinds
        ]

    def _gathered(self, layers: IntArray) -> list[replicas.Stretch]:
        """Steps that gather each layer, one layer ahead, under ZeRO-3."""
        single_layers = (layers[place : place + 1] for place in range(len(layers)))
        gathers = self.shapes.plan.sharding == 3
        return [
            replicas.Stretch(one, self.exchange.gathered(one)) for one in single_layers if gathers
        ]

    def _number(self, chunk: int) -> int:
        """Number in order of the model of a chunk of the stage."""
        plan = self.shapes.plan
        return plan.pipeline.number(plan.pp, self.stage, chunk)

    def _begins(self, chunk: int) -> bool:
        return self._number(chunk) == 0

    def _ends(self, chunk: int) -> bool:
        plan = self.shapes.plan
        return self._number(chunk) == plan.pp * plan.vpp - 1

    def _ops(
        self,
        ends: tuple[list[LayerOp], list[LayerOp]],
        *,
        blocks: Blocks,
        stretches: list[replicas.Stretch],
        waits: list[LayerOp],
        traced: int,
        gathered: tuple[Sequence[LayerOp], Sequence[replicas.Stretch]] = ((), ()),
    ) -> Ops:
        """Return the ops of a pass: its beginning, its layers, what they wait for, and its end."""
        # ``ends``: steps before the first layer and after the last. ``stretches``: layers in the
        # order of the pass, with the reductions after some of them. ``waits``: time for which
        # kernels wait for shards of other ranks. ``traced``: passes over the layers that the host
        # issues; 0 if it issues them with another pass. ``gathered``: gathering of the model's ends
        # and of each layer, under ZeRO-3.
        catalog = self.catalog
        blocks = self._slowed(blocks, stretches, gathered[1])
        of_kinds = [[catalog.ops(block) for block in kind] for kind in blocks if stretches]
        layers = [
            join([self._repeated(of_kinds, run.layers), catalog.ops(run.steps)])
            for run in stretches
        ]
        edges, ahead = catalog.ops(gathered[0]), _gathered_ops(catalog, gathered[1])
        if ahead:
            # Each layer's parameters are gathered while the layer before it runs.
            pairs = zip_longest(ahead[1:], layers, fillvalue=catalog.ops([]))
            layers = [part for pair in pairs for part in pair]
        first, last, body = catalog.ops(ends[0]), catalog.ops(ends[1]), join(layers)
        scheduling = catalog.ops(self._scheduling(body) if traced else [])
        shards = catalog.ops(waits)
        if traced:
            body = self._issued(body, traced, join([first, last]))
        return join([edges, *ahead[:1], first, body, scheduling, shards, last])

    def _slowed(self, blocks: Blocks, stretches: Runs, gathered: Runs) -> Blocks:
        """Return the blocks with kernels slowed by the exchanges that run beside the layers."""
        # The first gathering comes before the layers, and the last reduction after them. Together
        # kernels lose the processors' time that exchanges take, at most in all of their own time.
        share = replicas.occupied_share(self.shapes)
        if self.shapes.plan.overlap == "none" or not share:
            return blocks
        beside = [step for run in [*stretches[:-1], *gathered[1:]] for step in run.steps]
        timed = [self._exchanged(step) for step in beside]
        lost_s = share * sum(seconds * used for seconds, used in timed)
        kinds, kept = self.exchange.kinds, self.exchange.kept
        run = [blocks[kinds[at]][kept[at]] for each in stretches for at in each.layers.tolist()]
        kernels_s = sum(step.seconds for block in run for step in block if step.stream == ENGINE)
        if not lost_s or not kernels_s:
            return blocks
        most = lost_s / sum(seconds for seconds, _ in timed)
        longer = min(1 + lost_s / kernels_s, 1 / (1 - most))

        def slow(step: LayerOp) -> LayerOp:
            on_chip = step.stream == ENGINE
            return step._replace(seconds=step.seconds * longer) if on_chip else step

        return [[[slow(step) for step in block] for block in kind] for kind in blocks]

    def _repeated(self, blocks: Sequence[Sequence[Ops]], layers: IntArray) -> Ops:
        """Ops of these layers, each with the block of its kind, recomputed or kept."""
        kind, kept = self.exchange.kinds[layers], self.exchange.kept[layers]
        # Consecutive layers with the same block are repeated at once.
        runs = np.split(np.arange(len(layers)), np.flatnonzero(np.diff(2 * kind + kept)) + 1)
        runs = [run for run in runs if len(run)]
        return join([repeat(blocks[kind[run[0]]][kept[run[0]]], layers[run]) for run in runs])

    def _scheduling(self, layers: Ops) -> list[LayerOp]:
        """Unexplained time of a pass over the layers, as a step of its own."""
        # Published training runs leave it: stalls between engines that no kernel's time has.
        # Unexplained time of a pass as a share of its kernels' time
        share = replicas.constant_across_chips(self.shapes, self.job, "scheduling")
        if not share or not len(layers):
            return []
        engine = self.catalog.column("stream") == ENGINE
        kernel_ps = np.where(engine, self.catalog.column("duration_ps"), 0)
        seconds = share * float(kernel_ps[layers.step].sum()) / PS_PER_S
        return [kernel("scheduling", Timing(seconds, "assumed"), "scheduling")]

    def _issued(self, layers: Ops, traced: int, ends: Ops) -> Ops:
        """Add the host to a pass over layers, which cannot end before it is issued."""
        # The host issues the steps of both ``ends`` of the pass as well, kept layers once. While a
        # launch blocks it, the chip waits for it instead, as it does until compiled layers start.
        shapes, numbers = self.shapes, distinct(layers.layer[layers.layer >= 0])
        passes = np.where(self.exchange.kept[numbers], 1, traced)
        kinds = np.repeat(self.exchange.kinds[numbers], passes)
        stream = self.catalog.column("stream")
        counted = np.isin(stream, (ENGINE, CC)) * [step.issued for step in self.catalog.steps]
        kernels = float(counted[layers.step].sum() + counted[ends.step].sum()) if len(layers) else 0
        issued_s = replicas.host_s(shapes, self.job, kernels, kinds)
        ahead_s = issued_s * replicas.issued_ahead(shapes)
        body = self._beside_host(layers, ahead_s) if ahead_s >= LEAST_HOST_S else layers
        waited_s = issued_s - ahead_s + replicas.start_s(shapes, len(kinds), "pass")
        if waited_s < LEAST_HOST_S:
            return body
        return join([body, self.catalog.ops([LayerOp("host.launch", "host", ENGINE, waited_s)])])

    def _beside_host(self, layers: Ops, ahead_s: float) -> Ops:
        """Add the host that runs ahead of the chip, and starts when the pass has begun."""
        issue = self.catalog.ops([LayerOp("host.issue", "host", HOST, ahead_s)])
        wait = self.catalog.ops([kernel("host.wait", Timing(0.0, "measured"))])
        layers_back = layers.back.copy()
        # The first kernel waits for the beginning of the pass, not for the host's op between them.
        layers_back[:1] += layers_back[:1] == 1
        wait_back = np.array([len(layers) + 1], np.int32)
        return join([issue, replace(layers, back=layers_back), replace(wait, back=wait_back)])

    def step_ops(self, iterations: int) -> Ops:
        """Return the ops of a rank in one or several iterations."""
        plan, stage = self.shapes.plan, self.stage
        order, kinds, which = _order(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)
        start = self.start()
        blocks = {
            key: self.pass_ops(key // 2 // plan.vpp, key // 2 % plan.vpp, last=key % 2 == 1)
            for key in kinds
        }
        of_kinds, finish = [blocks[key] for key in sorted(kinds)], self.finish()
        all_passes = sequence(of_kinds, which, order.microbatch)
        earlier = [number * plan.microbatches for number in range(iterations)]
        ops = join([part for more in earlier for part in (start, all_passes.later(more), finish)])
        stream = self.catalog.column("stream")[ops.step]
        asynchronous = np.zeros(len(STREAM_KINDS), np.bool_)
        asynchronous[list(_beside(plan))] = True
        ops = past_asynchronous(ops, asynchronous[stream])
        if not plan.pipeline.pairs_passes:
            return ops
        # Where all forward passes come first, later stages need the last one to begin the backward
        # passes that this stage waits for, so those two cannot run side by side.
        phase = order.phase
        if plan.pp > 1 and np.all(phase[: np.count_nonzero(phase == FORWARD)] == FORWARD):
            return ops
        lengths = np.array([len(block) for block in of_kinds], np.int64)[which]
        begins = len(start) + np.concatenate([[0], np.cumsum(lengths)])
        whole = len(ops) // iterations
        together = [
            pair for run in range(iterations) for pair in pairs(order, begins + run * whole)
        ]
        return side_by_side(ops, together, stream == CC)


ORDERS_KEPT = 256  # orders of passes that are cached


@lru_cache(ORDERS_KEPT)
def _order(
    schedule: PipelineSchedule, pp: int, stage: int, microbatches: int, chunks: int
) -> tuple[Passes, list[int], IntArray]:
    """Passes of a stage, their kinds in order of appearance, and each pass's among them sorted."""
    order = passes(schedule, pp, stage, microbatches, chunks)
    # The ops of a pass depend on its phase, its chunk, and whether it is the last of these.
    kind = 2 * (order.phase * chunks + order.chunk)
    _, from_end = np.unique(kind[::-1], return_index=True)
    kind[len(kind) - 1 - from_end] += 1
    kinds, first, which = np.unique(kind, return_index=True, return_inverse=True)
    return order, kinds[np.argsort(first)].tolist(), which


def _beside(plan: ParallelPlan) -> tuple[int, ...]:
    """Return the streams that run beside compute, as later ops do not wait for theirs."""
    streams = {"none": (HOST,), "dp": (HOST, CC_DP), "all": (HOST, CC_DP, SEND)}[plan.overlap]
    return (*streams, SEND) if plan.pipeline.pairs_passes else streams


# Streams: the ops that every rank of a pipeline stage runs, and their dependencies.


@dataclass(frozen=True, eq=False)
class Stream:
    """Ops that every rank of one stage runs."""

    ops: Ops
    # src, dst: (edges,): dependencies: op ``dst`` waits for op ``src``. They are sorted by ``dst``.
    src: IntArray
    dst: IntArray
    contends: BoolArray  # (ops,): ops that may contend for the rank's memory


def streams(
    of_stages: Sequence[tuple[RankShapes, Exchanged]], catalog: Catalog, iterations: int
) -> tuple[Stream, ...]:
    """Return the streams of all stages, whose steps are added to a catalog."""
    # ``of_stages``: of each stage what :class:`StagePasses` takes as shapes and ``exchanged``.
    laid_out: dict[int, dict[Hashable, LaidOut]] = defaultdict(dict)  # by identity of shapes
    of_ranks = [
        StagePasses(shapes, stage, catalog, None, laid_out[id(shapes)], exchanged).step_ops(
            iterations
        )
        for stage, (shapes, exchanged) in enumerate(of_stages)
    ]
    # Of each step: its stream, whether it updates parameters, and whether it gathers some.
    updates = np.array([step.what == "optimizer" for step in catalog.steps], np.bool_)
    gathers = np.array([step.name.startswith("parameters.") for step in catalog.steps], np.bool_)
    marks = catalog.column("stream"), updates, gathers
    return tuple(_stream(ops, *marks) for ops in of_ranks)


def _stream(ops: Ops, stream_of: IntArray, updates: BoolArray, gathers: BoolArray) -> Stream:
    """Return the ops of a rank with their dependencies."""
    stream = stream_of[ops.step]
    gathered = np.flatnonzero(gathers[ops.step])
    # An update waits for the last reduction of gradients before it, as their stream runs in order.
    reductions, updated = np.flatnonzero(stream == CC_DP), np.flatnonzero(updates[ops.step])
    before = np.searchsorted(reductions, updated)
    reduced = reductions[before[before > 0] - 1], updated[before > 0]
    pairs = edges(ops, stream), reduced, _parameters(ops, stream, gathered)
    src, dst = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # Sort edges by the op that waits, and keep each edge once.
    dst, src = np.divmod(distinct(dst * len(ops) + src), max(1, len(ops)))
    return Stream(ops, src, dst, np.zeros(len(ops), np.bool_))


def _parameters(ops: Ops, stream: IntArray, gathered: IntArray) -> tuple[IntArray, IntArray]:
    """Edges from gathers of parameters in the background to the kernels that wait for them."""
    # The next kernel of their layer needs them; parameters outside of layers are needed by the next
    # kernel that belongs to no layer.
    if not len(gathered):
        return gathered, gathered
    kernels = np.flatnonzero(stream == ENGINE)
    # Kernels sorted by layer, then by row, each as one number.
    span = np.int64(len(ops))
    layer = ops.layer.astype(np.int64) + 1
    users = np.sort(layer[kernels] * span + kernels)
    place = np.searchsorted(users, layer[gathered] * span + gathered)
    user = users[np.minimum(place, len(users) - 1)]
    used = (place < len(users)) & (user // span == layer[gathered])
    return gathered[used], user[used] % span
