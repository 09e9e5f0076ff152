"""How the engine's inner functions are compiled, and two instructions that Python lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

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
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # numba: no locator available for a cache
        return cast(Function, njit(function))


def inlined(function: Function) -> Function:
    """Compile into each caller: for what runs once an op and takes many arrays."""
    return cast(Function, njit(forceinline=True)(function))


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
