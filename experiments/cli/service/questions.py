"""Questions that the service takes: the options of a command as JSON, without any path."""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from cluster_sim.processes import begin_worker
from experiments.cli.main import prepare, run
from experiments.cli.options.from_fields import DescribedOption, Number, with_default
from experiments.cli.registry import COMMANDS
from experiments.reports.run_record import option_words
from experiments.sweeps.runner import KILLED, Outcome, outcome, run_row
from topologies.errors import InputError, shown, suggestion

NUMBERS: Mapping[Any, str] = {int: "integer", float: "number"}
"""Types of numbers by their names in OpenAPI."""
QUESTIONS = ("lend", "fleet", "plan", "serve", "train")
ALIASES = {"history": "demand"}  # keywords of Python functions that are options of another name
INLINE = "demand"  # option whose file a request may hold, as an object of columns
INLINE_FILE = "demand.csv"
PATHS = re.compile(
    r"(^|[^\w])/|\.\.|[~\\\0]|\.(csv|json|jsonl|ya?ml|toml|py|txt|gz|parquet)\b", re.I
)
"""Texts that may name a file: rooted, relative to a parent or a home, or with an ending of files.
Processes that answer stand in an empty folder, so that no other text names one either."""


@dataclass(frozen=True)
class Field:
    """An option of a question."""

    item: Any  # option of click, which has its description

    @property
    def name(self) -> str:
        """Name in JSON, that of the Python keyword."""
        return str(self.item.name)

    @property
    def is_path(self) -> bool:
        """Return whether the value is a path, which no request may state."""
        return getattr(self.item.type, "kind", None) is Path

    def schema(self) -> dict[str, Any]:
        """Return the field as a schema of OpenAPI."""
        item = self.item
        read = item.type if isinstance(item.type, Number) else None
        plain = NUMBERS[read.kind] if read else "string"
        one: dict[str, Any] = {"type": "boolean" if item.is_flag else plain}
        if read is not None:
            limits = {"minimum": read.least, "maximum": read.most}
            one |= {key: limit for key, limit in limits.items() if limit is not None}
        if isinstance(item.described.choices, tuple) and item.described.choices:
            one["enum"] = list(item.described.choice_texts())
        whole = {"type": "array", "items": one} if item.multiple else one
        if self.name == INLINE:
            columns = {"type": "object", "description": "columns of a demand file, as lists"}
            whole = {"oneOf": [one, whole, columns]}
        return {**whole, "description": with_default(item.described, item.usual)}

    def texts(self, value: Any) -> Iterator[str]:
        """Yield a value of JSON as the command line takes it.

        Raises InputError for a value of another type, and for a text that may name a file.
        """
        for each in value if isinstance(value, list) and self.item.multiple else [value]:
            if isinstance(each, bool) or (isinstance(each, str) and not self.item.is_flag):
                text = str(each).lower() if isinstance(each, bool) else each
            elif isinstance(each, int | float):
                is_text = not isinstance(self.item.type, Number)
                text = f"{each!r}{self.item.described.plain if is_text else ''}"
            else:
                raise InputError(f"{self.name} is {shown(repr(each))}; give {_a(self.schema())}.")
            if PATHS.search(text):
                raise InputError(
                    f"{self.name} is {shown(repr(text))}, which may name a file, and the service "
                    "reads none; give a name that `cluster-sim list` shows."
                )
            yield text


def fields_of(command: click.Command) -> dict[str, Field]:
    """Return the options of a command by name; those on which no result depends are left out."""
    return {
        str(each.name): Field(each)
        for each in command.params
        if isinstance(each, DescribedOption) and (each.described.recorded or each.name == "seed")
    }


def command_line(
    name: str, fields: Mapping[str, Field], stated: Any
) -> tuple[list[str], Mapping[str, str]]:
    """Return the command line of a question, and the files that it reads, by name.

    ``stated``: values by name, as JSON gave them; null keeps a default.

    Raises InputError for anything but an object of known fields.
    """
    if not isinstance(stated, dict):
        raise InputError(f"a question is an object of options by name; {name} has {len(fields)}.")
    words, files = [name, "--json", "--quiet"], {}
    for key, value in stated.items():
        place = ALIASES.get(key, key)
        field = fields.get(str(place)) or fields.get(key.replace("-", "_"))
        if field is None:
            raise InputError(f"{name} has no option {shown(key)}.{suggestion(key, fields)}")
        if field.is_path:
            raise InputError(
                f"{key} is a path, and the service reads and writes none; leave it out."
            )
        if value is None:
            continue
        if field.name == INLINE and isinstance(value, dict):
            files[INLINE_FILE] = _table(value)
            words.append(f"--{INLINE}={INLINE_FILE}")
            continue
        for text in field.texts(value):
            words += option_words(field.item, text)
    return words, files


def _table(columns: Mapping[str, Any]) -> str:
    """Return columns as CSV."""
    lengths = {len(each) if isinstance(each, list) else -1 for each in columns.values()}
    if len(lengths) != 1 or lengths <= {-1, 0}:
        raise InputError(
            f"{INLINE} has columns of {len(lengths)} lengths; give equally long lists."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _a(schema: Mapping[str, Any]) -> str:
    return (
        f"a list of {schema['items']['type']}s" if "items" in schema else f"a {schema.get('type')}"
    )


def openapi(questions: Mapping[str, Mapping[str, Field]], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service, made from the options' own descriptions."""
    content: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    mistakes = {
        "400": "mistake in the question",
        "401": "no token",
        "503": "busy",
        "504": "too long",
    }
    answers = {
        "200": {"description": "what the command prints with --json", **content},
        **{code: {"description": f"{text}; error says why", **content}
           for code, text in mistakes.items()},
    }  # fmt: skip
    paths: dict[str, Any] = {}
    for name, fields in questions.items():
        offered = {key: field.schema() for key, field in fields.items() if not field.is_path}
        needed = [key for key in offered if fields[key].item.required]
        schema = {"type": "object", "properties": offered, "additionalProperties": False}
        body = {"application/json": {"schema": schema | ({"required": needed} if needed else {})}}
        paths[f"/{name}"] = {
            "post": {
                "operationId": name,
                "summary": summary(name),
                "requestBody": {"content": body, "required": True},
                "responses": answers,
            }
        }
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "cluster-sim", "version": version},
        "paths": paths,
        "components": {"securitySchemes": bearer},
        "security": [{}, {"bearer": []}],
    }


def summary(name: str) -> str:
    """Return the summary of a command."""
    return next(command.summary for command in COMMANDS if command.name == name)


def page(document: Mapping[str, Any]) -> str:
    """Return a page that lists the questions of an OpenAPI document with their options."""
    parts = ["<!doctype html><meta charset=utf-8><title>cluster-sim</title><h1>cluster-sim</h1>"]
    parts.append("<p>Questions as JSON, described in <a href=openapi.json>openapi.json</a>.</p>")
    for path, methods in document["paths"].items():
        schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"<h2>POST {escape(path)}</h2><p>{escape(methods['post']['summary'])}</p><dl>")
        parts += [
            f"<dt><code>{escape(key)}</code><dd>{escape(field['description'])}"
            for key, field in schema["properties"].items()
        ]
        parts.append("</dl>")
    return "\n".join(parts)


PRELOADED = [
    "experiments.cli.service.questions",
    *(f"experiments.cli.commands.{name}" for name in QUESTIONS),
    *(f"workloads.{name}.front" for name in ("fleet.lending", "fleet", "serving")),
    "workloads.front",
    "workloads.search.search",
]
"""Modules that are loaded in the process from which all others are forked."""
LATE = "late"  # status of a question that took too long


def run_apart(words: Sequence[str], files: Mapping[str, str], limit_s: float) -> Outcome:
    """Run a command line in a process of its own, in a folder that holds only some files.

    A process that takes longer than ``limit_s`` is killed. Returns the outcome of
    :func:`experiments.sweeps.runner.run_row`, or one with the status ``late``.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="cluster-sim-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        process = context.Process(target=_answer, args=(theirs, words, folder), daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(limit_s):
                return outcome(LATE, f"no answer within {limit_s:g} s; ask for less at once")
            result: Outcome = ours.recv()
            return result
        except EOFError:
            return outcome("crashed", KILLED)
        finally:
            ours.close()
            process.kill()
            process.join()
            process.close()


def _answer(connection: Connection, words: Sequence[str], folder: str) -> None:
    """Run a command line, and send its outcome."""
    begin_worker(prepare)
    os.chdir(folder)
    connection.send(run_row(run, words))
