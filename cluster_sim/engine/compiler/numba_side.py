"""Numba's side of the compiler: whole functions at once, and arrays of an address and a shape.

Numba makes each function ready to run: it optimises the function with everything that it calls,
makes machine code of that, and repeats both in each of its callers. Only a function that Python
calls ever runs by itself. So here the others are left as they come until all of them are together,
which takes a third off the time of compiling.

Numba passes an array of its own as seven words or more, and reads its strides at every index. A run
of the engine consists of a hundred arrays, so a quarter to a half of the time of compiling went
into code that hands these words on. Lean code takes an array in C order as its address and its
lengths. Whole numbers are read as int64 whatever the width of the column, so that functions are
compiled for no other integers.

Only :mod:`cluster_sim.engine.compiler.jit` loads this module, and only to compile, since it loads
numba.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.cpython import numbers
from numba.extending import intrinsic, lower_builtin, models, register_model

types: Any = numba_types


def compile_whole(dispatcher: Any, signature: tuple[Any, ...]) -> tuple[str, str, int, bytes]:
    """Compile a function: symbol, result's type, number of parameters and object file."""
    context = cpu_target.target_context
    usual = context._internal_codegen, numbers._int_arith_flags
    with global_compiler_lock:
        # Numba promises LLVM that no sum passes 64 bits, which then takes a - b < 0 for a < b. Here
        # sums may wrap, where only their differences are used.
        context._internal_codegen, numbers._int_arith_flags = _codegen(), lambda kind: []
        try:
            dispatcher.compile(signature)
        finally:  # numba goes on as usual for whatever else the process compiles
            context._internal_codegen, numbers._int_arith_flags = usual
    code = dispatcher.overloads[signature]
    symbol = code.fndesc.llvm_func_name
    words = len(list(code.library.get_function(symbol).arguments))
    return symbol, str(code.signature.return_type), words, code.library.object_file()


class Callee(types.Dispatcher):  # type: ignore[misc]
    """Type of a function that compiled code calls."""

    def get_call_type(self, context: Any, arguments: Any, keywords: Any) -> Any:
        """Return the signature of a call; a constant is not worth a version of the function."""
        return super().get_call_type(context, map(types.unliteral, arguments), keywords)


register_model(Callee)(models.OpaqueModel)  # so that functions may be handed to functions


class _Library(JITCodeLibrary):
    """Code that other compiled code links, and that is not made ready to run."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Give numba an address to note, which nothing calls."""
        self._ensure_finalized()
        return 0

    def object_file(self) -> bytes:
        """Optimise the code with all that it links, and make machine code of it."""
        super()._optimize_final_module()
        return bytes(self._codegen._tm.emit_object(self._final_module))


class _Codegen(JITCPUCodegen):
    """Numba's code generator, with libraries that are not made ready to run."""

    _library_class = _Library

    def set_env(self, _name: str, _environment: Any) -> None:
        """Leave out what only a function that may raise exceptions looks at."""


@cache
def _codegen() -> _Codegen:
    return _Codegen("cluster_sim")


class PlainArray(types.Type):  # type: ignore[misc]
    """Type of an array in C order."""

    def __init__(self, item: Any, dimensions: int):
        self.item = item
        self.dimensions = dimensions
        super().__init__(f"PlainArray({item}, {dimensions})")

    @property
    def index(self) -> Any:
        """Type of the index of an entry."""
        return types.intp if self.dimensions == 1 else types.UniTuple(types.intp, self.dimensions)

    @property
    def read_as(self) -> Any:
        """Type of an entry once it is read."""
        return types.int64 if isinstance(self.item, types.Integer) else self.item

    def takes(self, index: Any) -> bool:
        """Return whether entries may be found by indices of a type."""
        if isinstance(index, types.BaseTuple):
            whole = all(isinstance(axis, types.Integer) for axis in index)
            return whole and len(index) == self.dimensions > 1
        return isinstance(index, types.Integer) and self.dimensions == 1


@register_model(PlainArray)
class _Words(models.StructModel):
    """The words that pass an array: its address, then its length along each axis."""

    def __init__(self, manager: Any, kind: PlainArray):
        lengths = [(f"length_{axis}", types.intp) for axis in range(kind.dimensions)]
        super().__init__(manager, kind, [("address", types.CPointer(kind.item)), *lengths])


@infer_global(len)
class _TypeOfLength(AbstractTemplate):
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        if isinstance(arguments[0], PlainArray):
            return signature(types.intp, arguments[0])
        return None


@infer_global(operator.getitem)
class _TypeOfReading(AbstractTemplate):
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        array, index = arguments
        if isinstance(array, PlainArray) and array.takes(index):
            return signature(array.read_as, array, array.index)
        return None


@infer_global(operator.setitem)
class _TypeOfWriting(AbstractTemplate):
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        array, index, _value = arguments
        if isinstance(array, PlainArray) and array.takes(index):
            return signature(types.none, array, array.index, array.item)
        return None


@lower_builtin(len, PlainArray)
def _length(_context: Any, builder: Any, _typed: Any, arguments: Any) -> Any:
    return builder.extract_value(arguments[0], 1)


@lower_builtin(operator.getitem, PlainArray, types.Any)
def _read(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    array = typed.args[0]
    place = entry(builder, array, *arguments)
    value = context.unpack_value(builder, array.item, place)
    return context.cast(builder, value, array.item, typed.return_type)


@lower_builtin(operator.setitem, PlainArray, types.Any, types.Any)
def _write(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    array, (values, index, value) = typed.args[0], arguments
    context.pack_value(builder, array.item, value, entry(builder, array, values, index))
    return context.get_dummy_value()


def entry(builder: Any, array: PlainArray, words: Any, index: Any) -> Any:
    """Return the address of an entry, whether or not the array has one there."""
    offset = index
    if array.dimensions > 1:
        offset = builder.extract_value(index, 0)
        for axis in range(1, array.dimensions):
            row = builder.mul(offset, builder.extract_value(words, 1 + axis))
            offset = builder.add(row, builder.extract_value(index, axis))
    return builder.gep(builder.extract_value(words, 0), [offset])


def instruction(name: str) -> Any:
    """Return numba's type of an instruction of the processor, by the name that LLVM gives it."""
    known_to_numba = intrinsic(_prefetch if name == "prefetch" else _counting(name))
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(known_to_numba)


def _counting(name: str) -> Any:
    """Return the typing of an instruction that counts bits of an int64."""

    def typed(_context: Any, _x: Any) -> Any:
        """Return the types of the instruction, and what writes it."""

        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            """Return the instruction for one number."""
            return getattr(builder, name)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), generate

    return typed


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Return signature and code of the instruction that prefetches an entry of an array."""
    address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [address, number, number, number])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Call the instruction for the address of an element."""
        place = builder.bitcast(entry(builder, signature.args[0], *arguments), address)
        code = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        # for reading, to be kept in every cache, of data
        builder.call(code, [place, *(ir.Constant(number, hint) for hint in (0, 3, 1))])
        return context.get_dummy_value()

    return types.none(array, index), generate
