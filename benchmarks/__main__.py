"""``python -m benchmarks [NAME …]`` runs the named benchmarks, or all, one after the other.

Each prints what it measures, its tables, and the time that it took itself.
"""

from __future__ import annotations

import importlib
import pkgutil
import resource
import sys
import time

import benchmarks

ALL = """All benchmarks: {names}.
They take many minutes of processor time, as each says at its end, and up to 6 GB;
benchmarks/README.md has the times. python -m benchmarks NAME runs one."""


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all if none is named, and return the exit status."""
    modules = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    available = [name for name in modules if not name.startswith("_")]
    unknown = [name for name in names if name not in available]
    if unknown:
        sys.stderr.write(f"no benchmark {unknown[0]}; there are {', '.join(available)}\n")
        return 2
    if not names:
        print(ALL.format(names=", ".join(available)))
    for name in names or available:
        begun, before_s = time.perf_counter(), _cpu_s()
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n== {name}\n{module.__doc__}", flush=True)
        module.main()
        wall_s, cpu_s = time.perf_counter() - begun, _cpu_s() - before_s
        print(f"-- {name} took {cpu_s:.0f} s of processor time, {wall_s:.0f} s", flush=True)
    return 0


def _cpu_s() -> float:
    """Processor time of this process and of those that it has waited for [s]."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, whose))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
