"""Random machines, models, plans, services, fleets, jobs and collectives of the laws."""

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.laws.law import Line

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
PLAIN = ("ring:6", "torus:4x4", "torus:2x3x2", "mesh:5", "switch:8", "clos:16:8", "clos:32:8:2")
RANKS_16 = ("trn2.48xlarge", "trn1.32xlarge", "dgx-h100:2", "dgx-a100:2")


def machine(rng: Random, chips: int = 0) -> dict[str, Any]:
    """A machine of four servers with a switch in each, or of one with so many chips."""
    like = rng.choice(("h100", "b200", "trn2"))
    return {
        "chip": {
            "like": like, "hbm_bandwidth": f"{rng.choice((1.5, 2.5, 4))} TB/s",
            "hbm_bytes": "96 GB",
        },
        "scale_up": {
            "shape": "switch", "size": chips or rng.choice((4, 8, 16)),
            "bandwidth": f"{rng.choice((50, 200, 450))} GB/s",
            "latency": f"{rng.choice((300, 900, 2500))} ns",
        },
        "domains": 1 if chips else 4,
        "scale_out": {
            "bandwidth_per_chip": f"{rng.choice((5, 25, 50))} GB/s",
            "latency": f"{rng.choice((3, 9, 20))} us",
            "radix": 64,
        },
    }  # fmt: skip


def model(rng: Random, experts: bool = False) -> dict[str, Any]:
    """A decoder of a few layers, dense or with experts."""
    heads = rng.choice((8, 16))
    fields: dict[str, Any] = {
        "model_type": "llama", "num_hidden_layers": rng.choice((4, 8)),
        "hidden_size": heads * 64, "intermediate_size": rng.choice((1024, 2048)),
        "num_attention_heads": heads, "num_key_value_heads": rng.choice((4, 8)),
        "vocab_size": rng.choice((4096, 32000)), "max_position_embeddings": 8192,
        "tie_word_embeddings": rng.random() < 0.5,
    }  # fmt: skip
    if experts:
        fields |= {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    return fields


def train(rng, experts=False, from_file=None, chips=0, **stated):
    """A training step of 16 ranks or more, on a machine of the catalogue or of its own."""
    options = {
        "tp": rng.choice((1, 2, 4)), "pp": rng.choice((1, 2)), "global-batch": 64,
        "seq": rng.choice((512, 1024, 2048)), "zero": rng.choice((0, 1, 2)),
        "overlap": rng.choice(("none", "dp", "all")),
        "recompute": rng.choice(("none", "selective", "full")),
    }  # fmt: skip
    options |= _named(stated)
    named = not chips and (from_file is False or (from_file is None and rng.random() < 0.5))
    if named:
        options.setdefault("cluster", rng.choice(RANKS_16))
    return Line(("train",), options, None if named else machine(rng, chips), model(rng, experts))


FRAMEWORKS = {
    "gpu": ("megatron-core", "torchtitan", "fsdp", "deepspeed", "nanotron", "automodel", "maxtext"),
    "trn": ("neuronx", "axlearn", "torch-neuronx"),
}
SELDOM: Mapping[str, tuple[Any, ...]] = {
    "cp": (2, 4), "cp-exchange": ("ring", "all-gather"), "chips": (2, 4, 8, 16),
    "precision": ("fp8",), "schedule": ("gpipe", "zero-bubble"), "attention": ("unfused",),
    "microbatch": (1, 2), "optimizer": ("sgd", "adafactor"), "bucket": ("64KiB", "25MB"),
    "sequence-parallel": (True,), "recompute-every": (2,), "iterations": (2,),
    "fault": ("chip:1@0s:slow=1/2", "server:0@0s:slow=2/3", "adapter:0@0s:slow=1/2"),
    "straggler": ("0:1.3", "1:1.5"), "level": ("collective", "flow", "rank-vector"),
}  # fmt: skip
"""Options that a composed step has one in five times each."""


def composed(rng: Random, without: tuple[str, ...] = (), **stated: Any) -> Line:
    """A training step with options that are seldom stated together."""
    line = train(rng, zero=rng.randrange(4))
    kind = "trn" if str(line.options.get("cluster") or line.machine).find("trn") >= 0 else "gpu"
    options: dict[str, Any] = {"framework": rng.choice((None, *FRAMEWORKS[kind]))}
    options |= {name: rng.choice(SELDOM[name]) for name in SELDOM if rng.random() < 0.2}
    options["train-only"] = rng.choice((None, None, None, "attention", "mlp"))
    if rng.random() < 0.3:
        options |= {"lora-rank": rng.choice((2, 16)), "lora-on": rng.choice(("all", "attention"))}
        del options["train-only"]
    if kind == "trn":
        options["runtime"] = rng.choice((None, "compiled", "eager", "xla"))
    options |= dict.fromkeys(without) | _named(stated)
    return line.but(**options)


def divided(rng: Random, **stated: Any) -> Line:
    """A training step whose products are wide enough to run in pieces."""
    many: dict[str, Any] = {"tp": rng.choice((2, 4, 8)), "seq": rng.choice((1024, 4096, 8192))}
    where = rng.choice(("trn2.48xlarge", "dgx-h100:2", "dgx-b200:2", "dgx-a100:2"))
    line = train(rng, from_file=False, **{"cluster": where, **many, **stated})
    widths = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    factor, narrow = rng.choice((4, 8)), line.model or {}
    wide = {**narrow, **{key: factor * narrow[key] for key in widths}}
    return Line(line.words, line.options, None, wide)


def collective(rng: Random, op: str = "", from_file: bool = False, **stated: Any) -> Line:
    """A collective on plain links, or on a machine of its own."""
    op = op or rng.choice(OPERATIONS)
    options: dict[str, Any] = {"size": f"{rng.choice((48, 960, 61440, 2**20 * 3))}B", **stated}
    if from_file:
        return Line(("collective", op), options, machine(rng))
    links = {"bandwidth": f"{rng.choice((1, 50))}GB/s", "latency": f"{rng.choice((10, 3000))}ns"}
    return Line(("collective", op, rng.choice(PLAIN)), {**links, **options})


def exchange(rng, op="all-to-all", machines=("p5.48xlarge", "dgx-h100:2", "dgx-a100"), **stated):
    """A collective between all ranks of a machine of NVIDIA."""
    size = rng.choice(("64KiB", "1MiB", "64MiB"))
    return Line(("collective", op, rng.choice(machines)), {"size": size, **stated})


def serve(rng: Random, from_file: bool = False, **stated: Any) -> Line:
    """A replica that serves some requests, on a machine of the catalogue or of its own."""
    options = {
        "cluster": rng.choice(("trn2.48xlarge", "dgx-h100")), "count": 12,
        "requests": f"poisson:{rng.choice((0.01, 1, 50))}", "tp": rng.choice((2, 4)),
        "prompt": rng.choice((100, 900)), "output": rng.choice((5, 30)),
    }  # fmt: skip
    options |= _named(stated)
    if from_file:
        del options["cluster"]
    if "concurrency" in options:
        del options["requests"]
    return Line(("serve",), options, machine(rng) if from_file else None, model(rng))


def fleet(rng: Random, **stated: Any) -> Line:
    """A fleet of some hours without failures."""
    options = {
        "cluster": f"trn2-ultraserver:{rng.choice((4, 6, 8))}", "demand": "demand.csv",
        "days": 0.2, "start-day": 1, "unit-rate": rng.choice((0.5, 0.7, 1.0)), "failures": "off",
        "policy": rng.choice(("threshold", "forecast", "oracle", "clock")), "no-compare": True,
    }  # fmt: skip
    return Line(("fleet",), {**options, **_named(stated)})


def job(rng: Random, from_file: bool = False, **stated: Any) -> Line:
    """A job of some days on a small machine."""
    options = {
        "cluster": rng.choice(RANKS_16), "tp": rng.choice((2, 4)), "global-batch": 64, "seq": 512,
        "days": rng.choice((3, 30)), "runs": 2,
    }  # fmt: skip
    options |= _named(stated)
    if from_file:
        del options["cluster"]
    return Line(("run-job",), options, machine(rng) if from_file else None, model(rng))


def plan(rng: Random, **stated: Any) -> Line:
    """A search for plans on eight chips of their own."""
    options = {"global-batch": 32, "seq": rng.choice((512, 1024)), "top": 2, **_named(stated)}
    return Line(("plan",), options, machine(rng, 8), model(rng))


def replay(rng: Random, **stated: Any) -> Line:
    """A trace of two ranks on plain links."""
    links = {"bandwidth": f"{rng.choice((1, 50))}GB/s", "latency": f"{rng.choice((10, 3000))}ns"}
    return Line(("replay", "traces"), {"cluster": "ring:2", **links, **_named(stated)})


def queue(rng: Random, alike: tuple[str, ...] = (), most: int = 48, **stated: Any) -> Line:
    """Jobs that arrive within hours, in which some columns are alike, at some domains.

    No two arrive in the same minute, and none needs more than ``most`` chips.
    """
    columns = {"chips": (16, 48, 80, 128), "time": (7, 31, 95), "priority": (0, 1, 2)}
    draw = {name: [value for value in values if name != "chips" or value <= most]
            for name, values in columns.items()}  # fmt: skip
    usual = {name: rng.choice(values) for name, values in draw.items()}
    jobs = []
    for minute in sorted(rng.sample(range(120), 12)):
        row = {name: usual[name] if name in alike else rng.choice(draw[name]) for name in draw}
        limit = row["time"] + (0 if "time" in alike else rng.choice((0, 60)))
        jobs.append({**row, "submit": f"{minute}min", "time": f"{row['time']}min",
                     "limit": f"{limit}min"})  # fmt: skip
    options = {
        "discipline": rng.choice(("fifo", "backfill", "priority", "shortest")),
        "place": rng.choice(("any", "domain")),
    }  # fmt: skip
    domains = rng.choice((2, 3))
    words = ("queue", f"trn2-ultraserver:{domains}")
    return Line(words, {**options, **_named(stated)}, jobs=tuple(jobs))


def lend(rng: Random, **stated: Any) -> Line:
    """A night for which units are lent."""
    options = {
        "cluster": f"trn2-ultraserver:{rng.choice((6, 8, 10))}", "demand": "history.csv",
        "unit-rate": rng.choice((0.7, 0.9)),
    }  # fmt: skip
    return Line(("lend",), {**options, **_named(stated)})


def _named(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names that a command has for them."""
    return {name.replace("_", "-"): value for name, value in stated.items()}
