"""One layer as steps, forward and backward, and the embedding and output layer at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

from topologies.catalogue.catalogue import Catalogue, chip_family
from workloads.kernels.chip_share import Timing
from workloads.models.model import Model
from workloads.training.layers import adapters, feed_forward, mixers
from workloads.training.layers.replicas import COMPILED
from workloads.training.layers.steps import (
    PREVIOUS,
    TWO,
    LayerOp,
    RankShapes,
    collective,
    column_backward,
    enter,
    kernel,
    leave,
    norm,
    prefixed,
    without,
)
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import layer_share

REMEMBERED = 256
"""Layers whose steps are kept. All stages and microbatches of a plan share a few, and so do plans
that divide a layer in the same way."""
NO_LAYER_FIELDS = (
    "pp", "dp", "vpp", "global_batch", "zero", "reshard", "schedule", "order", "stage_layers",
    "bucket_bytes", "recompute_every", "optimizer", "runtime", "framework",
)  # fmt: skip
LAYER_FIELDS = tuple(name for name in PLAN_FIELDS if name not in NO_LAYER_FIELDS)
"""Fields of a plan on which the steps of a layer depend: all but those of the pipeline, of replicas
and of the host, whose constants the catalogue holds. Besides, it matters whether parameters are
sharded, whether there are several microbatches, whether passes run in pairs, whether selective
recomputation is that of a pipeline, and whether a compiler may merge it."""
ENTERING, LEAVING = ("gather",), ("scatter", "reduce")
"""Beginnings of the names of communications that gather a sequence, and of those that sum
partial results."""


class _Alike:
    """Shapes as a key of the cache: equal to all shapes whose layers have the same steps."""

    def __init__(self, shapes: RankShapes):
        plan = shapes.plan
        self.shapes = shapes
        self.key = (
            *(type(shapes), shapes.model, shapes.chip, shapes.catalogue, shapes.beside_tp),
            *(getattr(plan, name) for name in LAYER_FIELDS),
            *(plan.sharding == 3, plan.microbatches == 1, plan.pipeline.pairs_passes),
            *(plan.recompute == "selective" and plan.pp > 1, plan.runtime == "eager"),
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key


def forward(shapes: RankShapes, *, moe: bool = False) -> tuple[LayerOp, ...]:
    """Return the steps of one layer's forward pass of a microbatch; ``moe``: with experts."""
    return _forward(_Alike(shapes), moe)


def backward(shapes: RankShapes, *, moe: bool = False, again: bool = True) -> tuple[LayerOp, ...]:
    """Return the steps of one layer's backward pass; ``again`` its forward pass runs before."""
    return _backward(_Alike(shapes), moe, again)


@lru_cache(REMEMBERED)
def _forward(alike: _Alike, moe: bool) -> tuple[LayerOp, ...]:
    shapes = alike.shapes
    mix, feed = _mixed(shapes, backward=False), _fed(shapes, moe=moe, backward=False)
    if shapes.model.parallel and mix and feed:
        # One gathering before both halves, one reduction and one residual after them.
        mix, feed = without(mix, "attention.", LEAVING), without(feed, "mlp.", ENTERING)
        mix = [step for step in mix if step.name != "attention.residual"]
        if shapes.model.norms == 1:
            feed = without(feed, "mlp.norm", ("",))
    after = [*_norms_after(shapes, mix, feed), *feed_forward.beside_forward(shapes)]
    unsharded = _shard_handling(shapes, "layer.unshard", moe=moe)
    parameters = layer_share(shapes.model, shapes.plan, moe=moe).total
    unsharded += _weight_kernels(shapes, "layer.cast", parameters, summed=False)
    return (*unsharded, *adapters.with_adapters(shapes, [*mix, *feed]), *after)


MIXERS = {
    "attention": (mixers.attention_forward, mixers.attention_backward),
    "latent": (mixers.latent_forward, mixers.latent_backward),
    "recurrence": (mixers.recurrence_forward, mixers.recurrence_backward),
}
"""Steps of the part of a layer that mixes tokens, forward and backward."""


def _mixed(shapes: RankShapes, *, backward: bool) -> list[LayerOp]:
    """Steps of the part that mixes tokens: none, a recurrence, or one of two kinds of attention."""
    mixer = shapes.model.mixer
    if mixer == "none":
        return []
    if mixer == "both":
        return _side_by_side(shapes, backward=backward)
    latent = mixer == "attention" and shapes.model.latent
    return MIXERS["latent" if latent else mixer][backward](shapes)


def _side_by_side(shapes: RankShapes, *, backward: bool) -> list[LayerOp]:
    """Steps of attention and a recurrence on one input, with one gathering, norm and reduction."""
    first, second = (
        _mixed(replace(shapes, model=replace(shapes.model, mixer=mixer)), backward=backward)
        for mixer in ("attention", "recurrence")
    )
    if not backward:
        first = without(first, "attention.", (*LEAVING, "residual"))
        return [*first, *without(second, "attention.", (*ENTERING, "norm"))]
    first = without(without(first, "attention.input.", LEAVING), "attention.norm", ("",))
    second = without(second, "attention.gradient.", ENTERING)
    return [*first, *without(second, "attention.input.", ENTERING)]


def _fed(shapes: RankShapes, *, moe: bool, backward: bool) -> list[LayerOp]:
    """Steps of the part that works on each token by itself: experts, a dense one, or none."""
    if moe and shapes.model.experts:
        run = feed_forward.experts_backward if backward else feed_forward.experts_forward
        return run(shapes)
    if not shapes.model.ffn:
        return []
    if not backward:
        return feed_forward.mlp_forward(shapes)
    from_tokens = shapes.catalogue.integer("training", "feed_again_tokens")
    again = feed_forward.fed_again(shapes.plan, from_tokens)
    before = feed_forward.mlp_again(shapes) if again else []
    return [*before, *feed_forward.products_backward(shapes, shapes.model.ffn, "mlp")]


def _norms_after(
    shapes: RankShapes, *halves: Sequence[LayerOp], backward: bool = False
) -> list[LayerOp]:
    """Norms of the results of a layer's parts, where a model has norms after them."""
    count = len([1 for half in halves if half]) if shapes.model.norms > 2 else 0
    name = "norm.after.data" if backward else "norm.after"
    return [norm(shapes, f"{name}.{number}", backward=backward) for number in range(count)]


@lru_cache(REMEMBERED)
def _backward(alike: _Alike, moe: bool, again: bool) -> tuple[LayerOp, ...]:
    shapes = alike.shapes
    recomputed: list[LayerOp] = []
    merged = shapes.catalogue.integer("training", "merged_with_adapters")
    if again and (adapters.layers_run_again(shapes.plan, merged) or shapes.keeps_projections):
        recomputed = prefixed(_needed_again(shapes, moe=moe), "again.")
    mix, feed = _mixed(shapes, backward=True), _fed(shapes, moe=moe, backward=True)
    if shapes.model.parallel and mix and feed:
        mix = without(mix, "attention.gradient.", ENTERING)
        mix = without(mix, "attention.input.", ENTERING)
        feed = without(feed, "mlp.input.", LEAVING)
        if shapes.model.norms == 1:
            feed = without(feed, "mlp.norm", ("",))
    norms = _norms_after(shapes, mix, feed, backward=True)
    after = [*feed_forward.beside_backward(shapes), *norms]
    # The forward pass that runs again handles the gathered parameters itself.
    unsharded = [] if recomputed else _shard_handling(shapes, "layer.unshard", moe=moe)
    sharded = _shard_handling(shapes, "layer.shard", moe=moe)
    parameters = layer_share(shapes.model, shapes.plan, moe=moe).total
    accumulated = _weight_kernels(shapes, "layer.sum.weight", parameters)
    steps = [*unsharded, *recomputed, *after, *feed, *mix, *accumulated, *sharded]
    if shapes.plan.train_only == "output":
        return ()
    return tuple(adapters.trained_backward(shapes, steps))


PROJECTIONS = tuple(
    f"attention.{step}"
    for step in (
        "qkv",
        "down",
        "queries",
        "groups",
        "keys-values",
        "out",
        "residual",
        *ENTERING,
        *LEAVING,
    )
)
"""Beginnings of the names of the steps that make what policies of JAX keep of attention."""


def ends_early(model: Model, plan: ParallelPlan, catalogue: Catalogue) -> bool:
    """Return whether a dense layer's recomputation leaves out its down-projection."""
    # Its result only enters a sum, whose gradients need no values; norms after it and adapters
    # beside it do.
    stops = not catalogue.integer("training", "again_to_the_end")
    adapted = plan.lora_rank and plan.lora_on == "all"
    return stops and bool(model.ffn) and model.norms <= 2 and not adapted


def _needed_again(shapes: RankShapes, *, moe: bool) -> Sequence[LayerOp]:
    """Return the steps of a layer's forward pass that run again before its backward pass."""
    steps: Sequence[LayerOp] = forward(shapes, moe=moe)
    if shapes.keeps_projections:
        steps = without(steps, "", PROJECTIONS)
    experts = moe and shapes.model.experts
    if experts or not ends_early(shapes.model, shapes.plan, shapes.catalogue):
        return steps
    return list(takewhile(lambda step: not step.name.startswith("mlp.down"), steps))


def _weight_kernels(
    shapes: RankShapes, name: str, parameters: int, *, summed: bool = True
) -> list[LayerOp]:
    """Kernel that casts weights or their gradients, and adds these to earlier microbatches'."""
    numbers = shapes.catalogue
    element_bytes = numbers.integer("training", "weight_cast_bytes")
    if summed and shapes.plan.microbatches > 1:
        element_bytes += numbers.integer("training", "accumulation_bytes")
    return [kernel(name, shapes.passes(element_bytes * parameters))] if element_bytes else []


def _shard_handling(shapes: RankShapes, name: str, *, moe: bool) -> list[LayerOp]:
    """Kernel that unpacks a layer's gathered parameters, or packs its gradients, under ZeRO-3."""
    # A framework that limits how far ahead it gathers makes the host wait for the chip at each
    # layer, so the host's work there is not hidden, and neither are copies, casts and divisions.
    if shapes.plan.sharding < 3:
        return []
    apart, numbers = adapters.gathered_apart(shapes), shapes.catalogue
    # Frozen weights have no gradients to pack, and where adapters are units of their own no hook
    # either (_register_post_backward_reshard_only_hook of torch/distributed/fsdp/_runtime_utils.py)
    frozen = name == "layer.shard" and shapes.plan.lora_rank > 0
    start_s = numbers.value("training", "sharded_start") * (apart + (not (frozen and apart)))
    element_bytes = numbers.value("training", "sharded_copy_bytes") * (not frozen)
    if name == "layer.unshard":
        element_bytes += _cast_after_gathering(shapes)
    if not (start_s or element_bytes):
        return []
    parameters = layer_share(shapes.model, shapes.plan, moe=moe).total
    copied = shapes.passes(round(element_bytes * parameters))
    handled = kernel(name, copied._replace(seconds=copied.seconds + start_s))
    # A backward pass fetches what the forward pass that runs again has let go.
    times = 1 + (name == "layer.shard" and shapes.plan.recompute == "full")
    fetches = times * numbers.integer("training", "gathered_weights")
    return [handled._replace(issued=fetches * numbers.value("training", "fetch_issued"))]


def _cast_after_gathering(shapes: RankShapes) -> float:
    """Traffic of casting a gathered weight for its products, in bytes; 0 where none is cast."""
    # Each rank casts the whole layer in each pass: 2 read, and 1 written in fp8. Products whose
    # scales are of rows or blocks cast their own inputs. A TPU casts as its product reads.
    numbers = shapes.catalogue
    after = numbers.integer("training", "gathered_cast") and shapes.cast_bytes < TWO
    in_product = chip_family(shapes.chip, numbers).runtime == COMPILED
    return TWO + shapes.cast_bytes if after and not in_product else 0.0


def data_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the gradients of inputs in a backward pass, which the previous stage waits for."""
    return [step for step in steps if not step.name.endswith(adapters.OF_WEIGHTS)]


def weight_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the gradients of weights in a backward pass, one after the other."""
    return [
        step._replace(after=PREVIOUS) for step in steps if step.name.endswith(adapters.OF_WEIGHTS)
    ]


# Both ends of a model as steps: the embedding, and the output layer with the loss.


def _in_bf16(shapes: RankShapes) -> RankShapes:
    """Return the same shapes in bf16, as frameworks do not run the output layer in fp8."""
    # In Megatron-LM it is none of Transformer Engine's layers; torchtitan leaves it out by name.
    precision, fp8_recipe = "bf16", "tensorwise"
    if (shapes.plan.precision, shapes.plan.fp8_recipe) == (precision, fp8_recipe):
        return shapes
    plan = replace(shapes.plan, precision=precision, fp8_recipe=fp8_recipe)
    return replace(shapes, plan=plan)


def _vocabulary(shapes: RankShapes) -> int:
    """Tokens of the vocabulary that one rank of a tensor-parallel group holds."""
    return -(-shapes.model.vocab // shapes.plan.tp)


def _loss(shapes: RankShapes, direction: str) -> Timing:
    """Time of the loss kernels over this rank's logits."""
    bytes_a_logit = shapes.catalogue.integer("training", f"loss_traffic_{direction}")
    return shapes.passes(bytes_a_logit * shapes.tokens * _vocabulary(shapes))


def embedding(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the look-up and of the sum over the ranks that divide the vocabulary."""
    looked_up = shapes.gather(2 * shapes.wide_bytes, shapes.tokens)
    if _one_hot(shapes):
        columns, h = _vocabulary(shapes), shapes.model.hidden
        looked_up = _in_bf16(shapes).gemm(shapes.tokens, h, columns)
    inputs = _own_inputs(shapes, "embedding.layers")
    copies = _copies(shapes, "embedding.streams")
    return [kernel("embedding.look-up", looked_up), *leave(shapes, "embedding"), *inputs, *copies]


def _copies(shapes: RankShapes, *names: str) -> list[LayerOp]:
    """Products that make copies of the hidden state, or merge them, or gradients of these."""
    if shapes.model.streams is None:
        return []
    columns = shapes.model.streams.ends // shapes.model.hidden // 2  # at either end of the model
    product = shapes.gemm(shapes.tokens // shapes.plan.sp, columns, shapes.model.hidden)
    return [kernel(name, product) for name in names if columns]


def _own_inputs(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Steps of the embeddings that layers have of their own, forward or, by name, backward."""
    # Ranks of a tensor-parallel group divide the columns of all layers, and gather them.
    inputs, t, h, plan = shapes.model.layer_input, shapes.tokens, shapes.model.hidden, shapes.plan
    if inputs is None:
        return []
    columns = -(-shapes.model.layers * inputs.width // plan.tp)
    backward = "gradient" in name
    size = TWO * t * columns * plan.tp
    moved = "reduce-scatter" if backward else "all-gather"
    exchange = [collective(f"{name}.columns", "tp", moved, size)] * (plan.tp > 1)
    rows = shapes.gather(2 * TWO * t * columns, t, scattered=backward)
    steps = [
        kernel(f"{name}.look-up", rows),
        *enter(shapes, name) * (not backward),
        kernel(f"{name}.projection", shapes.gemm(t, columns, h)),
        *[kernel(f"{name}.projection.weight", shapes.gemm(h, columns, t))] * backward,
        kernel(f"{name}.norm", shapes.stream((4 if backward else 2) * TWO * t * columns, "norm")),
    ]
    return [*exchange, *steps] if backward else [*steps, *exchange]


def _one_hot(shapes: RankShapes) -> bool:
    """Return whether a look-up is a product with a row of the vocabulary for each token."""
    return shapes.catalogue.integer("training", "embedding_products") > 0


def embedding_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps that add gradients to the rows of the embedding that were looked up."""
    added = shapes.gather(2 * shapes.wide_bytes, shapes.tokens, scattered=True)
    if _one_hot(shapes):
        columns, h = _vocabulary(shapes), shapes.model.hidden
        added = _in_bf16(shapes).gemm(columns, h, shapes.tokens)
    inputs = _own_inputs(shapes, "embedding.layers.gradient")
    copies = _copies(shapes, "embedding.streams.data", "embedding.streams.weight")
    added_rows = [*enter(_in_bf16(shapes), "embedding.gradient"), kernel("embedding.add", added)]
    return [*copies, *inputs, *added_rows]


PREDICTED = "prediction."
"""Prefix of the names of the steps of prediction heads."""


def output(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the output layer and of prediction heads beside their layers."""
    # A head looks up the next token, projects its norm and that of the head's input together to the
    # hidden width, and ends as the model does. Its layer is one of the stage's last layers.
    t, h = shapes.tokens, shapes.model.hidden
    one = [
        *embedding(shapes),
        norm(shapes, "embedded.norm"),
        norm(shapes, "hidden.norm"),
        *enter(shapes, "projection"),
        kernel("projection", shapes.gemm(t, -(-h // shapes.plan.tp), 2 * h)),
        *_gathered_columns(shapes, "projection.columns"),
        *_logits(shapes),
    ]
    return [*_logits(shapes), *prefixed(one, PREDICTED) * shapes.model.prediction_heads]


def _gathered_columns(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Steps that gather the columns of a product, or scatter their gradients, over the ranks."""
    return [collective(name, "tp", "all-gather", shapes.wide_bytes)] if shapes.plan.tp > 1 else []


def _logits(shapes: RankShapes) -> list[LayerOp]:
    """Steps of the final norm, the logits of this rank's vocabulary, and the loss."""
    t, h, columns = shapes.tokens, shapes.model.hidden, _vocabulary(shapes)
    # Two sums in fp32 for each token.
    sums = [collective("loss.sums", "tp", "all-reduce", 2 * 4 * t)] if shapes.plan.tp > 1 else []
    return [
        *_copies(shapes, "output.streams"),
        norm(shapes, "output.norm"),
        *enter(_in_bf16(shapes), "output"),
        *_weight_kernels(shapes, "output.cast", columns * h, summed=False),
        kernel("output.logits", _in_bf16(shapes).gemm(t, columns, h)),
        kernel("loss", _loss(shapes, "forward")),
        *sums,
    ]


def output_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the gradients of the loss, the output layer and the norm before it."""
    # Those of prediction heads come first.
    columns = _vocabulary(shapes)
    gradient = [kernel("loss.data", _loss(shapes, "backward"))]
    weights = columns * shapes.model.hidden
    logits = [
        *gradient,
        *column_backward(_in_bf16(shapes), "output", "output.logits", columns),
        *_weight_kernels(shapes, "output.cast.weight", weights, summed=False),
        *_copies(shapes, "output.streams.data", "output.streams.weight"),
    ]
    projected = -(-shapes.model.hidden // shapes.plan.tp)
    one = [
        *logits,
        *_gathered_columns(shapes, "projection.columns.gradient"),
        *column_backward(shapes, "hidden", "projection.hidden", projected),
        *column_backward(shapes, "embedded", "projection.embedded", projected),
        *embedding_backward(shapes),
    ]
    return [*prefixed(one, PREDICTED) * shapes.model.prediction_heads, *logits]
