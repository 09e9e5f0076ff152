"""Lending that follows: faults, restarts, kills, promises, and a day at 1,000 times its speed."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from experiments.hourly.demand import GrowingFile, Prometheus, Record, minute_of, moment
from experiments.hourly.follow import Follower
from experiments.hourly.state import HOURS, STATE, exposition, opened, read_state
from tests.docs.rerun import ROOT
from tests.support.refusals import refused
from topologies.support.errors import InputError


class QueryApi:
    """Values by the minute, a clock that a test sets, and faults.

    ``rate``: requests per second of a minute since 1970; None where the metric has no value.
    ``now``: the server's clock, in minutes since 1970. ``twice``: whether every value comes twice.
    ``series``: number of series. ``document``: what is answered in place of everything.
    """

    def __init__(self, rate, now):
        self.rate, self.now = rate, now
        self.twice, self.series, self.requests = False, 1, 0
        self.document = None

    def answer(self, path):
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


def _success(kind, result):
    return {"status": "success", "data": {"resultType": kind, "result": result}}


@contextmanager
def served(api):
    """Serve on a free port of this machine, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = json.dumps(api.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
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


Demand = Callable[[int], int]


def _lines(folder):
    return [json.loads(line) for line in (folder / HOURS).read_text().splitlines()]


@pytest.fixture
def api(demand, monday):
    """A server at the beginning of a Monday."""
    return QueryApi(lambda minute: demand(minute) / 60, monday + 2)


@pytest.fixture
def address(api):
    """Its address."""
    with served(api) as url:
        yield url


def _follower(address, folder, ask):
    return Follower(Prometheus(address, "rate"), folder, ask, lambda line: None, days=7.0)


def _looks(follower, api, until, step=20):
    """Look again and again as time passes; return the problems."""
    problems = []
    with opened(follower.folder, follower.source.name) as (state, record):
        while api.now < until:
            api.now += step
            try:
                follower.step(state, record)
            except InputError as mistake:
                problems.append(str(mistake))
    return problems


@pytest.mark.slow
def test_half_a_day_with_faults_loses_no_hour(api, address, ask, tmp_path, demand, monday):
    """Half a day in a second or two: restart, gap, duplicates, a clock set back."""
    faulty = _follower(address, tmp_path / "faulty", ask)
    faulty.look()
    assert _looks(faulty, api, monday + 5 * 60) == []
    faulty = _follower(address, tmp_path / "faulty", ask)  # a restart loses nothing
    gap = range(monday + 6 * 60, monday + 8 * 60 + 10)
    api.rate = lambda minute: None if minute in gap else demand(minute) / 60
    problems = _looks(faulty, api, monday + 9 * 60 + 2)
    assert len(problems) == 2
    assert all("for 0% of the hour" in each and "05-20T06:00 stays" in each for each in problems)
    api.rate, api.twice = lambda minute: demand(minute) / 60, True
    assert _looks(faulty, api, monday + 12 * 60 + 2) == []
    api.now -= 180
    problems = _looks(faulty, api, monday + 11 * 60 + 42)
    assert len(problems) == 8
    assert {"went back from 2024-05-20T12:02" in each for each in problems} == {True}
    assert {"The answer of 2024-05-20T12:00 stays." in each for each in problems} == {True}
    assert _looks(faulty, api, monday + 14 * 60 + 2) == []
    lines = _lines(tmp_path / "faulty")
    assert [line["hour"] for line in lines] == [moment(monday + 60 * hour) for hour in range(15)]
    assert [line["hour"][11:13] for line in lines if line["status"] == "held"] == ["07", "08"]
    state = read_state(tmp_path / "faulty")
    assert (state.counts["answered"], state.counts["held"], state.counts["errors"]) == (13, 2, 10)
    assert state.counts["late_rows"] == len(gap)  # the server has found them again
    assert state.counts["duplicate_rows"] > 0
    # Another follower that begins now says the same: nothing of the day is left in the state.
    _follower(address, tmp_path / "calm", ask).look()
    ours, theirs = lines[-1], _lines(tmp_path / "calm")[-1]
    alone = ("lend_more_units", "take_back_units", "promises")
    assert {key: ours[key] for key in ours if key not in alone} == {
        key: theirs[key] for key in theirs if key not in alone
    }


def test_restarts_change_no_byte(api, address, ask, tmp_path, monday):
    one, two = tmp_path / "one", tmp_path / "two"
    follower = _follower(address, one, ask)
    follower.look()
    _looks(follower, api, monday + 2 * 60)
    api.now = monday + 2
    _follower(address, two, ask).look()
    while api.now < monday + 2 * 60:
        _looks(_follower(address, two, ask), api, api.now + 17)
    assert (one / HOURS).read_bytes() == (two / HOURS).read_bytes()
    assert (one / STATE).read_bytes() == (two / STATE).read_bytes()


def test_a_process_killed_between_files_answers_the_hour_again(api, address, ask, tmp_path, monday):
    folder = tmp_path / "state"
    follower = _follower(address, folder, ask)
    follower.look()
    before = (folder / STATE).read_bytes()
    _looks(follower, api, monday + 62, step=60)
    whole = (folder / HOURS).read_bytes()
    (folder / STATE).write_bytes(before)  # the line had been written, and the state had not
    follower.look()
    assert (folder / HOURS).read_bytes() == whole
    assert len(_lines(folder)) == 2


def test_a_long_pause_is_made_up_hour_by_hour(api, address, ask, tmp_path, monday):
    paused, steady = tmp_path / "paused", tmp_path / "steady"
    _follower(address, paused, ask).look()
    _follower(address, steady, ask).look()
    _looks(_follower(address, steady, ask), api, monday + 2 * 60)
    assert _follower(address, paused, ask).look() == 2
    assert (paused / HOURS).read_bytes() == (steady / HOURS).read_bytes()
    api.now += 32 * 1440
    with pytest.raises(InputError, match=r"time jumps from 2024-05-20T02:00 .* new --state"):
        _follower(address, paused, ask).look()
    assert len(_lines(paused)) == 3


@pytest.mark.slow
def test_promises_are_judged_once_their_night_is_over(api, address, ask, tmp_path, demand, monday):
    surge = monday + 26 * 60
    api.rate = lambda minute: (3 if minute >= surge else 1) * demand(minute) / 60
    follower = _follower(address, tmp_path / "state", ask)
    follower.look()
    assert _looks(follower, api, monday + 30 * 60 + 2, step=60) == []
    judged = [each for line in _lines(tmp_path / "state") for each in line["promises"]]
    # The night of each statement of the first hours was over by 06:00, before the surge.
    assert [each["stated_at"] for each in judged] == [moment(monday + 60 * h) for h in range(7)]
    assert [each["broken"] for each in judged] == [False] * 6 + [True]
    assert judged[-1]["most_short_units"] > 0
    state = read_state(tmp_path / "state")
    assert (state.counts["promises"], state.counts["broken_promises"]) == (7, 1)
    assert "cluster_sim_lend_promises_broken_total 1\n" in exposition(state)


@pytest.mark.parametrize(("document", "words"), [
    ({"status": "error", "error": "bad\nquery"}, r"refuses query: bad\\nquery"),
    ({"status": "success"}, "in another form"),
    ([], "in another form"),
    ({"status": "success", "data": {"result": [1]}}, "in another form .*IndexError"),
    ({"status": "success", "data": {"result": [1, "NaN"]}}, "in another form"),
])  # fmt: skip
def test_an_answer_in_another_form_is_refused(document, words, api, address, ask, tmp_path):
    api.document = document
    follower = _follower(address, tmp_path / "state", ask)
    refused(words, follower.look)
    assert not (tmp_path / "state").exists()


def test_a_source_that_cannot_be_asked_is_refused(api, address, ask, tmp_path):
    state = tmp_path / "state"
    api.series = 2
    with pytest.raises(InputError, match=r"has 2 series .* make one of them, such as sum\(…\)"):
        _follower(address, state, ask).look()
    api.series, api.rate = 1, lambda minute: -1.0
    refused(r"rate is -1 at .* at least 0", _follower(address, state, ask).look)
    refused("does not answer", _follower("http://127.0.0.1:9", state, ask).look)
    for url in ("ftp://x", "http://", "http://me:secret@host"):
        refused(r"no address such as http://HOST:9090", Prometheus, url, "rate")
    assert not state.exists()


def test_the_mean_lengths_of_a_server_are_those_of_its_rates(api, address, tmp_path):
    source = Prometheus(address, "rate", ("tokens", ""))
    rows = source.fetch(Record(), {}, 1 / 24).rows
    assert len(rows) == 180  # two hours more than the history
    assert {row.prompt_tokens for row in rows} == {1.0}  # the server has one answer for both
    assert all(row.output_tokens != row.output_tokens for row in rows)


def _csv(path, demand, first, last, *, mode="a"):
    with path.open(mode) as file:
        if mode == "w":
            file.write("time,requests\n")
        for minute in range(first, last, 5):
            file.write(f"{moment(minute)},{5 * demand(minute)}\n")


def test_a_file_that_grows_is_followed_by_its_own_time(ask, tmp_path, demand, monday):
    path, folder = tmp_path / "demand.csv", tmp_path / "state"
    seen = []
    follower = Follower(GrowingFile(path), folder, ask, seen.append)
    _csv(path, demand, monday - 14 * 1440, monday, mode="w")
    follower.once()
    refused("no whole hour that is not answered yet", follower.once)
    _csv(path, demand, monday, monday + 60)
    with path.open("a") as file:
        file.write(f"{moment(monday + 60)},12")  # a line that is being written
    follower.once()
    with path.open("a") as file:
        file.write(f"\n{moment(monday)},{5 * demand(monday)}\n{moment(monday - 60)},1\n")
    refused(r"2024-05-19T23:00 repeats .* of 2024-05-20T01:00 stays", follower.once)
    _csv(path, demand, monday + 65, monday + 180)
    path.rename(tmp_path / "old.csv")
    _csv(path, demand, monday + 120, monday + 240, mode="w")  # rotated: its first hour is known
    follower.once()
    assert [line["hour"] for line in seen] == [moment(monday + 60 * hour) for hour in range(5)]
    # The rows between two looks at a file that is rotated are lost, and its hour is held.
    assert [line["status"] for line in seen][2:] == ["held", "answered", "answered"]
    state = read_state(folder)
    assert (state.counts["duplicate_rows"], state.counts["refused_rows"]) == (1, 1)
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / STATE)]
    assert modes == [0o700, 0o600]


def test_a_state_directory_is_for_one_source_and_one_process(ask, tmp_path, demand, monday):
    path, folder = tmp_path / "demand.csv", tmp_path / "state"
    _csv(path, demand, monday - 14 * 1440, monday, mode="w")
    follower = Follower(GrowingFile(path), folder, ask, lambda line: None)
    follower.look()
    with opened(folder, follower.source.name), pytest.raises(InputError, match="another process"):
        follower.look()
    with pytest.raises(InputError, match="name another --state"):
        replace(follower, source=GrowingFile(tmp_path / "other.csv")).look()
    (folder / STATE).write_text("{")
    refused("damaged", follower.look)
    folder.chmod(0o777)
    refused("can be written by others", follower.look)


@pytest.mark.parametrize(("content", "words"), [
    ("time,requests\n2024-05-20T00:00,x\n", "added rows, row 2: requests is 'x'"),
    ("time,load_share\n2024-05-20T00:00,1\n", "neither requests nor requests_per_s"),
    ("time,nonsense\n2024-05-20T00:00,1\n", "unknown column 'nonsense'"),
    ('time,requests\n2024-05-20T00:00,"1\n', "is no CSV"),
])  # fmt: skip
def test_a_file_that_is_no_demand_is_refused(content, words, ask, tmp_path):
    (path := tmp_path / "demand.csv").write_text(content)
    refused(words, Follower(GrowingFile(path), tmp_path / "state", ask, print).look)
    path.unlink()
    os.mkfifo(path)
    refused("a pipe", Follower(GrowingFile(path), tmp_path / "state", ask, print).look)


def test_rates_and_sums_become_requests_and_means(tmp_path):
    (path := tmp_path / "demand.csv").write_text(
        "time,requests_per_s,prompt_tokens_mean,service\n2024-05-20T00:00,2,30,a\n"
        "2024-05-20T00:15,4,,a\n"
    )
    first, second = GrowingFile(path).fetch(Record(), {}, 7.0).rows
    assert (first.requests, first.prompt_tokens, second.requests) == (1800.0, 30.0, 3600.0)
    path.write_text("time,requests,output_tokens_sum\n2024-05-20T00:00,20,100\n")
    (only,) = GrowingFile(path).fetch(Record(), {}, 7.0).rows
    assert (only.output_tokens, only.minute) == (5.0, minute_of("2024-05-20T00:00"))


def test_a_file_that_was_rewritten_and_has_grown_since_is_read_anew(tmp_path):
    """A row of another clock, say, was taken out, so that rows no longer end where they did."""
    source, cursor = GrowingFile(tmp_path / "demand.csv"), dict[str, int]()
    rows = [f"2024-05-01T{hour:02}:00,{hour}" for hour in range(9)]
    for lines in ([*rows[:4], "2024-05-01T02:00,99"], rows):
        source.path.write_text("\n".join(["time,requests", *lines, ""]))
        taken, cursor, _ = vars(source.fetch(Record(), cursor, 7.0)).values()
    assert [row.requests for row in taken] == list(range(9))


def test_the_board_shows_metrics_that_there_are(api, address, ask, tmp_path):
    written = tmp_path / "lend.prom"
    replace(_follower(address, tmp_path / "state", ask), metrics=written).look()
    names = set(re.findall(r"^# TYPE (\w+) ", written.read_text(), re.M))
    board = (ROOT / "docs" / "how-to" / "lend-board.json").read_text()
    assert set(re.findall(r"cluster_sim_lend_\w+", board)) == names
    page = (ROOT / "docs" / "how-to" / "run-every-hour.md").read_text()
    assert set(re.findall(r"cluster_sim_lend_\w+", page)) <= names


SPEED = 1000.0
DAY_S = 86_400 / SPEED
OPTIONS = (
    "--cluster=trn2-ultraserver:40", "--unit-rate=1", "--failures=off", "--model=llama-3.1-8b",
    "--days=7", "--query=rate", "--json",
)  # fmt: skip
CODE = "import sys; from experiments.cli.main import run; sys.exit(run(sys.argv[1:]))"


@pytest.mark.slow
def test_a_day_through_kills_says_what_a_calm_day_says(ask, demand, monday, tmp_path):
    api = QueryApi(lambda minute: demand(minute) / 60, monday + 2)
    over = threading.Event()

    def tick(begun_s):
        """Let the server's time pass; for a while its clock is set back."""
        while not over.wait(0.02):
            passed = (time.monotonic() - begun_s) * SPEED / 60
            back = 90 if 600 < passed < 700 else 0
            api.now, api.twice = monday + 2 + int(passed) - back, 300 < passed < 500

    with served(api) as url:
        line = ["lend", f"--follow={url}", f"--state={tmp_path / 'killed'}", *OPTIONS]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", CODE, *line, "--once"], env=environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        clock = threading.Thread(target=tick, args=(time.monotonic(),))
        clock.start()
        end_s, lives = time.monotonic() + DAY_S + 15, 0
        try:
            while time.monotonic() < end_s:
                follower = subprocess.Popen(
                    [sys.executable, "-c", CODE, *line, "--poll=1s"], env=environment,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
                time.sleep(7 + 2.31 * (lives % 4))
                follower.kill()
                problems = follower.communicate()[1].splitlines()
                assert all("went back" in problem for problem in problems), problems
                lives += 1
        finally:
            over.set()
            clock.join()
        killed = (tmp_path / "killed" / HOURS).read_bytes()
        assert lives >= 5
        hours = killed.count(b"\n")
        assert hours >= 25
        calm = Follower(Prometheus(url, "rate"), tmp_path / "calm", ask, lambda line: None, 7.0)
        api.twice = False
        for hour in range(hours):
            api.now = monday + 60 * hour + 2
            assert calm.look() == 1
    assert (tmp_path / "calm" / HOURS).read_bytes() == killed
    assert killed.splitlines()[-1].startswith(f'{{"hour": "{moment(api.now - 2)}"'.encode())
