"""Remarks on a training step: what a reader should know before believing or using the answer.

A check is a function of :class:`Checked` in ``CHECKS``, which says in a sentence what breaks what
everybody knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import BETWEEN, RAINIER, cluster
from topologies.support.units import PS_PER_S, format_memory, format_seconds
from workloads.kernels.gemm import sustained_flops_per_s
from workloads.training.detail import Detail
from workloads.training.execution.jitter import TYPICAL, largest
from workloads.training.frameworks.framework import framework, framework_of, usual_framework
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import FREE, Memory
from workloads.training.plan.other_tools import OtherPlan
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import SharedParts
from workloads.training.usual_plan import BATCH_TOKENS, describe, differing, fields_of, named

if TYPE_CHECKING:
    from workloads.search.search import Finalist


def remarks(step: Iteration) -> list[str]:
    """Return the remarks on a step, each a sentence."""
    chosen = [sentence for tell in OF_A_SEARCH for sentence in tell(step)]
    if step.unlike:  # the others are about one kind of chip
        return check_remarks(step, step.cluster, (_large_batch, _full_memory, _unexplained))
    even = [*_even_chips(step), *_between_places(step), *_shared_domains(step)]
    checked = [*check_remarks(step, step.cluster), *_single_operations(step)]
    return [*chosen, *checked, *even, *_neighbour(step)]


def remarks_entry(step: Iteration) -> dict[str, Any]:
    """Return the entries of a document: remarks, and the search for the plan if there was one."""
    sentences, choice = step.remarks, step.choice
    entry: dict[str, Any] = {"remarks": sentences} if sentences else {}
    if choice is not None:
        others = [
            {**differing(other.plan, choice.best), "ratio": other.ratio, "tied": other.tied}
            for other in choice.others
        ]
        entry["searched"] = {
            "considered": choice.considered,
            "best": fields_of(choice.best),
            "next": others,
            "default_ratio": choice.default_ratio,
        }
    return entry


def _searched(step: Iteration) -> Iterator[str]:
    """Name the plan that was searched, and what the next best would have cost."""
    choice = step.choice
    if choice is None or choice.default_ratio is not None:
        return
    free = f" of those that leave {FREE:.0%} of a rank's memory free" * step.memory.roomy
    none = ", none of which is likely to fit in memory," * step.memory.tight
    yield (
        f"No degree of parallelism was stated: of {choice.considered:,} plans{none} this one is "
        f"the best by its estimate{free}: {_in_words(step.plan, step.cluster)}."
    )
    if choice.others:
        first, ties = choice.others[0], sum(other.tied for other in choice.others)
        # The first fields tell most: those after them follow or matter less.
        change = named(dict(list(differing(first.plan, step.plan).items())[:4]))
        more = f"{first.ratio - 1:.1%} longer" if first.ratio > 1.0005 else "as long"
        after, many = f"The next best ({change}) takes {more}", len(choice.others)
        share = {0: "None", many: "All"}.get(ties, str(ties))
        verb = "is" if ties <= 1 else "are"
        yield f"{after}. {share} of the next {many} {verb} too close for two predictions to tell."
    if "global_batch" in step.plan.assumed:
        yield (
            f"Global batch not stated: {step.plan.global_batch:,} sequences, one a chip up to "
            f"{BATCH_TOKENS / 1e6:.0f} M tokens."
        )


def _in_words(plan: ParallelPlan, where: Cluster) -> str:
    """Describe a searched plan, with its framework where these degrees alone would have another."""
    words, name = describe(plan), framework_of(plan, where).name
    usual = usual_framework(where, vars(plan))
    return words if name == usual else f"{words}, framework {name}"


def _faster(step: Iteration) -> Iterator[str]:
    """Name the plan that is shorter than a default that fits."""
    choice = step.choice
    if choice is not None and choice.default_ratio is not None:
        saved = 1 - 1 / choice.default_ratio
        yield (
            f"No degree of parallelism was stated. By an estimate, another plan takes {saved:.0%} "
            f"less: {_in_words(choice.best, step.cluster)}."
        )


def _even_chips(step: Iteration) -> Iterator[str]:
    """Name what uneven chips would add to a large step, which waits for the slowest of all."""
    if step.chips <= MANY or step.undisturbed_s is not None:
        return
    catalogue, parts = step.cluster.numbers, step.breakdown_s
    servers = step.chips // step.cluster.chips_per_server
    waits_s = sum(seconds for part, seconds in parts.items() if part.startswith("exposed"))
    share = 1 - waits_s / step.iteration_s
    low, usual, high = (
        share * largest(TYPICAL, step.chips, servers, catalogue, end=end)
        for end in ("low", "value", "high")
    )
    yield (
        f"Chips are taken as equal. The slowest of {step.chips:,} would make the step about "
        f"{usual:.0%} longer ({low:.0%} – {high:.0%}): --jitter typical draws it."
    )


def _between_places(step: Iteration) -> Iterator[str]:
    """Name what the network between buildings or sites, which is assumed, may cost."""
    where, fabric = step.stated.clusters[0], step.cluster.scale_out
    catalogue = where.catalogue
    disturbed = step.undisturbed_s is not None
    if fabric is None or not fabric.places or catalogue is None or disturbed:
        return
    rows = [catalogue.entry(RAINIER, name) for name in BETWEEN]
    rows.append(catalogue.entry(fabric.name, "same_campus_latency"))
    how, times_s = Detail(trace=False, partial=True, allow_oversized=True), list[float]()
    for end in ("low", "high"):
        moved = [
            row._replace(exact=Fraction(value), low=None, high=None)
            for row in rows
            if (value := getattr(row, end)) is not None
        ]
        there = cluster(where.name, catalogue=catalogue.with_rows(moved))
        times_s.append(iteration(step.model, there, step.plan, how).iteration_s)
    names = ("buildings", "buildings and sites")[len(fabric.places) - 1]
    low, high = map(format_seconds, times_s)
    yield (
        f"Chips lie in several {names}, and what joins these is assumed: over its range "
        f"({', '.join(BETWEEN)} of {RAINIER}) the step takes {low} to {high}."
    )


def _shared_domains(step: Iteration) -> Iterator[str]:
    """Name what is faster where two stages share a domain, whose adapters then carry most."""
    plan, stage = step.plan, step.plan.ranks // step.plan.pp
    over = stage % (step.cluster.chips_per_domain * plan.ranks_per_chip)
    if step.undisturbed_s is not None or plan.pp == 1 or not 0 < over < stage:
        return
    waited_s = step.rank_times.parts_ps["exposed_dp"].max() / PS_PER_S / step.iterations
    if waited_s <= GAINED * step.iteration_s:
        return  # no plan gains more, as only this becomes faster
    others = dict[str, ParallelPlan]()
    if "order" in plan.assumed:
        others["--order tp-cp-pp-dp"] = replace(plan, order=("tp", "cp", "pp", "dp"))
    fewer, batch = plan.dp - over * plan.dp // stage, plan.global_batch // plan.dp
    open_size = {"dp", "global_batch"} <= set(plan.assumed)
    if open_size and not over * plan.dp % stage and not fewer % plan.ep:
        chips = plan.pp * (stage - over) // plan.ranks_per_chip
        others[f"--chips {chips}"] = replace(plan, dp=fewer, global_batch=fewer * batch)
    how, gains = Detail(trace=False, partial=True, allow_oversized=True), dict[str, float]()
    shared = SharedParts()
    for name, other in others.items():
        if _sooner_s(step, other, shared) <= GAINED * step.iteration_s:
            continue  # which spares a simulation as long as the step's own
        faster = iteration(step.model, step.stated.clusters[0], other, how, shared=shared)
        gains[name] = faster.tokens_per_s / step.tokens_per_s - 1
    best = max(gains, key=gains.__getitem__, default="")
    if best and gains[best] > GAINED:
        yield (
            "Two stages share a scale-up domain, where each group of dp has fewer adapters than in "
            f"others: with {best} the job trains on {gains[best]:.1%} more tokens a second."
        )


def _sooner_s(step: Iteration, other: ParallelPlan, shared: SharedParts) -> float:
    """Time by which replicas exchange sooner on the ranks of a plan, in the busiest stage [s]."""
    run, experts = step.program, step.model.experts
    placed, costs = shared.placed(place(other, step.joined)), shared.costs(step.joined)
    saved_ps = dict[int, int]()
    for exchange in run.exchanges:
        if exchange.axis not in ("dp", "edp"):
            continue
        number = int(run.stage[exchange.members[0, 0]])
        steps = [run.steps[each] for each in run.steps_of(exchange).tolist()]
        how = (steps, other, experts.per_token if experts else 1)
        then_ps = (
            sum(costs.times_ps(chips, *how)) for chips in placed.within(exchange.axis)[number].chips
        )
        now_ps = int(exchange.duration_ps[exchange.kind].sum(axis=1).max())
        saved_ps[number] = saved_ps.get(number, 0) + now_ps - max(then_ps)
    return max(saved_ps.values(), default=0) / PS_PER_S / step.iterations


def _single_operations(step: Iteration) -> Iterator[str]:
    """Name what PyTorch's operations would take, where an eager host is timed by tracing them."""
    plan, numbers = step.plan, step.cluster.numbers
    if plan.runtime != "eager" or not chip_family(step.cluster.chip, numbers).is_neuron:
        return
    each, added_s = (
        numbers.value("runtime.neuron", name) for name in ("layer_operations", "eager_added")
    )
    passes = plan.microbatches * (2 + (plan.recompute == "full")) * step.model.layers / plan.pp
    if passes * each * added_s > step.iteration_s:
        yield (
            "Eager is timed as torch-xla's host traces the operations. Dispatched one by one, in "
            f"{format_seconds(added_s)} each, about {each:.0f} in a pass over a layer would take "
            f"the host {format_seconds(passes * each * added_s)}."
        )


def _neighbour(step: Iteration) -> Iterator[str]:
    """Name the plan one change away that is a tenth faster than a stated one."""
    if step.choice is not None or step.undisturbed is not None or not step.memory.fits:
        return
    # Loading the search takes as long as a short step, so there must be something to gain.
    chosen = any(name not in step.plan.assumed for name in CHOSEN)
    if not chosen and step.iteration_s - step.breakdown_s["compute"] < LARGE * step.iteration_s:
        return
    from workloads.search.choice import faster_neighbour  # costly, and seldom needed

    if faster := faster_neighbour(step.model, step.plan, step.stated.clusters[0]):
        other, ratio = faster
        yield (
            f"By an estimate, a step takes {1 - ratio:.0%} less with "
            f"{named(differing(other, step.plan))}, which fits in memory."
        )


@dataclass(frozen=True)
class Checked:
    """Parts of an answer that are checked, of a simulated step or of a plan of a search."""

    plan: ParallelPlan
    cluster: Cluster
    memory: Memory
    iteration_s: float
    breakdown_s: Mapping[str, float]  # parts of the step, mean over ranks [s]
    hfu: float


Check = Callable[[Checked], Iterator[str]]


def check_remarks(
    answer: Iteration | Finalist, cluster: Cluster, checks: Sequence[Check] | None = None
) -> list[str]:
    """Return a sentence for each check that an answer does not pass, by default of all."""
    checked = Checked(
        *(answer.plan, cluster, answer.memory),
        *(answer.iteration_s, answer.breakdown_s, answer.hfu),
    )
    return [sentence for check in checks or CHECKS for sentence in check(checked)]


def _large_batch(answer: Checked) -> Iterator[str]:
    """Name a step of more tokens than anybody trains on at once."""
    plan = answer.plan
    if plan.tokens <= BATCH_TOKENS:
        return
    why = ""
    if "global_batch" in plan.assumed:
        why = f", as {plan.microbatches} microbatches a replica were assumed"
    yield (
        f"A step has {plan.tokens / 1e6:,.0f} M tokens{why}; published runs have up to "
        f"{BATCH_TOKENS / 1e6:.0f} M. State a smaller --global-batch."
    )


def _full_memory(answer: Checked) -> Iterator[str]:
    """Name a plan for which there may not be enough memory."""
    memory = answer.memory
    likely, room = format_memory(memory.total), format_memory(memory.capacity)
    if not memory.fits:
        yield f"The plan does not fit and was run all the same: {likely} of {room} a rank."
    elif memory.tight:
        yield (
            f"The plan fits only if the training stack needs little memory: it is likely to need "
            f"{likely} of {room} a rank, and at least {format_memory(memory.least)}."
        )
    elif not memory.roomy:
        yield (
            f"Memory is {memory.total / memory.capacity:.1%} full: {likely} of {room} a rank, and "
            "training stacks differ by more than is free."
        )


def _unexplained(answer: Checked) -> Iterator[str]:
    """Name a step of which a part has no mechanism, and the measurement that would shrink it."""
    seconds = sum(answer.breakdown_s.get(part, 0.0) for part in UNEXPLAINED)
    if seconds > TENTH * answer.iteration_s:
        yield (
            f"{seconds / answer.iteration_s:.0%} of the step is time that no mechanism explains "
            "(scheduling): one measured step of your own over several chips, without ZeRO-3, "
            "would pin it down (cluster-sim calibrate)."
        )


def _idle_ranks(answer: Checked) -> Iterator[str]:
    """Name a plan that leaves ranks of its only chip idle, whose whole price and power count."""
    used, held = answer.plan.ranks_of_chip, answer.plan.ranks_per_chip
    if used < held:
        yield f"Work for {used} of the chip's {held} ranks: price, energy and MFU are the chip's."


def _unnatural_ranks(answer: Checked) -> Iterator[str]:
    """Name ranks that the machine does not have, and groups that do not fill its domains."""
    plan, cluster, catalogue = answer.plan, answer.cluster, answer.cluster.numbers
    natural = {1, chip_family(cluster.chip, catalogue).ranks_per_chip}
    if catalogue.has(cluster.chip, "ranks_per_chip"):
        natural |= {int(row.value) for row in catalogue.variants(cluster.chip, "ranks_per_chip")}
    if plan.ranks_per_chip not in natural:
        usual = " or ".join(map(str, sorted(natural)))
        yield (
            f"The plan has {plan.ranks_per_chip} ranks a chip; programs on {cluster.chip} have "
            f"{usual}."
        )
    domain = cluster.chips_per_domain * plan.ranks_per_chip
    if plan.tp > 1 and plan.ranks > domain and domain % plan.tp:
        yield (
            f"Groups of tp {plan.tp} do not divide the {domain} ranks of a scale-up domain, so "
            f"that layers wait for the slower fabric. Use a tp that divides {domain}."
        )


def _beyond_the_chip(answer: Checked) -> Iterator[str]:
    """Name a mean rate of arithmetic that the chip does not keep for hours."""
    catalogue, chip = answer.cluster.numbers, answer.cluster.chip
    precision = answer.plan.precision
    rate = answer.hfu * catalogue.value(chip, f"{precision}_peak")
    kept = sustained_flops_per_s(chip, precision, catalogue)
    if rate > kept:
        yield (
            f"A chip computes {rate / 1e12:,.0f} TFLOP/s in the mean, and {chip} keeps "
            f"{kept / 1e12:,.0f} in {precision} for hours: correct the catalogue's numbers of it."
        )


GAINED = 0.01  # gain in tokens a second from which another plan is named
MANY = 1024  # chips above which uneven ones are named
CHOSEN = ("recompute", "order", "microbatch", "zero", "sequence_parallel")
"""Fields whose stated value is compared with its neighbours."""
LARGE = 1 / 3
"""Share of a step above which its neighbours are tried though none of ``CHOSEN`` is stated, where
it is no arithmetic."""
TENTH = 0.1  # share of a step above which its unexplained part is named
UNEXPLAINED = ("scheduling", "other")  # parts of a step without a mechanism
OF_A_SEARCH: tuple[Callable[[Iteration], Iterator[str]], ...] = (_searched, _faster)
CHECKS: tuple[Check, ...] = (
    _large_batch,
    _full_memory,
    _unexplained,
    _idle_ranks,
    _unnatural_ranks,
    _beyond_the_chip,
)
"""Checks of an answer, each a generator of the remarks that it has to make."""


WORTH_NAMING = 0.03
"""Smallest relative change of the time for which an alternative is named in a sentence."""
SAVING = {"zero": 3, "recompute": "full"}
"""Values that need least memory. They may have been taken because the usual ones do not fit."""


def assumed_document(step: Iteration) -> dict[str, Any]:
    """Return each field that was varied, its value, and the ratios of the alternatives' times."""
    fields: dict[str, Any] = {}
    for other in step.alternatives:
        entry = fields.setdefault(other.field, {"value": _value(step, other.field)})
        entry.setdefault("alternatives", []).append({"value": other.value, "ratio": other.ratio})
    if not step.plan.names_framework:
        fields.setdefault("framework", {"value": step.framework.text, "alternatives": []})
    return {"framework": step.framework.text, **({"assumed": fields} if fields else {})}


def _value(step: Iteration, name: str) -> Any:
    return step.framework.text if name == "framework" else getattr(step.plan, name)


def assumed_sentences(step: Iteration) -> list[str]:
    """Return a sentence about the framework, and one about other fields that matter."""
    varied = ("framework", *(other.field for other in step.alternatives), *SAVING)
    alternatives_of = {name: _alternatives(step, name) for name in dict.fromkeys(varied)}
    sentences = []
    if not step.plan.names_framework:
        others = f"; {alternatives_of['framework']}" if alternatives_of["framework"] else ""
        sentences.append(f"Framework not stated: predicted as {step.framework.text}{others}.")
        sentences += [
            f"{step.framework.name} has no {name} {value}; it is timed as if it had."
            for name, value in step.framework.lacks(step.plan)
        ]
    elif alternatives_of["framework"]:
        sentences.append(f"Settings of the framework not stated: {alternatives_of['framework']}.")
    shown = [
        f"{name.replace('_', ' ')} {_word(_value(step, name))} ({text})"
        for name, text in alternatives_of.items()
        if text and name != "framework"
    ]
    if shown:
        sentences.append(f"Not stated, and taken as usual: {', '.join(shown)}.")
    searched = step.choice is not None and step.choice.default_ratio is None  # which says so itself
    if "global_batch" in step.plan.assumed and not searched:
        sentences.append(
            f"Global batch not stated: {step.plan.global_batch:,} sequences, "
            f"{step.plan.microbatches} microbatches for each replica."
        )
    return sentences


def left_out_framework(step: Iteration, filed: OtherPlan | None) -> str:
    """Return a sentence where the framework of another tool's file does not train on the chips."""
    implied = filed.implied if filed and not step.plan.names_framework else ""
    if not filed or not implied or framework(implied).trains_on(step.cluster):
        return ""
    chip = step.cluster.chip
    return f"{filed.tool}'s framework {implied} does not train on {chip} and is left out."


def _alternatives(step: Iteration, name: str) -> str:
    """Return the alternatives of a field that change the time, in words."""
    open_field = name in step.plan.assumed and (name != "zero" or step.plan.dp > 1)
    varied = any(other.field == name for other in step.alternatives)
    if open_field and _value(step, name) == SAVING.get(name) and not varied:
        return "less would not fit in memory"
    texts = []
    for other in step.alternatives:
        change = other.ratio - 1
        if other.field == name and abs(change) >= WORTH_NAMING:
            way = "longer" if change > 0 else "shorter"
            texts.append(f"{_word(other.value)} would be {abs(change):.0%} {way}")
    return ", ".join(texts)


def _word(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def change_sentence(compared: Mapping[str, Any]) -> str:
    """Say whether two measured runs of a step differ as repeats do."""
    usual = compared["usual_change"] - 1
    text = f"The second run's step is {_longer(compared['change'], 1)} the first's"
    alike = f"runs of one configuration usually differ by less than {usual:.0%}"
    if compared["change_normal"] == "usual":
        return f"{text}, which is usual: {alike}."
    return (
        f"{text}; {alike}, so that something else changed. --straggler and --fault say what a slow "
        "chip or link would add."
    )


def _longer(ratio: float, digits: int) -> str:
    """Compare a time with another one in words.

    >>> _longer(1.088, 1), _longer(0.9, 0), _longer(1.0001, 1)
    ('8.8% longer than', '10% shorter than', 'as long as')
    """
    change = f"{abs(ratio - 1):.{digits}%}"
    if not float(change.rstrip("%")):
        return "as long as"
    return f"{change} {'longer' if ratio > 1 else 'shorter'} than"


def comparison_sentence(compared: Mapping[str, Any], step: Iteration) -> str:
    """Say how the measured time lies beside the prediction, and which choices come nearer."""
    text = f"{change_sentence(compared)} The second" if "before" in compared else "The"
    text += f" measured step is {_longer(compared['measured_s'] / step.iteration_s, 0)} "
    if compared["normal"] == "usual":
        return text + "predicted, which is usual: it is within the 80 % interval."
    text += f"predicted, and {compared['normal']} than nine of ten such steps."
    # Values of fields that nobody stated may come nearer to the measured time.
    missing = math.log(compared["measured_s"] / step.iteration_s)
    left = {other: abs(missing - math.log(other.ratio)) for other in step.alternatives}
    nearest = [
        each for each in sorted(left, key=left.__getitem__) if left[each] < 0.9 * abs(missing)
    ]
    words = (f"{each.field.replace('_', ' ')} {_word(each.value)}" for each in nearest[:3])
    nearer = " or ".join(words)
    return text + (f" Of what is not stated, {nearer} would come nearer to it." if nearer else "")
