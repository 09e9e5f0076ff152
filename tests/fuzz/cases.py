"""Cases of the fuzzer: a command line and its files, mutated from valid ones by a seed."""

import base64
import json
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz import structure
from tests.fuzz.seeds import COMMANDS, files

NASTY_TEXTS = (
    "", " ", "-1", "0", "1", "2", "3", "7", "16", "1000000000", "1" + "0" * 30, "1" * 400, "-0",
    "nan", "inf", "-inf", "1e400", "1e-400", "0.5", "1.5", "1e5", "0x10", "١٢", "abc", "true", "no",
    "1B", "1GiB", "1EB", "0B", "-1B", "1GB/s", "0GB/s", "1us", "0s", "100d", "1e30s", "7:1.2",
    "[/x]", "[x]", "\x1b[31mred\x1b[0m", "a\nb", "a\x00b", "\u202eabc", "$x_{", "<b>", "é" * 60,
    "x" * 300, "..", "/", "/dev/zero", "/dev/stdin", "pipe", "folder", "nowhere.csv", "loop",
    "config.json", "cluster.yaml", "plan.yaml", "demand.csv", "log.txt", "auto", "best", "none",
    "all", "traces", "kit", "run", "profile.json", "launch.sh",
    "ring:8", "torus:4x4", "clos:64:16", "rainier", "trn2-ultraserver:16", "trn1.32xlarge",
    "gb200-nvl72", "tpu-v6e-pod", "{}", "[]", "null", "~", "&a [*a]", "@order.txt", "=", ",", ";",
)  # fmt: skip
"""Values that programs get wrong."""
UNITS = (
    *("", "", "", "%", "B", "KiB", "GB", "TB/s", "GB/s", "Gbit/s", "us", "ms", "s", "h", "d"),
    *("FLOP/s", "W", ":2", ":1.5", "x4", ",8", "-7", "/2", "=1"),
)
"""Endings of numbers, right in one place and wrong in another."""
NASTY_BYTES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n", b",", b'"', b"'", b"-", b"nan", b"inf",
    b"1e400", b"99999999999999999999", b"-1", b"0", b"[/x]", b"\x1b[2J", b"{", b"}", b"[", b"]",
    b": ", b"&a ", b"*a", b"<<: ", b"!!int ", b"\t", b"#", b"null", b"true", b"\xed\xa0\x80",
)  # fmt: skip

LONGEST_LINE_BYTES = 2**20
"""Length up to which a line of a file is repeated, as a worker has little memory."""
PLACES = ("out", "out", "folder", "loop", "loop/x", "pipe", "a/b", "log.txt", "/proc/x", "")
"""Directories that ``--out`` may be sent to."""


@dataclass(frozen=True)
class Case:
    """One command line with the files that stand beside it."""

    seed: int  # number from which the case was drawn
    arguments: tuple[str, ...]  # words after ``cluster-sim``
    files: Mapping[str, bytes]

    def write(self, folder: Path) -> None:
        """Lay the files out, with a pipe, a folder and a link to itself beside them."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()
        (folder / "loop").symlink_to("loop")

    def as_json(self) -> str:
        """Return the case as text from which :func:`from_json` makes it again."""
        files = {name: base64.b64encode(text).decode() for name, text in self.files.items()}
        return json.dumps({"seed": self.seed, "arguments": self.arguments, "files": files})


def from_json(text: str) -> Case:
    stored = json.loads(text)
    files = {name: base64.b64decode(content) for name, content in stored["files"].items()}
    return Case(stored["seed"], tuple(stored["arguments"]), files)


def draw(seed: int, options: Mapping[str, Mapping[str, Any]]) -> Case:
    """Draw a case; ``options`` are the parameters of each command, as a sweep knows them."""
    rng = random.Random(seed)
    base = rng.choice(COMMANDS)
    seeds = dict(files())
    used = [name for name in seeds if _is_used(name, base)]
    if used and rng.random() < 0.6:
        name = rng.choice(used)
        by_value = rng.random() < 0.4
        mutate = partial(structure.mutated, name) if by_value else _mutated
        seeds[name] = mutate(seeds[name], rng)
    words = list(base)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        words = _with_option(words, options[base[0]], rng)
    if rng.random() < 0.08:
        place = rng.randrange(1, len(words) + 1)
        words.insert(place, rng.choice(NASTY_TEXTS))
    if rng.random() < 0.1 and len(words) > 1:
        words[rng.randrange(1, len(words))] = _value(rng)
    if rng.random() < 0.7 and base[0] not in ("report",):
        words.append("--json")
    if rng.random() < 0.15 and base[0] not in ("report", "list"):
        words += ["--out", rng.choice(PLACES)]
    return Case(seed, (*words, "--quiet"), seeds)


def _is_used(name: str, words: tuple[str, ...]) -> bool:
    """Return whether a command line names a file, or the folder that contains it."""
    return name in words or name.partition("/")[0] in words


def _with_option(words: list[str], options: Mapping[str, Any], rng: random.Random) -> list[str]:
    stated = (one for name, one in options.items() if name not in ("help", "help_all", "out"))
    named = [one for one in stated if one.param_type_name == "option"]
    if not named:  # a group, whose commands have the options
        return words
    one = rng.choice(named)
    flag = rng.choice([flag for flag in (*one.opts, *one.secondary_opts) if flag[:2] == "--"])
    return [*words, flag] if one.is_flag else [*words, f"{flag}={_value(rng)}"]


def _value(rng: random.Random) -> str:
    """Draw a nasty text, a number of any size and unit, or a valid value with a change."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NASTY_TEXTS)
    if kind < 0.75:
        number = rng.choice((10 ** rng.uniform(-12, 22), rng.randrange(2**20), -rng.random()))
        return f"{number:.{rng.randrange(1, 18)}g}{rng.choice(UNITS)}"
    values = [word for words in COMMANDS for word in words[1:] if not word.startswith("--")] or [""]
    return _mutated(rng.choice(values).encode(), rng).decode("utf-8", "replace")


def _mutated(content: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, cells or lines."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        content = rng.choice((_bytes, _line, _cell, _cut))(content, rng)
    return content


def _bytes(content: bytes, rng: random.Random) -> bytes:
    place, drop = rng.randrange(len(content) + 1), rng.choice((0, 0, 1, 1, 2, 5))
    piece = rng.choice((*NASTY_BYTES, bytes([rng.randrange(256)])))
    return content[:place] + piece + content[place + drop :]


def _cell(content: bytes, rng: random.Random) -> bytes:
    """Put a nasty value where a cell, a number or a word stands."""
    cells = list(re.finditer(rb"[^\s,:{}\[\]\"]+", content))
    if not cells:
        return content
    cell = rng.choice(cells)
    value = rng.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass")
    return content[: cell.start()] + value + content[cell.end() :]


def _line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    place = rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, lines[place])
    elif kind == 2:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        most = LONGEST_LINE_BYTES // max(1, len(lines[place]))
        lines[place] = lines[place] * max(1, min(50, most))
    return b"".join(lines)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]
