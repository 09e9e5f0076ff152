"""Values for every option of every command, most of them from the option's own description."""

from dataclasses import asdict
from typing import Any

from experiments.cli.options.from_fields import DescribedOption, Number, Text
from workloads.training.plan.plan import ParallelPlan

PLAN = asdict(ParallelPlan())
"""Defaults of a plan, whose options are completed by the library."""

CANNOT_CHANGE_THE_ANSWER = {
    "allow-oversized": "lifts a refusal only",
    "json": "how the answer is printed",
    "out": "where a run directory is written",
    "quiet": "progress only",
    "seed": "of random draws alone; tests of jitter, noise and failures move it",
    "engine": "both engines give the same numbers, which tests hold",
    "workers": "how many processes share the work",
    "cache": "where capacity tables are kept",
    "chakra": "a folder to write to",
    "best": "a file to write to",
    "write": "a file to write to",
    "residuals": "a file to write to",
    "overlay": "a file to write to",
    "dask": "where the rows of a study run",
    "trust": "whether a study of a stranger may run",
    "port": "where the explorer listens",
    "knobs": "how many sliders the explorer has",
    "help": "the help page",
    "follow": "a source that grows; tests/experiments/hourly follows one",
    "query": "a question to that source",
    "prompt-query": "the same",
    "output-query": "the same",
    "state": "where it is remembered",
    "once": "whether the source is looked at again",
    "metrics": "a file to write to",
}
"""Options that by nature change no number, with what they do instead."""

TEXTS: dict[str, tuple[str, ...]] = {
    "average": ("2h",), "bandwidth": ("31GB/s",), "batch-deadline": ("5h", "20min"),
    "batch-demand": ("demand.csv",), "batch-share": ("20%",), "bucket": ("64KiB", "3MiB"),
    "budget": ("1k", "20k"),
    "bytes": ("matrix.csv",), "catalogue": ("everything.csv",), "change-time": ("17min",),
    "checkpoint-interval": ("37min",), "checkpoint-stall": ("7s",), "chip": ("trn1",),
    "cluster": ("trn1.32xlarge", "trn2-ultraserver:4"), "collective": ("all-gather",),
    "column": ("chips=16", "tp=2"), "compare": ("log.txt", "steps.log", "3.2s"),
    "confidence": ("60%",), "date": ("2023-01",), "demand": ("demand.csv",),
    "deployment": ("vllm.sh",), "disaggregate": ("1:1", "1:3"), "each": ("tp", "pp,tp"),
    "fault": ("link:0-1@0s:slow=1/2", "engine:0@0s:slow=1/2", "rx:0@0s:slow=1/2"),
    "failures": ("off", "domains", "7", "causes.csv"), "file": ("rows.csv",),
    "framework": ("axlearn", "megatron-core"), "from": ("02:00",), "gather": ("0.4s", "3s"),
    "group": ("0-3", "0,1"), "hold": ("1min", "3h"), "holidays": ("holidays.txt",),
    "jobs": ("jobs.yaml",), "later-stages": ("trn1.32xlarge", "trn2.48xlarge:2,trn2.48xlarge"),
    "latency": ("7us",), "lease": ("2h",), "model": ("gpt2",), "night": ("3-5", "0-20"),
    "nodes": ("nodes.csv",), "noise": ("0.3", "measured"), "notice": ("0s", "3min"),
    "order": ("dp-pp-cp-tp", "3,2,1,0", "order.txt"), "plan": ("plan.yaml",),
    "policy": ("oracle", "threshold", "static", "clock", "policy.py"),
    "prefill": ("separate", "chunked"), "prefill-cluster": ("p5.48xlarge",),
    "prefix-cache": ("50%", "trace"), "price": ("prices.csv",),
    "recorded-on": ("dgx-a100", "trn1.32xlarge"), "repair": ("9h", "30d"),
    "requests": ("requests.csv", "poisson:3"), "restart": ("40min",), "service": ("chat", "code"),
    "shortest-lengths": ("0.8", "0"), "size": ("3MiB",),
    "slo": ("ttft=30ms,tpot=2ms", "ttft=30ms,tpot=2ms,share=90%"), "spares": ("3", "0"),
    "speculate": ("3:0.7",), "stage-layers": ("1-3", "3-1"), "straggler": ("1:1.5",),
    "table": ("trainium1_training",), "token-price": ("3",), "tokens": ("1B",),
    "training": ("jobs.csv",), "until": ("09:30",),
    "variant": (
     "trn2.48xlarge.price=spot", "kernels.h100.elementwise_efficiency=eager",
     "kernels.trainium.gemm_sustained=alone", "trn1.32xlarge.hbm_bandwidth=vendor-table",
     "b200.hbm_bytes=built", "p5.48xlarge.price=capacity-block"),
    "what-if": ("growth=30%",), "kind": ("trn2-ultraserver:7", "trn3-gen2:5"),
    "region": ("us=-8:60%",), "round-trip": ("us/eu=145ms",), "price-basis": ("owned", "spot"),
    "quota": ("a=64",), "reserve": ("b=64@1h+2h",), "serve-on": ("trn3-gen2", "fastest"),
    "maintenance": ("out@0d02:00+2h=5", "out/5d+2h=1"), "capacity-block": ("0d+1d=2",),
    "window": ("2h",),
    "with": ("--tp 2", "--tp 4 --microbatch 1"),
}  # fmt: skip
"""Values of options whose description does not show how to write one."""

NUMBERS: dict[str, tuple[str, ...]] = {
    "cap": ("1", "2"), "slots": ("1",), "attention-dp": ("2",), "count": ("1", "7"), "poll": ("9",),
    "power-limit-w": ("500",), "carbon": ("300",), "carbon-price": ("70",),
    "changes-per-minute": ("1",), "chips": ("4", "8"), "chunk": ("0", "64", "4096"),
    "days": ("0.7", "2"), "dp": ("8", "2"), "global-batch": ("64", "16"),
    "jitter": ("0.05", "chips"), "memory-margin": ("0.9995", "0.5"), "price-cap": ("50",),
    "rate": ("9",), "reserve": ("1", "3"),
    "power-cap": ("0.03", "0.3"), "prompt": ("333",), "quantile": ("0.5",),
    "ranks": ("4", "8"), "scale-to-peak": ("0.4",), "seq": ("512",), "start-day": ("1",),
    "static-units": ("3", "1"), "unit-rate": ("7",), "weight": ("3", "0.5"),
}  # fmt: skip
"""Values of numbers for which two and four, or half and 1.5, are not telling."""


def values_of(option: DescribedOption) -> tuple[tuple[str, ...], ...]:
    """Return the words of several settings of an option that differ from its default."""
    flag = next(flag for flag in option.opts if flag.startswith("--"))
    name = flag.removeprefix("--")
    if option.is_flag:
        settings = {flag: True, **dict.fromkeys(option.secondary_opts, False)}
        return tuple((each,) for each, on in settings.items() if on is not _default(option))
    return tuple((f"{flag}={value}",) for value in _texts(name, option))


def _default(option: DescribedOption) -> Any:
    """Default of an option; that of the plan's field for an option that is one."""
    return PLAN.get(str(option.name)) if option.usual is None else option.usual


def _texts(name: str, option: DescribedOption) -> tuple[str, ...]:
    usual = str(_default(option))
    kind: Any = option.type
    if name in TEXTS and (isinstance(kind, Text) or name not in NUMBERS):
        texts = TEXTS[name]
    elif name in NUMBERS:
        texts = NUMBERS[name]
    elif option.described.choice_texts():
        texts = option.described.choice_texts()
    elif isinstance(kind, Number):
        texts = ("2", "3", "4") if kind.kind is int else ("0.25", "0.75", "1.5")
    elif isinstance(kind, Text):
        raise LookupError(f"--{name}: write values of it in tests/fuzz/option_values.py")
    else:
        raise LookupError(f"--{name} has a type of its own, {kind}")
    return tuple(text for text in texts if text != usual)
