"""Experiments and commands of the fleet at toy size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

mpl.use("Agg")

from experiments.cli.main import app
from experiments.scripts import fleet
from tests.support.commands import document_of
from topologies.errors import InputError

SMALL = "trn2-ultraserver:20"


def _command(name: str, *arguments: str) -> dict[str, object]:
    return document_of([name, *arguments, "--json"])


def _refused(name: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, [name, *arguments])
    assert isinstance(done.exception, InputError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.mark.slow
def test_role_change_value_falls_with_time() -> None:
    frame = fleet.role_change_value(
        cluster="trn2-ultraserver:50", minutes=(5, 60), days=1.5, target=0.98
    )
    assert set(frame["method"]) == {"study, reactive", "study, with yesterday", "fleet, threshold"}
    reactive = frame[frame["method"] == "study, reactive"]["freed_share"].to_numpy()
    assert reactive[0] > reactive[1]
    fleet_rows = frame[frame["method"] == "fleet, threshold"]
    assert np.all(fleet_rows["slo_attainment"] >= 0.98)
    assert fleet.draw_role_change_value(frame).axes[0].get_xlabel().startswith("time from an order")


def test_role_change_value_needs_more_than_its_first_day() -> None:
    message = "a load of 0.2 days is too short for changes that take 60 minutes"
    with pytest.raises(InputError, match=f"{message}.* Give at least 2 days"):
        fleet.role_change_value(cluster=SMALL, minutes=(5, 60), days=0.2)


@pytest.mark.slow
def test_policy_frontier_holds_every_policy() -> None:
    frame = fleet.policy_frontier(
        cluster=SMALL, model="llama-3.1-70b", days=0.5, headrooms=(0.1, 0.5)
    )
    assert set(frame["policy"]) == {"static", "threshold", "forecast", "mpc", "oracle", "clock"}
    threshold = frame[frame["policy"] == "threshold"]
    assert threshold["training_share"].is_monotonic_decreasing
    assert frame["share_of_requests_in_time"].between(0, 1).all()
    assert frame["training_share_difference_low"].isna().all()  # half a day says nothing of others
    axes = fleet.draw_policy_frontier(frame).axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 6
    assert "of requests in time" in axes.get_title(loc="left")


@pytest.mark.slow
def test_policy_frontier_states_how_sure_each_difference_is() -> None:
    frame = fleet.policy_frontier(cluster=SMALL, model="llama-3.1-70b", days=2.0, headrooms=(0.1,))
    difference, low, high = (
        frame[f"training_share_difference{end}"] for end in ("", "_low", "_high")
    )
    assert ((low <= difference + 1e-12) & (difference <= high + 1e-12)).all()
    best = frame[difference == 0.0]
    assert best["policy"].tolist() != ["oracle"]
    assert (best["training_share_difference_high"] == 0.0).all()
    assert difference.to_numpy() == pytest.approx(
        (frame["training_share"] - best["training_share"].iloc[0]).to_numpy()
    )


def test_fleet_command_reproduces_the_ideal_split(tmp_path: Path) -> None:
    """Free changes, foresight, hourly demand: 1 − mean / peak of the file's own numbers."""
    load = [50, 20, 80, 100, 10, 60]
    path = tmp_path / "mine.csv"
    path.write_text("hour,requests\n" + "".join(f"{h},{n}\n" for h, n in enumerate(load)))
    document = _command(
        "fleet",
        "--cluster", "trn2-ultraserver:1000",
        "--demand", str(path),
        "--scale-to-peak", "1",
        "--policy", "oracle",
        "--change-time", "0s",
        "--failures", "off",
        "--unit-rate", "100",
        "--no-compare",
    )  # fmt: skip
    share = document["training_chip_hours"] / document["chip_hours"]  # type: ignore[operator]
    assert share == pytest.approx(1 - np.mean(load) / max(load), abs=0.001)
    assert document["slo_attainment"] == 1.0
    assert document["served_tokens"] == document["offered_tokens"]


def test_fleet_command_writes_a_run_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    document = _command(
        "fleet",
        "--cluster", SMALL,
        "--demand", "azure-conv",
        "--model", "llama-3.1-70b",
        "--policy", "threshold",
        "--days", "0.1",
        "--noise", "0.05",
        "--out", str(out),
    )  # fmt: skip
    keys = ("inference", "training", "moving", "idle", "broken")
    hours = sum(document[f"{key}_chip_hours"] for key in keys)  # type: ignore[misc]
    assert hours == pytest.approx(document["chip_hours"])
    wanted = {
        "slo_attainment", "served_tokens", "training_goodput", "role_changes", "energy_joules",
        "cost_usd", "regret",
    }  # fmt: skip
    assert wanted <= set(document)
    timeline = pd.read_parquet(out / "timeline.parquet")
    assert len(timeline) == 144
    assert {"roles.png", "power.svg", "jobs.csv", "report.html"} <= {
        path.name for path in out.iterdir()
    }


def test_fleet_command_takes_a_users_policy(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def policy(view):\n    return 7\n")
    document = _command(
        "fleet",
        "--cluster", SMALL,
        "--policy", str(mine),
        "--days", "0.05",
        "--unit-rate", "2",
        "--failures", "off",
        "--no-compare",
    )  # fmt: skip
    assert document["inference_chip_hours"] == pytest.approx(7 * 64 * 1.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "treshold"], "Did you mean threshold"),
        (["--demand", "azure-cod"], "Did you mean azure-code"),
        (["--failures", "maybe"], "choose from on, off, domains"),
        (["--noise", "loud"], "write none, measured"),
        (["--night", "late"], "write hours such as 22-6"),
        (["--days", "9"], "choose fewer days"),
        (["--what-if", "flood"], "unknown what-if"),
        (["--weights", "disk"], "choose from store, nvme"),
        (["--scale-to-peak", "0"], "peak share of 0"),
        (["--training", "none.csv"], "there is no such file"),
        (["--cluster", "ring:8"], "ring:8 is a plain shape without chips"),
        (["--block", "100"], "a block of 100 units: the fleet has 20"),
        (["--average", "inf"], "--average inf is not a whole number of minutes"),
        (["--average", "90s"], "--average 90s is not a whole number of minutes"),
        (["--change-time", "5"], "--change-time '5' has no unit"),
        (["--price-cap", "50"], "--price-cap 50 without prices; add --price FILE.csv."),
        (["--price", "none.csv"], "price file none.csv cannot be read: there is no such file"),
    ],
)
def test_fleet_mistakes(arguments: list[str], message: str) -> None:
    base = ["--cluster", SMALL, "--unit-rate", "2", "--no-compare", "--days", "0.05"]
    assert message in _refused("fleet", *base, *arguments)


def test_fleet_command_holds_training_while_electricity_is_dear(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("hour,usd_per_mwh\n" + "".join(f"{h},{10 * (h + 1)}\n" for h in range(24)))
    base = ["--cluster", SMALL, "--unit-rate", "2", "--no-compare", "--days", "0.25"]
    document = _command("fleet", *base, "--price", str(prices), "--price-cap", "40")
    assert document["held_minutes"] == 120
    assert document["electricity_usd"] > 0  # type: ignore[operator]
    assert document["training_chip_hours"] < _command("fleet", *base)["training_chip_hours"]  # type: ignore[operator]


def test_a_forecast_without_history_says_so() -> None:
    base = ["--cluster", SMALL, "--unit-rate", "2", "--no-compare", "--days", "0.05"]
    note = str(_command("fleet", *base)["notes"])
    assert "--start-day 1 gives it a day of history" in note
    # What else the notes say: these 72 minutes need 22 of 20 units at times.
    for more in (("--start-day", "1"), ("--policy", "threshold")):
        notes = str(_command("fleet", *base, *more)["notes"])
        assert "more than the fleet has" in notes
        assert "--start-day" not in notes


def test_serve_command(tmp_path: Path) -> None:
    document = _command(
        "serve",
        "--model", "llama-3.1-70b",
        "--cluster", "trn2.48xlarge",
        "--requests", "poisson:0.5",
        "--count", "50",
        "--slo", "ttft=2s,tpot=50ms",
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    wanted = {
        "ttft_s", "tpot_s", "tokens_per_s", "request_goodput_per_s", "kv_peak_bytes", "batch_mean",
    }  # fmt: skip
    assert wanted <= set(document)
    assert document["ttft_s"]["n"] == 50  # type: ignore[index]
    assert (tmp_path / "run" / "metrics.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests", "poisson:fast"], "write poisson:0.5"),
        (["--requests", "none.csv"], "there is no such file"),
        (["--prefill", "chunky"], "Did you mean chunked"),
        (["--slo", "latency=2s"], "not of the form"),
        (["--tp", "99"], "within one scale-up domain of 16 chips. Use 1 to 16 chips, or up to 64"),
        (["--tp", "3"], "tp 3 divides neither the 64 heads of llama-3.1-70b nor the 16 chips"),
        (["--tp", "33"], "Use 1, 2, 4, 8, 16 chips"),
        (["--cluster", "ring:8"], "ring:8 is a plain shape without chips"),
        (["--precision", "fp4"], "cannot serve in fp4 on trn2; it computes in bf16, fp16, fp8"),
        (["--slo", "ttft=2s,ttft=3s"], "names ttft twice"),
        (["--requests", "poisson:inf"], "the rate must be above 0 and below 1e+09"),
        (["--requests", "poisson:1e-9"], "take over 1,000,000,000 s"),
        (["--service", "chat"], "service 'chat' is none of"),
        (["--prefill", "separate", "--chunk", "64"], "--chunk 64 cuts prompts"),
        (["--model", "llama-3.1-70"], "Did you mean llama-3.1-70b"),
    ],
)
def test_serve_mistakes(arguments: list[str], message: str) -> None:
    base = ["--model", "llama-3.1-70b", "--cluster", "trn2.48xlarge"]
    assert message in _refused("serve", *base, *arguments)


@pytest.mark.parametrize(("target", "runs"), [(0.0, 2), (1.1, 3)])
def test_the_largest_headroom_is_run_only_where_no_smaller_one_suffices(
    target: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.fleet import scenario as module

    runs_done: list[int] = []
    run = module.run

    def counted(*inputs: Any, **options: Any) -> Any:
        runs_done.append(1)
        return run(*inputs, **options)

    monkeypatch.setattr(fleet, "run_scenario", counted)
    monkeypatch.setattr(fleet, "BISECTIONS", 2)
    frame = fleet.role_change_value(cluster=SMALL, minutes=(5,), days=1.25, target=target)
    assert len(runs_done) == runs
    whole = frame[frame["method"] == "fleet, threshold"].iloc[0]
    assert (whole.headroom == fleet.MOST_HEADROOM) == (target > 1)
