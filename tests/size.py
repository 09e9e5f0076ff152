"""Lines of source in each room beside its budget: ``make size``, which fails beyond a budget.

A room that must grow raises its number in ``tests/size.csv`` in a commit that says why; a change
that leaves a room smaller lowers it.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("size.csv")
PACKAGES = ("topologies", "cluster_sim", "workloads", "experiments")


def lines_by_room() -> Counter[str]:
    """Lines of Python of each folder in a package; modules beside the folders are one room."""
    lines: Counter[str] = Counter()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            room = "/".join(parts[:2]) if len(parts) > 2 else package
            lines[room] += len(path.read_bytes().splitlines())
    return lines


def budgets() -> dict[str, int]:
    """Most lines of each room."""
    with BUDGETS.open(newline="") as file:
        return {row["room"]: int(row["lines"]) for row in csv.DictReader(file)}


def main() -> int:
    """Print all rooms; the status is 1 where one is beyond its budget or has none."""
    lines, most = lines_by_room(), budgets()
    beyond = 0
    for room in sorted(lines | most):
        over = lines[room] > most.get(room, 0)
        beyond += over
        print(f"{room:28}{lines[room]:8,} of{most.get(room, 0):8,}{'  too large' if over else ''}")
    print(f"{'sum':28}{lines.total():8,} of{sum(most.values()):8,}")
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main())
