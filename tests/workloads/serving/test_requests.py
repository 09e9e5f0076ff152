"""Requests and targets: logs, shipped lengths and the texts of an SLO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from topologies.errors import InputError
from workloads.demand.bundled import data_file
from workloads.serving import azure_lengths, fixed_lengths, parse_slo, poisson, read_requests


@pytest.mark.parametrize("service", ["conv", "code"])
def test_shipped_lengths_are_those_of_the_shipped_log(service: str) -> None:
    logged = read_requests(data_file("azure_llm_2023_requests.csv"), service=service)
    lengths = azure_lengths(service)
    assert np.array_equal(lengths.prompt, logged.prompt)
    assert np.array_equal(lengths.output, logged.output)


def test_a_log_is_read_in_order_of_time_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("timestamp_ms,prompt_tokens,output_tokens\n2000,5,1\n0,7,0\n")
    logged = read_requests(path)
    assert logged.arrival_s.tolist() == [0.0, 2.0]
    assert logged.prompt.tolist() == [7, 5]
    assert logged.output.tolist() == [1, 1]
    path.write_text("timestamp_ms,prompt_tokens\n0,7\n")
    with pytest.raises(InputError, match="no column output_tokens"):
        read_requests(path)
    path.write_text("time,prompt_tokens,output_tokens\n0,x,1\n")
    with pytest.raises(InputError, match="row 2: prompt_tokens is 'x'"):
        read_requests(path)
    with pytest.raises(InputError, match="there is no such file"):
        read_requests(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttf=2s", "not of the form.*Did you mean ttft"),
        ("ttft", "not of the form"),
        ("ttft=0s", "above 0"),
        ("ttft=2", "unit"),
    ],
)
def test_a_wrong_target_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_slo(text)


def test_lengths_and_rates_are_above_zero() -> None:
    with pytest.raises(InputError, match="both are at least 1"):
        fixed_lengths(0, 1)
    with pytest.raises(InputError, match="the rate is above 0"):
        poisson(0.0, 1, fixed_lengths(1, 1), np.random.default_rng(0))
