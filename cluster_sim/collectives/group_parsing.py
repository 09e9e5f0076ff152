"""Parsing of groups and sizes: ``0-15,32-47`` is one group, ``0-3;4-7`` are two."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from cluster_sim.collectives.group import Group
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from topologies.support.files.reading import read_text
from topologies.support.units import parse_bytes

LARGEST_FILE_BYTES = 20_000_000  # largest file of chip numbers or of sizes that is read [B]
SHOWN = 60  # characters of a user's text that an error message repeats


def parse_groups(text: str, cluster: Cluster, ranks_per_chip: int = 1) -> list[Group]:
    """Parse replica groups: commas separate chips and ranges, semicolons separate groups."""
    groups = [
        Group(cluster, parse_chips(part, cluster, f"--group {text[:SHOWN]!r}"), ranks_per_chip)
        for part in text.split(";")
    ]
    sizes = sorted({len(group.chips) for group in groups})
    if len(sizes) > 1:
        raise InputError(
            f"--group {text[:SHOWN]!r} has groups of {sizes[0]} and of {sizes[-1]} chips; groups "
            "that run one collective at once are of one size. Run each size by itself."
        )
    chips = np.concatenate([group.chips for group in groups])
    names, times = np.unique(chips, return_counts=True)
    if times.max() > 1:
        raise InputError(
            f"chip {names[times > 1][0]} is in two groups; replica groups must be disjoint. "
            "Name each chip once."
        )
    return groups


def parse_chips(text: str, cluster: Cluster, thing: str) -> IntArray:
    """Parse a list of chips such as ``0-3,8``, in its order, from an option or file (``thing``)."""
    parts = [_range(part.strip(), cluster, thing) for part in text.split(",")]
    if sum(map(len, parts)) > cluster.chips:
        raise InputError(
            f"{thing} names {sum(map(len, parts)):,} chips, {cluster.name} has "
            f"{cluster.chips:,}; name each once"
        )
    return np.concatenate(parts)


def _range(text: str, cluster: Cluster, thing: str) -> IntArray:
    ends = re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", text, re.ASCII)
    if ends is None:
        raise InputError(
            f"{thing}: {text[:SHOWN]!r} is no chip and no range of chips; write 0-15,32-47, "
            "and a semicolon between groups"
        )
    low, high = int(ends[1]), int(ends[2] or ends[1])
    if low > high:
        raise InputError(f"{thing}: the range {text} goes down; write {high}-{low}")
    if high >= cluster.chips:
        raise InputError(
            f"{thing}: chip {high:,} is not one of the {cluster.chips:,} of {cluster.name}; "
            f"the last is {cluster.chips - 1:,}"
        )
    return np.arange(low, high + 1, dtype=np.int64)


def ordered(group: Group, text: str) -> Group:
    """Return a group in the order of a list, or of a file in which ``#`` begins comments."""
    thing = f"--order {text[:SHOWN]!r}"
    is_list = re.fullmatch(r"[\d\s,\-]+", text, re.ASCII) is not None
    chips = parse_chips(text if is_list else _list_in_file(Path(text)), group.cluster, thing)
    missing = np.setdiff1d(group.chips, chips)
    foreign = np.setdiff1d(chips, group.chips)
    if len(foreign):
        raise InputError(
            f"{thing} names chip {foreign[0]}, which is not in the group of {len(group.chips)} "
            "chips; name the group's chips, each once"
        )
    if len(missing):
        raise InputError(
            f"{thing} lacks {len(missing):,} of the group's {len(group.chips)} chips, the first is "
            f"chip {missing[0]}; name each once"
        )
    return Group(group.cluster, chips, group.ranks_per_chip)


def _list_in_file(path: Path) -> str:
    """Return the numbers of a file with commas between them."""
    lines = [line.partition("#")[0] for line in file_text(path, "--order").splitlines()]
    return ",".join(re.split(r"[\s,]+", " ".join(lines).strip()))


def file_text(path: Path, option: str) -> str:
    """Return the text of the file that an option names."""
    name = f"{option} {path}"
    return read_text(path, limit_bytes=LARGEST_FILE_BYTES, name=name, lenient=True)


MOST_SIZES = 1000  # most sizes in a list


def parse_sizes(text: str) -> list[int]:
    """Parse ``1GiB``, ``1KiB,1MiB`` or ``1KiB:1GiB:4``, which is 1 KiB, 4 KiB, … up to 1 GiB [B].

    Raises InputError for a text that is no size or range, and for too many sizes.

    >>> parse_sizes("1KiB:64KiB:4,1MB")
    [1024, 4096, 16384, 65536, 1000000]
    """
    sizes: list[int] = []
    for part in text.split(","):
        sizes += _range_of_sizes(part) if ":" in part else [parse_bytes(part.strip())]
        if len(sizes) > MOST_SIZES:
            raise InputError(f"--size {text[:80]} is more than {MOST_SIZES} sizes; make it coarser")
    return sizes


def _range_of_sizes(text: str) -> list[int]:
    ends = text.split(":")
    if len(ends) != 3 or not re.fullmatch(r"[0-9]{1,18}", ends[2].strip()):
        raise InputError(f"--size {text[:80]} is no range; write it as 1KiB:1GiB:4")
    low, high, factor = parse_bytes(ends[0].strip()), parse_bytes(ends[1].strip()), int(ends[2])
    if low < 1 or high < low or factor < 2:
        raise InputError(
            f"--size {text[:80]}: a range needs 1 B ≤ low ≤ high and a factor of at least 2"
        )
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return sizes
