"""Files that are cut or have a wrong byte, which a reader reads or refuses in one line."""

from collections.abc import Callable
from pathlib import Path

from topologies.errors import InputError


def check_damaged(path: Path, read: Callable[[Path], object], cut: float, flip: int) -> None:
    """Assert that a reader ends a file that is damaged or cut at a share of it in one line."""
    data = bytearray(path.read_bytes())
    data[int(cut * (len(data) - 1))] ^= flip
    for damaged in (bytes(data), bytes(data[: int(cut * len(data))])):
        path.write_bytes(damaged)
        message = ""
        try:
            read(path)
        except InputError as refused:
            message = str(refused)
        assert "\n" not in message
