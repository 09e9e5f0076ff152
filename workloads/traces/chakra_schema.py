"""Protobuf messages of Chakra execution traces, built in memory from a table of their fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
PACKAGE = "chakra"
SCALARS = {
    "double": (3, Field.TYPE_DOUBLE), "float": (5, Field.TYPE_FLOAT),
    "int32": (7, Field.TYPE_INT32), "int64": (9, Field.TYPE_INT64),
    "uint32": (11, Field.TYPE_UINT32), "uint64": (13, Field.TYPE_UINT64),
    "sint32": (15, Field.TYPE_SINT32), "sint64": (17, Field.TYPE_SINT64),
    "fixed32": (19, Field.TYPE_FIXED32), "fixed64": (21, Field.TYPE_FIXED64),
    "sfixed32": (23, Field.TYPE_SFIXED32), "sfixed64": (25, Field.TYPE_SFIXED64),
    "bool": (27, Field.TYPE_BOOL), "string": (29, Field.TYPE_STRING),
    "bytes": (31, Field.TYPE_BYTES),
}  # fmt: skip
"""Types of an attribute's value: the field's number and its type. The field of a list of such
values has the next number."""
INVALID, METADATA, MEMORY_LOAD, MEMORY_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(8)
"""Types of nodes."""
COLLECTIVES = (
    "all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all",
    "reduce-scatter", "reduce-scatter-block", "barrier",
)  # fmt: skip
"""Values of the attribute ``comm_type``."""


@cache
def messages() -> dict[str, Any]:
    """Return the classes of the messages ``GlobalMetadata``, ``Node`` and ``AttributeProto``."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in names
    }


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="chakra_trace.proto", package=PACKAGE, syntax="proto3"
    )
    for name, (_, kind) in SCALARS.items():
        _add(file.message_type.add(name=f"{name.capitalize()}List"), "values", 1, kind, many=True)
    attribute = file.message_type.add(name="AttributeProto")
    _add(attribute, "name", 1, Field.TYPE_STRING)
    _add(attribute, "doc_string", 2, Field.TYPE_STRING)
    attribute.oneof_decl.add(name="value")
    for name, (number, kind) in SCALARS.items():
        _add(attribute, f"{name}_val", number, kind, choice=True)
        of = f".{PACKAGE}.{name.capitalize()}List"
        _add(attribute, f"{name}_list", number + 1, Field.TYPE_MESSAGE, of=of, choice=True)
    metadata = file.message_type.add(name="GlobalMetadata")
    _add(metadata, "version", 1, Field.TYPE_STRING)
    _add(metadata, "attr", 2, Field.TYPE_MESSAGE, of=f".{PACKAGE}.AttributeProto", many=True)
    _add(file.message_type.add(name="IOInfo"), "values", 1, Field.TYPE_STRING)
    node = file.message_type.add(name="Node")
    _add(node, "id", 1, Field.TYPE_UINT64)
    _add(node, "name", 2, Field.TYPE_STRING)
    _add(node, "type", 3, Field.TYPE_INT32)
    _add(node, "ctrl_deps", 4, Field.TYPE_UINT64, many=True)
    _add(node, "data_deps", 5, Field.TYPE_UINT64, many=True)
    _add(node, "start_time_micros", 6, Field.TYPE_UINT64)
    _add(node, "duration_micros", 7, Field.TYPE_UINT64)
    _add(node, "inputs", 8, Field.TYPE_MESSAGE, of=f".{PACKAGE}.IOInfo")
    _add(node, "attr", 10, Field.TYPE_MESSAGE, of=f".{PACKAGE}.AttributeProto", many=True)
    return file


def _add(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: Any, *,
    of: str = "", many: bool = False, choice: bool = False,
) -> None:  # fmt: skip
    field = message.field.add(name=name, number=number, type=kind)
    field.label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
    if of:
        field.type_name = of
    if choice:
        field.oneof_index = 0
