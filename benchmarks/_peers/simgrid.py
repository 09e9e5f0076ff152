"""SimGrid: the ring as an MPI program under SMPI, and as actors with mailboxes (S4U).

Both programs are in the folder of this file and are compiled against the installed SimGrid. Links
have exactly their bandwidth and latency: no TCP, no cross traffic, no rounding to 10 µs.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from benchmarks._peers.work import BANDWIDTH_BYTES_PER_S, LATENCY_PS, Work

HERE = Path(__file__).parent
EXACT = (
    "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0", "--cfg=network/TCP-gamma:0",
    "--cfg=network/weight-S:0", "--cfg=surf/precision:1e-12", "--cfg=maxmin/precision:1e-12",
    "--log=root.thres:error",
)  # fmt: skip


def prepare_smpi(work: Work, folder: Path) -> tuple[str, ...]:
    """Compile the MPI program, write the platform, and return the command that runs both."""
    program, platform, hosts = folder / "ring", folder / "ring.xml", folder / "hosts"
    subprocess.run(["smpicc", "-O3", HERE / "simgrid_ring.c", "-o", program], check=True)
    platform.write_text(_platform(work.ranks))
    hosts.write_text("".join(f"h{rank}\n" for rank in range(work.ranks)))
    options = ("-np", str(work.ranks), "-platform", str(platform), "-hostfile", str(hosts))
    switches = (*EXACT, "--cfg=smpi/simulate-computation:no")
    return ("smpirun", *options, *switches, str(program), str(work.stages()[0].message_bytes))


def prepare_s4u(work: Work, folder: Path) -> tuple[str, ...]:
    """Compile the program of actors, and return the command that runs it."""
    program = folder / "ring"
    source = HERE / "simgrid_ring.cpp"
    subprocess.run(["c++", "-O3", "-std=c++17", source, "-o", program, "-lsimgrid"], check=True)
    numbers = (
        work.ranks,
        work.stages()[0].message_bytes,
        BANDWIDTH_BYTES_PER_S,
        LATENCY_PS * 1e-12,
    )
    return (str(program), *map(str, numbers), *EXACT)


def _platform(ranks: int) -> str:
    """Platform file of a ring of hosts, each with a link to the next."""
    lines = ['<?xml version="1.0"?>',
             '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
             '<platform version="4.1">', '<zone id="ring" routing="Full">']  # fmt: skip
    speeds = f'bandwidth="{BANDWIDTH_BYTES_PER_S}Bps" latency="{LATENCY_PS}ps"'
    lines += [f'<host id="h{rank}" speed="1Gf"/>' for rank in range(ranks)]
    lines += [f'<link id="l{rank}" {speeds}/>' for rank in range(ranks)]
    for rank in range(ranks):
        ends = f"h{rank}", f"h{(rank + 1) % ranks}"
        for source, to in (ends, ends[::-1]):  # the way back is for SMPI's own small messages
            link = f'<link_ctn id="l{rank}"/>'
            lines.append(f'<route src="{source}" dst="{to}" symmetrical="NO">{link}</route>')
    return "\n".join([*lines, "</zone>", "</platform>"])


def simulated_s(output: str) -> float:
    """Time that the ring took, as the program prints it [s]."""
    (took,) = re.findall(r"ring took ([\d.]+) s", output)
    return float(took)
