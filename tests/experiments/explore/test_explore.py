"""The explorer: recorded runs are answered again, and moved numbers move them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from experiments.cli.main import run
from experiments.explore.answers import Explored, knobs, moved, read_runs, shipped
from experiments.explore.page import panel, pictures
from topologies.errors import InputError

TOY = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 1000,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories of a training step and of a collective."""
    base = tmp_path_factory.mktemp("runs")
    (base / "config.json").write_text(json.dumps(TOY))
    train = ["train", "--model", str(base / "config.json"), "--cluster", "trn2.48xlarge",
             "--tp", "4", "--pp", "2", "--global-batch", "8", "--seq", "512"]  # fmt: skip
    reduce = ["collective", "all-reduce", "trn2.48xlarge", "--size", "1MiB,64MiB",
              "--algorithm", "ring"]  # fmt: skip
    for name, words in (("train", train), ("reduce", reduce)):
        assert run([*words, "--quiet", "--out", str(base / name)]) == 0
    return [base / "train", base / "reduce"]


@pytest.fixture(scope="module")
def runs(folders: list[Path]) -> list[Explored]:
    return read_runs(folders)[0]


def test_unmoved_numbers_give_what_was_recorded(runs: list[Explored]) -> None:
    train, reduce = runs
    assert train.ask(shipped()) == pytest.approx(train.recorded)
    assert reduce.ask(shipped()) == pytest.approx(reduce.recorded, rel=0.05)
    told, figures = pictures(runs, shipped())
    assert told.startswith("**train**")
    assert "+0.0% over what the run found" in told
    assert len(figures) == 2


def test_a_moved_number_moves_the_answers_that_read_it(runs: list[Explored]) -> None:
    train, reduce = runs
    slower = moved(shipped(), {"trn2.bf16_matmul": 1.0, "trn2.link_bandwidth": 0.5})
    assert reduce.seconds(slower) > 1.5 * reduce.seconds(shipped())
    assert train.ask(slower)["exposed_tp"] > train.ask(shipped())["exposed_tp"]
    assert train.ask(slower)["compute"] == train.ask(shipped())["compute"]


def test_sliders_are_for_the_numbers_that_matter_most(runs: list[Explored]) -> None:
    names = knobs(runs[1:], 2, shipped())
    assert len(names) == 2
    assert all(reduce_changes(runs[1], name) for name in names)


def reduce_changes(one: Explored, name: str) -> bool:
    return one.seconds(moved(shipped(), {name: 0.5})) != one.seconds(shipped())


def test_other_runs_are_refused_in_one_line(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topology", "trn2.48xlarge", "--no-graph", "--quiet", "--out",
                str(tmp_path / "t")]) == 0  # fmt: skip
    capsys.readouterr()
    assert run(["explore", str(tmp_path / "t"), "--json"]) == 2
    assert "runs of train, collective, sweep can be explored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"cluster": "trn2.48xlarge", "jitter": 0.01}, "ran with --jitter, which sliders leave"),
        ({"clusters": "trn2.48xlarge,dgx-h100"}, "holds several clusters, trn2.48xlarge,dgx-h100"),
    ],
)
def test_runs_that_sliders_cannot_answer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: dict[str, object], message: str
) -> None:
    record = {"command": "train", "inputs": inputs}
    monkeypatch.setattr("experiments.explore.answers.read_record", lambda folder: record)
    with pytest.raises(InputError, match=message):
        read_runs([tmp_path])


def test_a_missing_panel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "panel", None)
    with pytest.raises(InputError, match=r"pip install 'cluster-sim\[explore\]'"):
        panel()


@pytest.mark.skipif(importlib.util.find_spec("panel") is None, reason="Panel is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_page_has_a_slider_for_each_number(runs: list[Explored]) -> None:
    from experiments.explore.page import page

    left, right = page(runs, {}, ["trn2.link_bandwidth"], shipped())
    assert [one.name for one in left[1:]] == ["trn2.link_bandwidth ×"]
    assert len(right) == 1
