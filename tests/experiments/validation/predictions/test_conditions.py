"""Rows with conditions: month and engine of serving, jobs, and steps of long sequences."""

from types import SimpleNamespace

import pytest

from experiments.validation.predictions import training
from experiments.validation.predictions.jobs import TIMES, predict
from experiments.validation.predictions.serving import engine
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.job.goodput import expected_goodput
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

OF_GPUS = ("iteration_overhead", "request_iteration")
BEFORE_0_14 = {f"serving.gpu.{name}": "vllm-0.13" for name in OF_GPUS}
BEFORE_0_5_15 = {"serving.gpu.iteration_overhead": "sglang-0.5.14"}


@pytest.mark.parametrize(("row", "chip", "variants"), [
    ({"date": "2025-10"}, "trn2", {"serving.trn2.expert_block_rate": "sdk-2.26"}),
    ({"date": "2025-12"}, "trn2", {}),
    ({"date": "2024-07"}, "inf2", {"serving.inf2.expert_block_rate": "sdk-2.26"}),
    (
        {"date": "2024-06"},
        "inf2",
        {
            "kernels.trainium.attention_largest_head_dim": "sdk-2.18",
            "serving.inf2.expert_block_rate": "sdk-2.26",
        },
    ),
    ({"block_scaled": 1, "scheduler": "tensorrt-llm"}, "b200",
     {"serving.gpu.block_scale_token": "tensorrt-llm-1.2"}),
    ({"block_scaled": 1, "scheduler": "tensorrt-llm"}, "h200", {}),
    ({"block_scaled": 1, "scheduler": "vllm"}, "b200", {}),
    ({"date": "2025-12", "scheduler": "vllm"}, "b200", BEFORE_0_14),
    ({"date": "2026-01", "scheduler": "vllm"}, "b200", {}),
    ({"date": "2026-06", "scheduler": "sglang"}, "b200", BEFORE_0_5_15),
    ({"date": "2026-07", "scheduler": "sglang"}, "b200", {}),
])  # fmt: skip
def test_serving_software_is_told_by_month_and_engine(row, chip, variants):
    assert engine(row, chip, shipped_catalogue()) == variants
    shipped_catalogue().with_variants(variants)


ROW = {
    "cluster": "dgx-h100", "chips": 1024, "server_failures_per_1000_days": 31.25,
    "checkpoint_interval_s": 600, "checkpoint_stall_s": 20, "restart_s": 100, "detection_s": 10,
    "peer_copy_interval_s": None, "warm_spares": None, "goodput": 0.9,
}  # fmt: skip
"""128 servers, one of which fails every six hours."""


def test_failures_of_servers_add_up():
    outcome = predict({**ROW, "goodput": None})
    assert outcome.predicted == {"mtbf_s": pytest.approx(21_600)}


def test_goodput_is_that_of_exponential_failures():
    """Half of an interval, detection and restart are lost to each of the 400 failures."""
    outcome = predict(ROW)
    expected = expected_goodput(600, 21_600, checkpoint_s=20, restart_s=100, detection_s=10)
    assert outcome.predicted["goodput"] == pytest.approx(expected, abs=0.003)
    assert outcome.provenance == {"failure_rates": "stated"}


def test_times_that_a_row_leaves_out_are_assumed():
    """A goodput at Daly's interval is at least that of any other with the same times."""
    stall_alone = predict({**ROW, "checkpoint_interval_s": None})
    assert stall_alone.provenance["columns"] == "assumed: checkpoint_interval_s"
    assert stall_alone.predicted["goodput"] > predict(ROW).predicted["goodput"] - 0.003
    nothing = predict({**ROW, **dict.fromkeys(TIMES)})
    assert nothing.provenance["columns"] == f"assumed: {', '.join(TIMES)}"


MODEL, MACHINE = named("gpt2"), cluster("dgx-a100")
LONG = ParallelPlan(tp=2, pp=2, dp=2, global_batch=80, seq=1024)
INTERLEAVED = ParallelPlan(tp=2, pp=2, vpp=3, dp=2, global_batch=80, seq=1024)


@pytest.mark.parametrize(("plan", "counts"), [
    (LONG, [8, 12]),
    (INTERLEAVED, [8, 12]),
    (ParallelPlan(dp=8, global_batch=96, seq=1024), [12]),
])  # fmt: skip
def test_short_runs_give_the_time_of_a_long_one(plan, counts, monkeypatch):
    whole = iteration(MODEL, MACHINE, plan, allow_oversized=True, partial=True)
    simulated = []

    def counted(model, machine, plan, **more):
        simulated.append(plan.microbatches)
        return iteration(model, machine, plan, **more)

    monkeypatch.setattr(training, "iteration", counted)
    seconds = training.long_step(MODEL, MACHINE, plan).seconds
    assert seconds == pytest.approx(whole.iteration_s, rel=1e-3)
    assert simulated == counts


def test_bytes_are_shown_in_billions():
    step = SimpleNamespace(memory=SimpleNamespace(total=123.44e9, capacity=80e9))
    assert training._too_large(step) == "it needs 123.4 GB a rank and a rank has 80.0 GB."
