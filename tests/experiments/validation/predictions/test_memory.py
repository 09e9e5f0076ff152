"""Validation rows about memory: the need of a rank, and whether a plan fits."""

from collections import Counter
from dataclasses import replace

import pytest

from experiments.validation.comparison import compare, summary, told
from experiments.validation.predictions.training import Steps, predict_memory
from experiments.validation.reading.rows import TRAINING, read_text, table, tables
from tests.support.commands import document_of, printed_by

PLAN = "name,cluster,chips,layers,hidden,heads,seq,ffn,vocab,gated_mlp,tp,zero,recompute"
SMALL = "small,dgx-h100,8,4,1024,16,1024,4096,32000,1,8,1,none"
LARGE = "large,dgx-h100,8,96,12288,96,2048,49152,51200,0,8,1,none"


def test_rows_of_memory_are_told_from_rows_of_time_by_what_they_state():
    assert read_text(f"{PLAN},fits\n{SMALL},1\n", "mine.csv").kind.name == "memory"
    assert read_text(f"{PLAN},memory_bytes\n{SMALL},1e9\n", "mine.csv").kind.name == "training"
    both = f"{PLAN},iteration_s,memory_bytes\n{SMALL},1,1e9\n"
    assert read_text(both, "mine.csv").kind.name == "training"


def test_what_fits_and_what_does_not_is_counted():
    lines = (f"{SMALL},1,", f"{SMALL},0,", f"{LARGE},0,", f"{LARGE},1,2e11", f"{LARGE},,")
    rows = read_text("\n".join((f"{PLAN},fits,memory_bytes", *lines)), "mine.csv")
    compared = compare(rows, predict_memory)
    numbers = summary(compared)
    ends = [f"{end}_told_{how}" for end in ("ran", "failed") for how in ("to_fit", "too_large")]
    assert (numbers["fits"], numbers["ok"]) == (dict.fromkeys(ends, 1), 5)
    assert compared[3]["quantity"] == "memory_bytes"
    assert compared[3]["predicted"] == pytest.approx(3.2e11, rel=0.5)
    assert compared[3]["predicted_reserved_bytes"] > compared[3]["predicted"]


def test_memory_beside_a_time_has_errors_of_its_own():
    lines = (f"{SMALL},0.1,2e9,", f"{SMALL},0.1,,4e9", f"{SMALL},0.2,,")
    head = f"{PLAN},iteration_s,memory_bytes,reserved_bytes"
    compared = compare(read_text("\n".join((head, *lines)), "mine.csv"), Steps().predict)
    numbers = summary(compared)["quantities"]
    rows = {name: one["rows"] for name, one in numbers.items()}
    assert rows == {"memory_bytes": 1, "reserved_bytes": 1}
    first = compared[0]
    assert numbers["memory_bytes"]["bias"] == first["predicted_memory_bytes"] / 2e9 - 1
    assert "quantities" not in summary(compared[2:])


def judged(name: str, every: int = 1) -> dict[str, int]:
    """Counts of a table's plans that ran and that failed, by what they are told."""
    rows = table(name).rows()
    rows = replace(rows, rows=rows.rows[::every])
    return told(compare(rows, predict_memory), unstated="1" if rows.kind is TRAINING else "")


@pytest.mark.parametrize(
    ("every", "ran", "failed"),
    [pytest.param(1, (536, 1), (28, 549), marks=pytest.mark.slow), (25, (22, 0), (2, 21))],
)
def test_runs_out_of_memory_are_known_beforehand(every, ran, failed):
    """Nanotron made 1,114 runs on H100s, of which 577 ran out of memory."""
    counts = judged("nanotron_memory", every)
    assert (counts["ran_told_to_fit"], counts.get("ran_told_too_large", 0)) == ran
    assert (counts["failed_told_to_fit"], counts["failed_told_too_large"]) == failed


@pytest.mark.slow
def test_few_plans_that_ran_are_refused():
    """Five of NeMo's move activations to the host, which no row states."""
    counts = Counter[str]()
    for name, one in tables().items():
        if one.rows().kind is TRAINING:
            counts.update(judged(name))
    assert counts.total() > 1600
    assert counts["ran_told_too_large"] / counts.total() < 0.03


def test_the_command_shows_memory_on_a_line_of_its_own(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"{PLAN},fits,memory_bytes,states_bytes\n{SMALL},1,2e9,1e9\n")
    shown = printed_by(f"validate --file {path}")
    assert "states_bytes" in shown
    assert "plans that ran, predicted to fit: 1." in shown
    document = document_of(f"validate --file {path}")
    assert document["summary"]["fits"] == {"ran_told_to_fit": 1}
