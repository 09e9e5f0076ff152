"""Room for peers' copies: what fits to the byte, and what a byte too many says."""

from __future__ import annotations

import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.machines import host_bytes_per_server
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.job.checkpoints import State, held_bytes, peer_copies, room_for_copies

PAIR = cluster("trn2.48xlarge:2")
CATALOGUE = shipped_catalogue()


def copies_of(part_bytes: float) -> float:
    state = State(2 * part_bytes, 1.0, 1.0, 2)
    held = peer_copies(state, PAIR, 2, step_s=1.0, start_s=0.0, catalogue=CATALOGUE)
    return held.bytes_per_server


def test_room_is_the_stated_share_of_host_memory() -> None:
    host = host_bytes_per_server(PAIR, CATALOGUE)
    assert host is not None
    assert room_for_copies(PAIR, CATALOGUE) == CATALOGUE.value("job.peer", "host_share") * host


def test_copies_that_fill_their_room_fit_and_more_do_not() -> None:
    most = room_for_copies(PAIR, CATALOGUE) / held_bytes(1.0)
    assert copies_of(most) == held_bytes(most)
    with pytest.raises(InputError, match="--checkpoint peer keeps"):
        copies_of(most * 1.001)
