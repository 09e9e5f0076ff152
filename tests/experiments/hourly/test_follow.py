"""Lending that follows: a day with faults in between, restarts, kills, and promises judged."""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.hourly.demand import GrowingFile, Prometheus, Record, minute_of, moment
from experiments.hourly.follow import Ask, Follower
from experiments.hourly.state import HOURS, STATE, exposition, opened, read_state
from tests.docs.rerun import ROOT
from tests.support.query_api import QueryApi, served
from topologies.errors import InputError

Demand = Callable[[int], int]


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / HOURS).read_text().splitlines()]


@pytest.fixture
def api(demand: Demand, monday: int) -> QueryApi:
    """A server at the beginning of a Monday."""
    return QueryApi(lambda minute: demand(minute) / 60, monday + 2)


@pytest.fixture
def address(api: QueryApi) -> Iterator[str]:
    """Its address."""
    with served(api) as url:
        yield url


def _follower(address: str, folder: Path, ask: Ask) -> Follower:
    return Follower(Prometheus(address, "rate"), folder, ask, lambda line: None, days=7.0)


def _looks(follower: Follower, api: QueryApi, until: int, step: int = 20) -> list[str]:
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
    calm = _follower(address, tmp_path / "calm", ask)
    calm.look()
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
    with pytest.raises(InputError, match=words) as refused:
        _follower(address, tmp_path / "state", ask).look()
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "state").exists()


def test_a_source_that_cannot_be_asked_is_refused(api, address, ask, tmp_path):
    state = tmp_path / "state"
    api.series = 2
    with pytest.raises(InputError, match=r"has 2 series .* make one of them, such as sum\(…\)"):
        _follower(address, state, ask).look()
    api.series, api.rate = 1, lambda minute: -1.0
    with pytest.raises(InputError, match=r"rate is -1 at .* at least 0"):
        _follower(address, state, ask).look()
    with pytest.raises(InputError, match="does not answer"):
        _follower("http://127.0.0.1:9", state, ask).look()
    for url in ("ftp://x", "http://", "http://me:secret@host"):
        with pytest.raises(InputError, match=r"no address such as http://HOST:9090"):
            Prometheus(url, "rate")
    assert not state.exists()


def test_the_mean_lengths_of_a_server_are_those_of_its_rates(api, address, tmp_path):
    source = Prometheus(address, "rate", ("tokens", ""))
    rows = source.fetch(Record(), {}, 1 / 24).rows
    assert len(rows) == 180  # two hours more than the history
    assert {row.prompt_tokens for row in rows} == {1.0}  # the server has one answer for both
    assert all(row.output_tokens != row.output_tokens for row in rows)


def _csv(path: Path, demand: Demand, first: int, last: int, *, mode: str = "a") -> None:
    with path.open(mode) as file:
        if mode == "w":
            file.write("time,requests\n")
        for minute in range(first, last, 5):
            file.write(f"{moment(minute)},{5 * demand(minute)}\n")


def test_a_file_that_grows_is_followed_by_its_own_time(ask, tmp_path, demand, monday):
    path, folder = tmp_path / "demand.csv", tmp_path / "state"
    seen: list[Any] = []
    follower = Follower(GrowingFile(path), folder, ask, seen.append)
    _csv(path, demand, monday - 14 * 1440, monday, mode="w")
    follower.once()
    with pytest.raises(InputError, match="no whole hour that is not answered yet"):
        follower.once()
    _csv(path, demand, monday, monday + 60)
    with path.open("a") as file:
        file.write(f"{moment(monday + 60)},12")  # a line that is being written
    follower.once()
    with path.open("a") as file:
        file.write(f"\n{moment(monday)},{5 * demand(monday)}\n{moment(monday - 60)},1\n")
    with pytest.raises(InputError, match=r"2024-05-19T23:00 repeats .* of 2024-05-20T01:00 stays"):
        follower.once()
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
    with pytest.raises(InputError, match="damaged"):
        follower.look()
    folder.chmod(0o777)
    with pytest.raises(InputError, match="can be written by others"):
        follower.look()


@pytest.mark.parametrize(("content", "words"), [
    ("time,requests\n2024-05-20T00:00,x\n", "added rows, row 2: requests is 'x'"),
    ("time,load_share\n2024-05-20T00:00,1\n", "neither requests nor requests_per_s"),
    ("time,nonsense\n2024-05-20T00:00,1\n", "unknown column 'nonsense'"),
    ('time,requests\n2024-05-20T00:00,"1\n', "is no CSV"),
])  # fmt: skip
def test_a_file_that_is_no_demand_is_refused(content, words, ask, tmp_path):
    (path := tmp_path / "demand.csv").write_text(content)
    with pytest.raises(InputError, match=words):
        Follower(GrowingFile(path), tmp_path / "state", ask, print).look()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="a pipe"):
        Follower(GrowingFile(path), tmp_path / "state", ask, print).look()


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


def test_the_board_shows_metrics_that_there_are(api, address, ask, tmp_path):
    written = tmp_path / "lend.prom"
    replace(_follower(address, tmp_path / "state", ask), metrics=written).look()
    names = set(re.findall(r"^# TYPE (\w+) ", written.read_text(), re.M))
    board = (ROOT / "docs" / "how-to" / "lend-board.json").read_text()
    assert set(re.findall(r"cluster_sim_lend_\w+", board)) == names
    page = (ROOT / "docs" / "how-to" / "run-every-hour.md").read_text()
    assert set(re.findall(r"cluster_sim_lend_\w+", page)) <= names
