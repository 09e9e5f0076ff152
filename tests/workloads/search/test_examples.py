"""Small examples of the functions of workloads/search, each with its result."""

from __future__ import annotations

import numpy as np

from workloads.search.candidates import _pairs, among, crossed


def test_pairs() -> None:
    assert (_pairs({"schedule": "gpipe"}), _pairs({"vpp": 4}), _pairs({"vpp": 5})) == (
        [("gpipe", 1)],
        [("interleaved", 4)],
        [("interleaved", 5)],
    )


def test_crossed() -> None:
    rows = crossed(crossed({"row": np.zeros(1, np.int64)}, "tp", [1, 2]), "pp", [1, 4])
    assert (rows["tp"].tolist(), rows["pp"].tolist()) == ([1, 1, 2, 2], [1, 4, 1, 4])


def test_among() -> None:
    assert among(
        {"tp": np.array([1, 2]), "cp": np.array([1, 1])}, ("tp", "cp"), [(2, 1)]
    ).tolist() == [False, True]
