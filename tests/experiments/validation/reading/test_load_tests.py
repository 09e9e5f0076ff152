"""Results of load generators as rows: what each tool's file says, and what must be stated."""

import json

import pytest

from experiments.cli.main import run
from experiments.validation.comparison import marked
from experiments.validation.reading.rows import read_file
from experiments.validation.reading.tool_outputs import load_test_rows
from topologies.errors import InputError

BENCH = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 160,
    "request_rate": "inf", "max_concurrency": 16, "completed": 160, "total_input_tokens": 163840,
    "total_output_tokens": 20480, "request_throughput": 4.0, "output_throughput": 512.0,
    "mean_ttft_ms": 300.0, "median_ttft_ms": 290.0, "mean_tpot_ms": 10.0, "median_tpot_ms": 9.5,
}  # fmt: skip
CLOSED = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "scheduler": "vllm", "prompt_tokens": 1024,
    "output_tokens": 128, "concurrency": 16, "requests": 160, "ttft_s": 0.3, "tpot_s": 0.01,
    "tokens_per_s": 512.0, "users_by": "stated",
}  # fmt: skip
SGLANG = {
    **{key: value for key, value in BENCH.items() if key != "model_id"}, "backend": "sglang",
    "max_concurrency": None, "request_rate": 4.0,
    "server_info": {"model_path": "org/m", "tp_size": 4},
}  # fmt: skip
INFERENCEMAX = {
    "hw": "h200-cw", "conc": 64, "model": "org/m", "framework": "trt", "precision": "fp8",
    "spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 1024, "tp": 8, "pp": 1, "ep": 1,
    "dp_attention": "false", "output_tput_per_gpu": 100.0, "mean_ttft": 0.4, "mean_tpot": 0.02,
}  # fmt: skip
AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 200.0, "p50": 180.0},
    "inter_token_latency": {"unit": "us", "avg": 9000.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 700.0},
    "input_sequence_length": {"avg": 550.2}, "output_sequence_length": {"avg": 128.0},
    "input_config": {"endpoint": {"model_names": ["org/m"]}, "loadgen": {"concurrency": 8}},
}  # fmt: skip


def _metric(value: float) -> dict[str, dict[str, float]]:
    return {"successful": {"mean": value, "median": value}}


GUIDELLM = {
    "benchmarks": [
        {
            "worker": {"backend_model": "org/m"},
            "metrics": {
                "prompt_token_count": _metric(256), "output_token_count": _metric(128),
                "request_concurrency": _metric(7.6), "time_to_first_token_ms": _metric(50),
                "inter_token_latency_ms": _metric(12), "output_tokens_per_second": _metric(600),
            },
        }
    ] * 2
}  # fmt: skip


@pytest.mark.parametrize(("result", "cells"), [
    (BENCH, CLOSED),
    # Without a limit, 4 requests a second of 0.3 + 127 × 0.01 s are 6.28 in flight.
    (SGLANG, {
        **{key: CLOSED[key] for key in CLOSED if key not in ("requests", "tokens_per_s")},
        "model": "org/m", "tp": 4, "scheduler": "sglang", "concurrency": 6,
        "ttft_s": 0.29, "tpot_s": 0.0095, "users_by": "Little's law",
    }),
    (INFERENCEMAX, {
        "model": "org/m", "cluster": "dgx-h200", "chips": 8, "tp": 8, "ep": 1, "pp": 1,
        "scheduler": "tensorrt-llm", "precision": "fp8", "prompt_tokens": 1024,
        "output_tokens": 1024, "concurrency": 64, "rounds": 10, "shortest_lengths": 0.8,
        "ttft_s": 0.4, "tpot_s": 0.02, "tokens_per_s": 800.0,
    }),
    (AIPERF, {
        "model": "org/m", "prompt_tokens": 550, "output_tokens": 128, "concurrency": 8,
        "ttft_s": 0.18, "tpot_s": 0.009, "tokens_per_s": 700.0,
    }),
])  # fmt: skip
def test_a_result_is_a_row(result, cells):
    (row,) = load_test_rows(json.dumps(result), "r.json") or []
    numbers = {name: value for name, value in cells.items() if isinstance(value, float)}
    assert row == cells | {name: pytest.approx(value) for name, value in numbers.items()}


def test_lines_and_reports_hold_several_runs():
    lines = "\n".join([json.dumps(BENCH), json.dumps(SGLANG)])
    assert len(load_test_rows(lines, "r.jsonl") or []) == 2
    rows = load_test_rows(json.dumps(GUIDELLM), "benchmarks.json") or []
    cells = [(row["concurrency"], row["ttft_s"], row["tpot_s"]) for row in rows]
    assert cells == [(8, 0.05, 0.012)] * 2
    drawn = load_test_rows(json.dumps({**BENCH, "input_lens": [800, 1000]}), "r.json") or []
    assert drawn[0]["shortest_lengths"] == 0.8
    for other in ("collective,cluster\n", "[1, 2]", f"[{json.dumps(BENCH)}, 3]"):
        assert load_test_rows(other, "r.csv") is None


@pytest.mark.parametrize(("result", "message"), [
    ({"answer": 42}, "no results of vllm bench serve, .* its keys are answer"),
    ({**BENCH, "completed": 0}, "a run has no usable"),
    ({**BENCH, "total_input_tokens": "many"}, "a run has no usable"),
    ({"benchmarks": []}, "holds no run"),
    ({"benchmarks": [{"metrics": {}}]}, "a run has no usable 'prompt_token_count'"),
])  # fmt: skip
def test_other_json_is_refused(result, message):
    with pytest.raises(InputError, match=message):
        load_test_rows(json.dumps(result), "r.json")


def test_what_a_file_does_not_say_is_stated(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(BENCH))
    (row,) = read_file(path).rows
    left_out = ("cluster", "tp")
    remedy = "is not in the file. State it, as --column"
    assert row.mistakes == tuple(f"{name} {remedy} {name}=…." for name in left_out)
    (row,) = read_file(path, {"cluster": "dgx-h100", "tp": "2", "scheduler": "sglang"}).rows
    assert (row.mistakes, row.values["tp"], row.values["scheduler"]) == ((), 2, "sglang")
    for change, message in (
        ({"disagg": True}, "replicas for prompts are apart"),
        ({"spec_decoding": "mtp"}, "it proposes tokens. State speculate"),
        ({"hw": "gaudi3"}, "cluster is not in the file"),
    ):
        path.write_text(json.dumps({**INFERENCEMAX, **change}))
        assert message in read_file(path).rows[0].mistakes[0]
    with pytest.raises(InputError, match=r"a row of serving has no '\w+'\. Did you mean tp"):
        read_file(path, {"tpp": "2"})


def test_rows_are_marked_by_their_intervals():
    row = {"error": 0.1, "low": 1.0, "high": 2.0, "quantity": "tpot_s"}
    rate = {**row, "quantity": "tokens_per_s"}
    rows = [
        {**row, "published": 1.5}, {**row, "published": 2.5}, {**row, "published": 0.5},
        {**rate, "published": 2.5}, {**rate, "published": 0.5}, {**row, "low": None},
    ]  # fmt: skip
    words = [each["normal"] for each in marked(rows)]
    assert words == ["usual", "slower", "faster", "faster", "slower", None]


def test_the_command_judges_each_run(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    slow = {**BENCH, "mean_tpot_ms": 100.0}
    path.write_text("\n".join(map(json.dumps, [BENCH, slow])))
    file = ["validate", "--file", str(path), "--quiet", "--workers", "1"]
    stated = ["--column", "cluster=dgx-h100", "--column", "tp=1"]
    assert run([*file, *stated, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert rows[1]["normal"] == "slower"
    assert run([*file, *stated]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "slower than nine of ten such machines: " in text
    for more, message in (
        (["--column", "tp"], "--column 'tp' is no COLUMN=VALUE. Write it as tp=4."),
        (["--column", "chip=h100"], "a row of serving has no 'chip'"),
    ):
        assert run([*file, *more]) == 2
        assert message in capsys.readouterr().err
    assert run(["validate", "--table", "nccl_more", "--column", "tp=1"]) == 2
    assert "--column is for the rows of --file" in capsys.readouterr().err
