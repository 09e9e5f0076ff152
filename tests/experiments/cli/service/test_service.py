"""The service: the same answers as the command, one sentence for a mistake, twenty at once."""

import asyncio
import json
import multiprocessing
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from experiments.cli.commands.serve_api import HOSTS, ServiceInputs, only_for
from experiments.cli.service import server as serving
from experiments.cli.service.server import PRELOADED, Service, application, listening
from experiments.hourly.demand import Record
from experiments.hourly.state import State, keep_record, keep_state
from tests.support.commands import document_of, refusal_of
from tests.support.refusals import refused

SMALL = {"cluster": "trn2-ultraserver:8", "unit_rate": 4, "failures": "off"}
MEASURED = ("build_s", "simulate_s", "wall_s", "peak_rss_bytes")
Ask = Callable[..., Awaitable[HTTPResponse]]


def asked_of(service, questions):
    """Serve on a free port while questions are asked."""

    async def both():
        served = application(service())
        only_for(served, HOSTS)
        server = listening(served, 0, "127.0.0.1")
        port = next(iter(server._sockets.values())).getsockname()[1]
        client = AsyncHTTPClient(force_instance=True, max_clients=40)

        async def ask(path, body=None, **headers):
            content = body if isinstance(body, str | None) else json.dumps(body)
            kind = {"Content-Type": "application/json"} if content is not None else {}
            return await client.fetch(
                f"http://127.0.0.1:{port}{path}", method="GET" if content is None else "POST",
                body=content, headers={**kind, **headers}, raise_error=False, request_timeout=120,
            )  # fmt: skip

        try:
            await questions(ask)
        finally:
            client.close()
            server.stop()
            await server.close_all_connections()

    asyncio.run(both())


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def _error(answer):
    document = json.loads(answer.body)
    assert list(document) == ["error"]
    assert "\n" not in document["error"]
    return str(document["error"])


def _without_times(document):
    return {key: value for key, value in document.items() if key not in MEASURED}


def test_an_answer_is_that_of_the_command():
    async def questions(ask):
        words = {**SMALL, "history": "burstgpt", "begin": "22:00", "scale_to_peak": 0.8}
        answer = await ask("/lend", words)
        assert answer.code == 200
        line = "lend --cluster trn2-ultraserver:8 --unit-rate 4 --failures off --demand burstgpt"
        theirs = document_of(f"{line} --from 22:00 --scale-to-peak 0.8")
        assert _without_times(json.loads(answer.body)) == _without_times(theirs)
        columns = {
            "time": [f"2024-05-{6 + hour // 24:02}T{hour % 24:02}:00" for hour in range(240)],
            "requests": [900 + 600 * (hour % 12) for hour in range(240)],
        }
        answer = await ask("/lend", {**SMALL, "demand": columns, "until": "06:00"})
        assert json.loads(answer.body)["history_days"] == 10.0

    asked_of(Service, questions)


REFUSED = {
    "not JSON": ("/lend", "{", "the question is not JSON"),
    "a key twice": ("/lend", '{"model": "gpt2", "model": "tiny"}', "(model appears twice)"),
    "no object": ("/lend", [1], "object of options"),
    "unknown": ("/lend", {"confidenc": "95%"}, "no option confidenc. Did you mean confidence"),
    "path": ("/lend", {"training": "jobs.csv"}, "training is a path"),
    "file by name": ("/lend", {"demand": "/etc/passwd"}, "may name a file"),
    "file inside": ("/fleet", {"model": "gpt2=20%,/etc/x=80%"}, "may name a file"),
    "code": ("/fleet", {"policy": "mine.py"}, "may name a file"),
    "home": ("/train", {"cluster": "~/x"}, "may name a file"),
    "object": ("/train", {"tp": {"a": 1}}, "give a integer"),
    "output": ("/train", {"out": "x"}, "no option out"),
    "source": ("/lend", {"follow": "http://x"}, "no option follow"),
    "columns": ("/lend", {"demand": {"time": [1], "requests": []}}, "equally long"),
    "of the model": ("/train", {"model": "gtp2", "cluster": "dgx-h100"}, "unknown model 'gtp2'"),
    "of the option": ("/lend", {**SMALL, "confidence": "3"}, "write a share such as 99.9%"),
    "of a limit": ("/lend", {**SMALL, "days": -1}, "--days '-1'"),
    "an option as value": ("/lend", {"cluster": "--help"}, "cluster"),
    "empty folder": ("/lend", {**SMALL, "demand": "history"}, "history"),
}


def test_mistakes_are_answered_in_one_sentence_and_nothing_is_read(tmp_path):
    async def questions(ask):
        for name, (path, body, words) in REFUSED.items():
            answer = await ask(path, body)
            assert (answer.code, words in _error(answer)) == (400, True), (name, answer.body)
        assert (await ask("/lend", "x" * (serving.LARGEST_BODY_BYTES + 1))).code in (400, 413, 599)
        assert (await ask("/nothing")).code == 404
        assert (await ask("/lend")).code == 405
        answer = await ask("/lend", "{}", **{"Content-Type": "text/plain"})
        assert (answer.code, _error(answer)) == (415, "send Content-Type: application/json")
        assert (await ask("/lend", {}, Host="evil.example")).code == 404
        assert (await ask("/hour")).code == 404

    asked_of(lambda: Service(folder=tmp_path), questions)


def test_a_token_is_asked_for_everywhere_but_for_health():
    async def questions(ask):
        for path, body in (("/", None), ("/metrics", None), ("/lend", {}), ("/openapi.json", None)):
            answer = await ask(path, body)
            assert (answer.code, _error(answer)) == (401, "the token is missing or wrong")
            assert (await ask(path, body, Authorization="Bearer wrong")).code == 401
        assert (await ask("/healthz")).code == 200
        right = {"Authorization": f"Bearer {'s' * 16}"}
        assert (await ask("/metrics", **right)).code == 200
        assert (await ask("/lend", {"x": 1}, **right)).code == 400

    asked_of(lambda: Service(token="s" * 16), questions)


@pytest.mark.slow
def test_twenty_clients_at_once_are_answered(monkeypatch):
    async def questions(ask):
        shape = {"tp": 2, "global_batch": 64, "seq": 256}
        body = {"model": "gpt2", "cluster": "trn2.48xlarge", **shape}
        answers = await asyncio.gather(*(ask("/train", body) for _ in range(20)))
        assert [answer.code for answer in answers] == [200] * 20
        assert len({json.dumps(_without_times(json.loads(one.body))) for one in answers}) == 1
        metrics = (await ask("/metrics")).body.decode()
        assert 'cluster_sim_api_answers_total{question="train",status="200"} 20\n' in metrics
        assert "cluster_sim_api_inside 0\n" in metrics
        monkeypatch.setattr("experiments.cli.service.server.MOST_WAITING", -1)
        answers = await asyncio.gather(*(ask("/train", body) for _ in range(3)))
        assert sorted(answer.code for answer in answers) == [200, 503, 503]
        busy = next(answer for answer in answers if answer.code == 503)
        assert busy.headers["Retry-After"] == "10"
        assert "come again" in _error(busy)

    asked_of(Service, questions)


def test_a_question_that_takes_too_long_is_ended():
    async def questions(ask):
        answer = await ask("/fleet", {"days": 7})
        assert (answer.code, "no answer within 0.05 s" in _error(answer)) == (504, True)

    asked_of(lambda: Service(limit_s=0.05), questions)


def test_the_document_describes_every_option_and_no_path():
    service = Service()
    schema = {
        path[1:]: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in service.document["paths"].items()
    }
    assert list(schema) == ["lend", "fleet", "plan", "serve", "train"]
    lend = schema["lend"]["properties"]
    assert lend["failures"]["enum"] == ["on", "off", "domains"]
    words = "Length of the history [days]; default all of it."
    limits = {"minimum": 0, "maximum": 36525.0}
    assert lend["days"] == {"type": "number", **limits, "description": words}
    assert lend["weight"]["items"]["type"] == "number"
    assert schema["plan"]["required"] == ["model", "cluster"]
    paths = {"out", "json", "cache", "catalogue", "training", "follow", "state"}
    assert all(paths.isdisjoint(fields["properties"]) for fields in schema.values())

    async def questions(ask):
        assert json.loads((await ask("/openapi.json")).body) == service.document
        listed = (await ask("/")).body.decode()
        assert all(f"<code>{name}</code>" in listed for name in lend)

    asked_of(Service, questions)


def test_the_hour_that_was_answered_last_is_served(tmp_path):
    state = State("demand.csv", fault="the metric is gone")
    state.last = {
        "hour": "2024-05-10T13:00", "lend_units": 7, "lend_more_units": 1, "take_back_units": 0,
        "need_units": 3.5, "lent_unit_hours": 70.0, "filled_minutes": 0, "confidence": 0.95,
        "units": 40, "windows": [],
    }  # fmt: skip
    keep_record(tmp_path, Record())
    keep_state(tmp_path, state)

    async def questions(ask):
        hour = json.loads((await ask("/hour")).body)
        assert (hour["lend_units"], hour["fault"]) == (7, "the metric is gone")
        metrics = (await ask("/metrics")).body.decode()
        assert "cluster_sim_lend_units 7\n" in metrics
        assert "cluster_sim_lend_source_up 0\n" in metrics
        (tmp_path / "state.json").write_text("{")
        answer = await ask("/hour")
        assert (answer.code, "was damaged" in _error(answer)) == (500, True)

    asked_of(lambda: Service(folder=tmp_path), questions)


@pytest.mark.parametrize(("words", "message"), [
    (["--address", "0.0.0.0"], "needs a token"),
    (["--address", "10.0.0.1"], "needs a token"),
    (["--token-file", "short"], "has 5 characters and needs 16"),
    (["--token-file", "gone"], "there is no such file"),
    (["--token-file", "long", "--address", "0.0.0.0"], "add --host"),
    (["--time-limit", "0s"], "between 1 s and 24 h"),
    (["--json"], "leave --json and --out out"),
])  # fmt: skip
def test_a_service_that_would_be_open_to_others_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.delenv("CLUSTER_SIM_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("12345")
    Path("long").write_text("a" * 32)
    assert message in refusal_of("serve-api", *words)


def test_the_names_by_which_clients_may_ask():
    assert ServiceInputs().hosts() == HOSTS
    assert ServiceInputs("10.0.0.1", host=("sim.corp",)).hosts() == (*HOSTS, "10.0.0.1", "sim.corp")
    refused("has no name of its own", ServiceInputs("0.0.0.0").hosts)


def test_modules_that_are_loaded_beforehand_exist():
    """A module that is missing is left out without a word, and each question then loads it."""
    for name in PRELOADED:
        assert find_spec(name), name
