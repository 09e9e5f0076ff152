"""Experiments on plans at toy size: comparison, models side by side, and weak scaling."""

import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from experiments.scripts import plan_ranking, scaling, training
from experiments.scripts.support import Replica, Steps
from tests.support.commands import document_of
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.support.errors import InputError
from workloads.training.program.breakdown import PARTS


@pytest.fixture
def config(tmp_path):
    return config_file(tmp_path / "small.json", TOY_CONFIG)


def check_parts(frame):
    """Parts of every row sum to its iteration."""
    parts = frame[[f"{part}_s" for part in PARTS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(frame["iteration_s"].tolist(), rel=1e-9)


def drawn(axes):
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return sum(bar.get_width() for bar in bars), sum(bar.get_height() for bar in bars)


def test_every_model_has_its_best_plan(config):
    frame = training.step_time_across_models(
        models=(config, "gpt2"), cluster="trn2.48xlarge", global_batch=16, seq=512
    )
    assert frame["model"].tolist() == ["small", "gpt2"]
    check_parts(frame)
    assert drawn(training.draw_step_time_across_models(frame).axes[0])[0] == pytest.approx(2.0)


@pytest.mark.slow
def test_weak_scaling_keeps_the_work_of_a_chip(config):
    frame = scaling.weak_scaling(
        config, "trn2.48xlarge", chips=(16, 32, 64), overlap=("dp", "none"),
        replica=Replica(tp=4, pp=2, microbatches=2, seq=512),
    )  # fmt: skip
    uneven = frame[frame.jitter == "typical"]
    frame = frame[frame.jitter == "0"].reset_index(drop=True)
    assert (uneven.iteration_s.to_numpy() > frame.iteration_s.to_numpy()).all()
    assert len(scaling.draw_weak_scaling(pd.concat([frame, uneven])).axes) == 4
    assert frame["overlap"].tolist() == ["dp"] * 3 + ["none"] * 3
    assert frame["chips"].tolist() == [16, 32, 64] * 2
    assert (frame["global_batch"] * 16 == frame["chips"] * frame["global_batch"].iloc[0]).all()
    assert frame["compute_s"].tolist() == pytest.approx([frame["compute_s"].iloc[0]] * 6)
    check_parts(frame)
    for _, rows in frame.groupby("overlap"):
        assert rows["efficiency"].iloc[0] == 1.0
        slower = rows["iteration_s"].iloc[0] / rows["iteration_s"]
        assert rows["efficiency"].tolist() == pytest.approx(slower.tolist())
        assert rows["exposed_dp_s"].iloc[-1] == rows["exposed_dp_s"].max()
    heights = sum(drawn(axes)[1] for axes in scaling.draw_weak_scaling(frame).axes)
    assert heights == pytest.approx(frame["iteration_s"].sum())


def test_weak_scaling_refuses_parts_of_domains(config):
    with pytest.raises(InputError, match=r"24 chips are not whole domains .* Use 16"):
        scaling.weak_scaling(config, "trn2.48xlarge", chips=(24,))


@pytest.mark.slow
def test_measured_plans_are_ranked_better_than_by_chance():
    frame = plan_ranking.plan_ranking()
    assert len(frame) == 24
    assert frame["kendall_tau"].median() > 0.4
    assert frame["regret"].median() < 0.2 < frame["random_regret"].median()
    assert len(plan_ranking.draw_plan_ranking(frame).axes) == 2


def test_few_plans_of_a_table_make_no_group():
    assert plan_ranking.plan_ranking(table="nanotron_h100", least=1000).empty


def test_fields_of_a_replica_are_options(config):
    document = document_of(
        f"experiment weak_scaling --model {config} --machine trn2.48xlarge --chips 16 "
        "--overlap dp --tp 4 --seq 512 --pp 1 --microbatches 4 --jitter 0"
    )
    stated = {name: document["inputs"][name] for name in ("tp", "microbatches", "seq")}
    assert stated == {"tp": 4, "microbatches": 4, "seq": 512}
    assert [(row["tp"], row["dp"], row["global_batch"]) for row in document["rows"]] == [(4, 4, 16)]


def test_a_replica_has_its_microbatches_whatever_ranks_a_chip_has():
    for machine, ranks in (("trn1.32xlarge", 32), ("trn2.48xlarge", 16)):
        replica = Replica(tp=4, microbatches=3, seq=1024)
        plan = Steps("llama-3.1-8b", machine).repeated(replica, overlap="dp")
        assert (plan["global_batch"], plan["overlap"]) == (ranks // 4 * 3, "dp")
