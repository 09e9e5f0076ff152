"""A day at 1,000 times its speed through the command itself, which is killed again and again."""

import os
import subprocess
import sys
import threading
import time

import pytest

from experiments.hourly.demand import Prometheus, moment
from experiments.hourly.follow import Follower
from experiments.hourly.state import HOURS
from tests.docs.rerun import ROOT
from tests.support.query_api import QueryApi, served

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

    def tick(begun_s: float) -> None:
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
