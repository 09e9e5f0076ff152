"""Demand: published traces, logs and files of every documented form, what-ifs, also as text."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.refusals import refusal_by, refused
from tests.support.request_logs import CHAT, MOONCAKE
from topologies.support.errors import InputError
from workloads.demand import (
    BUNDLED,
    Horizon,
    deepseek_day,
    deepseek_nodes,
    demand,
    demand_from,
    servegen,
)
from workloads.demand.bundled import azure_code, azure_conv, azure_mix, burstgpt
from workloads.demand.read import MAX_MINUTES, filled, read_demand
from workloads.demand.request_logs import read_json_log
from workloads.demand.trace import constant, joined, mix, period_means, whole_requests
from workloads.demand.what_if import changed, measured_noise, with_noise
from workloads.serving import read_requests, with_prefix_cache


def _file(folder: Path, text: str) -> Path:
    (path := folder / "demand.csv").write_text(text)
    return path


def test_bundled_demands_have_the_published_totals():
    assert azure_code().requests.sum() == 16_803_695
    assert azure_conv().requests.sum() == 27_303_999
    assert azure_code().minutes == azure_conv().minutes == 10_080
    assert burstgpt().services == ("conversation", "api")
    assert burstgpt().requests.sum(axis=1).round().tolist() == [154_219, 1_275_518]
    assert burstgpt().index[0].day_name() == "Wednesday"
    assert servegen("m-mid").requests.min() > 0  # gaps of its source are filled
    assert servegen("m-mid").requests.sum() > 2_165_300_000
    assert servegen("m-large").requests.sum() == pytest.approx(236.9e6, rel=1e-3)
    assert deepseek_day().requests.max() == 1.0
    assert set(deepseek_day().prompt_tokens.ravel()) == {4989.0}  # as published, with the figure
    assert (deepseek_nodes().mean(), deepseek_nodes().max()) == (226.75, 278)


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_every_bundled_demand_is_sound(name):
    load = demand(name)
    for column in (load.requests, load.prompt_tokens, load.output_tokens):
        assert column.shape == (len(load.services), load.minutes)
        assert np.isfinite(column).all()
        assert column.min() >= 0
    assert load.prompt_tokens.min() > 0


def test_noise_is_as_measured_and_far_from_poisson():
    assert measured_noise(azure_code())[0] == pytest.approx(0.116, abs=0.001)
    assert measured_noise(azure_conv())[0] == pytest.approx(0.070, abs=0.001)


def test_drawn_noise_has_the_asked_spread_and_is_reproducible():
    flat = constant(100_000.0, minutes=20_000)
    drawn, again, poisson = (
        with_noise(flat, np.random.default_rng(3), relative_sd=spread) for spread in (0.1, 0.1, 0)
    )
    assert np.array_equal(drawn.requests, again.requests)
    assert drawn.requests.mean() == pytest.approx(100_000, rel=0.005)
    assert drawn.requests.std() / 100_000 == pytest.approx(0.1, rel=0.03)
    assert poisson.requests.std() == pytest.approx(np.sqrt(100_000), rel=0.03)


def test_minutes_hours_and_services_of_a_file(tmp_path):
    path = _file(
        tmp_path,
        "service,hour_utc,requests,prompt_tokens\n"
        "a,2024-05-10T00:00,60,6000\na,2024-05-10T01:00,120,24000\n"
        "b,2024-05-10T00:00,30,\nb,2024-05-10T01:00,0,\n",
    )
    load = read_demand(path, prompt_tokens=7.0, output_tokens=3.0)
    assert (load.services, load.start) == (("a", "b"), "2024-05-10T00:00")
    assert load.requests[0, [0, 59, 60, 119]].tolist() == [1, 1, 2, 2]
    assert load.prompt_tokens[0, [0, 60]].tolist() == [100, 200]
    assert set(load.prompt_tokens[1]) == {7.0}
    assert set(load.output_tokens[0]) == {3.0}


def test_a_log_is_counted_by_the_minute(tmp_path):
    path = _file(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.68,100,10\n2023-11-16 18:15:59.0,300,20\n2023-11-16 18:17:00,7,1\n",
    )
    load = read_demand(path)
    assert (load.requests.tolist(), load.prompt_tokens[0, 0]) == ([[2, 0, 1]], 200)
    assert load.output_tokens[0, 2] == 1


def test_relative_times_and_wide_columns(tmp_path):
    path = _file(tmp_path, "day,hour,chat_requests,api_requests\n0,23,60,0\n1,0,120,60\n")
    load = read_demand(path)
    assert (load.services, load.start) == (("chat", "api"), "2024-01-01T23:00")
    assert load.requests[0, [0, 60]].tolist() == [1, 2]


@pytest.mark.parametrize(("text", "requests"), [
    *((f"minute,{name}\n0,{value}\n1,{value}\n", [120, 120]) for name, value in (
        ("requests", 120), ("rps", 2), ("rpm", 120), ("Requests per minute", 120),
    )),
    ("time_s,requests\n0,5\n60,5\n240,5\n", [5, 5, 0, 0, 5]),  # two periods are missing
])  # fmt: skip
def test_counts_and_rates_of_a_minute_are_the_same_demand(tmp_path, text, requests):
    assert read_demand(_file(tmp_path, text)).requests.tolist() == [requests]


@pytest.mark.parametrize(("text", "message"), [
    ("minute,requets\n0,1\n", "unknown column 'requets'.*Did you mean requests"),
    ("minute;requests\n0;1\n", "separates its columns by ';'; save it with commas"),
    ("requests\n1\n", "no time column"),
    ("minute,requests\n0,x\n", "row 2: requests is 'x'"),
    ("minute,requests\n0,-1\n", "row 2: requests is '-1'"),
    ("minute,requests\n0,1\n,2\n", "row 3: minute is empty"),
    ("minute,requests\n0,1\n0,2\n", "two rows for one period"),
    ("minute,requests\n0,1\n1.5,2\n2,1\n", "not on a grid of whole minutes"),
    ("minute,requests\n0,0\n1,0\n", "no requests at all"),
    *((f"minute,requests\n0,1\n{late},1\n", "check the unit") for late in (MAX_MINUTES + 1, 9e12)),
    ("time,requests\n2024-05-10,1\nnoon,2\n", "row 3: time is 'noon'"),
    ("minute,requests\n", "no rows"),
    ("", "is empty; its first line names the columns"),
    ("minute,requests,load_share_of_peak,load_share\n0,1,1,1\n", "two columns mean load_share"),
])  # fmt: skip
def test_bad_files_are_refused_in_one_line(tmp_path, text, message):
    refused(message, read_demand, _file(tmp_path, text))


SINCE_2026 = "2026-11-01T05:00"
RATES = {
    "status": "success",
    "data": {"result": [{"values": [[1793509200, "5"], [1793512800, 7]]}]},
}


@pytest.mark.parametrize(("name", "text"), [
    ("a.csv", "rps,timestamp\n5,2026-11-01T00:00:00-05:00\n7,2026-11-01T01:00:00-05:00\n"),
    ("a.csv", "time,qps\n1793509200,5\n1793512800,7\n"),
    ("a.csv", "Time,requests_per_second\n1793509200000,5\n1793512800000,7\n"),
    ("a.csv", "timestamp_ms,requests\n1793509200000,18000\n1793512800000,25200\n"),
    ("a.csv", "time_s,requests\n" + "1793509200,18000\n" * 2 + "1793512800,25200\n"),
    ("a.json", json.dumps(RATES)),
])  # fmt: skip
def test_rates_are_read_in_the_forms_that_people_have(tmp_path, name, text):
    (path := tmp_path / name).write_text(text)
    read = read_demand(path)
    assert (read.start, read.minutes) == (SINCE_2026, 120)
    assert read.requests[0, [0, 60]].tolist() == [300.0, 420.0]
    twice = "rows of service that came twice in the demand file count once: 1."
    assert (twice in read.notes) == ("18000\n1793509200" in text)
    assert "1,618 prompt tokens and 110 output tokens" in read.notes[-1]


def test_means_by_other_names_are_not_assumed(tmp_path):
    text = "time_s,rps,avg_input_tokens,completion_tokens\n0,1,2000,6000\n60,1,2000,6000\n"
    read = read_demand(_file(tmp_path, text))
    assert (read.mean_lengths(), read.notes) == ((2000.0, 100.0), ())
    assert demand("azure-code").notes == ()


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.json", b'{"data": {"result": []}}', "has 0 series; ask for one"),
    ("a.json", b'{"data": {"result": [{"value": [1, "2"]}]}}', "give an answer of query_range"),
    ("a.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
    ("a.prom", b"# HELP requests Requests.\nrequests{a=\"b c\"} 3\n", "scrape of Prometheus"),
    ("a.txt", b"requests:total{a=\"b c\"} 3.2e+07 1793509200\n", "Prometheus' query_range, or"),
    (".", b"", "is a directory; give a CSV file"),
    ("azure-cod", b"", "Did you mean azure-code"),
    ("nowhere/file.csv", b"", "there is no folder"),
])  # fmt: skip
def test_what_is_no_demand_is_named(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content:
        Path(name).write_bytes(content)
    refused(message, demand, name)


def test_an_average_over_more_than_there_is_is_refused():
    with pytest.raises(InputError, match="cannot average over 100,000 minutes"):
        demand_from(["azure-code"], average_minutes=100_000)


def test_a_wrong_beginning_is_refused_before_the_rest_is_read(tmp_path):
    more = "".join(f"{minute},1\n" for minute in range(1, 200_000)) + "1,2,3\n"
    refused("not a readable CSV", read_demand, _file(tmp_path, "minute,requests\n0,1\n" + more))
    refused("row 2: requests is 'x'", read_demand, _file(tmp_path, "minute,requests\n0,x\n" + more))


def test_services_of_different_spans_ask_for_one(tmp_path):
    path = _file(tmp_path, "service,minute,requests\na,0,1\na,1,1\nb,5,1\nb,6,2\n")
    refused(r"different spans.*name one service", read_demand, path)
    assert read_demand(path, service="b").requests.tolist() == [[1, 2]]
    refused("service 'c' is none of a, b", read_demand, path, service="c")
    rows = [f"{number},0,1\n{number},1,1\n" for number in range(257)]
    header = "service,minute,requests\n"
    assert len(read_demand(_file(tmp_path, header + "".join(rows[1:]))).services) == 256
    wide = f"minute{''.join(f',{number}_requests' for number in range(257))}\n0{',1' * 257}\n"
    for text in (header + "".join(rows), wide):
        refused("257 services, at most 256", read_demand, _file(tmp_path, text))


def test_mix_aligns_the_week():
    load = azure_mix()
    assert load.services == ("conv", "code")
    code = azure_code()
    monday = int(np.flatnonzero(code.index == "2024-05-13T09:00")[0])
    mixed = int(np.flatnonzero(load.index == "2024-05-13T09:00")[0])
    assert load.requests[1, mixed] == code.requests[0, monday]
    with pytest.raises(InputError, match="whole weeks"):
        mix([constant(1, minutes=60), constant(1, minutes=60, start="2024-01-02T00:00")])


def test_a_gap_of_hours_takes_the_same_hours_of_another_day():
    """Two hours are bridged by a line."""
    hours, present = np.tile(np.arange(100.0, 124.0) ** 2, 3), np.ones(72, bool)
    present[[8, 9, 30, 31, 32]] = False
    values, gaps = filled(np.where(present, hours, 0.0), present, 60, counts=True)
    assert values[30:33] == pytest.approx(hours[6:9])
    assert values[8:10] == pytest.approx(np.linspace(hours[7], hours[10], 4)[1:3])
    assert gaps.tolist() == (~present).tolist()


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.integers(1, 20))
def test_averages_and_whole_requests_keep_the_sum(values, minutes):
    load = constant(1.0, minutes=len(values)).times(np.array(values))
    averaged = load.averaged(minutes)
    assert averaged.requests.sum() == pytest.approx(load.requests.sum(), abs=1e-6)
    assert abs(whole_requests(load).sum() - load.requests.sum()) <= 0.5
    assert period_means(load.requests, len(values)).std() == pytest.approx(0, abs=1e-9)


def test_lengths_of_averaged_minutes_are_those_of_their_requests():
    load = constant(1.0, minutes=4).times(np.array([1.0, 3.0, 0.0, 0.0]))
    load = replace(load, prompt_tokens=np.array([[100.0, 200.0, 5.0, 7.0]]))
    assert load.averaged(2).prompt_tokens.tolist() == [[175.0, 175.0, 5.0, 7.0]]


def test_minutes_that_nobody_counted_are_filled_and_told(tmp_path):
    """Between minutes of hundreds of requests an empty one is a gap, and a day takes another's."""
    counts = np.tile(500.0 + np.arange(1440.0), 4)
    kept = np.ones(len(counts), bool)
    kept[[100, 101]] = False
    kept[2 * 1440 : 3 * 1440] = False
    minute = np.arange(len(counts))
    rows = [f"{at},{count:g}" for at, count in zip(minute[kept], counts[kept], strict=True)]
    read = read_demand(_file(tmp_path, "minute,requests\n" + "\n".join(rows) + "\n"))
    note = "1,442 minutes of service had no row in the demand file and were filled."
    assert read.notes[0] == note
    assert np.array_equal(read.requests[0], counts)
    assert read.between(0, 1440).notes == read.notes


def test_a_demand_of_which_most_would_be_made_up_is_refused(tmp_path):
    """A clock jumps by 400 days after thirty hours: nothing says what came in between."""
    hours = [*range(30), *range(30 + 24 * 400, 48 + 24 * 400)]
    rows = "".join(f"{60 * hour},{1000 + hour % 24}\n" for hour in hours)
    words = refusal_by(read_demand, _file(tmp_path, f"minute,requests\n{rows}"))
    assert "service has rows for 0% of the time from 2024-01-01T00:00, and none for 400.0" in words
    assert "from 2024-01-02T06:00; at most half is filled. Correct the times" in words


def test_a_shape_beside_a_file_is_as_large_as_the_file(tmp_path):
    """Three days of counts beside a bundled week: no weight is needed, and the counts stand."""
    minutes = "\n".join(f"{minute},{300 + minute % 7}" for minute in range(3 * 1440))
    path = _file(tmp_path, f"minute,requests\n{minutes}\n")
    for names in ([str(path), "azure-code"], ["azure-code", str(path)]):
        both = demand_from(names)
        mine = names.index(str(path))
        assert both.absolute
        assert both.start == "2024-01-01T00:00"
        assert both.requests[mine].sum() == 3 * 1440 * 300 + sum(m % 7 for m in range(3 * 1440))
        assert any("azure-code, a shape without a size" in note for note in both.notes)
    week = demand_from(["azure-code"]).requests.mean()
    monday = both.requests[1 - mine].sum() / azure_code().between(4320, 8640).requests.sum()
    assert monday == pytest.approx(read_demand(path).requests.mean() / week)


FLAT = Horizon(constant(10.0, minutes=4 * 1440))


def _raised(text: str) -> tuple[int, int, float]:
    """First minute, number of minutes and factor of a what-if on flat demand."""
    requests = changed(FLAT, text).demand.requests[0]
    where = np.flatnonzero(requests != 10.0)
    return int(where[0]), len(where), float(requests[where[0]] / 10.0)


@pytest.mark.parametrize(("text", "expected"), [
    ("spike@2d02:00x3/30min", (2 * 1440 + 120, 30, 3.0)),
    ("spike@2d+02:00x3/30min", (2 * 1440 + 120, 30, 3.0)),
    *((f"spike@2dx{factor}/1h", (2 * 1440, 60, factor)) for factor in (0.5, 1.5)),
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
    refused(message.replace("(", r"\("), changed, FLAT, text)


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
    refused(f"is called {remedy}", read_demand, _file(tmp_path, text))


def _lines(path, entries):
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return path


def test_chats_of_model_studio_count_seconds_and_blocks_of_16_tokens(tmp_path):
    entries = [
        {
            "chat_id": number, "parent_chat_id": -1, "timestamp": 1.5 * number, "type": "text",
            "input_length": 40, "output_length": 9, "turn": 1, "hash_ids": [7, 8, 100 + number],
        }
        for number in range(3)
    ]  # fmt: skip
    requests = read_requests(_lines(tmp_path / "qwen.jsonl", entries))
    assert requests.arrival_s.tolist() == [0.0, 1.5, 3.0]
    cached = with_prefix_cache(requests, "trace", kv_tokens=10_000).cached
    assert cached.tolist() == [0, 32, 32]


@pytest.mark.parametrize(("header", "row"), [
    ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00.009930+00:00,374,44"),
    ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
     "5,ChatGPT,374,44,418,Conversation log"),
    (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type",
        "5.5,17,3.2,GPT-4,374,44,418,API log",
    ),
    ("request_id,timestamp,input_tokens,output_tokens", "0,0.25,374,44"),
    ("arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
     "0.25,374,44,418,8.5"),
], ids=["azure 2023", "azure 2024", "burstgpt", "burstgpt 2", "servegen", "vidur"])  # fmt: skip
def test_tables_of_public_logs_are_read_as_they_stand(tmp_path, header, row):
    (path := tmp_path / "log.csv").write_text(f"{header}\n{row}\n{row}\n")
    requests = read_requests(path)
    assert (requests.prompt.tolist(), requests.output.tolist()) == ([374] * 2, [44] * 2)
    assert requests.arrival_s.tolist() == [0.0, 0.0]


def test_sharegpt_takes_the_first_two_turns_at_four_characters_a_token(tmp_path):
    (path := tmp_path / "sharegpt.json").write_text(json.dumps(CHAT))
    requests = read_requests(path, rate_per_s=2.0, seed=1)
    assert (requests.prompt.tolist(), requests.output.tolist()) == ([100], [20])


def test_gaps_of_a_log_without_times_have_the_rate(tmp_path):
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcd" * 10, "output_tokens": 3}] * 4000)
    requests = read_requests(path, rate_per_s=5.0, seed=2)
    assert set(requests.prompt.tolist()) == {10}
    assert np.diff(requests.arrival_s).mean() == pytest.approx(0.2, rel=0.05)
    again = read_requests(path, rate_per_s=5.0, seed=2)
    assert np.array_equal(requests.arrival_s, again.arrival_s)


def test_benchmark_results_of_vllm(tmp_path):
    path = tmp_path / "result.json"
    result = {"input_lens": [10, 20], "output_lens": [5, 6], "ttfts": [0.1, 0.2]}
    path.write_text(json.dumps(result | {"start_times": [7.0, 9.5]}))
    assert read_requests(path).arrival_s.tolist() == [0.0, 2.5]
    path.write_text(json.dumps(result))
    assert len(read_requests(path, rate_per_s=1.0)) == 2


def test_an_answer_of_unknown_length_is_given(tmp_path):
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcdefgh", "timestamp": 4}])
    refused(r"1 of 1 requests do not state.*add --output TOKENS", read_requests, path)
    assert read_requests(path, output_tokens=9).output.tolist() == [9]


@pytest.mark.parametrize(("content", "message"), [
    ("", "holds no requests"),
    ("[]", "holds no requests"),
    ('{"prompt": "a"', r"line 1: no JSON"),
    ("[" * 100_000, r"line 1: nested too deeply"),
    ("[1]", r"entry 1: it is no object"),
    ('{"question": "a"}', r"neither prompt_tokens nor .* it has question"),
    ('{"prompt_tokens": -1, "output_tokens": 2}', r"entry 1: prompt_tokens is -1"),
    ('{"prompt_tokens": NaN, "output_tokens": 2}', r"prompt_tokens is nan"),
    ('{"prompt_tokens": "7", "output_tokens": 2}', r"prompt_tokens is '7'"),
    ('{"prompt_tokens": ' + "9" * 400 + ', "output_tokens": 2}', r"prompt_tokens is 999"),
    ('{"timestamp": 0, "input_length": 1.5, "output_length": 2}',
     r"entry 1: input_length is 1.5; it must be a whole number of at least 0"),
    ('{"input_lens": [1.5], "output_lens": [2]}', r"request 1: input_lens is 1.5; .* whole number"),
    ('{"prompt_tokens": 1, "hash_ids": 7}', r"entry 1: hash_ids is 7; give whole numbers"),
    ('{"prompt_tokens": 1, "hash_ids": ["a"]}', r"hash_ids is \['a'\]; give whole numbers"),
    ('{"input_lens": [1], "output_lens": []}', r"output_lens is no list of 1 numbers"),
    ('{"input_lens": [1], "output_lens": ["a"]}', r"request 1: output_lens is 'a'"),
    ('{"prompt": "a", "timestamp": 1}\n{"prompt": "b"}',
     r"request 2 has no time, and others have one"),
])  # fmt: skip
def test_a_faulty_log_is_refused_by_its_fault(tmp_path, content, message):
    (path := tmp_path / "log.jsonl").write_text(content)
    refused(message, read_json_log, path)


def test_rates_are_for_logs_without_times(tmp_path):
    path = _lines(tmp_path / "trace.jsonl", MOONCAKE)
    refused(r"states its times; leave --rate 2 out", read_requests, path, rate_per_s=2.0)
    path = _lines(tmp_path / "custom.jsonl", [{"prompt": "abcd", "output_tokens": 3}])
    refused(r"states no times; add --rate", read_requests, path)


def test_mooncake_counts_milliseconds_and_blocks_that_may_be_missing(tmp_path):
    alone = {"timestamp": 61_000, "input_length": 700, "output_length": 5}
    path = _lines(tmp_path / "trace.jsonl", [*MOONCAKE, alone])
    requests = read_requests(path)
    assert requests.arrival_s.tolist() == [0.0, 3.052, 61.0]
    assert requests.prompt.tolist() == [6755, 2287, 700]
    assert requests.output.tolist() == [500, 316, 5]
    assert read_json_log(path)["blocks"].tolist() == [[0, 1], [0, 42], []]
    hits = with_prefix_cache(requests, "trace", kv_tokens=10**6).cached
    assert hits.tolist() == [0, 512, 0]
    demand = read_demand(path)
    assert demand.requests.tolist() == [[2.0, 1.0]]
    assert demand.prompt_tokens[0, 0] == pytest.approx((6755 + 2287) / 2)
