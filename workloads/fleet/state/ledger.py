"""Ledger of roles: role, owner and weights of every unit, and exact server-time by role.

Time is in integer milliseconds, so that the server-milliseconds of all roles sum to servers × time.
A server that is down while the rest of its unit works on counts as broken.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from topologies.arrays import IntArray


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


NOBODY = -1
MS = 1000


class Ledger:
    """Arrays over all units; an account is a role, or one pool's share of the serving role.

    ``role, owner, loaded`` (units,): role; the pool or job that the unit works for; the pool whose
        weights are resident.
    ``ticket`` (units,): number of the role change that the unit is in, 0 for none; a unit that
        breaks loses it.
    ``lent_ms`` (units,): time at which the unit last left the serving role.
    ``lost`` (units,): servers that are down in a unit that works on without them.
    ``counts, down`` (accounts,): units now in each account, and the servers that they have lost.
    ``spent_server_ms`` (accounts,): server-time spent in each account up to ``at_ms``.
    """

    def __init__(self, units: int, pools: int, servers: int = 1) -> None:
        self.servers = servers
        self.lost = np.zeros(units, np.int8)
        self.role = np.full(units, Role.SPARE, np.int8)
        self.owner = np.full(units, NOBODY, np.int32)
        self.loaded = np.full(units, NOBODY, np.int16)
        self.ticket = np.zeros(units, np.int64)
        self.lent_ms = np.full(units, -(2**62), np.int64)
        self.accounts = len(Role) + pools
        self._account = self.role.astype(np.int16)
        self.counts = np.bincount(self._account, minlength=self.accounts).astype(np.int64)
        self.down = np.zeros(self.accounts, np.int64)
        self.spent_server_ms = np.zeros(self.accounts, np.int64)
        self.at_ms = 0

    def __len__(self) -> int:
        return len(self.role)

    def advance(self, now_ms: int) -> None:
        """Add the time since the last call to the accounts."""
        if now_ms != self.at_ms:
            elapsed_ms = now_ms - self.at_ms
            self.spent_server_ms += (self.counts * self.servers - self.down) * elapsed_ms
            # The sum of a short list takes a fifth of the time of that of an array.
            self.spent_server_ms[Role.BROKEN] += sum(self.down.tolist()) * elapsed_ms
            self.at_ms = now_ms

    def put(self, units: IntArray, role: Role, now_ms: int, owner: int = NOBODY) -> None:
        """Give units a role and an owner at an instant."""
        if not len(units):
            return
        self.advance(now_ms)
        account = len(Role) + owner if role is Role.SERVING else int(role)
        self.counts -= np.bincount(self._account[units], minlength=self.accounts)
        self.counts[account] += len(units)
        lost = self.lost[units]
        if lost.any():
            np.subtract.at(self.down, self._account[units], lost)
            self.down[account] += int(lost.sum())
        self._account[units] = account
        self.role[units] = role
        self.owner[units] = owner

    def lose(self, unit: int, now_ms: int, servers: int = 1) -> None:
        """Take servers out of a unit that works on, or give them back if negative."""
        self.advance(now_ms)
        self.lost[unit] += servers
        self.down[self._account[unit]] += servers

    def lost_units(self, pool: int) -> int:
        """Servers lost by the units of a pool, in whole units."""
        return int(self.down[len(Role) + pool]) // self.servers

    def broken_units(self) -> int:
        """Units under repair, and servers lost by other units in whole units."""
        broken = int(self.counts[Role.BROKEN])
        elsewhere = sum(self.down.tolist()) - int(self.down[Role.BROKEN])
        return broken + elsewhere // self.servers

    def count(self, role: Role) -> int:
        """Units in a role."""
        if role is Role.SERVING:
            return int(self.counts[len(Role) :].sum())
        return int(self.counts[role])

    def serving(self, pool: int) -> int:
        """Units that serve in a pool."""
        return int(self.counts[len(Role) + pool])

    def of(self, role: Role, owner: int | None = None) -> IntArray:
        """Numbers of the units in a role, ascending; only those of an owner if given."""
        chosen = self.role == role
        if owner is not None:
            chosen &= self.owner == owner
        return np.flatnonzero(chosen)


def milliseconds(seconds: float, horizon_ms: int) -> int:
    """Whole milliseconds, at most just past the horizon, so that infinity becomes an integer.

    >>> milliseconds(1.5, 10_000), milliseconds(float("inf"), 10_000)
    (1500, 10001)
    """
    if seconds * MS > horizon_ms:
        return horizon_ms + 1
    return round(seconds * MS)
