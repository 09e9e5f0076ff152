"""Decorators that make functions machine code, and three instructions that Python lacks.

A function marked :func:`compiled` is called from Python. Numba makes its machine code once; the
code is kept on disk by what it was made of (:mod:`cluster_sim.engine.machine_code`), and every
later process loads it with LLVM alone: importing numba would cost half a second each time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from cluster_sim.engine import machine_code
from cluster_sim.engine.machine_code import Source
from cluster_sim.schedule.table import IntArray

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, bool | str] = {
    # Arrays are given, none is made, so none needs its references counted: counting them, at
    # every passing of an array, would cost more than all the rest.
    "_nrt": False,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
}


def compiled(function: Function) -> Function:
    """Make a function machine code that Python calls with numbers, arrays and tuples of them.

    Arrays are in C order and aligned. The code is made at the first use ever with arguments of
    these types, and kept on disk for the next process. Where no folder can be written, every
    process makes it anew.
    """
    return cast(Function, Entry(function, _OPTIONS))


def lean(function: Function) -> Function:
    """Make a function machine code as :func:`compiled` does, with every index taken as it is.

    Python counts a negative index from the end, so numba tests every index and reads the length of
    its array, which took a tenth to a sixth of the time of a run. For code that has no such index.
    """
    return cast(Function, Entry(function, _OPTIONS, plain_indices=True))


def internal(function: Function) -> Function:
    """Make a function machine code for calls from compiled code alone."""
    return cast(Function, Part(function, _OPTIONS))


def inlined(function: Function) -> Function:
    """Put a function into each compiled caller: for what runs once an op and takes many arrays."""
    return cast(Function, Part(function, _OPTIONS | {"forceinline": True}))


class Part(Source):
    """A function that compiled code may call. Numba looks at it only if it compiles a caller."""

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
        from numba import types

        return types.Dispatcher(self.dispatcher)


class Entry(Part):
    """A function that Python and compiled code may call."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, bool | str],
        plain_indices: bool = False,
    ):
        super().__init__(function, options)
        self.plain_indices = plain_indices
        self.by_types: dict[str, _Call] = {}
        self.loading = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code for arguments of these types."""
        marks: list[str] = []
        words: list[Any] = []
        _flatten(arguments, marks, words)
        types = "".join(marks)
        call = self.by_types.get(types)
        if call is None:
            with self.loading:  # only the first of several threads
                call = self.by_types.get(types) or self._load(types, arguments, words)
                self.by_types[types] = call
        result, unused = call.result(), ctypes.c_void_p()
        call.code(ctypes.byref(result), ctypes.byref(unused), *words)
        return result.value if call.gives_value else None

    def _load(self, types: str, arguments: tuple[Any, ...], words: list[Any]) -> _Call:
        """Find the machine code on disk, or make it."""
        code = machine_code.load(self, types, lambda: self._made(arguments, len(words)))
        address = machine_code.address(code)
        passed = [_PASSED.get(type(word), ctypes.c_int64) for word in words]
        head = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        result = _RESULTS[code.result]
        return _Call(
            ctypes.CFUNCTYPE(*head, *passed)(address), result or ctypes.c_int64, result is not None
        )

    def _made(self, arguments: tuple[Any, ...], words: int) -> tuple[str, str, bytes]:
        """Name, result type and object file of the machine code for these arguments."""
        signature = tuple(_numba_type(argument) for argument in arguments)
        with _plain_indices() if self.plain_indices else nullcontext():
            self.dispatcher.compile(signature)
        code = self.dispatcher.overloads[signature]
        symbol, result = code.fndesc.llvm_func_name, str(code.signature.return_type)
        passed = len(list(code.library.get_function(symbol).arguments))
        if passed != words + 2 or result not in _RESULTS:  # the places of result and error
            raise TypeError(f"{symbol} takes {passed} words and gives {result}")
        _, _, (binary, _) = code.library.serialize_using_object_code()
        return symbol, result, binary


@contextmanager
def _plain_indices() -> Iterator[None]:
    """Let the code that is compiled meanwhile take every index as it is; see :func:`lean`."""
    from numba import types
    from numba.np import arrayobj

    def plain(context: Any, builder: Any, kind: Any, index: Any, _length: Any) -> Any:
        return context.cast(builder, index, kind, types.intp)

    wrapped = arrayobj.fix_integer_index
    arrayobj.fix_integer_index = plain
    try:
        yield
    finally:
        arrayobj.fix_integer_index = wrapped


class _Call(NamedTuple):
    """Machine code, ready to be called."""

    code: Callable[..., int]
    result: type[Any]
    gives_value: bool


_PASSED: dict[type, Any] = {bool: ctypes.c_bool, float: ctypes.c_double}
"""Types of words other than whole numbers and addresses."""

_RESULTS: dict[str, Any] = {
    "none": None,
    "int64": ctypes.c_int64,
    "bool": ctypes.c_bool,
    "float64": ctypes.c_double,
}


def _flatten(value: Any, marks: list[str], words: list[Any]) -> None:
    """Add the name of a value's type, and the words in which numba passes it.

    An array is two pointers that only Python's own arrays need, its length and size of an item,
    its address, its shape and its strides.
    """
    if isinstance(value, np.ndarray):
        marks.append(f"{value.dtype.str}{value.ndim}{_layout(value)}")
        words += (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    elif isinstance(value, tuple):
        marks.append(f"{type(value).__name__}(")
        for item in value:
            _flatten(item, marks, words)
        marks.append(")")
    elif isinstance(value, bool | np.bool_):
        marks.append("b")
        words.append(bool(value))
    elif isinstance(value, float | np.floating):
        marks.append("d")
        words.append(float(value))
    elif isinstance(value, np.uint64):
        marks.append("u")
        words.append(int(value) - (int(value) >> 63 << 64))
    else:
        marks.append("i")
        words.append(int(value))


def _layout(array: np.ndarray[Any, Any]) -> str:
    return "C" if array.flags.c_contiguous else "A"


def _numba_type(value: Any) -> Any:
    """The type that compiled code is made for."""
    import numba

    types: Any = numba.types
    if isinstance(value, np.ndarray):
        return types.Array(numba.from_dtype(value.dtype), value.ndim, _layout(value))
    if isinstance(value, tuple):
        items = [_numba_type(item) for item in value]
        if hasattr(value, "_fields"):
            return types.NamedTuple(items, type(value))
        return types.Tuple(items)
    if isinstance(value, bool | np.bool_):
        return types.boolean
    if isinstance(value, float | np.floating):
        return types.float64
    return types.uint64 if isinstance(value, np.uint64) else types.int64


@inlined
def wide(number: int) -> int:
    """An int64 of an int32; numba would compile a version of a function for each."""
    return np.int64(number)  # type: ignore[return-value]


class Instruction(Source):
    """An instruction of the processor on an int64, as LLVM names it."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, number: int) -> int:
        """Refuse a call from Python."""
        raise TypeError(f"{self.name} is for compiled code alone")

    @cached_property
    def _numba_type_(self) -> Any:
        from llvmlite import ir
        from numba import types
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        def typed(_context: Any, _x: Any) -> Any:
            def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
                return getattr(builder, self.name)(arguments[0], ir.Constant(ir.IntType(1), 0))

            return types.int64(types.int64), generate

        instruction = intrinsic(typed)
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(instruction)


leading_zeros = Instruction("ctlz")
"""Zero bits above the highest one of an int64, 64 for 0."""

trailing_zeros = Instruction("cttz")
"""Zero bits below the lowest one of an int64, 64 for 0."""


class Prefetch(Source):
    """The instruction that has an entry of an array fetched from memory, without waiting for it.

    It reads nothing and never fails, so the index may be one behind the last.
    """

    name = "prefetch"

    def __call__(self, array: IntArray, index: int) -> None:
        """Refuse a call from Python."""
        raise TypeError(f"{self.name} is for compiled code alone")

    @cached_property
    def _numba_type_(self) -> Any:
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        declared: Any = cgutils.get_or_insert_function
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [address, number, number, number])

        def typed(_context: Any, array: Any, index: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                view = context.make_array(signature.args[0])(context, builder, arguments[0])
                entry = builder.bitcast(builder.gep(view.data, [arguments[1]]), address)
                code = declared(builder.module, form, "llvm.prefetch.p0")
                # for reading, to be kept in every cache, of data
                builder.call(code, [entry, *(ir.Constant(number, hint) for hint in (0, 3, 1))])
                return context.get_dummy_value()

            return types.none(array, index), generate

        instruction = intrinsic(typed)
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(instruction)


prefetch = Prefetch()
