"""LogGOPSim: a schedule of sends and receives (GOAL), with times in picoseconds.

The latency is the parameter L, the time of a byte is G, and nothing else takes time. A message of n
bytes takes n - 1 times G in that model, so that each message gets one byte more. The conversion of
the schedule to its binary form is not measured.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS, PS_PER_S, Work

BINARY, CONVERTER = "LogGOPSim", "txt2bin"
LARGEST_EAGER = 2**31 - 1
"""Largest size of a send that does not wait for its receive [B]; no message is larger."""
MOST_HOPS = 7_000_000
"""Most messages, with which the text of the schedule stays below 700 MB and its run below 2 GB."""


def prepare(work: Work, folder: Path) -> tuple[str, ...]:
    """Write the schedule, and return the command that runs it."""
    text, binary = folder / "ring.goal", folder / "ring.bin"
    with text.open("w") as file:
        file.writelines(_schedule(work))
    subprocess.run(
        [CONVERTER, "-i", str(text), "-o", str(binary)], check=True, stdout=subprocess.DEVNULL
    )
    text.unlink()
    parameters = {
        "L": LATENCY_PS, "G": PS_PER_S // BANDWIDTH_BYTES_PER_S, "o": 0, "g": 0, "O": 0,
        "S": LARGEST_EAGER,
    }  # fmt: skip
    words = (word for name, value in parameters.items() for word in (f"-{name}", str(value)))
    return (BINARY, "-b", "-f", str(binary), *words)


def _schedule(work: Work) -> Iterator[str]:
    """Yield the lines of a schedule in which a rank sends each chunk on after receiving it."""
    yield f"num_ranks {work.ranks}\n"
    for rank in range(work.ranks):
        lines, step = [f"rank {rank} {{"], 0
        for axis, steps, message_bytes in work.stages():
            to, source = work.neighbour(rank, axis, 1), work.neighbour(rank, axis, -1)
            size = message_bytes + 1
            for _ in range(steps):
                lines.append(f"s{step}: send {size}b to {to} tag {step}")
                lines.append(f"r{step}: recv {size}b from {source} tag {step}")
                if step:
                    lines.append(f"s{step} requires r{step - 1}")
                step += 1
        yield "\n".join(lines) + "\n}\n"


def simulated_s(output: str) -> float:
    """Time at which the last rank finishes [s]; LogGOPSim prints our picoseconds as nanoseconds."""
    (last,) = re.findall(r"finishing time at host \d+: (\d+)", output)
    return int(last) / PS_PER_S
