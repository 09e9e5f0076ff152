"""What-ifs as text, and demand files that are checked for what they claim to be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from topologies.errors import InputError
from workloads.demand import Horizon, constant, read_demand
from workloads.demand.trace import joined
from workloads.demand.what_if import changed

FLAT = Horizon(constant(10.0, minutes=4 * 1440))


def _raised(text: str) -> tuple[int, int, float]:
    """First minute, number of minutes and factor of a what-if on flat demand."""
    requests = changed(FLAT, text).demand.requests[0]
    where = np.flatnonzero(requests != 10.0)
    return int(where[0]), len(where), float(requests[where[0]] / 10.0)


@pytest.mark.parametrize(("text", "expected"), [
    ("spike@2d02:00x3/30min", (2 * 1440 + 120, 30, 3.0)),
    ("spike@2d+02:00x3/30min", (2 * 1440 + 120, 30, 3.0)),
    ("spike@2dx1.5/1h", (2 * 1440, 60, 1.5)),
    ("spike", (1440 + 120, 30, 2.0)),
    ("failover@3d12:00+12h", (3 * 1440 + 720, 720, 2.0)),
    ("failover@1d12:00x1.5+2h", (1440 + 720, 120, 1.5)),
    ("failover", (2880, 720, 2.0)),
    ("launch@1d=30%", (1440, 3 * 1440, 1.3)),
    ("growth=30%", (0, 4 * 1440, 1.3)),
    ("growth=0.3", (0, 4 * 1440, 1.3)),
    ("growth=-20%", (0, 4 * 1440, 0.8)),
    ("growth=-0.2", (0, 4 * 1440, 0.8)),
    ("growth=-20", (0, 4 * 1440, 0.8)),
    ("plus-30", (0, 4 * 1440, 1.3)),
    ("growth=10%,launch@0d=20%", (0, 4 * 1440, 1.32)),  # several make one scenario
])  # fmt: skip
def test_numbers_are_read(text, expected):
    first, minutes, factor = _raised(text)
    assert (first, minutes) == expected[:2]
    assert factor == pytest.approx(expected[2])


def test_the_clock_counts_from_the_start_of_the_run():
    afternoon = Horizon(constant(1.0, minutes=1440, start="2024-01-01T18:00"))
    requests = changed(afternoon, "spike@02:00x2/1min").demand.requests[0]
    assert np.flatnonzero(requests > 1).tolist() == [8 * 60]


def test_monday_keeps_what_came_before():
    before = constant(2.0, minutes=1440, start="2024-01-05T00:00")
    week = Horizon(constant(1.0, minutes=5 * 1440, start="2024-01-06T00:00"), before)
    monday = changed(week, "monday")
    assert (monday.demand.start, monday.demand.minutes) == ("2024-01-08T00:00", 1440)
    assert monday.history.start == "2024-01-05T00:00"
    assert monday.history.requests.sum() == 2 * 1440 + 2 * 1440


def test_growth_holds_for_the_history_and_a_launch_does_not():
    both = Horizon(FLAT.demand, constant(10.0, minutes=1440))
    grown, launched = (changed(both, text).history for text in ("growth=50%", "launch@0d=50%"))
    assert (grown.requests.max(), launched.requests.max()) == (15.0, 10.0)


@given(
    shares=st.dictionaries(st.integers(-24, 24), st.integers(0, 100), min_size=1, max_size=4),
    days=st.integers(1, 2),
)
@examples(20)
def test_zones_move_requests_by_hours_and_keep_their_number(shares, days):
    rng = np.random.default_rng(0)
    counts, lengths = rng.integers(0, 5, (1, 3 * 1440)), rng.integers(1, 9, (2, 1, 3 * 1440))
    words = {"prompt_tokens": lengths[0], "output_tokens": lengths[1]}
    whole = replace(constant(1.0, minutes=3 * 1440), requests=counts.astype(float), **words)
    cut = days * 1440
    text = "zones=" + "/".join(f"{hours:+}:{share}%" for hours, share in shares.items())
    spread = changed(Horizon(whole.between(cut, whole.minutes), whole.between(0, cut)), text)
    both = joined([spread.history, spread.demand])
    for minute in (0, cut, whole.minutes - 1):
        came = {hours: counts[0, (minute + 60 * hours) % whole.minutes] for hours in shares}
        expected = sum(share / 100 * came[hours] for hours, share in shares.items())
        assert both.requests[0, minute] == pytest.approx(expected)
    assert both.requests.sum() == pytest.approx(counts.sum() * sum(shares.values()) / 100)
    tokens = (both.requests * both.prompt_tokens).sum()
    assert tokens == pytest.approx((counts * lengths[0]).sum() * sum(shares.values()) / 100)


def test_one_zone_of_all_users_changes_nothing_and_half_a_day_is_refused():
    day = Horizon(constant(10.0, minutes=1440).times(np.arange(1440)))
    assert (changed(day, "zones=0:100%").demand.requests == day.demand.requests).all()
    with pytest.raises(InputError, match=r"needs whole days, and .* has 0\.5; choose --days"):
        changed(Horizon(constant(10.0, minutes=720)), "zones=+9:100%")


@pytest.mark.parametrize(("text", "message"), [
    ("flood", "unknown what-if 'flood'; choose from growth=30%"),
    ("spike@9d02:00x3/30min", "9.083 days after the start of a run of 4 days"),
    ("spike@2d25:00", "not a time of day"),
    ("spike=3", "write it as spike@2d02:00x3/30min"),
    ("growth", "is not a share; write growth=30%"),
    ("growth=lots", "is not a share"),
    ("growth=15000%", "a share of 150 is not in (-1, 100"),
    ("monday@2d", "takes no numbers"),
    ("failover@1d+12parsecs", "parsecs"),
    ("zones", "'' is not hours from -24 to 24, each once, and a share; write zones=-8:50%"),
    ("zones=+9:50%/9:50%", "'9:50%' is not hours from -24 to 24, each once"),
    ("zones=30:50%", "'30:50%' is not hours from -24 to 24"),
    ("zones=0:half", "'half' is not a share; write zones="),
    ("zones=0:-50%", "has a share below 0"),
])  # fmt: skip
def test_mistakes(text, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        changed(FLAT, text)


def _file(folder: Path, text: str) -> Path:
    (path := folder / "demand.csv").write_text(text)
    return path


def test_means_and_sums_by_name(tmp_path):
    head = "hour,requests,{0}_mean,{1}_sum\n0,100,1500,2000\n1,300,500,9000\n"
    both = head.format("prompt_tokens", "output_tokens")
    demand = read_demand(_file(tmp_path, both))
    assert demand.prompt_tokens[0, [0, 60]].tolist() == [1500.0, 500.0]
    assert demand.output_tokens[0, [0, 60]].tolist() == [20.0, 30.0]
    assert demand.absolute
    assert demand.requests.sum() == 400.0


@pytest.mark.parametrize(("column", "tokens", "remedy"), [
    ("prompt_tokens", "150", "prompt_tokens_mean"),
    ("prompt_tokens_sum", "150", "prompt_tokens_mean"),
    ("prompt_tokens_mean", "3e6", "prompt_tokens_sum"),
])  # fmt: skip
def test_an_implausible_reading_is_refused(tmp_path, column, tokens, remedy):
    text = f"hour,requests,{column}\n0,2000,{tokens}\n1,2000,{tokens}\n"
    with pytest.raises(InputError, match=f"is called {remedy}"):
        read_demand(_file(tmp_path, text))
