"""Numba's view of the arrays that lean code takes: an address and a shape, nothing else.

Numba passes an array of its own as seven words or more, and reads its strides at every index. A run
of the engine consists of a hundred arrays, so a quarter to a half of the time of compiling went
into code that hands these words on from function to function. Here an array in C order is its
address and its lengths. Whole numbers are read as int64 whatever the width of the column, so that
functions are compiled for no other integers.

Only :mod:`cluster_sim.engine.compiler.jit` loads this module, and only to compile,
since it loads numba.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.core import types as numba_types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

types: Any = numba_types


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
