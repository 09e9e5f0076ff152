"""Work on blocks of ranks, several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage of the work, how much of it is done, and how much there is."""
CALLS = 200  # approximate number of stretches into which all blocks are divided

State = TypeVar("State")


def over_blocks(
    blocks: int,
    states: Sequence[State],
    work: Callable[[State, tuple[int, int]], None],
    report: Callable[[int], None],
) -> None:
    """Do some work on stretches of blocks, with as many threads as there are states."""
    step = max(1, blocks // CALLS)
    stretches = [(low, min(low + step, blocks)) for low in range(0, blocks, step)]
    if len(stretches) == 1 or len(states) == 1:
        for low, high in stretches:
            work(states[0], (low, high))
            report(high - low)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    free: SimpleQueue[State] = SimpleQueue()
    for state in states:
        free.put(state)

    def work_on(stretch: tuple[int, int]) -> int:
        """Work on a stretch with a state that is free."""
        state = free.get()
        work(state, stretch)
        free.put(state)
        return stretch[1] - stretch[0]

    with ThreadPoolExecutor(len(states)) as pool:
        futures = [pool.submit(work_on, stretch) for stretch in stretches]
        try:
            for future in as_completed(futures):
                report(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
