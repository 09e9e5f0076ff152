"""``python -m tests.fuzz --seconds N`` draws cases, runs them under limits and saves failures."""

import argparse
import collections
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.cases import draw
from tests.fuzz.worker import every_option

LONGEST_S = 900.0
"""Time on the clock after which a worker is taken for stuck [s]; a case has its own limit."""
ROOT = Path(__file__).parents[2]


class Worker:
    """A worker process that is started again whenever it dies or takes too long."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, seed: int) -> str:
        process = self._alive()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a worker has no pipes")
        process.stdin.write(f"{seed}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LONGEST_S)
        line = process.stdout.readline() if ready else ""
        if line:
            return line.partition(" ")[2].strip()
        self.close()
        return f"over {LONGEST_S:.0f} s" if not ready else f"process died: {process.returncode}"

    def _alive(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker"], cwd=ROOT, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            if self.process.stdout is not None:
                self.process.stdout.readline()
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()  # which closes the pipes as well
            self.process = None


def failures(seconds: float, first_seed: int) -> Iterator[tuple[int, str]]:
    """Yield the seed of every case with its faults, empty ones too, until the time is over."""
    worker, end, seed = Worker(), time.monotonic() + seconds, first_seed
    try:
        while time.monotonic() < end:
            yield seed, worker.run(seed)
            seed += 1
    finally:
        worker.close()


def main() -> int:
    """Fuzz for a while; exit status 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 10_000)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "fuzz")
    stated = parser.parse_args()
    options = every_option()
    kinds: collections.Counter[str] = collections.Counter()
    cases = 0
    for seed, fault in failures(stated.seconds, stated.seed):
        cases += 1
        if not fault:
            continue
        kind = re.sub(r"\d+|'[^']*'", "N", fault)[:160]
        kinds[kind] += 1
        if kinds[kind] > 3:
            continue
        case = draw(seed, options)
        stated.out.mkdir(parents=True, exist_ok=True)
        (stated.out / f"{seed}.json").write_text(case.as_json())
        print(f"{seed}: {fault}\n    cluster-sim {' '.join(map(repr, case.arguments))}", flush=True)
    print(f"{cases} cases, {sum(kinds.values())} failed in {len(kinds)} ways", flush=True)
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
