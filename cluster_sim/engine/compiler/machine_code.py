"""Machine code on disk: found by a digest of its ingredients, checked, and loaded without numba.

The name of a file holds a digest of the byte code of the function and of all that it calls, of the
values that these refer to, of the types of the arguments, of Python, LLVM and the processor. So an
edit recompiles only the functions that it changes and their callers, a comment recompiles nothing,
and a file that is found is never out of date. A file that was cut short or damaged is made again.
LLVM loads it, which takes a tenth of a second of each process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from topologies.files import kept_files
from topologies.files.kept_files import digest

KINDS = ("vendor_id", "cpu family", "model", "flags", "CPU", "Features")
"""Beginnings of the lines of /proc/cpuinfo that tell one kind of processor from another."""


class Source:
    """Base of objects other than numbers that compiled code may refer to.

    ``function``: a Python function to be compiled.
    ``name``: name of an instruction of the processor, which has no function.
    """

    function: Callable[..., Any]
    name: str


class Code(NamedTuple):
    """The machine code of one function for arguments of some types."""

    symbol: str  # name of the function in the object file
    result: str  # numba's name of the type that it returns
    binary: bytes  # the object file


def load(source: Source, types: str, make: Callable[[], tuple[str, str, bytes]]) -> Code:
    """Read the machine code of a function for ``types`` from disk, or ``make`` and keep it."""
    title = f"{source.function.__module__}.{source.function.__qualname__}"
    group = f"{title}-{digest(types, *_environment())}"
    name = f"{group}-{digest(*ingredients(source))}.o"
    kept = kept_files.read(name)
    if kept is not None:
        with suppress(ValueError):  # whole, but of another form
            return _parsed(kept)
    begun = time.perf_counter()
    _log("compiling %s, once for this version of it …", title)
    code = Code(*make())
    _log("compiled %s in %.1f s", title, time.perf_counter() - begun)
    content = f"{code.symbol} {code.result}\n".encode() + code.binary
    # Earlier versions of the function, for the same types and machine, are of no more use.
    kept_files.keep(name, content, replaces=f"{group}-*.o")
    return code


def address(code: Code) -> int:
    """Load machine code into this process with LLVM; returns the address of the function."""
    llvm = _llvm()
    # Each function gets an LLVM engine of its own, so that symbols of two cannot clash.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code.binary))
    engine.finalize_object()
    _loaded().append(engine)
    return int(engine.get_function_address(code.symbol))


def ingredients(source: Source) -> Iterator[str]:
    """Yield all that the machine code of a function depends on, besides types and machine."""
    todo, seen = [source], {id(source)}  # the function, and those that it calls
    while todo:
        item = todo.pop()
        if not hasattr(item, "function"):
            yield item.name
            continue
        yield f"{item.function.__qualname__} {sorted(getattr(item, 'options', {}).items())}"
        if getattr(item, "plain", False):
            yield "plain arrays"
        for code in _nested_codes(item.function.__code__):
            yield from _significant_parts(code, item.function)
            for value in _referenced_values(code, item.function.__globals__):
                if isinstance(value, Source):
                    if id(value) not in seen:
                        seen.add(id(value))
                        todo.append(value)
                else:
                    yield _text_of(value)


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _significant_parts(code: CodeType, function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parts of a code object that matter: neither its docstring nor its line numbers."""
    yield code.co_code.hex()
    yield repr((code.co_varnames, code.co_names, code.co_freevars))
    skipped = (function.__doc__,) if code is function.__code__ else ()
    constants = (constant for constant in code.co_consts if not isinstance(constant, CodeType))
    yield repr([constant for constant in constants if constant is None or constant not in skipped])


def _referenced_values(code: CodeType, scope: dict[str, Any]) -> Iterator[Any]:
    """Yield the global values that a code object refers to, also as attributes of a module."""
    for name in code.co_names:
        value = scope.get(name)
        if isinstance(value, ModuleType):
            inside = vars(value)
            yield from (inside[other] for other in code.co_names if other in inside)
        elif value is not None:
            yield value


def _text_of(value: Any) -> str:
    """Return a text that differs for values for which different code would be compiled."""
    if isinstance(value, int | float | str | tuple | np.generic):
        return repr(value)
    fields = getattr(value, "_fields", "")
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')} {fields}"


@cache
def _environment() -> tuple[str, ...]:
    """Return the versions of Python and LLVM, the system, and the processor."""
    from llvmlite import __version__

    python = ".".join(map(str, sys.version_info[:2]))
    return python, __version__, sys.platform, os.uname().machine, _processor()


def _processor() -> str:
    """Return model and features of the processor, from the system or, which is slower, LLVM."""
    facts: list[str] = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():  # the end of the first processor; the others are alike
                break
            if line.startswith(KINDS):
                facts.append(line)
    if facts:
        return "".join(facts)
    llvm = _llvm()
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _parsed(content: bytes) -> Code:
    head, _, binary = content.partition(b"\n")
    symbol, result = head.decode().split(" ")
    return Code(symbol, result, binary)


def _log(text: str, *values: object) -> None:
    if os.environ.get("CLUSTER_SIM_QUIET"):
        return
    import logging  # only the first run ever compiles

    logging.getLogger("cluster_sim").warning("cluster-sim: " + text, *values)


@cache
def _llvm() -> Any:
    """LLVM for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _machine() -> Any:
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(jit=True)


@cache
def _loaded() -> list[Any]:
    """Return the owners of the code in memory, which would be freed with them."""
    return []
