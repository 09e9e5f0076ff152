"""Validation with other numbers: ``--catalogue`` and ``--variant`` reach every kind of row."""

from __future__ import annotations

import json

import pytest

from experiments.cli.main import run


def _predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[float]:
    run(["validate", "--json", "--quiet", *arguments])
    return [row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]]


@pytest.mark.parametrize(
    "table",
    [
        *("korthikanti_layers", "attention"),
        pytest.param("trainium2_training", marks=pytest.mark.slow),
    ],
)
def test_an_overlay_moves_every_prediction(
    table: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slower matrix engines and memory make most rows slower, whatever the kind."""
    overlay = tmp_path / "slow.csv"
    overlay.write_text(
        "part,quantity,value,unit,grade,source\n"
        "a100-80gb,bf16_matmul,100,TFLOP/s,measured,ours\n"
        "a100-80gb,hbm_bandwidth,0.5,TB/s,measured,ours\n"
        "h100,bf16_matmul,300,TFLOP/s,measured,ours\n"
        "trn2,bf16_matmul,200,TFLOP/s,measured,ours\n"
    )
    before = _predicted(capsys, "--table", table)
    after = _predicted(capsys, "--table", table, "--catalogue", str(overlay))
    assert sum(late > soon for soon, late in zip(before, after, strict=True)) > len(before) / 3


def test_an_unknown_variant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--table", "mlperf", "--variant", "trn2.cores=many"]) == 2
    assert "has no variant 'many'" in capsys.readouterr().err
