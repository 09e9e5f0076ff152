"""Rules of rounds and of routines, to which tests hold the schedules that builders write."""

import numpy as np

from cluster_sim.schedule.repeats import Rounds, Routines
from cluster_sim.schedule.table import JOIN, IntArray, Schedule, ScheduleError


def check_rounds(rounds: Rounds) -> None:
    """Refuse rounds that break their rules."""
    count, ops, edges = len(rounds.repeats), rounds.ops, rounds.schedule.edges
    if count < 1 or rounds.repeats.min() < 1:
        raise ScheduleError(f"rounds are repeated {rounds.repeats.tolist()} times, the least is 1")
    if ops < 1 or not 0 <= rounds.final_ops <= ops:
        raise ScheduleError(f"{len(rounds.schedule)} ops are not {count} rounds of {ops} ops")
    length = np.diff(edges.ptr)
    by_round = length[: count * ops].reshape(count, ops)
    if length[count * ops :].any() or (by_round != length[:ops]).any():
        raise ScheduleError("ops at one place of two rounds differ in their number of edges")
    followers = rounds.followers()
    if followers.size and not 0 <= followers.min() <= followers.max() < 2 * ops:
        raise ScheduleError("an edge leads to another round than its own and the one that follows")
    within, across = rounds.waits()
    after, before = _followed(rounds)
    if (within[after] + across[before] == 0).any() or (across[-1][: rounds.final_ops] == 0).any():
        raise ScheduleError("an op behind the first round waits for none")
    if rounds.larger is not None:
        both, offset = rounds.larger.both.edges, np.repeat([0, len(length)], len(edges))
        alike = np.array_equal(np.diff(both.ptr), np.tile(length, 2))
        if not (alike and np.array_equal(both.dst, np.tile(edges.dst, 2) + offset)):
            raise ScheduleError("edges of larger blocks lead to other ops")


def check_routines(whole: Schedule, routines: Routines) -> None:
    """Refuse routines that break their rules."""
    first, outside = routines.first, routines.outside
    if first[-1] != len(whole) or (np.diff(first) < 1).any():
        raise ScheduleError(f"routines end at op {first[-1]} of {len(whole)}, or one has no op")
    kind = whole.kind
    if len(routines) and not (kind[first[1:] - 1] == JOIN).all():
        raise ScheduleError("a routine does not end in a join")
    caller = routines.caller
    inside = (caller >= 0) & (caller + 1 < outside)
    if not inside.all() or not (kind[caller] == JOIN).all() or len(np.unique(caller)) < len(caller):
        raise ScheduleError("a call is of no join outside of routines, or two are of one")
    # 0 for ops outside, k + 1 for ops of routine k.
    routine_of = np.searchsorted(first, np.arange(len(whole)), side="right")
    if (routine_of[whole.edges.sources()] != routine_of[whole.edges.dst]).any():
        raise ScheduleError("an edge leads into a routine, or out of one")


def _followed(rounds: Rounds) -> tuple[IntArray, IntArray]:
    """Return the pairs of rounds of which the first follows the second, repeats included."""
    number = np.arange(len(rounds.repeats))
    again = number[rounds.repeats > 1]
    return np.concatenate([number[1:], again]), np.concatenate([number[:-1], again])
