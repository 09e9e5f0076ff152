"""The record of a demand that grows, with rows twice, late or not at all, and its command."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli.main import run
from experiments.hourly.demand import Record, Row, minute_of, moment, rows_from_csv
from tests.support.examples import examples
from tests.support.refusals import refused
from topologies.support.errors import InputError
from workloads.demand import read_demand

START = minute_of("2024-05-06T00:00")


def _rows(count: int, step: int = 15, start: int = START) -> list[Row]:
    return [Row("chat", start + step * place, 100.0 + place) for place in range(count)]


def test_a_record_does_not_depend_on_the_order_in_which_rows_come():
    rows = _rows(96)
    record, other = Record(), Record()
    record.take(rows, "x")
    taken = [other.take(part, "x") for part in (rows[:50], rows[60:], rows[40:70], rows)]
    assert (other.rows, other.period, other.end) == (record.rows, 15, START + 96 * 15)
    assert sum(each.new for each in taken) == 96
    assert sum(each.duplicate for each in taken) == 10 + 10 + 96
    assert sum(each.late for each in taken) == 10
    assert not any(each.refused for each in taken)


@examples(30)
@given(st.permutations(range(24)), st.integers(14, 23))
def test_rows_are_kept_whatever_the_order(order, cut):
    rows = _rows(24, step=60)
    record = Record()
    for part in (order[:cut], order[cut:]):
        # Rows two hours apart would be taken for the period.
        assert not record.take([rows[place] for place in part], "x").refused
    assert sorted(record.rows.values()) == sorted(rows)
    again = rows_from_csv(record.text(), "demand.csv", record.period)
    assert [row[:3] for row in again] == [row[:3] for row in sorted(rows)]


@pytest.mark.parametrize(("row", "words"), [
    (Row("chat", START, 5.0), "2024-05-06T00:00 repeats a period with 5 requests, .* had 100"),
    (Row("chat", START - 600, 5.0), "goes back by more than a day"),
    (Row("chat", START + 96 * 15 + 32 * 1440, 5.0), "more than 31 days after"),
    (Row("chat", START + 96 * 15 + 7, 5.0), "off the grid of 15 minutes"),
])  # fmt: skip
def test_a_row_that_cannot_be_believed_stays_out(row, words):
    record = Record()
    record.take(_rows(97), "demand.csv")
    before = dict(record.rows)
    taken = record.take([row, *_rows(98)[97:]], "demand.csv")
    assert (taken.refused, taken.new) == (1, 1)
    with pytest.raises(InputError, match=words):
        raise InputError(taken.reason)
    assert record.rows == {**before, ("chat", START + 97 * 15): _rows(98)[97]}


def test_a_clock_that_is_set_back_repeats_an_hour_and_the_rest_is_taken():
    record = Record()
    record.take(_rows(8), "x")
    local = [row._replace(requests=row.requests + 50) for row in _rows(8)[4:]]
    taken = record.take([*local, *_rows(12)[8:]], "x")
    assert (taken.refused, taken.new) == (4, 4)
    assert [row.requests for row in record.rows.values()] == [100.0 + place for place in range(12)]


def test_missing_periods_are_filled_and_counted():
    record = Record()
    record.take([row for place, row in enumerate(_rows(12)) if place not in (5, 10, 11)], "x")
    demand, gaps = record.until(START + 180, 7.0)
    assert gaps == 45
    by_period = demand.requests[0].reshape(12, 15)
    assert np.ptp(by_period, axis=1).max() == 0.0
    counts = by_period[:, 0] * 15
    assert counts[5] == pytest.approx(105.0)
    # The hour that is cut short ends as its two rows were in the mean.
    assert counts[10:] == pytest.approx([108.75, 108.5])
    assert (demand.start, demand.minutes) == ("2024-05-06T00:00", 180)


def test_nothing_is_said_about_an_hour_without_rows():
    record = Record()
    record.take(_rows(9), "x")
    refused("chat has rows for 25% of the hour to 2024-05-06T03:00", record.until, START + 180, 7.0)
    refused("no rows before 2024-05-06T00:00", record.until, START, 7.0)


def test_a_history_is_cut_and_services_begin_together():
    record = Record()
    other = [Row("code", row.minute, 10.0, 500.0, 50.0) for row in _rows(8, start=START + 60)]
    record.take([*_rows(12), *other], "x")
    demand, _ = record.until(START + 180, 7.0)
    assert demand.services == ("chat", "code")
    assert (demand.start, demand.minutes) == (moment(START + 60), 120)
    assert demand.prompt_tokens[:, 0].tolist() == [1618.0, 500.0]
    assert record.until(START + 180, 1 / 24)[0].minutes == 60


@pytest.mark.parametrize("minutes", [7, 90])
def test_a_period_that_does_not_divide_an_hour_is_refused(minutes):
    refused(f"rows are {minutes} minutes apart", Record().take, _rows(5, step=minutes), "x")


def test_the_file_of_a_record_is_a_demand_that_says_the_same(tmp_path):
    record = Record()
    code = [Row("code, long", row.minute, 10.0, 500.0, 50.0) for row in _rows(96)]
    record.take([*_rows(96), *code], "x")
    del record.rows["chat", START + 15 * 40]
    (path := tmp_path / "demand.csv").write_text(record.text())
    ours, filled = record.until(START + 96 * 15, 7.0)
    theirs = read_demand(path)
    assert (ours.services, ours.start, filled) == (theirs.services, theirs.start, 15)
    for name in ("requests", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))


FLEET = ("--cluster=trn2-ultraserver:40", "--unit-rate=1", "--failures=off", "--model=gpt2")


def test_a_night_that_has_begun_is_that_of_today(demand, monday, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = Path("demand.csv")
    line = ["lend", "--follow=demand.csv", "--state=state", *FLEET, "--from=22:00", "--once"]

    def until(end: int, first: int) -> None:
        rows = [f"{moment(minute)},{60 * demand(minute)}\n" for minute in range(first, end, 60)]
        with path.open("a") as file:
            file.writelines(rows)

    path.write_text("time,requests\n")
    until(monday + 22 * 60, monday - 10 * 1440)
    assert run([*line, "--days=8"]) == 0
    assert "lend " in capsys.readouterr().out
    until(monday + 31 * 60, monday + 22 * 60)
    assert run([*line, "--json", "--metrics=lend.prom"]) == 0
    hours = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [each["hour"] for each in hours] == [moment(monday + 60 * at) for at in range(23, 32)]
    assert all(each["lend_units"] > 0 for each in hours[:7])
    assert [each["lend_units"] for each in hours[7:]] == [0, 0]
    assert hours[7]["take_back_units"] == hours[6]["lend_units"]
    assert sum(each["units"] for each in hours[6]["order_back"]) == hours[6]["lend_units"]
    for each in hours:
        windows = each["windows"]
        inside = minute_of(each["hour"]) % 1440 < 6 * 60 or each["hour"].endswith("23:00")
        assert (windows[0]["from"] == each["hour"]) == inside
        assert windows[-1]["to"].endswith("T06:00")
    assert "cluster_sim_lend_hours_answered_total 10\n" in Path("lend.prom").read_text()
    assert run([*line, "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no whole hour that is not answered yet; the last answer stays" in printed.err
