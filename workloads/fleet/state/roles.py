"""Roles that a unit of the fleet can have, and the groups in which reports show them."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Role of a unit at a moment; the numbers are its accounts in the ledger."""

    SERVING = 0
    DRAINING = 1
    LOADING = 2
    COMPILING = 3
    WARMING = 4
    TRAINING = 5
    EVALUATION = 6
    CHECKPOINTING = 7
    PAUSED = 8
    BROKEN = 9
    SPARE = 10
    BATCH = 11


ROLES = tuple(role.name.lower() for role in Role)

GROUPS = {
    "inference": (Role.SERVING, Role.BATCH, Role.WARMING, Role.DRAINING),
    "training": (Role.TRAINING, Role.EVALUATION, Role.CHECKPOINTING),
    "moving": (Role.LOADING, Role.COMPILING),
    "idle": (Role.SPARE, Role.PAUSED),
    "broken": (Role.BROKEN,),
}
"""Groups of roles; every role is in exactly one of them."""
