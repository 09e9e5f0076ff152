"""Server of the questions: who may ask, how many at once, and what is answered."""

from __future__ import annotations

import asyncio
import csv
import hmac
import io
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler

from cluster_sim import __version__
from cluster_sim.processes import begin_worker
from experiments.cli.main import app, prepare, run
from experiments.cli.options.from_fields import DescribedOption, Number, with_default
from experiments.hourly.state import State, exposition, metric, read_state
from experiments.reports.run_record import option_words
from experiments.sweeps.runner import KILLED, Outcome, outcome, run_row
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.files.reading import json_value

# Questions that the service takes: the options of a command as JSON, without any path.

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
        """Yield a JSON value as the command line takes it; a text may name no file."""
        for each in value if isinstance(value, list) and self.item.multiple else [value]:
            if isinstance(each, bool) or (isinstance(each, str) and not self.item.is_flag):
                text = str(each).lower() if isinstance(each, bool) else each
            elif isinstance(each, int | float):
                is_text = not isinstance(self.item.type, Number)
                text = f"{each!r}{self.item.described.plain if is_text else ''}"
            else:
                kind = self.schema()
                wanted = (
                    f"list of {kind['items']['type']}s" if "items" in kind else kind.get("type")
                )
                raise InputError(f"{self.name} is {shown(repr(each))}; give a {wanted}.")
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
    """Return the command line of a question in JSON, and the files that it reads, by name."""
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
                "summary": app.summaries[name],
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
    "experiments.cli.service.server",
    *(f"experiments.cli.commands.{name}" for name in QUESTIONS),
    *(f"workloads.{name}.front" for name in ("fleet.lending", "fleet", "serving")),
    "workloads.front",
    "workloads.search.search",
]
"""Modules that are loaded in the process from which all others are forked."""
LATE = "late"  # status of a question that took too long


def run_apart(words: Sequence[str], files: Mapping[str, str], limit_s: float) -> Outcome:
    """Run a command line in its own process, with some files; one past its limit is ``late``."""
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


LARGEST_BODY_BYTES = 8 * 2**20  # largest question: a year of hours, or two months of minutes [B]
MOST_WAITING = 64  # questions that wait for a process; further ones are told to come again
STATUS = {"ok": 200, "refused": 400, LATE: 504, "crashed": 500}
"""HTTP status by the outcome of a question."""
AGAIN_S = 10


@dataclass
class Service:
    """Questions, the processes that answer them, and counts of both."""

    token: str = ""  # what every request has to carry; empty for none
    workers: int = 2  # questions that run at once
    limit_s: float = 600.0  # longest time of one [s]
    # State directory of ``lend --follow``, whose last answer and metrics are served as well
    folder: Path | None = None
    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    spent_s: dict[str, float] = field(default_factory=dict)
    inside: int = 0

    def __post_init__(self) -> None:
        self.fields = {name: fields_of(app.get_command(None, name)) for name in QUESTIONS}
        self.document = openapi(self.fields, __version__)
        # Not asyncio's own threads, for whose questions Ctrl-C would wait.
        self.threads = ThreadPoolExecutor(self.workers)

    async def ask(self, name: str, body: bytes) -> tuple[int, Mapping[str, Any]]:
        """Answer a question, and return the HTTP status and the document."""
        begun_s = time.monotonic()
        status, document = await self._ask(name, body)
        self.answered[name, status] += 1
        self.spent_s[name] = self.spent_s.get(name, 0.0) + time.monotonic() - begun_s
        return status, document

    async def _ask(self, name: str, body: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            options = json_value(body, "the question", "Send an object of options by name.")
            words, files = command_line(name, self.fields[name], options)
        except InputError as mistake:
            return 400, {"error": str(mistake)}
        if self.inside >= self.workers + MOST_WAITING:
            return 503, {"error": f"{self.inside} questions are here already; come again later"}
        self.inside += 1
        try:
            loop = asyncio.get_running_loop()
            answer = partial(run_apart, words, files, self.limit_s)
            outcome = await loop.run_in_executor(self.threads, answer)
        finally:
            self.inside -= 1
        status = STATUS[outcome["status"]]
        return status, outcome["document"] if status == 200 else {"error": outcome["message"]}

    def metrics(self) -> str:
        """Return the metrics of the service, and those of the hours that it follows."""
        answers = [
            (f'{{question="{name}",status="{status}"}}', count)
            for (name, status), count in sorted(self.answered.items())
        ]
        took = [(f'{{question="{name}"}}', spent) for name, spent in sorted(self.spent_s.items())]
        lines = [
            *metric("cluster_sim_api_answers_total", "counter", "Questions answered", answers),
            *metric("cluster_sim_api_seconds_total", "counter", "Time spent on them", took),
            *metric("cluster_sim_api_inside", "gauge", "Questions here now", [("", self.inside)]),
        ]
        state = self._state()
        return "\n".join(lines) + "\n" + ("" if state is None else exposition(state))

    def hour(self) -> Mapping[str, Any]:
        """Return the last line that was answered, and why none came since, if so."""
        state = self._state()
        if state is None or not state.last:
            raise HTTPError(404, reason="no hour has been answered; start lend --follow")
        return {**state.last, "fault": state.fault}

    def _state(self) -> State | None:
        return None if self.folder is None else read_state(self.folder)


class Handler(RequestHandler):
    """Every path of the service; all but that of health ask for the token, if there is one."""

    def initialize(self, service: Service) -> None:
        """Take the service from the application."""
        self.service = service

    def prepare(self) -> None:
        """Refuse a request without the token."""
        stated = self.request.headers.get("Authorization", "")
        expected = f"Bearer {self.service.token}"
        is_open = not self.service.token or self.request.path == "/healthz"
        if not (is_open or hmac.compare_digest(stated.encode(), expected.encode())):
            self.set_header("WWW-Authenticate", "Bearer")
            raise HTTPError(401, reason="the token is missing or wrong")

    async def post(self, name: str) -> None:
        """Answer a question."""
        if name not in QUESTIONS:
            raise NO_SUCH_PATH
        # A form of a page elsewhere cannot send this type.
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind != "application/json":
            raise HTTPError(415, reason="send Content-Type: application/json")
        status, document = await self.service.ask(name, self.request.body)
        if status == 503:
            self.set_header("Retry-After", AGAIN_S)
        self._reply(document, status)

    def get(self, name: str) -> None:
        """Answer with a page that only reads."""
        try:
            self._read(name)
        except InputError as mistake:  # the state directory was damaged
            self._reply({"error": str(mistake)}, 500)

    def _read(self, name: str) -> None:
        documents: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "openapi.json": lambda: self.service.document,
            "hour": self.service.hour,
            "healthz": lambda: {"status": "ok"},
        }
        if name in documents:
            self._reply(documents[name]())
        elif name == "metrics":
            self.set_header("Content-Type", "text/plain; version=0.0.4")
            self.finish(self.service.metrics())
        elif not name:
            self.finish(page(self.service.document))
        else:
            raise HTTPError(405, reason="send POST") if name in QUESTIONS else NO_SUCH_PATH

    def write_error(self, status_code: int, **_: Any) -> None:
        """Answer with one sentence in JSON."""
        self.finish({"error": self._reason})

    def _reply(self, document: Mapping[str, Any], status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(document, allow_nan=False) + "\n")


NO_SUCH_PATH = HTTPError(404, reason="no such path; / lists them")


def application(service: Service) -> Application:
    """Return the application of a service."""
    every = [("/(.*)", Handler, {"service": service})]
    return Application(every, log_function=lambda handler: None)


def listening(served: Application, port: int, address: str) -> HTTPServer:
    """Listen for requests of limited size."""
    server = HTTPServer(
        served, max_body_size=LARGEST_BODY_BYTES, body_timeout=60, idle_connection_timeout=60
    )
    server.listen(port, address)
    return server
