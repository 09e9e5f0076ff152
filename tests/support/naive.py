"""The rules of time told as plainly, and as slowly, as possible: a third opinion on the engines.

At every instant everything is looked at anew: no queue, no heap, no event, no component.
"""

from cluster_sim.schedule.table import JOIN, Schedule

MICROBYTES = PER_MICROBYTE = 10**6


class Naive:
    """One run without faults; ``ready``, ``start`` and ``end`` are None until they happen."""

    def __init__(self, schedule: Schedule):
        ops = range(len(schedule))
        self.schedule = schedule
        self.now = 0
        self.ready: list[int | None] = [None for _ in ops]
        self.start: list[int | None] = [None for _ in ops]
        self.end: list[int | None] = [None for _ in ops]
        edges = schedule.edges
        starts = edges.start_mask().tolist()
        columns = (edges.dst.tolist(), edges.sources().tolist(), edges.lag_ps.tolist(), starts)
        self.into: list[list[tuple[int, int, bool]]] = [[] for _ in ops]
        for dst, *rest in zip(*columns, strict=True):
            self.into[dst].append(tuple(rest))
        self.flows = {op: row for row, op in enumerate(schedule.flows.op.tolist())}
        self.left = {op: int(schedule.size_bytes[op]) * MICROBYTES for op in self.flows}
        self.rate = dict.fromkeys(self.flows, 0)
        self.since = dict.fromkeys(self.flows, 0)

    def elapsed(self, op: int) -> int | None:
        """Instant at which all edges into an op have elapsed, as far as that is known."""
        instants = [0]
        for src, lag, from_start in self.into[op]:
            since = self.start[src] if from_start else self.end[src]
            if since is None:
                return None
            instants.append(since + lag)
        return max(instants)

    def planned_end(self, op: int) -> int | None:
        """Instant at which an op in flight ends if nothing changes."""
        if self.start[op] is None or self.end[op] is not None:
            return None
        if op not in self.flows:
            return self.start[op] + int(self.schedule.duration_ps[op])
        if not self.rate[op]:
            return None
        return self.since[op] + -(-self.left[op] * PER_MICROBYTE // self.rate[op])

    def run(self) -> "Naive":
        """Go from instant to instant until nothing lies ahead."""
        ops = range(len(self.schedule))
        while True:
            for op in ops:
                if self.planned_end(op) == self.now:
                    self.end[op] = self.now
            while self.settle_readiness():
                pass
            for resource in [-1, *range(len(self.schedule.resources))]:
                while self.start_one(resource):
                    pass
            self.share()
            ahead = [self.planned_end(op) for op in ops]
            ahead += [self.elapsed(op) for op in ops if self.ready[op] is None]
            later = [instant for instant in ahead if instant is not None and instant > self.now]
            if not later:
                return self
            self.now = min(later)

    def settle_readiness(self) -> bool:
        """Let ops become ready, and joins end; False when nothing changed."""
        changed = False
        for op in range(len(self.schedule)):
            elapsed = self.elapsed(op)
            if self.ready[op] is None and elapsed is not None and elapsed <= self.now:
                self.ready[op] = elapsed
                changed = True
                if self.schedule.kind[op] == JOIN:
                    self.start[op] = self.end[op] = self.now
        return changed

    def start_one(self, resource: int) -> bool:
        """Start the first op that is ready for a resource with a free slot."""
        on_it = [op for op in range(len(self.schedule)) if self.schedule.resource[op] == resource]
        held = [op for op in on_it if self.start[op] is not None and self.end[op] is None]
        if resource >= 0 and len(held) >= self.schedule.resources.slots[resource]:
            return False
        waiting = [op for op in on_it if self.ready[op] is not None and self.start[op] is None]
        if not waiting:
            return False
        first = min(waiting, key=lambda op: (self.schedule.priority[op], self.ready[op], op))
        self.start[first] = self.now
        self.since[first] = self.now
        return True

    def share(self) -> None:
        """Give every flow in flight its max-min fair rate."""
        moving = [op for op in self.flows if self.start[op] is not None and self.end[op] is None]
        for op, rate in max_min(self.schedule, {op: self.flows[op] for op in moving}).items():
            if rate != self.rate[op]:
                self.left[op] -= self.rate[op] * (self.now - self.since[op]) // PER_MICROBYTE
                self.rate[op], self.since[op] = rate, self.now


def max_min(schedule: Schedule, rows: dict[int, int]) -> dict[int, int]:
    """Rates of flows (op: row of the flow), by the definition: raise one level for all."""
    flows = schedule.flows
    paths = {
        op: list(zip(flows.resource[span].tolist(), flows.weight[span].tolist(), strict=True))
        for op, row in rows.items()
        for span in [slice(flows.ptr[row], flows.ptr[row + 1])]
    }
    caps = {op: int(flows.cap_bytes_per_s[row]) for op, row in rows.items()}
    rate: dict[int, int] = {}
    while len(rate) < len(rows):
        rising = [op for op in rows if op not in rate]
        levels = {}
        for resource in {number for op in rising for number, _ in paths[op]}:
            on_it = {op: w for op in rows for number, w in paths[op] if number == resource}
            taken = sum(weight * rate[op] for op, weight in on_it.items() if op in rate)
            weight = sum(weight for op, weight in on_it.items() if op in rising)
            levels[resource] = (int(schedule.resources.capacity[resource]) - taken) // weight
        level = min([*levels.values(), *(caps[op] for op in rising)])
        for op in rising:
            if caps[op] == level or any(levels[number] == level for number, _ in paths[op]):
                rate[op] = level
    return rate
