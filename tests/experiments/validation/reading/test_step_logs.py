"""Measured steps are read from what training tools write, and compared with the prediction."""

import json

import pytest

import cluster_sim as cs
from experiments.reports.remarks import comparison_sentence
from experiments.validation.comparison import compared_step
from experiments.validation.reading.tool_outputs import read_steps
from topologies.errors import InputError
from workloads.training.iteration import Iteration

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
    log = tmp_path / "run.log"
    log.write_text(f"starting\n{FORMS[tool]}\n")
    document = compared_step(read_steps(str(log)), step)
    assert (document["tool"], document["steps"]) == (tool, 1)
    assert document["measured_s"] == pytest.approx(2.0)


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
    with pytest.raises(InputError, match="neuroncore_counters"):
        compared_step(read_steps(str(stream)), step)


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
    log = tmp_path / "run.log"
    log.write_text(text)
    with pytest.raises(InputError, match=message):
        compared_step(read_steps(str(log)), step)
