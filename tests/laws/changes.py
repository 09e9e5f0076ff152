"""Changes that make the second line of a law from the first, and draws with options stated."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from tests.laws import draws
from tests.laws.law import Change, Draw, Line

PEAK_TFLOPS = {"h100": 989, "b200": 2250, "trn2": 667}


def to(**options: Any) -> Change:
    """Change that sets options."""
    return lambda line, rng: line.but(**options)


def to_one_of(name: str, *values: Any) -> Change:
    """Change that sets an option to one of some values."""
    return lambda line, rng: line.but(**{name: rng.choice(values)})


def times(name: str, factor: float) -> Change:
    """Change that multiplies an option that is a number."""
    option = name.replace("_", "-")
    return lambda line, rng: line.but(
        **{name: type(line.options[option])(line.options[option] * factor)}
    )


def quantity(part: str, key: str, factor: float) -> Change:
    """Change that scales one quantity of the line's machine."""
    return lambda line, rng: line.scaled(part, key, factor)


def in_other_units(line: Line, rng: Random) -> Line:
    """Write the same rates and latencies of a machine in smaller and in larger units."""
    other = line.scaled("scale_up", "bandwidth", 1e3, "MB/s").scaled(
        "scale_up", "latency", 1e-3, "us"
    )
    other = other.scaled("scale_out", "bandwidth_per_chip", 8, "Gbit/s")
    return other.scaled("chip", "hbm_bandwidth", 1e3, "GB/s").scaled("chip", "hbm_bytes", 1e3, "MB")


def without_unit(text: str, unit: str, factor: float) -> Callable[[str], str]:
    """Function that rewrites a quantity in another unit."""
    return lambda stated: f"{float(stated.removesuffix(text)) * factor:.12g}{unit}"


def rewritten(name: str, rewrite: Callable[[str], str]) -> Change:
    """Change that writes the same value of an option in another way."""
    return lambda line, rng: line.but(**{name: rewrite(line.options[name])})


def clone(line: Line, rng: Random) -> Line:
    """Name every chip of the machine otherwise: the same hardware under another name."""
    return replace(line, machine={"name": "a-clone", **line.machine})


def wider(line: Line, rng: Random) -> Line:
    """Add a domain of which the line makes no use."""
    return replace(line, machine={**line.machine, "domains": 5})


def bigger(key: str, factor: int) -> Change:
    """Change that multiplies a field of the model."""
    return lambda line, rng: replace(line, model={**line.model, key: factor * line.model[key]})


layers = partial(bigger, "num_hidden_layers")


def framework_named(line: Line, rng: Random) -> Line:
    """Name the framework that the machine's steps are predicted with."""
    if line.machine is not None:
        return line.but(framework="transformers")
    if line.options["cluster"].startswith("trn"):
        return line.but(framework="neuronx")
    sharded = line.options.get("pp", 1) > 1 and line.options.get("zero", 1) >= 2
    return line.but(framework="torchtitan" if sharded else "megatron-core")


def in_its_framework(rng: Random) -> Line:
    """Training step on a machine of the catalogue, by the framework that is usual there."""
    where = rng.choice(draws.RANKS_16)
    return framework_named(draws.train(rng, from_file=False, cluster=where), rng)


def with_peak(factor: float) -> Change:
    """Change that states the rate of products of the machine's chips as a multiple of the usual."""

    def change(line: Line, rng: Random) -> Line:
        chip = line.machine["chip"]
        peak = f"{factor * PEAK_TFLOPS[chip['like']]:.12g} TFLOP/s"
        return replace(line, machine={**line.machine, "chip": {**chip, "bf16_peak": peak}})

    return change


def with_peaks(draw: Draw) -> Draw:
    """Draw of lines whose machines state the usual rate of products."""
    return lambda rng: with_peak(1)(draw(rng), rng)


def one_unit_more(line: Line, rng: Random) -> Line:
    """Add an UltraServer to a fleet."""
    return line.but(cluster=f"trn2-ultraserver:{int(line.options['cluster'].split(':')[1]) + 1}")


def zero_two_of_the_usual(line: Line, rng: Random) -> Line:
    """Take ZeRO 2 in the framework that runs ZeRO 1 on several chips."""
    chip = line.machine["chip"]["like"] if line.machine else line.options["cluster"]
    return line.but(framework="neuronx" if chip.startswith("trn") else "megatron-core", zero=2)


def jobs_changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    """Change of every job of a queue."""
    return lambda line, rng: replace(line, jobs=tuple(change(dict(job)) for job in line.jobs))


def minutes(job: dict[str, Any], factor: float, unit: str = "min", *keys: str) -> dict[str, Any]:
    """Job with its times, or some of them, multiplied and written in a unit."""
    for key in keys or ("submit", "time", "limit"):
        job[key] = f"{float(job[key].removesuffix('min')) * factor:.12g}{unit}"
    return job


def shuffled(line: Line, rng: Random) -> Line:
    """Write the jobs of a queue in another order."""
    return replace(line, jobs=tuple(rng.sample(line.jobs, len(line.jobs))))


def on_torus(rng: Random) -> Line:
    """A collective on all chips of a torus whose last axis has four of them."""
    line = draws.collective(rng)
    links = {} if rng.random() < 0.5 else line.options
    shape = rng.choice(("torus:4x4", "torus:2x3x4")) if links else "trn2.48xlarge"
    return Line((*line.words[:2], shape), {**links, "size": line.options["size"]})


def shifted_columns(line: Line, rng: Random) -> Line:
    """Move all ranks the same way round the last axis; by an even step where routes have ties."""
    step = 2 if line.words[1] in ("all-to-all", "broadcast") else rng.choice((1, 2, 3))
    chips = range(24 if "3" in line.words[2] else 16)
    return line.but(order=",".join(str(chip // 4 * 4 + (chip + step) % 4) for chip in chips))


def own(draw: Callable[..., Line], **stated: Any) -> Draw:
    """Draw of lines on machines from files."""
    return lambda rng: draw(rng, from_file=True, **stated)


def plain(draw: Callable[..., Line], **stated: Any) -> Draw:
    """Draw of lines with some options stated."""
    return lambda rng: draw(rng, **stated)


def drawn_on(machines: tuple[str, ...], draw: Callable[..., Line], **stated: Any) -> Draw:
    """Draw of lines on one of some machines of the catalogue."""
    return lambda rng: draw(rng, cluster=rng.choice(machines), **stated)


catalogue = partial(drawn_on, draws.RANKS_16)
TRAINIUM = ("trn2.48xlarge",)


def one_gpu(line: Line) -> Line:
    """Line on a chip like an H100."""
    return replace(line, machine={**line.machine, "chip": {**line.machine["chip"], "like": "h100"}})
