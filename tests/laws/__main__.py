"""``python -m tests.laws --seconds N`` tries new cases of all laws, and shows each violation."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.laws.laws import LAWS


def main() -> int:
    """Try laws in turn until the time is over; exit status 1 when one was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    stated = parser.parse_args()
    end, cases, broken = time.monotonic() + stated.seconds, 0, 0
    for seed, law in itertools.product(itertools.count(stated.seed), LAWS):
        if time.monotonic() >= end:
            break
        shown = law.violation(seed)
        cases, broken = cases + 1, broken + bool(shown)
        if shown:
            print(f"seed {seed}: {shown}", flush=True)
    print(f"{cases} cases of {len(LAWS)} laws, {broken} broken", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
