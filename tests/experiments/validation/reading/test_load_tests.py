"""What load generators, training tools and measurement tools write, read as rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from experiments.validation.comparison import compared_step, compared_steps, marked
from experiments.validation.reading.rows import read_file
from experiments.validation.reading.tool_outputs import (
    load_test_rows,
    parse_measured,
    read_runs,
    read_steps,
)
from tests.support.refusals import refused
from topologies.support.errors import InputError
from workloads.remarks import comparison_sentence
from workloads.training.iteration import Iteration

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
UNKNOWN_OF_ARRIVALS = ("concurrency", "tokens_per_s", "users_by")
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
    # Without a limit, 4 requests a second arrive whatever becomes of them.
    (SGLANG, {
        **{key: CLOSED[key] for key in CLOSED if key not in UNKNOWN_OF_ARRIVALS},
        "model": "org/m", "tp": 4, "scheduler": "sglang", "arrivals_per_s": 4.0,
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
    refused(message, load_test_rows, json.dumps(result), "r.json")


def test_what_a_file_does_not_say_is_stated(tmp_path):
    (path := tmp_path / "r.json").write_text(json.dumps(BENCH))
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
    refused(r"a row of serving has no '\w+'\. Did you mean tp", read_file, path, {"tpp": "2"})


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


BATCH, SEQ, CHIPS = 16, 1024, 16


@pytest.fixture(scope="module")
def step() -> Iteration:
    return cs.train("llama-3.2-1b", "trn2.48xlarge", tp=4, global_batch=BATCH, seq=SEQ)


FORMS = {
    "Megatron-LM": " iteration 7/ 24 | elapsed time per iteration (ms): 2000.0 | lr: 1e-6 |",
    "NeMo": "Epoch 0: 100%|##| 9/9 [00:48<00:00, loss=0.01, train_step_timing in s=2.000]",
    "MaxText": "completed step: 7, seconds: 2.000, TFLOP/s/device: 400.1, loss: 9.9",
    "torchtitan": f"step:  7  loss:  7.1  memory: 43.7GiB(46%)  tps: {BATCH * SEQ / CHIPS / 2:,}",
    "DeepSpeed": f"global_step=7, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={BATCH / 2}",
    "Transformers": "{'train_runtime': 9.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}",
    "MLPerf logging": ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 2.0}}',
}


@pytest.mark.parametrize("tool", FORMS)
def test_every_tool_states_the_same_two_seconds(tool, step, tmp_path):
    (log := tmp_path / "run.log").write_text(f"starting\n{FORMS[tool]}\n")
    document = compared_step(read_steps(str(log)), step)
    assert (document["tool"], document["steps"]) == (tool, 1)
    assert document["measured_s"] == pytest.approx(2.0)


def test_few_steps_of_a_log_are_counted_without_those_that_warm_up(tmp_path):
    (log := tmp_path / "nemo.log").write_text(
        "".join(f"train_step_timing in s: {seconds}\n" for seconds in (45.1, 2.0, 0.6, 0.7, 0.8))
    )
    assert read_steps(str(log)).times_s(None) == [0.6, 0.7, 0.8]
    log.write_text("train_step_timing in s: 45.1\n")
    assert read_steps(str(log)).times_s(None) == [45.1]


def test_the_batch_of_a_log_of_mlperf_is_that_of_its_steps(step, tmp_path):
    (log := tmp_path / "run.log").write_text(
        ':::MLLOG {"key": "global_batch_size", "value": 24}\n' + FORMS["MLPerf logging"]
    )
    refused("has steps of 24 sequences", compared_step, read_steps(str(log)), step)


def test_steps_that_warm_up_are_left_out(step, tmp_path):
    log = tmp_path / "run.log"
    times_ms = [27607, 900, 800, 510, 500, 490, 505, 495]
    lines = [f"elapsed time per iteration (ms): {ms} | global batch size: 16" for ms in times_ms]
    log.write_text("\n".join(lines))
    document = compared_step(read_steps(str(log)), step)
    assert document["steps"] == 5
    assert document["measured_s"] == pytest.approx(0.5)
    assert 0.49 <= document["p10_s"] < 0.5 < document["p90_s"] <= 0.51


def test_flops_of_neuron_monitor_give_the_mean_step(step, tmp_path):
    """Sixty-four cores that count the step's own FLOP/s measure the step's own time."""
    rate = step.hfu * step.peak_flops_per_s / 4
    counters = {str(core): {"flops": rate, "neuroncore_utilization": 50} for core in range(64)}
    data = {"report": {"neuroncore_counters": {"neuroncores_in_use": counters}}}
    hardware = {"neuroncore_per_device_count": 4}
    report = {"neuron_runtime_data": [data], "neuron_hardware_info": hardware}
    idle = {**report, "neuron_runtime_data": []}
    stream = tmp_path / "monitor.json"
    stream.write_text("\n".join(map(json.dumps, (report, idle, report))))
    document = compared_step(read_steps(str(stream)), step)
    assert (document["steps"], document["normal"]) == (2, "usual")
    assert document["measured_s"] == pytest.approx(step.iteration_s)
    stream.write_text(json.dumps({**report, "neuron_hardware_info": {}}))
    refused("neuroncore_counters", read_steps, str(stream))
    for written in (True, "3", -1.0):
        counters["7"] = {"flops": written}
        stream.write_text(json.dumps(report))
        refused(f"flops is {written!r}; it must be a number of at least 0", read_steps, str(stream))


def test_a_measured_time_is_usual_inside_the_interval(step):
    ends = step.interval
    for time_s, word in (
        (ends.low * 0.99, "faster"), (ends.low * 1.01, "usual"),
        (ends.high * 0.99, "usual"), (ends.high * 1.01, "slower"),
    ):  # fmt: skip
        document = compared_step(read_steps(f"{time_s!r}s"), step)
        assert document["normal"] == word
        assert document["error"] == pytest.approx(step.iteration_s / time_s - 1)
        assert word in comparison_sentence(document, step)


def test_two_measured_runs_are_compared_with_each_other_too(step, tmp_path):
    """Of 3 %, the difference of repeats, either run may be the longer one."""
    (first := tmp_path / "a,b.log").write_text(FORMS["Megatron-LM"])
    assert len(read_runs(str(first))) == 1
    for then, word in ((2.05, "usual"), (1.95, "usual"), (2.1, "slower"), (1.9, "faster")):
        document = compared_steps(read_runs(f"2s,{then}s"), step)
        assert (document["measured_s"], document["before"]["measured_s"]) == (then, 2)
        assert (document["change"], document["change_normal"]) == (then / 2, word)
        assert ("something else changed" in comparison_sentence(document, step)) == (
            word != "usual"
        )
    alike = comparison_sentence(compared_steps(read_runs("2s,2.0002s"), step), step)
    assert "The second run's step is as long as the first's, which is usual" in alike
    refused("names 3 runs; name one, or two", read_runs, "1s,2s,3s")
    refused("names an empty run; name one, or two", read_runs, "1s,")
    assert "before" not in compared_steps(read_runs("2s"), step)


def test_choices_that_come_nearer_are_named(step):
    ratios = {other.ratio: other.field for other in step.alternatives if other.ratio > 1.02}
    largest = max(ratios)
    document = compared_step(read_steps(f"{step.interval.high * 1.5!r}s"), step)
    sentence = comparison_sentence(document, step)
    assert f"Of what is not stated, {ratios[largest].replace('_', ' ')}" in sentence


@pytest.mark.parametrize(("text", "message"), [
    ("loss 3.1 at step 7", "no time of a training step in it"),
    ("global batch size: 99 | elapsed time per iteration (ms): 5.0", "has steps of 99 seq"),
])  # fmt: skip
def test_a_log_of_something_else_is_refused(text, message, step, tmp_path):
    (log := tmp_path / "run.log").write_text(text)
    refused(message, lambda: compared_step(read_steps(str(log)), step))


NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) validation: 1
# Running: all_reduce_perf -b 8 -e 16G -f 2
#  Rank  0 Group  0 Pid  10 on a device  0 [0x53] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  11 on a device  1 [0x64] NVIDIA H100 80GB HBM3
#                                              out-of-place                  in-place
#   size    count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#    (B)  (elements)                     (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
    1024      256  float    sum    -1    6.40   0.16   0.16      0    6.50   0.16   0.16    0
 1048576   262144  float    sum    -1   14.20  73.84  73.84    N/A   14.10  74.37  74.37  N/A
# Avg bus bandwidth    : 37
"""
NCCOM_TEST = """nccom-test -r 32 --minbytes 1kb --maxbytes 1mb -f 8 --check allg
    size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)
       1024             256    fp32         151           0.01           0.01
   33554432         8388608    fp32         768          40.69          39.42
   67108864    Failure running neuron-bench - log file /tmp/log
Avg bus bandwidth:      0.7731GB/s
"""


def test_nccl_tests_output_is_read_out_of_place():
    series = parse_measured(NCCL_TESTS)
    assert (series.collective, series.ranks, len(series)) == ("all-reduce", 2, 2)
    assert series.time_s.tolist() == pytest.approx([6.4e-6, 14.2e-6])
    assert series.bandwidth_unit == "GB/s"


def test_nccom_test_output_in_gibibytes_is_read_by_its_times():
    series = parse_measured(NCCOM_TEST)
    assert (series.collective, series.ranks, series.failed) == ("all-gather", 32, 1)
    assert series.bandwidth_unit == "GiB/s"
    assert series.size_bytes[1] / series.time_s[1] == pytest.approx(43.69e9, rel=1e-3)


def test_ranks_are_found_from_the_bandwidths_where_nothing_says_so():
    text = "alltoall_perf\n size time(us) algbw busbw\n 1000000 10 100 87.5\n"
    assert parse_measured(text).ranks == 8
    assert parse_measured("size time(us)\n8 1\n").ranks is None


@pytest.mark.parametrize(("text", "why"), [
    ("", "no table"),
    ("hello\nworld\n", "no table"),
    ("size(B) time(us)\n 1024 Failure\n", "1 rows without a result, none with one"),
    ("size(B) time(us)\n 0 6.3\n 8 0\n", "2 rows without a result, none with one"),
])  # fmt: skip
def test_text_without_measurements_is_refused(text, why):
    refused(why, parse_measured, text, "log.txt")


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text):
    try:
        series = parse_measured("size time(us) algbw busbw\n" + text)
    except InputError:
        return
    assert np.isfinite(series.time_s).all()


def test_of_several_tables_the_one_that_is_wanted_is_read():
    other = NCCL_TESTS.replace("all_reduce", "all_gather").replace("14.20", "9.10")
    assert parse_measured(NCCL_TESTS + other).collective == "all-reduce"
    assert len(parse_measured(NCCL_TESTS + other)) == 2
    series = parse_measured(NCCL_TESTS + other, wanted="all-gather")
    assert (series.collective, series.ranks, series.time_s[-1]) == ("all-gather", 2, 9.1e-6)


@pytest.mark.parametrize("prefix", [
    "[1,0]<stdout>: ", "0: ", "node-7: ", "2026-03-01T10:00:00.123Z ", "[host-1] ",
    "ip-10-0-0-1: 3: ",
])  # fmt: skip
def test_what_stands_before_each_line_is_passed_over(prefix):
    lines = [prefix + line for line in NCCL_TESTS.splitlines()]
    series = parse_measured("\n".join(lines))
    assert (series.collective, series.ranks) == ("all-reduce", 2)
    assert series.size_bytes.tolist() == [1024, 2**20]


NCCOM = """nccom-test -r 16 allr
compiled
size(B) count time algbw
        elems ({unit}) GB/s
1024 256 12.0 0.1
"""


@pytest.mark.parametrize(("unit", "time_s"), [("ms", 12e-3), ("us", 12e-6)])
def test_units_below_a_header_and_a_tool_named_in_one_of_several_lines_are_read(unit, time_s):
    measured = parse_measured(NCCOM.format(unit=unit))
    assert measured.time_s.tolist() == [time_s]
    assert (measured.by_core, measured.ranks) == (True, 16)
    assert not parse_measured(NCCOM.replace("nccom-test", "all_reduce_perf")).by_core


def test_a_request_of_no_tokens_leaves_the_lengths_unsaid():
    lengths = [0, 512, 1024]
    (without,) = load_test_rows(json.dumps({**BENCH, "input_lens": lengths}), "run")
    (drawn,) = load_test_rows(json.dumps({**BENCH, "input_lens": lengths[1:]}), "run")
    assert "shortest_lengths" not in without
    assert drawn["shortest_lengths"] == 0.5
