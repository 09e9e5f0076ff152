"""Types of arguments: unions, numbers of numpy, sequences, keywords, and the words of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import pytest

from topologies.arguments import check_fields, check_seed, checked
from topologies.errors import InputError


class More(TypedDict, total=False):
    """Keywords of the function below."""

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
    **keywords: Unpack[More],
) -> int:
    """Return the number of keywords."""
    return len(keywords)


@pytest.mark.parametrize(
    "right",
    [
        {"name": "a", "count": np.int64(3), "rates": [1, 2.5, np.float32(1)], "flag": np.bool_(1)},
        {"rates": np.arange(3), "span": [0, 1], "mode": "b", "watch": print, "table": {}},
        {"rates": range(3), "anything": object(), "span": None},
    ],
)
def test_right_types_pass(right: dict[str, Any]) -> None:
    assert example(**right) == 0
    assert example(**right, share=1) == 1
    assert example(**right, share=None) == 1  # None leaves a keyword at its default


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": 5}, "name is 5 (int). Pass a name, such as 'a'."),
        ({"count": True}, "count is True (bool). Pass a whole number."),
        ({"count": 1.5}, "count is 1.5 (float). Pass a whole number."),
        ({"rates": "12"}, "rates is '12' (str). Pass a sequence, each a number."),
        ({"rates": [1, "2"]}, "rates is [1, '2'] (list). Pass a sequence, each a number."),
        ({"span": (1.0,)}, "span is (1.0,) (tuple). Pass a sequence, each a number or None."),
        ({"mode": "c"}, "mode is 'c' (str). Pass 'a' or 'b'."),
        ({"watch": 3}, "watch is 3 (int). Pass a function or None."),
        ({"table": [1]}, "table is [1] (list). Pass a Mapping or None."),
        ({"flag": 1}, "flag is 1 (int). Pass True or False."),
        ({"share": "half"}, "share is 'half' (str). Pass a number."),
    ],
)
def test_wrong_types_are_refused_in_words(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        example(**wrong)
    assert str(caught.value) == message


def test_a_checked_function_is_still_itself() -> None:
    assert example.__name__ == "example"
    with pytest.raises(TypeError, match="missing a required argument"):
        checked()(lambda first: first)()


def test_fields_and_seeds() -> None:
    check_fields(More, {"share": 0.5})
    with pytest.raises(InputError, match=r"share is 'x' \(str\)"):
        check_fields(More, {"share": "x"})
    check_seed(0)
    with pytest.raises(InputError, match="seed is -2"):
        check_seed(-2)
