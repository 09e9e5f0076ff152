"""Work beside a collective in PyTorch's backend for Trainium, and rows that it issued."""

import pytest

from experiments.validation.predictions.collectives import beside_s, predict, time_s
from experiments.validation.reading.rows import machines_for
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.kernels.times import elementwise_s

MIB = 2**20


def row(**cells: object) -> dict[str, object]:
    usual = {
        "collective": "all-reduce", "cluster": "trn2.48xlarge", "chips": 4, "ranks": 16,
        "algorithm": None, "size_bytes": 64 * MIB, "runtime": "pytorch",
    }  # fmt: skip
    return {**usual, **cells}


def beside(op: str, size_bytes: int = 64 * MIB, chips: int = 4) -> float:
    return beside_s(op, size_bytes, chips, 4 * chips, "trn2", shipped_catalogue())


def test_every_call_over_several_chips_copies_the_longer_buffer_once():
    copy_s = float(elementwise_s("trn2", 2 * 64 * MIB, ranks_per_chip=4))
    assert beside("all-reduce") == beside("all-gather") == pytest.approx(copy_s)
    assert beside("all-reduce", chips=1) == 0
    assert beside("all-to-all") == pytest.approx(3 * copy_s, rel=0.02)
    assert beside("broadcast") == pytest.approx(1.5 * copy_s, rel=0.02)


def test_a_stated_call_takes_the_place_of_the_range_of_the_host():
    stated, usual = predict(row(call_s=2e-3)), predict(row())
    call = shipped_catalogue().entry("runtime.neuron", "pytorch_collective_added")
    assert stated.ends is None
    added = stated.predicted["time_s"] - usual.predicted["time_s"]
    assert added == pytest.approx(2e-3 - call.value)
    low, high = usual.ends
    assert high - low == pytest.approx(call.high - call.low)


def test_a_group_may_lie_on_the_first_chips_of_two_servers():
    two = machines_for("trn2.48xlarge", 17)
    across = time_s("all-reduce", two, 2, 8, 64 * MIB, place="0,16")
    assert across > 2 * time_s("all-reduce", two, 2, 8, 64 * MIB)
    named = predict(row(chips=2, ranks=8, group="0,16", runtime=None))
    assert named.predicted["time_s"] == pytest.approx(across)
    with pytest.raises(InputError, match="has 3 chips, not 2"):
        predict(row(chips=2, ranks=8, group="0,16,17"))
