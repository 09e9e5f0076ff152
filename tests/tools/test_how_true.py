"""The page of errors by kind of work and by chip."""

from importlib.resources import files

import pandas as pd
import pytest

from tools.how_true import CHIPS, KINDS, LEFT_OUT, lines, page


@pytest.fixture(scope="module")
def residuals() -> pd.DataFrame:
    return pd.read_csv(str(files("workloads.confidence") / "residuals.csv"))


def test_every_measured_kind_is_on_the_page(residuals):
    of_chips = residuals[residuals.chip.isin(CHIPS) & (residuals.kind != LEFT_OUT)]
    table = lines(residuals)
    assert table.rows.sum() == len(of_chips)
    assert {kind for kind, _ in table.index} == set(KINDS)


def test_errors_are_those_of_the_residuals():
    logs = {"log_residual": [0.0, -0.1, 0.2], "table": ["a", "a", "b"]}
    rows = pd.DataFrame({"kind": "kernel.product", "chip": "h100", **logs})
    table = lines(rows)
    (line,) = table.itertuples()
    assert (line.Index, line.rows, line.tables) == (("kernel", "h100"), 3, 2)
    assert line.median == pytest.approx(0.105, abs=1e-3)
    text = page(table, {"h100": {"measured": 4}})
    assert "\n| h100 | 10.5 / 16.6 (-2.5) | – | – | – | – |\n" in text
    assert "\n| h100 | 3 in 2 | – | – | – | – |\n" in text
    assert "\n| h100 | 4 | 0 | 0 | 0 |\n" in text
