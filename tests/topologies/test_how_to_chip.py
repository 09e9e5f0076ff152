"""The rows of the how-to page on chips are enough for every command that needs a chip."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.cli.main import run

PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-chip.md"
FILES = dict(re.findall(r'```text title="(\S+)"\n(.*?)```', PAGE.read_text(), re.DOTALL))
COMMANDS = {
    "collective all-reduce next-node:2 --size 1MiB": "rows",
    "train --model llama-3.1-8b --cluster next-node --tp 8": "iteration_s",
    "plan --model llama-3.1-8b --cluster next-node --global-batch 8 --tp 8 --pp 1": "rows",
    "serve --model llama-3.1-8b --cluster next-node --tp 8 --count 20": "ttft_s",
}


def rows(family: str) -> str:
    """The overlay of the page, with the rows that a chip of the Trainium family has besides."""
    if family == "gpu":
        return FILES["next.csv"]
    kept = [line for line in FILES["next.csv"].splitlines() if not line.startswith("next,family")]
    return "\n".join([*kept, FILES["trainium.csv"]])


@pytest.mark.parametrize("family", ["gpu", "trainium"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_rows_of_the_page_are_enough(
    family: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "next.csv"
    overlay.write_text(rows(family))
    words = [*command.split(), "--catalogue", str(overlay), "--json", "--quiet"]
    assert run(words) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)[COMMANDS[command]]


def test_a_quantity_that_is_missing_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "next.csv"
    lines = rows("trainium").splitlines()
    left_out = ("next,array_rows,", "next,like,")  # a chip that it is like would have the row
    overlay.write_text("\n".join(line for line in lines if not line.startswith(left_out)))
    words = ["train", "--model", "llama-3.1-8b", "--cluster", "next-node", "--tp", "8", "--quiet"]
    assert run([*words, "--catalogue", str(overlay)]) == 2
    assert capsys.readouterr().err == (
        "cluster-sim: the catalogue has no 'array_rows' of next. Did you mean array_columns? "
        "Correct the name, or add a row for it to an overlay (--catalogue FILE).\n"
    )
