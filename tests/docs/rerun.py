"""Run the code of the documents again and say what moved; ``--write`` writes the new output down.

``python -m tests.docs.rerun [--write] [PAGE…]``. Three kinds of blocks are run: Python, whose
output is the block without a language below it; ``console`` blocks, in which lines with
``$ cluster-sim …`` are followed by what they print; and blocks with a file's name as their title
(``text title="mine.csv"``), which become files of that name. The Python blocks of a page share
names.
"""

import contextlib
import difflib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from experiments.cli.main import run

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"```\w* title=\"([\w-]+\.(?:csv|yaml|txt|sh|json))\"\n")
VOLATILE = re.compile(r"took|in \d+\.\d+ s, the best|most memory held")
"""Lines that differ from run to run: wall times and memory of the process."""


def pages() -> list[Path]:
    """All pages with code, README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rerun(text: str, name: str) -> str:
    """Return a page with the output that its code gives now, run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return _rerun(text, name)


def _rerun(text: str, name: str) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    parts, end = [], 0
    blocks = list(BLOCK.finditer(text))
    for place, block in enumerate(blocks):
        language, code = block.groups()
        if heading := FILE.match(block[0]):
            Path(heading[1]).write_text(code, encoding="utf-8")
        if language == "console" and code.startswith("$ "):
            parts += [text[end : block.start(2)], _console(code)]
            end = block.end(2)
        if language == "python":
            after = blocks[place + 1] if place + 1 < len(blocks) else None
            printed = _python(code, name, names)
            if after is not None and not after[1] and not text[block.end() : after.start()].strip():
                parts += [text[end : after.start(2)], printed]
                end = after.end(2)
    return "".join([*parts, text[end:]])


def moved(before: str, after: str) -> Iterator[str]:
    """Lines that differ, without those that differ from run to run."""
    texts = (text.splitlines() for text in (before, after))
    lines = [[line for line in text if not VOLATILE.search(line)] for text in texts]
    for line in difflib.unified_diff(*lines, lineterm="", n=0):
        if line[:1] in "+-" and line[:3] not in ("+++", "---"):
            yield line


def _python(code: str, name: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.startswith(">>>"):
            _session(code, name, names)
        else:
            exec(compile(code, f"code of {name}", "exec"), names)
    return printed.getvalue()


def _session(code: str, name: str, names: dict[str, Any]) -> None:
    """Run a recorded session; what it prints stands in it."""
    runner = doctest.DebugRunner()
    session = doctest.DocTestParser().get_doctest(code, names, name, name, 0)
    runner.run(session, clear_globs=False)
    names.update(session.globs)


def _console(text: str) -> str:
    """A block of commands with what each of them prints now."""
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    return "".join(f"{line}\n{_printed(line[2:])}" for line in commands)


def _printed(line: str) -> str:
    command, _, file = line.partition(" > ")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.dict(os.environ, COLUMNS="80"):
        run(shlex.split(command)[1:])
    if file:
        Path(file).write_text(printed.getvalue(), encoding="utf-8")
    return "" if file else printed.getvalue()


def main(arguments: list[str]) -> int:
    """Run the pages whose names contain one of the arguments (all if none); 1 if any moved."""
    wanted = [word for word in arguments if not word.startswith("--")]
    changed = 0
    for page in pages():
        name = str(page.relative_to(ROOT))
        if wanted and not any(word in name for word in wanted):
            continue
        before = page.read_text(encoding="utf-8")
        after = rerun(before, name)
        differences = list(moved(before, after))
        sys.stdout.write(f"{name}: {'moved' if differences else 'same'}\n")
        sys.stdout.writelines(f"  {line}\n" for line in differences)
        changed += bool(differences)
        if "--write" in arguments and before != after:
            page.write_text(after, encoding="utf-8")
    return int(bool(changed) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
