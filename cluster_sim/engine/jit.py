"""How the engine's inner functions are compiled, and two instructions that Python lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at first use and keep the machine code on disk for the next process.

    Where neither the package's directory nor the user's cache can be written, every process
    compiles anew.
    """
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # numba: no locator available for a cache
        return _compile(function)


def internal(function: Function) -> Function:
    """Compile for calls from compiled code alone; a call from Python would crash."""
    return _compile(function, no_cpython_wrapper=True)


def inlined(function: Function) -> Function:
    """Compile into each caller: for what runs once an op and takes many arrays."""
    return _compile(function, no_cpython_wrapper=True, forceinline=True)


def _compile(function: Function, **options: bool) -> Function:
    """Compile for arrays that are given: none is made, so none needs its references counted.

    Counting them, at every passing of an array, would cost more than all the rest.
    """
    make: Any = njit(_nrt=False, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)  # type: ignore[call-overload]
    return cast(Function, make(function))


@cache
def version(*callers: Path) -> Any:
    """An empty array whose type names the present source of the engine, and of callers of it.

    Machine code on disk is kept by the types of the arguments. A function that takes this one is
    compiled anew after a change in any module of the engine, or in a caller's own files and
    folders; numba by itself looks at the module of that function alone.
    """
    return np.empty(0, [(f"source_{digest(Path(__file__).parent, *callers)}", np.uint8)])


def digest(*paths: Path) -> str:
    """Sixteen hexadecimal digits that change with any Python source in files and folders."""
    sources = hashlib.sha256()
    for path in paths:
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            sources.update(source.read_bytes())
    return sources.hexdigest()[:16]


@inlined
def wide(number: int) -> int:
    """An int64 of an int32; numba would compile a version of a function for each."""
    return np.int64(number)  # type: ignore[return-value]


def _counts_zeros(instruction: str) -> Any:
    def typed(_context: Any, _x: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(args[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), generate

    return intrinsic(typed)


leading_zeros = _counts_zeros("ctlz")
"""Zero bits above the highest one of an int64, 64 for 0."""

trailing_zeros = _counts_zeros("cttz")
"""Zero bits below the lowest one of an int64, 64 for 0."""
