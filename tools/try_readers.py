"""Program that tries the readers of other tools' files on a public tree, and counts the outcomes.

``python -m tools.try_readers TREE [NAME=VALUE …]`` reads every file of a folder that launches a
serving engine, or states a plan, with the values as the environment of scripts. The counts stand in
the how-to pages; a reason is printed with the number of files that have it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from topologies.support.errors import InputError
from workloads.serving.engine_files import LAUNCHES, read_engine_file
from workloads.training.plan.other_tools import OURS, read_any_plan

ENDINGS = (".sh", ".yaml", ".yml", ".toml", ".json", ".txt")
PLANS = re.compile(
    r"tensor.model.parallel.size|\[parallelism\]|zero_optimization|per_device_batch_size *[:=]|"
    r"tensor_parallel_degree:|distributed_type:|per_device_train_batch_size:|^base_model:",
    re.MULTILINE,
)
LONGEST_REASON = 80


def outcome(path: Path, environment: str) -> tuple[str, str]:
    """Return the kind of a file, and ``read`` with the tool or why it is refused; empty if none."""
    text = path.read_text(encoding="utf-8", errors="replace")
    served = any(re.search(launch, text) for launch in LAUNCHES.values())
    if not served and not PLANS.search(text):
        return "", ""
    read = read_engine_file if served else read_any_plan
    try:
        tool = read(Path(f"{environment} {path}".strip())).tool
    except InputError as mistake:
        return "deployment" if served else "plan", str(mistake).replace(str(path), "")
    kind = "deployment" if served else "plan"
    return kind, "no tool's file" if tool == OURS else f"read: {tool}"


def main(tree: str, *environment: str) -> None:
    """Print how many files of a tree are read, by tool, and why others are refused."""
    paths = [path for path in sorted(Path(tree).rglob("*")) if path.suffix in ENDINGS]
    outcomes = [outcome(path, " ".join(environment)) for path in paths if path.is_file()]
    shown = Counter((kind, what[:LONGEST_REASON]) for kind, what in outcomes if kind)
    read = sum(count for (_, what), count in shown.items() if what.startswith("read"))
    print(f"{read} of {shown.total()} files are read")
    for (kind, what), count in shown.most_common():
        print(f"{count:5} {kind:10} {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
