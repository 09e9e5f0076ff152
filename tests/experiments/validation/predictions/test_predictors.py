"""Predictors of rows of every kind, the machines they run on, and other catalogues."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cli.main import run
from experiments.validation.comparison import compare
from experiments.validation.predictions import training
from experiments.validation.predictions.collectives import predict as predict_collective
from experiments.validation.predictions.kernels import predict as predict_kernel
from experiments.validation.predictions.training import filled, model_of, question, stated_plan
from experiments.validation.reading.rows import machines_for, read_text
from experiments.validation.validate import predictor
from tests.support.toy_training import TOY, plan
from tests.support.validation_rows import TRAINING, rows_of, training_row
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.support.errors import InputError
from workloads.training.iteration import iteration
from workloads.training.layers.layer import forward
from workloads.training.layers.steps import RankShapes


def test_models_and_plans_follow_the_columns():
    gpt = model_of(filled(training_row(gated_mlp=0, tied_embeddings=1)).values)
    assert (gpt.norm, gpt.positions, gpt.tied_embeddings) == ("layer", 1024, True)
    llama = model_of(filled(training_row()).values)
    assert (llama.norm, llama.positions) == ("rms", 0)
    moe = model_of(filled(training_row(experts=8, experts_per_token=2, moe_ffn=512)).values)
    assert moe.experts is not None
    assert (moe.experts.count, moe.experts.ffn) == (8, 512)
    neuron = filled(training_row(cluster="trn1.32xlarge", chips=16, tp=8, dp=4))
    assert question(neuron.values)[2].ranks_per_chip == 2
    with pytest.raises(InputError, match="not a multiple of chips 16"):
        stated_plan(filled(training_row(cluster="trn1.32xlarge", chips=16, tp=8, dp=3)).values)


def test_rows_of_a_table_with_one_step_simulate_it_once(monkeypatch):
    simulated = []

    def counted(model, machine, plan, **changes):
        simulated.append(plan)
        return iteration(model, machine, plan, **changes)

    monkeypatch.setattr(training, "iteration", counted)
    plain = {"chips": 8, "tp": 2, "dp": 4, "gated_mlp": 0}
    rows = [training_row(**plain, global_batch=batch) for batch in (8, 16, 8)]
    predict = predictor(rows_of(TRAINING).kind)
    outcomes = [predict(values, None) for values in rows]
    assert list(dict.fromkeys(plan.global_batch for plan in simulated)) == [8, 16]
    assert len(simulated) == len(set(simulated))
    assert outcomes == [training.Steps().predict(values) for values in rows]


def test_layer_rows_predict_both_passes():
    read = rows_of(
        "cluster,chips,layers,hidden,heads,seq,tp,microbatch,experts,forward_s,backward_s\n"
        "dgx-a100,8,48,6144,64,2048,8,4,,0.0077,0.0119\ndgx-a100,8,48,6144,64,2048,8,4,8,1,1\n"
    )
    assert read.kind.name == "layer"
    dense, sparse = compare(read, predictor(read.kind))
    assert 1.3 < dense["predicted_backward_s"] / dense["predicted"] < 2.2
    assert (sparse["status"], "experts" in sparse["why"]) == ("unsupported", True)


def test_a_layer_of_a_row_takes_as_long_as_that_layer_of_a_plan():
    """Both without the rotation of queries and keys, which rows of layers leave out."""
    cells = {"chip": "h100", "seq": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128}
    row = {"kernel": "layer", **cells, "n": 11_008, "k": 4096, "precision": None}
    model = replace(TOY, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11_008)
    shapes = RankShapes(model, plan(seq=4096), "h100", shipped_catalogue())
    steps = [step.seconds for step in forward(shapes) if step.name != "attention.rotate"]
    assert predict_kernel(row).predicted["kernel_s"] == pytest.approx(sum(steps), rel=5e-3)


def test_other_libraries_are_told_apart_by_tool():
    values = {
        "collective": "all-reduce", "cluster": "dgx-h100", "chips": 2, "ranks": 2,
        "algorithm": None, "size_bytes": 2**10,
    }  # fmt: skip
    nccl_s = predict_collective(values).predicted["time_s"]
    torch = predict_collective({**values, "tool": "pytorch"})
    assert torch.predicted["time_s"] > nccl_s
    assert predict_collective({**values, "tool": "nvshmem"}).status == "unsupported"


def test_slices_of_tables_are_machines_too():
    slice_ = machines_for("tpu-v6e-128", 128)
    assert (slice_.chip, slice_.chips) == ("tpu-v6e", 128)
    assert [axis.wrap for axis in slice_.shape.axes] == [False, True]
    with pytest.raises(InputError, match="unknown cluster 'tpu-v9-4'"):
        machines_for("tpu-v9-4", 4)


def test_a_cluster_file_keeps_its_case_and_is_read_again_after_an_edit(tmp_path):
    from experiments.validation.reading.rows import shipped_clusters

    file, text = tmp_path / "Mine.yaml", Path(shipped_clusters()["tpu-v6e-16"]).read_text()
    file.write_text(text)
    assert machines_for(str(file), 4).chips == 16
    file.write_text(text.replace("name: X, size: 4", "name: X, size: 8"))
    assert machines_for(str(file), 4).chips == 32


def test_a_row_that_names_its_model_needs_no_sizes():
    text = "model,cluster,chips,seq,layers,hidden,heads\nllama-3.1-8b,p5.48xlarge,8,4096,,,\n"
    values = filled(read_text(text, "own.csv").rows[0].values).values
    assert (values["layers"], values["hidden"], values["ffn"]) == (32, 4096, 14336)
    without = read_text(text.replace("llama-3.1-8b", ""), "own.csv").rows[0]
    assert without.mistakes[0] == "layers is empty. State it."


def _predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[float]:
    run(["validate", "--json", "--quiet", *arguments])
    return [row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]]


@pytest.mark.parametrize("table", [
    *("korthikanti_layers", "attention"),
    pytest.param("trainium2_training", marks=pytest.mark.slow),
])  # fmt: skip
def test_an_overlay_moves_every_prediction(table, tmp_path, capsys):
    """Slower matrix engines and memory make most rows slower, whatever the kind."""
    overlay = tmp_path / "slow.csv"
    slower = (
        "a100-80gb,bf16_matmul,100,TFLOP/s", "a100-80gb,hbm_bandwidth,0.5,TB/s",
        "h100,bf16_matmul,300,TFLOP/s", "trn2,bf16_matmul,200,TFLOP/s",
    )  # fmt: skip
    rows = "".join(f"{row},measured,ours\n" for row in slower)
    overlay.write_text(f"part,quantity,value,unit,grade,source\n{rows}")
    before = _predicted(capsys, "--table", table)
    after = _predicted(capsys, "--table", table, "--catalogue", str(overlay))
    assert sum(late > soon for soon, late in zip(before, after, strict=True)) > len(before) / 3
