"""``python -m benchmarks [NAME …]`` runs the named benchmarks, or all, one after the other."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import benchmarks


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all if none is named, and return the exit status."""
    modules = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    available = [name for name in modules if not name.startswith("_")]
    unknown = [name for name in names if name not in available]
    if unknown:
        sys.stderr.write(f"no benchmark {unknown[0]}; there are {', '.join(available)}\n")
        return 2
    for name in names or available:
        begun = time.perf_counter()
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
        print(f"-- {name}: {time.perf_counter() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
