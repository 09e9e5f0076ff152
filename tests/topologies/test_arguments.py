"""Types of arguments: unions, numbers of numpy, sequences, keywords, and the words of messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from tests.support.refusals import refusal_by, refused
from topologies.support.arguments import Seed, check_fields, checked, fitting


@dataclass
class More:
    share: float


@checked(name="Pass a name, such as 'a'.")
def example(
    name: str | None = None,
    count: int = 1,
    rates: Sequence[float] = (),
    span: tuple[float, float] | None = None,
    mode: Literal["a", "b"] = "a",
    watch: Callable[[int], None] | None = None,
    table: Mapping[str, int] | None = None,
    flag: bool = False,
    anything: Any = None,
    **keywords: Any,
) -> int:
    return len(keywords)


@pytest.mark.parametrize("right", [
    {"name": "a", "count": np.int64(3), "rates": [1, 2.5, np.float32(1)], "flag": np.bool_(1)},
    {"rates": np.arange(3), "span": [0, 1], "mode": "b", "watch": print, "table": {}},
    {"rates": range(3), "anything": object(), "span": None},
])  # fmt: skip
def test_right_types_pass(right):
    assert (example(**right), example(**right, share=1)) == (0, 1)
    assert example.__name__ == "example"


@pytest.mark.parametrize(("wrong", "message"), [
    ({"name": 5}, "name is 5 (int). Pass a name, such as 'a'."),
    ({"count": True}, "count is True (bool). Pass a whole number."),
    ({"count": 1.5}, "count is 1.5 (float). Pass a whole number."),
    ({"rates": "12"}, "rates is '12' (str). Pass a sequence, each a number."),
    ({"rates": [1, "2"]}, "rates is [1, '2'] (list). Pass a sequence, each a number."),
    ({"span": (1.0,)}, "span is (1.0,) (tuple). Pass a sequence, each a number or None."),
    ({"mode": "c"}, "mode is 'c' (str). Pass 'a' or 'b'."),
    ({"watch": 3}, "watch is 3 (int). Pass a function or None."),
    ({"table": [1]}, "table is [1] (list). Pass a mapping, each value a whole number or None."),
    ({"table": {"a": "b"}},
     "table is {'a': 'b'} (dict). Pass a mapping, each value a whole number or None."),
    ({"flag": 1}, "flag is 1 (int). Pass True or False."),
])  # fmt: skip
def test_wrong_types_are_refused_in_words(wrong, message):
    assert refusal_by(example, **wrong) == message


@pytest.mark.parametrize(("positional", "keywords", "message"), [
    ([], {}, "grown lacks first. Pass first=…."),
    ([1], {"sized": 2}, "grown has no 'sized'. Did you mean size?"),
    ([1], {"zebra": 2}, "grown has no 'zebra'. It takes first, size."),
    ([1, 2], {}, "grown takes 1 arguments by place (first), not 2. Name the others, such as "
     "size=…."),
])  # fmt: skip
def test_a_call_that_does_not_fit_says_what_would(positional, keywords, message):
    def grown(first: int, *, size: int = 1) -> int:
        return first * size

    for function in (checked()(grown), fitting("grown")(grown)):
        assert refusal_by(function, *positional, **keywords) == message


def test_a_class_keeps_its_signature_and_its_own_type_errors():
    @fitting("Half")
    @dataclass(frozen=True)
    class Half:
        whole: Any = 1

        def __post_init__(self) -> None:
            object.__setattr__(self, "whole", self.whole / 2)

    assert list(inspect.signature(Half).parameters) == ["whole"]
    assert Half(4).whole == 2
    refused("Half has no 'hole'", Half, hole=4)
    with pytest.raises(TypeError, match="unsupported operand"):
        Half("4")
    check_fields(More, {"share": 0.5})
    refused(r"share is 'x' \(str\)", check_fields, More, {"share": "x"})


@checked()
def drawn(start: Seed = 0, again: Seed | None = None) -> int:
    return start


@pytest.mark.parametrize(("wrong", "message"), [
    ({"start": -2}, "start is -2; it must be 0 or more."),
    ({"start": np.int64(-1)}, "start is -1; it must be 0 or more."),
    ({"again": -3}, "again is -3; it must be 0 or more."),
    ({"start": 1.5}, "start is 1.5 (float). Pass a whole number."),
    ({"again": "x"}, "again is 'x' (str). Pass a whole number or None."),
])  # fmt: skip
def test_a_seed_is_a_whole_number_from_0_whatever_its_name(wrong, message):
    assert drawn(3, 0) == drawn(np.int64(3), None) == 3
    assert refusal_by(drawn, **wrong) == message
