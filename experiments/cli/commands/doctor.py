"""``cluster-sim doctor``: versions, caches, memory and speed of this installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cluster_sim
from cluster_sim.processes import available_workers
from experiments.cli.options.inputs import Invocation
from experiments.cli.output.printing import print_table
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.files.kept_files import folders, is_private
from topologies.support.units import format_bytes, format_seconds

LIBRARIES = ("numpy", "numba", "scipy", "pandas", "networkx", "simpy", "matplotlib", "pyarrow")
LEAST_MEMORY_BYTES = 4 * 10**9


def doctor(call: Invocation) -> None:
    """Report versions, caches, memory and speed of this machine.

    Nothing is written and nothing leaves the machine. Remedies for slow or missing parts are listed
    below the table.
    """
    call.answer(
        examine(),
        _print,
        lambda run, document: run.json("doctor", document, title="This installation"),
    )


def examine() -> dict[str, Any]:
    """Return versions, folders, memory, timed steps and remarks as one document."""
    steps = _timed()
    available = _available_bytes()
    cached, folders = _compiled()
    document = {
        "cluster_sim": cluster_sim.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "installed_in": str(Path(cluster_sim.__file__).parents[1]),
        "processors": available_workers(),
        "memory_bytes": _memory_bytes(),
        "available_bytes": available,
        "compiled_functions": cached,
        "compile_cache": folders,
        "steps": steps,
    }
    return {**document, "remarks": _remarks(steps, available, cached)}


def _timed() -> list[dict[str, Any]]:
    """Time the parts of a small run, in the order in which a command needs them."""
    parts: tuple[tuple[str, Callable[[], object], float, str], ...] = (
        ("import the libraries", _import, 3.0, "a local disk loads faster"),
        ("read the catalogue", shipped_catalogue, 0.5, "a local disk loads faster"),
        ("first collective (compiles or loads)", _collective, 15.0,
         "let the compile cache be written, or set CLUSTER_SIM_CACHE"),
        ("second collective", _collective, 0.5, "close other programs"),
    )  # fmt: skip
    steps = []
    for name, work, usual_s, remedy in parts:
        begun = time.perf_counter()
        work()
        time_s = time.perf_counter() - begun
        step = {"name": name, "time_s": time_s, "usual_s": usual_s, "remedy": remedy}
        steps.append({**step, "slow": time_s > usual_s})
    return steps


def _import() -> None:
    import llvmlite.binding  # noqa: F401
    import networkx  # noqa: F401
    import pandas  # noqa: F401
    import scipy.sparse  # noqa: F401


def _collective() -> None:
    from cluster_sim.collectives import CollectiveCall, measure, whole

    measure(CollectiveCall("all-reduce", whole(cluster("trn2.48xlarge")), 2**20), "ring")


def _memory_bytes() -> int | None:
    """Memory of the machine [B]; None on systems that do not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _available_bytes() -> int | None:
    """Memory that a new process could use [B]; None on systems that do not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else None


def _compiled() -> tuple[int, list[str]]:
    """Number of compiled functions in the cache, and the folders of the cache."""
    places = [folder for folder in folders() if folder.is_dir() and is_private(folder)]
    files = [path for folder in places for path in folder.glob("*.o")]
    return len(files), sorted({str(path.parent) for path in files})


def _remarks(steps: list[dict[str, Any]], available: int | None, cached: int) -> list[str]:
    remarks = [
        "{name} took {time_s:.1f} s, usually under {usual_s:g} s: {remedy}".format_map(step)
        for step in steps
        if step["slow"]
    ]
    if available is not None and available < LEAST_MEMORY_BYTES:
        free = available / 1e9
        remarks.append(f"{free:.1f} GB of memory are free: clusters above 65,536 chips need 4 GB")
    if not cached:
        remarks.append(
            "compiled functions are not kept, so that every process compiles again: make the "
            "installation writable, or set CLUSTER_SIM_CACHE to a folder that only you can write"
        )
    return remarks


def _print(document: Mapping[str, Any]) -> None:
    def size(value: int | None) -> str:
        return "unknown" if value is None else format_bytes(value)

    libraries = document["libraries"].items()
    rows = [
        ["cluster-sim", document["cluster_sim"]],
        ["installed in", document["installed_in"]],
        ["Python", f"{document['python']} on {document['platform']}"],
        ["libraries", ", ".join(f"{name} {version}" for name, version in libraries)],
        ["processors", str(document["processors"])],
        ["memory", f"{size(document['memory_bytes'])}, {size(document['available_bytes'])} free"],
        ["compiled functions kept", f"{document['compiled_functions']}"],
    ]
    print_table("This installation", ["", ""], rows, left=2)
    timed = [
        [step["name"], format_seconds(step["time_s"]), "slow" if step["slow"] else "fine"]
        for step in document["steps"]
    ]
    print_table("\nSpeed", ["step", "time", ""], timed)
    for remark in document["remarks"]:
        sys.stdout.write(f"{remark}.\n")
