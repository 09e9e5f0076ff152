"""Exchanges of experts by a library's kernels, and the validation rows that they were fitted to."""

from math import hypot
from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives import Group
from cluster_sim.collectives.duration.expert_library import known, library_s, visited
from experiments.validation.predictions.collectives import predict
from experiments.validation.reading.rows import Outcome
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError

SENT = 2.0**26


def seconds(library: str, servers: int, way: str = "dispatch", experts: int = 8) -> float:
    machine = cluster(f"dgx-h100:{servers}")
    group = Group(machine, np.arange(8 * servers), 1)
    return library_s(shipped_catalogue(), library, way, group, SENT, experts)


def row(**changes: Any) -> dict[str, Any]:
    usual = {
        "collective": "all-to-all", "cluster": "dgx-h100", "chips": 16, "ranks": 16,
        "size_bytes": 2**26, "algorithm": "", "source": "mine",
    }  # fmt: skip
    return {**usual, **changes}


def constant(library: str, name: str, way: str = "dispatch") -> float:
    return shipped_catalogue().value(f"experts.{library}.h100.{way}", name)


def test_a_token_crosses_the_network_once_for_each_server_or_each_expert():
    for library, places, crossing in (
        ("deepep", visited(32, 8), visited(4, 8)),
        ("deepep-low-latency", 8.0, 8.0),
    ):
        moved = places * SENT / constant(library, "copy_rate")
        away = crossing * 0.75 * SENT / constant(library, "network_rate")
        begun = constant(library, "launch") + constant(library, "network_start")
        assert seconds(library, 4) == pytest.approx(begun + hypot(moved, away))
        for way in ("dispatch", "combine"):  # within a server, at the kernels' rate
            copies = visited(8, 8) if library == "deepep" else 8
            inside = copies * SENT / constant(library, "copy_rate", way)
            alone = constant(library, "launch", way) + inside
            assert seconds(library, 1, way) == pytest.approx(alone)
    assert seconds("deepep", 4, experts=2) < seconds("deepep", 4) < seconds("deepep", 8)


def test_rows_are_known_by_their_library_or_tool():
    named = predict(row(library="deepep", way="combine", experts_per_token=8))
    prediction = predict(row(tool="deepep", what="normal combine"))
    assert named.predicted == prediction.predicted
    nothing = predict(row(library="deepep"))
    both = [predict(row(library="deepep", way=way)) for way in ("dispatch", "combine")]
    mean = sum(one.predicted["time_s"] for one in both) / 2
    assert nothing.predicted["time_s"] == pytest.approx(mean)
    assert nothing.provenance["exchange"].startswith("assumed")


def test_other_operations_and_chips_are_told():
    with pytest.raises(InputError, match="Use collective all-to-all"):
        predict(row(library="deepep", collective="all-gather"))
    assert not known(shipped_catalogue(), "deepep", "a100-80gb")
    prediction: Outcome = predict(row(library="deepep", cluster="dgx-a100"))
    assert "were not measured" in prediction.why
