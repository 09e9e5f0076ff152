"""Ring all-reduces written by hand in SimPy, in three ways, all without queues for links.

The first has a store as the inbox of each rank and a process for each delivery. The second has
stores and a single wait for wire time and latency. The third is as lean as SimPy's events allow.
"""

from __future__ import annotations

from collections.abc import Generator

import simpy

CHUNK_BYTES = 10**6
WIRE_PS, LATENCY_PS = 10_000_000, 1_000_000  # 1 MB at 100 GB/s, 1 µs


def with_stores(ranks: int) -> int:
    """Run a ring written in the usual way: a process for each rank, with a store as its inbox."""
    env = simpy.Environment()
    inbox = [simpy.Store(env) for _ in range(ranks)]

    def deliver(rank: int) -> Generator[simpy.Event, object, None]:
        """Put a chunk into a rank's inbox when the latency of the wire is over."""
        yield env.timeout(LATENCY_PS)
        yield inbox[rank].put(1)

    def send_and_receive(rank: int) -> Generator[simpy.Event, object, None]:
        """Send a chunk and receive one in each round; chunks in flight are processes."""
        for _ in range(2 * (ranks - 1)):
            yield env.timeout(WIRE_PS)
            env.process(deliver((rank + 1) % ranks))
            yield inbox[rank].get()

    for rank in range(ranks):
        env.process(send_and_receive(rank))
    env.run()
    return int(env.now)


def with_one_wait(ranks: int) -> int:
    """Run a ring in which a link stays busy until its chunk has arrived.

    In truth a link is free again after the wire time, but in this ring no chunk waits for it.
    """
    env = simpy.Environment()
    inbox = [simpy.Store(env) for _ in range(ranks)]

    def send_and_receive(rank: int) -> Generator[simpy.Event, object, None]:
        """Send a chunk, wait for wire time and latency in one, and receive a chunk."""
        for _ in range(2 * (ranks - 1)):
            yield env.timeout(WIRE_PS + LATENCY_PS)
            yield inbox[(rank + 1) % ranks].put(1)
            yield inbox[rank].get()

    for rank in range(ranks):
        env.process(send_and_receive(rank))
    env.run()
    return int(env.now)


def with_events(ranks: int) -> int:
    """Run a ring as lean as possible: two bare events for each step, past SimPy's public API."""
    env = simpy.Environment()
    steps = 2 * (ranks - 1)
    arrived = [[env.event() for _ in range(steps)] for _ in range(ranks)]

    def send_and_receive(rank: int) -> Generator[simpy.Event, object, None]:
        """Send a chunk and wait for the arrival of the neighbour's chunk in each round."""
        sent, received = arrived[(rank + 1) % ranks], arrived[rank]
        for step in range(steps):
            yield env.timeout(WIRE_PS)
            event = sent[step]
            event._ok, event._value = True, None
            env.schedule(event, delay=LATENCY_PS)
            yield received[step]

    for rank in range(ranks):
        env.process(send_and_receive(rank))
    env.run()
    return int(env.now)


BY_HAND = {"deliveries": with_stores, "one wait": with_one_wait, "bare events": with_events}
