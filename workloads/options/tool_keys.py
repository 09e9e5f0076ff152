"""Keys of other tools' files: the fields that they stand for, read and written by one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topologies.support.errors import InputError, excerpt
from topologies.support.files.tool_files import Unknown

Fields = Mapping[str, Any]
Read = Callable[[Any, Fields], Any]
"""Function of a key's value and all keys of the file that returns the value of a field. It returns
None for a value that says nothing about the field, and raises a ValueError that says what it can
read for any other. Before that, null and ``auto`` leave a field open in all files."""
Write = Callable[[Any, Fields], Any]
"""Function of a field's value and all fields that returns the value of a key; None for no key."""
NOTHING: Mapping[str, Any] = {}
SETTING = "setting of "
"""Beginning of fields that no plan has: settings of the framework that a file states."""


class Key(NamedTuple):
    """Field that a key stands for, and how its values are read and written."""

    # A key of no field, ``""``, is read to be refused, or to be named where it is read as None.

    field: str
    read: Read
    write: Write = lambda _value, _fields: None
    is_flag: bool = False  # whether it stands alone on a command line


class Near(NamedTuple):
    """Value of a field nearest to one that it cannot have; the key is named all the same."""

    value: Any


def number(value: Any) -> int:
    """Whole number of at least 1, read from text or from a number."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def whole(field: str, *, unset: str = "", least: int = 1) -> Key:
    """Key of a whole number of at least 1; the text ``unset`` leaves the field open."""
    # It is written from ``least`` on.
    return Key(
        field,
        lambda value, _all: None if str(value) == unset else number(value),
        lambda value, _fields: value if value and value >= least else None,
    )


def is_set(value: Any) -> bool:
    """Return whether a flag is set; one without a value is."""
    text = str(value).lower()
    if text not in ("true", "1", "yes", "", "false", "0", "no"):
        raise ValueError("true or false")
    return text in ("true", "1", "yes", "")


def true(field: str) -> Key:
    """Key of a flag that is a field."""
    return Key(field, lambda value, _all: is_set(value), lambda value, _fields: value, True)


def when(field: str, answer: Any, otherwise: Any = None) -> Key:
    """Key of a flag that stands for one value of a field when set, and for another when not."""
    flags = [(answer, True)] if otherwise is None else [(answer, True), (otherwise, False)]
    return Key(
        field,
        lambda value, _all: answer if is_set(value) else otherwise,
        lambda value, _fields: next((flag for meant, flag in flags if meant == value), None),
        is_flag=True,
    )


def choice(field: str, choices: Mapping[str, Any]) -> Key:
    """Key of a word that stands for the value under it in ``choices``; the first one is written."""

    def read(value: Any, _all: Fields) -> Any:
        word = str(value).lower()
        if word not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return choices[word]

    def write(value: Any, _fields: Fields) -> str | None:
        return next((word for word, meant in choices.items() if meant == value), None)

    return Key(field, read, write)


def written(table: Mapping[str, Key], fields: Fields) -> dict[str, Any]:
    """Return keys of a table, each with the value that stands for its field; the first of a field.

    >>> written({"tp-size": whole("tp"), "fp8": when("precision", "fp8")}, {"tp": 8})
    {'tp-size': 8}
    """
    keys: dict[str, Any] = {}
    done: set[str] = set()
    for name, key in table.items():
        if key.field in fields and key.field not in done:
            value = key.write(fields[key.field], fields)
            if value is not None:
                keys[name] = value
                done.add(key.field)
    return keys


def fields_of_keys(
    keys: Fields,
    table: Mapping[str, Key],
    path: Path,
    nulls: Fields = NOTHING,
    ranking: Mapping[str, Sequence[Any]] = NOTHING,
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that a file's keys stand for, and the keys that no field has."""
    # ``nulls``: keys whose null leaves nothing open, with the value that it stands for.
    # ``ranking``: values of fields that several keys set, from the weakest to the strongest.
    unknown = [
        f"{key} is {value.why}"
        for key, value in keys.items()
        if key in table and isinstance(value, Unknown)
    ]
    if unknown:
        more = f"; and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        raise InputError(
            f"{path}: {'; '.join(unknown[:4])}{more}. Write numbers into the file, or give a "
            f"script its variables, as 'TP=8 {path.name}'."
        )
    fields: dict[str, Any] = {}
    ignored = []
    for key, value in keys.items():
        if key not in table:
            ignored.append(key)
            continue
        field = table[key].field
        is_null = value is None and key in nulls
        converted = nulls[key] if is_null else _converted(table[key], key, keys, f"{path}: ")
        if converted is None or isinstance(converted, Near):
            ignored.append(f"{key} = {str(value)[:40]}")
            converted = converted and converted.value
        if converted is not None and field:
            if field in fields and field in ranking:
                converted = max(fields[field], converted, key=ranking[field].index)
            fields[field] = converted
    return fields, ignored


def _converted(rule: Key, key: str, keys: Fields, where: str) -> Any:
    """Value of the field that a key stands for; None where it says nothing about the field."""
    value = keys[key]
    try:
        return None if str(value) in ("None", "null", "auto") else rule.read(value, keys)
    except InputError as mistake:
        raise InputError(f"{where}{mistake}") from None
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as mistake:
        # The file may hold lists, infinities or zeros where a number is expected.
        needed = f"; it must be {mistake}" if type(mistake) is ValueError else ""
        raise InputError(
            f"{where}{key} is {excerpt(value)}, which is no valid {rule.field or 'replica'}"
            f"{needed}. Correct the value."
        ) from None


def tool_of(keys: Fields, marks: Mapping[str, Sequence[str]]) -> str | None:
    """Name of the tool whose marks are among the keys; None if no tool has them."""
    # A mark alone is enough; a section stands for its keys.
    for tool, names in marks.items():
        if any(key == mark or key.startswith(f"{mark}.") for mark in names for key in keys):
            return tool
    return None


@dataclass(frozen=True)
class ToolFile:
    """Fields and other keys of another tool's file."""

    tool: str  # name of the tool, such as ``Megatron-LM``. ``fields``: fields that the file states
    fields: Fields
    ignored: tuple[str, ...]  # keys that no field has, or whose value a field has only nearly
    values: Fields = field(default_factory=dict)  # of all keys, as the file states them
    differs: tuple[str, ...] = ()  # sizes of another model or machine than the simulated one

    @property
    def noun(self) -> str:
        """Kind of thing that the file states, in a word."""
        return "plan"

    @property
    def title(self) -> str:
        """Name of the tool in a sentence."""
        return self.tool

    @staticmethod
    def cannot_change_time(key: str) -> bool:
        """Return whether a key cannot change the time, by its name."""
        raise NotImplementedError

    @property
    def may_change_time(self) -> tuple[str, ...]:
        """Ignored keys with which the time might be another on the tool's own machine."""
        return tuple(
            key for key in self.ignored if not (self.cannot_change_time(key) or self._is_off(key))
        )

    def _is_off(self, key: str) -> bool:
        """Return whether a key leaves out what it names."""
        name, _, text = key.partition(" = ")
        value = (text or str(self.values.get(name, ""))).lower()
        switched = "enable" in name.rpartition(".")[2] and value == "false"
        return switched or value == "none"

    def document(self) -> dict[str, Any]:
        """Return the tool and the ignored keys, as JSON has them."""
        keys = {"ignored": self.ignored, "may_change_time": self.may_change_time}
        keys |= {"differs": self.differs} if self.differs else {}
        return {f"{self.noun}_file": {"tool": self.tool, **keys}}

    @property
    def sentence(self) -> str:
        """One line on the ignored keys, the ones that matter first; empty without any."""
        rest = [key for key in self.ignored if key not in self.may_change_time]
        about = ", nor for ".join(
            f"{', '.join(keys)}, which {verb} change the time"
            for keys, verb in ((self.may_change_time, "may"), (rest, "cannot"))
            if keys
        )
        lacks = f"The {self.noun} is {self.title}'s; it has no field for {about}." if about else ""
        other = f"The file is of another job, whose {', '.join(self.differs)}. "
        return (other if self.differs else "") + lacks
