"""Manual pages of cluster-sim and its commands, made from what click knows, in out/man."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cluster_sim import __version__
from experiments.cli.main import app
from experiments.cli.options.from_fields import DescribedArgument

FOLDER = Path("out/man")


def escaped(text: str) -> str:
    """Return a text as troff takes it: backslashes and hyphens as such, and no line a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def page(name: str, command: click.Command, context: click.Context) -> str:
    """Return the manual page of a command."""
    title, _, more = (command.help or "").partition("\n")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.replace(" ", "-").upper()}" "1" "" "cluster-sim {__version__}"',
        *(".SH NAME", f"{escaped(name.replace(' ', '-'))} \\- {escaped(title.rstrip('.'))}"),
        *(".SH SYNOPSIS", f".B {escaped(name)}", escaped(usage)),
    ]
    if more := more.strip():
        lines += [".SH DESCRIPTION", *(escaped(part.strip()) for part in more.split("\n"))]
    lines.append(".SH OPTIONS")
    for each in command.get_params(context):
        record = each.get_help_record(context)
        if isinstance(each, DescribedArgument):
            record = each.line()
        if record:
            lines += [".TP", f"\\fB{escaped(record[0])}\\fR", escaped(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for entry in command.list_commands(context):
            listed = command.get_command(context, entry)
            short = listed.get_short_help_str(200) if listed else ""
            lines += [".TP", f"\\fB{escaped(entry)}\\fR", escaped(short)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write a page of the program and one of each command."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    context = click.Context(app, info_name="cluster-sim")
    pages = {"cluster-sim": page("cluster-sim", app, context)}
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        whole = f"cluster-sim {name}"
        pages[f"cluster-sim-{name}"] = page(whole, command, click.Context(command, context, name))
    for name, text in pages.items():
        (FOLDER / f"{name}.1").write_text(text)
    sys.stdout.write(f"{len(pages)} pages in {FOLDER}; man -l {FOLDER}/cluster-sim.1 shows one\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
