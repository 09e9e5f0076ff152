"""Profiles in JSON of gigabytes, of which only some events are kept, read piece by piece."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from topologies.support.errors import InputError
from workloads.traces.recording import opened, too_large

MOST_CHARACTERS = 2**34  # largest profile that is read, after decompression
PIECE = 2**22  # characters that are read at a time
LONGEST_EVENT = 2**24  # most characters of one event
LARGEST_REST = 2**28  # most characters beside the list of events
OPENING = re.compile(r'(?<!\\)"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(r"[\s,]*")


def read_events(path: Path, keep: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return the object of a profile, whose ``traceEvents`` are what ``keep`` returns of each.

    Events of which it returns None are left out. A profile may be a list of events alone.
    """
    try:
        with opened(path) as stream:
            text = _Pieces(path, io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
            before = text.until(OPENING)
            if before is None:  # no list of events, which is then the whole text
                document = json.loads(text.buffer)
                return document if isinstance(document, dict) else {}
            kept = [part for event in text.objects() if (part := keep(event)) is not None]
            document = json.loads(before + "[]" + text.rest())
    except (ValueError, RecursionError) as mistake:
        if isinstance(mistake, InputError):
            raise
        why = " ".join(str(mistake).split())[:80]
        raise InputError(f"{path} is not JSON ({why}). Export the profile again.") from None
    if isinstance(document, dict) and "traceEvents" in document:
        return {**document, "traceEvents": kept}
    return {"traceEvents": kept} if document == [] else {}


class _Pieces:
    """Text of a file of which a part is held, from ``at`` on."""

    def __init__(self, path: Path, stream: io.TextIOBase) -> None:
        self.path, self.stream = path, stream
        self.buffer, self.at, self.passed = "", 0, 0

    def more(self) -> bool:
        """Read a further piece; False at the end of the file."""
        piece = self.stream.read(PIECE)
        self.passed += len(piece)
        if self.passed > MOST_CHARACTERS:
            raise InputError(too_large(self.path, MOST_CHARACTERS, " once it is decompressed"))
        self.buffer, self.at = self.buffer[self.at :] + piece, 0
        return bool(piece)

    def until(self, opening: re.Pattern[str]) -> str | None:
        """Return the text before the list of events, without its bracket; None if none opens."""
        while True:
            if self.buffer.lstrip()[:1] == "[":
                self.at = self.buffer.index("[") + 1
                return ""
            if match := opening.search(self.buffer):
                self.at = match.end()
                return self.buffer[: match.end() - 1]
            if len(self.buffer) > LARGEST_REST:
                raise InputError(too_large(self.path, LARGEST_REST, " before its traceEvents"))
            if not self.more():
                return None

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the list, and pass its end."""
        decode = json.JSONDecoder().raw_decode
        while True:
            start = BETWEEN.match(self.buffer, self.at).end()  # type: ignore[union-attr]
            if self.buffer[start : start + 1] == "]":
                self.at = start + 1
                return
            try:
                event, self.at = decode(self.buffer, start)
            except ValueError:  # cut off, or no JSON
                self.at = start
                if len(self.buffer) - start > LONGEST_EVENT or not self.more():
                    raise
                continue
            if isinstance(event, dict):
                yield event

    def rest(self) -> str:
        """Return the text after the list."""
        while self.more():
            if len(self.buffer) > LARGEST_REST:
                raise InputError(too_large(self.path, LARGEST_REST, " after its traceEvents"))
        return self.buffer
