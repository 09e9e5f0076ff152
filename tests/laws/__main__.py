"""``python -m tests.laws --seconds N`` tries new cases of all laws, and shows each violation."""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator

from tests.laws.law import Law
from tests.laws.laws import LAWS


def cases(seed: int) -> Iterator[tuple[int, Law]]:
    """Yield all laws with a seed, then with the next, without an end."""
    # itertools.product would first read the seeds, which have no end, into memory.
    for number in itertools.count(seed):
        for law in LAWS:
            yield number, law


def main() -> int:
    """Try laws in turn until the time is over; exit status 1 when one was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    stated = parser.parse_args()
    end, tried, broken = time.monotonic() + stated.seconds, 0, 0
    for seed, law in cases(stated.seed):
        if time.monotonic() >= end:
            break
        try:
            shown = law.violation(seed)
        except LookupError as refused:  # the law says nothing of this seed, the others still do
            shown = str(refused)
        tried, broken = tried + 1, broken + bool(shown)
        if shown:
            print(f"seed {seed}: {shown}", flush=True)
    print(f"{tried} cases of {len(LAWS)} laws, {broken} broken", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
