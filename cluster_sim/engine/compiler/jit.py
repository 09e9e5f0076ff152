"""Decorators that compile functions to machine code, and three instructions that Python lacks.

A function marked :func:`compiled` is called from Python. Numba compiles it once; the code is kept
on disk under a digest of all that it depends on, and every later process loads it without numba.
Numba's own cache was tried: the smallest collective took 1.0 s of processor time instead of 0.5 and
to compile it first 27 s instead of 9. It looks at no other file of functions that are called.

The name of a file holds a digest of the byte code of the function and of all that it calls, of the
values that these refer to, of the types of the arguments, of Python, LLVM and the processor. So an
edit recompiles only the functions that it changes and their callers, a comment recompiles nothing,
and a file that is found is never out of date. A file that was cut short or damaged is made again.
LLVM loads it, which takes a tenth of a second of each process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from topologies.support.files import kept_files
from topologies.support.files.kept_files import digest


class Source:
    """Base of objects other than numbers that compiled code may refer to."""

    function: Callable[..., Any]  # a Python function to be compiled
    name: str  # name of an instruction of the processor, which has no function


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
            head, _, binary = kept.partition(b"\n")
            symbol, result = head.decode().split(" ")
            return Code(symbol, result, binary)
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
    """Return the versions of Python, LLVM and our compiler, the system, and the processor."""
    from llvmlite import __version__

    llvm, python = _llvm(), ".".join(map(str, sys.version_info[:2]))
    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    compiler = digest(Path(__file__).with_name("numba_side.py").read_text(encoding="utf-8"))
    return python, __version__, compiler, sys.platform, os.uname().machine, processor


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
    """Compile a function that Python calls with numbers, arrays in C order and tuples of them."""
    # At its first call ever with such types, kept on disk for the next process if a folder can be
    # written.
    return cast(Function, Entry(function, _OPTIONS))


def lean(function: Function) -> Function:
    """Compile a function as :func:`compiled` does, for code that only indexes its arrays."""
    # An array is its address and lengths, its whole numbers are int64, and an index is taken as it
    # is: to test for a negative one took a tenth of a run.
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
        code = load(self, types, lambda: self._compile(arguments, len(words)))
        passed = [_PASSED.get(type(word), ctypes.c_int64) for word in words]
        head = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        result = _RESULTS[code.result]
        return _Call(
            ctypes.CFUNCTYPE(*head, *passed)(address(code)),
            result or ctypes.c_int64,
            result is not None,
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
    """Append the mark of a value's type to ``marks``, and the words that pass it to ``words``."""
    # Numba passes an array as two pointers that only arrays made by Python need, its number of
    # items, their size, its address, shape and strides; a tuple as its items one by one.
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
    """Return where the items of an array begin: the first field after the head of all objects."""
    # ``array.ctypes.data`` takes ten times as long, and a run passes sixty arrays.
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
