"""Shares of the axis orders of a torus are solved once, kept, and solved again if damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_sim.collectives.algorithms import torus
from topologies.files import kept_files

BOX = ((2, 3, 4), (64, 128, 128))


def test_kept_shares_are_those_that_were_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "folders", lambda: (tmp_path,))
    solved = torus._evenest(*BOX)
    assert sum(weight for _, weight in solved) == pytest.approx(torus.WHOLE, abs=len(solved))
    assert torus.shares.__wrapped__(*BOX) == solved
    (kept,) = tmp_path.iterdir()
    with monkeypatch.context() as without:
        without.setattr(torus, "_evenest", None)
        assert torus.shares.__wrapped__(*BOX) == solved
    kept.write_bytes(kept.read_bytes()[:-5])
    assert torus.shares.__wrapped__(*BOX) == solved


def test_a_single_axis_has_one_order() -> None:
    assert torus.shares((8,), (5,)) == torus._evenest((8,), (5,)) == (((0,), torus.WHOLE),)
