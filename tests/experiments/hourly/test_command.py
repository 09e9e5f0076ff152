"""``lend --follow``: hours of a file that grows, and options that do not belong to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.cli.main import run
from experiments.hourly.demand import minute_of, moment

FLEET = ("--cluster=trn2-ultraserver:40", "--unit-rate=1", "--failures=off", "--model=gpt2")


def test_a_night_that_has_begun_is_that_of_today(
    demand: Callable[[int], int],
    monday: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    assert [each["hour"] for each in hours] == [
        moment(monday + 60 * hour) for hour in range(23, 32)
    ]
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
