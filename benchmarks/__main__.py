"""``python -m benchmarks [NAME …]``: run all benchmarks, or those named, one after the other."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import benchmarks


def main(names: list[str]) -> int:
    """Run the named benchmarks, all when none is named; returns the exit status."""
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    known = [name for name in known if not name.startswith("_")]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.stderr.write(f"no benchmark {unknown[0]}; there are {', '.join(known)}\n")
        return 2
    for name in names or known:
        begun = time.perf_counter()
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
        print(f"-- {name}: {time.perf_counter() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
