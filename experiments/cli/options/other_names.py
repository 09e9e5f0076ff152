"""Options by the names that other tools give them, for whoever types these from habit."""

from __future__ import annotations

from collections.abc import Sequence

COMMON = {
    **dict.fromkeys(("batch-size", "batch", "gbs"), "global-batch"),
    **dict.fromkeys(("mbs", "per-device-train-batch-size"), "microbatch"),
    **dict.fromkeys(("seq-len", "sequence-length", "max-seq-len", "max-seq-length"), "seq"),
    **dict.fromkeys(("gpus", "num-gpus", "devices", "num-chips", "chips"), "chips ranks tp"),
    **dict.fromkeys(("nodes", "num-nodes", "nnodes", "machine", "hardware", "system"), "cluster"),
    **dict.fromkeys(("lora", "lora-r", "lora-dim"), "lora-rank"),
    **dict.fromkeys(("ttft", "tpot", "itl"), "slo"),
    **dict.fromkeys(("input-len", "random-input-len", "isl"), "prompt"),
    **dict.fromkeys(("output-len", "random-output-len", "osl"), "output"),
    **dict.fromkeys(("request-rate", "qps"), "requests"),
    "max-concurrency": "concurrency",
    "zero-stage": "zero",
    **dict.fromkeys(("mtbf", "failure-rate", "mttf"), "failures"),
    **dict.fromkeys(("mttr", "repair-time"), "repair"),
    "num-prompts": "count",
    "dtype": "precision",
    "peak": "scale-to-peak",
}
"""Options of launchers, load generators and earlier releases, and what they are called here: by
the first of several names that the command has."""
EXAMPLES = {"--cluster": "trn2.48xlarge:4", "--slo": "ttft=1s,tpot=50ms", "--requests": "poisson:2"}
"""Values of options that are written otherwise here."""


def other_name(word: str, flags: Sequence[str]) -> str:
    """Return the flag that has another name in other tools, with an example where that helps.

    It is empty for words that no tool has.

    >>> other_name("--micro-batch-size", ["--microbatch", "--tp"])
    '--microbatch'
    >>> other_name("--nodes", ["--cluster"])
    '--cluster, such as --cluster trn2.48xlarge:4'
    >>> other_name("--chips", ["--tp", "--ranks"])
    '--ranks'
    >>> other_name("--ttft", ["--tp"])
    ''
    """
    from workloads.serving.engine_files import TABLES as ENGINES
    from workloads.training.plan.other_tools import TABLES as LAUNCHERS

    name = word.lstrip("-").replace("_", "-").lower()
    meant = COMMON.get(name, "").split()
    for table in (*LAUNCHERS.values(), *ENGINES.values()):
        for key, rule in table.items():
            if key.rpartition(".")[2].replace("_", "-") == name:
                meant.append(rule.field.replace("_", "-"))
    here = next(
        (
            flag
            for option in meant
            for flag in flags
            if flag[:2] == "--" and option in (flag[2:], flag[2:].removesuffix("s"))
        ),
        "",
    )
    return f"{here}, such as {here} {EXAMPLES[here]}" if here in EXAMPLES else here
