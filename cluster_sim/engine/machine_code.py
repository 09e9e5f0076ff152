"""Machine code on disk: found by its ingredients, checked, and loaded without numba.

The name of a file has a digest of the byte code of the function and of all that it calls, of the
values that these name, of the types of the arguments, of Python, LLVM and the processor. So an
edit makes anew what it touches and nothing else, a comment touches nothing, and a file never has
to be asked whether it is still right. One that was cut short or damaged is made again. LLVM loads
what :mod:`cluster_sim.engine.object_file` cannot.
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

from cluster_sim.engine.object_file import Unsuited, place
from topologies import kept_files
from topologies.kept_files import digest

KINDS = ("vendor_id", "cpu family", "model", "flags", "CPU", "Features")
"""Beginnings of the lines of /proc/cpuinfo that tell one kind of processor from another."""


class Source:
    """Base of objects that compiled code may name besides numbers: each knows its ingredients."""

    function: Callable[..., Any]
    name: str


class Code(NamedTuple):
    """The machine code of one function for arguments of some types.

    Attributes
    ----------
    symbol : str
        Name of the function in the object file.
    result : str
        Type of what it gives.
    binary : bytes
        The object file.
    """

    symbol: str
    result: str
    binary: bytes


def load(source: Source, types: str, make: Callable[[], tuple[str, str, bytes]]) -> Code:
    """Read the machine code of a function from disk; make and keep it where there is none.

    Parameters
    ----------
    source : Source
    types : str
        Names of the types of the arguments.
    make : function
        Gives symbol, type of the result, and object file.
    """
    title = f"{source.function.__module__}.{source.function.__qualname__}"
    group = f"{title}-{digest(types, *_surroundings())}"
    name = f"{group}-{digest(*ingredients(source))}.o"
    kept = kept_files.read(name)
    if kept is not None:
        return _parsed(kept)
    begun = time.perf_counter()
    _tell("compiling %s, once for this version of it …", title)
    code = Code(*make())
    _tell("compiled %s in %.1f s", title, time.perf_counter() - begun)
    content = f"{code.symbol} {code.result}\n".encode() + code.binary
    kept_files.keep(name, content, replaces=f"{group}-*.o")
    return code


def address(code: Code) -> int:
    """Load machine code into this process; returns the address of the function."""
    try:
        placed = place(code.binary, code.symbol)
    except Unsuited:
        return address_by_llvm(code)
    _in_use().append(placed)
    return placed.address


def address_by_llvm(code: Code) -> int:
    """Load machine code into this process with LLVM; returns the address of the function."""
    llvm = _llvm()
    # An engine of its own for each: symbols of others cannot get in its way.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code.binary))
    engine.finalize_object()
    _in_use().append(engine)
    return int(engine.get_function_address(code.symbol))


def ingredients(source: Source) -> Iterator[str]:
    """Everything on which the machine code of a function depends, besides types and machine."""
    todo, seen = [source], {id(source)}
    while todo:
        item = todo.pop()
        if not hasattr(item, "function"):
            yield item.name
            continue
        yield f"{item.function.__qualname__} {sorted(getattr(item, 'options', {}).items())}"
        if getattr(item, "plain_indices", False):
            yield "plain indices"
        for code in _codes(item.function.__code__):
            yield from _own(code, item.function)
            for value in _named(code, item.function.__globals__):
                if isinstance(value, Source):
                    if id(value) not in seen:
                        seen.add(id(value))
                        todo.append(value)
                else:
                    yield _described(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _own(code: CodeType, function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parts of a code object that count: not its docstring nor its line numbers."""
    yield code.co_code.hex()
    yield repr((code.co_varnames, code.co_names, code.co_freevars))
    skipped = (function.__doc__,) if code is function.__code__ else ()
    constants = (constant for constant in code.co_consts if not isinstance(constant, CodeType))
    yield repr([constant for constant in constants if constant is None or constant not in skipped])


def _named(code: CodeType, scope: dict[str, Any]) -> Iterator[Any]:
    """Values of the module that a code object names, also by way of another module."""
    for name in code.co_names:
        value = scope.get(name)
        if isinstance(value, ModuleType):
            inside = vars(value)
            yield from (inside[other] for other in code.co_names if other in inside)
        elif value is not None:
            yield value


def _described(value: Any) -> str:
    if isinstance(value, int | float | str | tuple | np.generic):
        return repr(value)
    fields = getattr(value, "_fields", "")
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')} {fields}"


@cache
def _surroundings() -> tuple[str, ...]:
    """Versions of Python and LLVM, and the processor that machine code is made for."""
    from llvmlite import __version__

    python = ".".join(map(str, sys.version_info[:2]))
    return python, __version__, sys.platform, os.uname().machine, _processor()


def _processor() -> str:
    """Model and abilities of the processor, from the system where it says so at once."""
    facts: list[str] = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
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


def _tell(text: str, *values: object) -> None:
    if os.environ.get("CLUSTER_SIM_QUIET"):
        return
    import logging  # only the first run ever has something to tell

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
def _in_use() -> list[Any]:
    """Owners of the code that is in use: it goes with them."""
    return []
