"""Decorators that compile functions to machine code, and three instructions that Python lacks.

A function marked :func:`compiled` is called from Python. Numba compiles it once; the code is kept
on disk under a digest of all that it depends on (:mod:`cluster_sim.engine.compiler.machine_code`),
and every later process loads it without numba, whose import would cost half a second each time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from cluster_sim.engine.compiler import machine_code
from cluster_sim.engine.compiler.machine_code import Source

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, bool | str] = {
    # Compiled code receives its arrays and makes none, so it need not count references. To count
    # them at each call that passes an array would cost more than all the rest.
    "_nrt": False,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
}


def compiled(function: Function) -> Function:
    """Compile a function that Python calls with numbers, arrays in C order and tuples of them.

    It is compiled at its first call ever with arguments of these types, and kept on disk for the
    next process. Where no folder can be written, every process compiles it anew.
    """
    return cast(Function, Entry(function, _OPTIONS))


def lean(function: Function) -> Function:
    """Compile a function as :func:`compiled` does, for code that only indexes its arrays.

    An array is its address and its lengths, which compiles faster. Its whole numbers are read as
    int64, and an index is taken as it is: to test for a negative one took a tenth of a run.
    """
    return cast(Function, Entry(function, _OPTIONS, plain=True))


def internal(function: Function) -> Function:
    """Compile a function for calls from compiled code alone."""
    return cast(Function, Part(function, _OPTIONS))


def inlined(function: Function) -> Function:
    """Inline a function into its compiled callers, if it runs once an op and takes many arrays."""
    return cast(Function, Part(function, _OPTIONS | {"forceinline": True}))


class Part(Source):
    """A function that compiled code may call; numba is loaded for it only to compile a caller."""

    def __init__(self, function: Callable[..., Any], options: dict[str, bool | str]):
        self.function = function
        self.options = options

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's view of the function."""
        from numba import njit

        make: Any = njit(**self.options)  # type: ignore[call-overload]
        return make(self.function)

    @cached_property
    def _numba_type_(self) -> Any:
        """The type by which numba knows this object where compiled code names it."""
        from cluster_sim.engine.compiler.numba_side import Callee  # loads numba

        return Callee(self.dispatcher)


class Entry(Part):
    """A function that Python and compiled code may call."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, bool | str], plain: bool = False
    ):
        super().__init__(function, options)
        self.plain = plain
        self.by_types: dict[str, _Call] = {}
        self.loading = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code for arguments of these types, which the first call loads."""
        marks: list[str] = []
        words: list[Any] = []
        _flatten(arguments, marks, words, self.plain)
        types = "".join(marks)
        call = self.by_types.get(types)
        if call is None:
            with self.loading:  # other threads wait, and find what the first has loaded
                call = self.by_types.get(types) or self._load(types, arguments, words)
                self.by_types[types] = call
        # By numba's calling convention the places of the result and of an exception come first.
        # The compiled functions raise none, so the second is not looked at.
        result, exception = call.result(), ctypes.c_void_p()
        call.code(ctypes.byref(result), ctypes.byref(exception), *words)
        return result.value if call.gives_value else None

    def _load(self, types: str, arguments: tuple[Any, ...], words: list[Any]) -> _Call:
        """Load the machine code from disk, or compile it where there is none."""
        code = machine_code.load(self, types, lambda: self._compile(arguments, len(words)))
        address = machine_code.address(code)
        passed = [_PASSED.get(type(word), ctypes.c_int64) for word in words]
        head = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        result = _RESULTS[code.result]
        return _Call(
            ctypes.CFUNCTYPE(*head, *passed)(address), result or ctypes.c_int64, result is not None
        )

    def _compile(self, arguments: tuple[Any, ...], words: int) -> tuple[str, str, bytes]:
        """Return symbol, result type and object file of the machine code for these arguments."""
        from cluster_sim.engine.compiler.numba_side import compile_whole  # loads numba

        signature = tuple(_numba_type(argument, self.plain) for argument in arguments)
        symbol, result, passed, binary = compile_whole(self.dispatcher, signature)
        if passed != words + 2 or result not in _RESULTS:  # the places of result and error
            raise TypeError(f"{symbol} takes {passed} words and gives {result}")
        return symbol, result, binary


class _Call(NamedTuple):
    """Machine code, ready to be called."""

    code: Callable[..., int]
    result: type[Any]
    gives_value: bool


_PASSED: dict[type, Any] = {bool: ctypes.c_bool, float: ctypes.c_double}
"""Types in which words are passed; others are integers or addresses, of 64 bits."""

_RESULTS: dict[str, Any] = {  # by numba's name of the type
    "none": None,
    "int64": ctypes.c_int64,
    "bool": ctypes.c_bool,
    "float64": ctypes.c_double,
}


def _flatten(value: Any, marks: list[str], words: list[Any], plain: bool) -> None:
    """Append the mark of a value's type to ``marks``, and the words that pass it to ``words``.

    Numba passes an array as two pointers that only arrays made by Python need, its number of items
    and their size, its address, its shape and its strides; a tuple as its items one by one.
    """
    if isinstance(value, np.ndarray) and plain:
        if not value.flags.c_contiguous:
            raise TypeError("lean code takes arrays in C order")
        marks.append(f"{value.dtype.str}{value.ndim}")
        words += (_address(value), *value.shape)
    elif isinstance(value, np.ndarray):
        marks.append(f"{value.dtype.str}{value.ndim}{_layout(value)}")
        words += (0, 0, value.size, value.itemsize, _address(value), *value.shape, *value.strides)
    elif isinstance(value, tuple):
        marks.append(f"{type(value).__name__}(")
        for item in value:
            _flatten(item, marks, words, plain)
        marks.append(")")
    elif isinstance(value, bool | np.bool_):
        marks.append("b")
        words.append(bool(value))
    elif isinstance(value, float | np.floating):
        marks.append("d")
        words.append(float(value))
    elif isinstance(value, np.uint64):
        marks.append("u")
        words.append(int(value) - (int(value) >> 63 << 64))  # the same 64 bits, signed
    else:
        marks.append("i")
        words.append(int(value))


def _address(array: np.ndarray[Any, Any]) -> int:
    """Return where the items of an array begin: the first field after the head of all objects.

    ``array.ctypes.data`` takes ten times as long to say the same, and a run passes sixty arrays.
    """
    return ctypes.c_int64.from_address(id(array) + object.__basicsize__).value


def _layout(array: np.ndarray[Any, Any]) -> str:
    return "C" if array.flags.c_contiguous else "A"


def _numba_type(value: Any, plain: bool) -> Any:
    import numba

    types: Any = numba.types
    if isinstance(value, np.ndarray):
        item = numba.from_dtype(value.dtype)
        if plain:
            from cluster_sim.engine.compiler.numba_side import PlainArray  # loads numba

            return PlainArray(item, value.ndim)
        return types.Array(item, value.ndim, _layout(value))
    if isinstance(value, tuple):
        items = [_numba_type(item, plain) for item in value]
        if hasattr(value, "_fields"):
            return types.NamedTuple(items, type(value))
        return types.Tuple(items)
    if isinstance(value, bool | np.bool_):
        return types.boolean
    if isinstance(value, float | np.floating):
        return types.float64
    return types.uint64 if isinstance(value, np.uint64) else types.int64


class Instruction(Source):
    """An instruction of the processor, by the name that LLVM gives it, for compiled code alone."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, *arguments: Any) -> Any:
        """Refuse a call from Python."""
        raise TypeError(f"{self.name} is for compiled code alone")

    @cached_property
    def _numba_type_(self) -> Any:
        from cluster_sim.engine.compiler.numba_side import instruction  # loads numba

        return instruction(self.name)


leading_zeros = Instruction("ctlz")  # zero bits above the highest one of an int64, 64 for 0
trailing_zeros = Instruction("cttz")  # zero bits below the lowest one of an int64, 64 for 0
# Fetches an entry of an array into the cache without waiting for it. It gives no value and never
# fails, so the index may be one past the last.
prefetch = Instruction("prefetch")
