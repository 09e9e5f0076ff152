"""Process groups of Chakra traces, from a file beside them or from the node that lists them."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from workloads.traces.bounded_files import read_bounded

MADE = "process_group:init"
"""Part of the name of the node in which PyTorch lists its process groups."""
LONGEST_LIST = 2**22  # largest number of characters of a list of groups that is read
Groups = dict[str, tuple[int, ...]]


def groups_beside(paths: Sequence[Path]) -> Groups:
    """Return the members of process groups from JSON files beside the traces, as ASTRA-sim does."""
    groups: Groups = {}
    for folder in sorted({path.parent for path in paths}):
        for file in sorted(folder.glob("*.json"))[:8]:
            try:
                document = json.loads(read_bounded(file, 2**24))
            except (ValueError, RecursionError, InputError) as mistake:
                if "group" in file.name:
                    why = " ".join(str(mistake).split())[:80]
                    raise InputError(
                        f"{file} is no JSON of process groups ({why}). Correct it, or take it "
                        "out of the directory of the traces."
                    ) from None
                continue
            if isinstance(document, dict):
                groups |= _members(document.items())
    return groups


def groups_made(node: Any) -> Groups:
    """Return the members of the process groups that a node lists, if it is PyTorch's list."""
    text = node.inputs.values
    if MADE not in node.name or not text or len(text) > LONGEST_LIST:
        return {}
    try:
        stated = ast.literal_eval(text)
        listed = json.loads(stated[0] if isinstance(stated, list | tuple) else stated)
    except (ValueError, SyntaxError, TypeError, IndexError, MemoryError, RecursionError):
        return {}
    entries = (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    return _members((entry.get("pg_name", ""), _ranks(entry)) for entry in entries)


def _ranks(group: Mapping[str, Any]) -> Any:
    """Ranks of a group, which PyTorch leaves out of the group of all ranks."""
    size = group.get("group_size", group.get("pg_size"))
    stated = group.get("ranks")
    if stated == [] and isinstance(size, int) and 0 < size <= 2**20:
        return list(range(size))
    return stated


def _members(named: Any) -> Groups:
    """Members by name of the groups whose list of ranks is sound."""
    return {
        str(name): tuple(ranks)
        for name, ranks in named
        if isinstance(ranks, list)
        and all(type(rank) is int and 0 <= rank < 2**31 for rank in ranks)
    }
