"""A small server with the two answers of Prometheus' query API that a follower asks for."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class QueryApi:
    """Values by the minute, a clock that a test sets, and faults.

    ``rate``: requests per second of a minute since 1970; None where the metric has no value.
    ``now``: the server's clock, in minutes since 1970. ``twice``: whether every value comes twice.
    ``series``: number of series. ``document``: what is answered in place of everything.
    """

    def __init__(self, rate: Callable[[int], float | None], now: int):
        self.rate, self.now = rate, now
        self.twice, self.series, self.requests = False, 1, 0
        self.document: Any = None

    def answer(self, path: str) -> Any:
        """Return the document for a path with its parameters."""
        self.requests += 1
        if self.document is not None:
            return self.document
        parts = urlsplit(path)
        asked_for = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/api/v1/query":
            return _success("scalar", [self.now * 60 + 7.25, str(self.now * 60 + 7.25)])
        first, last = (int(float(asked_for[name])) // 60 for name in ("start", "end"))
        minutes = range(first, min(last, self.now) + 1)
        rates = ((60 * minute, self.rate(minute - 1)) for minute in minutes)
        once = [[at, str(rate)] for at, rate in rates if rate is not None]
        values = [value for value in once for _ in range(1 + self.twice)]
        one = [{"metric": {}, "values": values}] if values else []
        return _success("matrix", one * self.series)


def _success(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


@contextmanager
def served(api: QueryApi) -> Iterator[str]:
    """Serve on a free port of this machine, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(api.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
