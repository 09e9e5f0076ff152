"""Protobuf messages of Chakra execution traces, built in memory from a table of their fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
PACKAGE = "chakra"
SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""Types of an attribute's value, whose fields have the numbers 3, 5, 7 and so on. The field of a
list of such values has the next number."""
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
    for name in SCALARS:
        _add(file.message_type.add(name=f"{name.capitalize()}List"), "values", 1, name, many=True)
    attribute = file.message_type.add(name="AttributeProto")
    _add(attribute, "name", 1, "string")
    _add(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for number, name in zip(range(3, 33, 2), SCALARS, strict=True):
        _add(attribute, f"{name}_val", number, name, choice=True)
        _add(attribute, f"{name}_list", number + 1, f"{name.capitalize()}List", choice=True)
    metadata = file.message_type.add(name="GlobalMetadata")
    _add(metadata, "version", 1, "string")
    _add(metadata, "attr", 2, "AttributeProto", many=True)
    _add(file.message_type.add(name="IOInfo"), "values", 1, "string")
    node = file.message_type.add(name="Node")
    _add(node, "id", 1, "uint64")
    _add(node, "name", 2, "string")
    _add(node, "type", 3, "int32")
    _add(node, "ctrl_deps", 4, "uint64", many=True)
    _add(node, "data_deps", 5, "uint64", many=True)
    _add(node, "start_time_micros", 6, "uint64")
    _add(node, "duration_micros", 7, "uint64")
    _add(node, "inputs", 8, "IOInfo")
    _add(node, "attr", 10, "AttributeProto", many=True)
    return file


def _add(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str, *,
    many: bool = False, choice: bool = False,
) -> None:  # fmt: skip
    """Add a field of a scalar type, or of the message of a name."""
    scalar = Field.Type.Value(f"TYPE_{kind.upper() if kind in SCALARS else 'MESSAGE'}")
    field = message.field.add(name=name, number=number, type=scalar)
    field.label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
    if kind not in SCALARS:
        field.type_name = f".{PACKAGE}.{kind}"
    if choice:
        field.oneof_index = 0
