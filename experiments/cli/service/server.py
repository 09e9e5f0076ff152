"""Server of the questions: who may ask, how many at once, and what is answered."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler

from cluster_sim import __version__
from experiments.cli.main import app
from experiments.cli.service.questions import (
    LATE,
    QUESTIONS,
    command_line,
    fields_of,
    openapi,
    page,
    run_apart,
)
from experiments.hourly.state import State, exposition, metric, read_state
from topologies.errors import InputError

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
            words, files = command_line(name, self.fields[name], _json(body))
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


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("the question is no JSON; send an object of options by name.") from None


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
        kind = self.request.headers.get("Content-Type", "")
        if (
            kind.partition(";")[0].strip() != "application/json"
        ):  # what a form elsewhere cannot send
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
