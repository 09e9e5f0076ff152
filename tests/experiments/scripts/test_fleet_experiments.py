"""Experiments and commands of the fleet at toy size."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")

from experiments.scripts import fleet
from tests.support.commands import document_of
from topologies.support.errors import InputError

SMALL = "trn2-ultraserver:20"


@pytest.mark.slow
def test_role_change_value_falls_with_time():
    where = "trn2-ultraserver:50"
    frame = fleet.role_change_value(cluster=where, minutes=(5, 60), days=1.5, target=0.98)
    assert set(frame["method"]) == {"study, reactive", "study, with yesterday", "fleet, threshold"}
    reactive = frame[frame["method"] == "study, reactive"]["freed_share"].to_numpy()
    assert reactive[0] > reactive[1]
    fleet_rows = frame[frame["method"] == "fleet, threshold"]
    assert np.all(fleet_rows["slo_attainment"] >= 0.98)
    assert fleet_rows["freed_share"].between(0.0, 1.0).all()
    assert fleet.draw_role_change_value(frame).axes[0].get_xlabel().startswith("time from an order")


def test_role_change_value_needs_more_than_its_first_day():
    message = "a load of 0.2 days is too short for changes that take 60 minutes"
    with pytest.raises(InputError, match=f"{message}.* Give at least 2 days"):
        fleet.role_change_value(cluster=SMALL, minutes=(5, 60), days=0.2)


@pytest.mark.slow
def test_policy_frontier_holds_every_policy():
    where = {"cluster": SMALL, "model": "llama-3.1-70b"}
    frame = fleet.policy_frontier(**where, days=0.5, headrooms=(0.1, 0.5))
    assert set(frame["policy"]) == {"static", "threshold", "forecast", "mpc", "oracle", "clock"}
    threshold = frame[frame["policy"] == "threshold"]
    assert threshold["training_share"].is_monotonic_decreasing
    assert frame["share_of_requests_in_time"].between(0, 1).all()
    assert frame["training_share_difference_low"].isna().all()  # half a day says nothing of others
    axes = fleet.draw_policy_frontier(frame).axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 6
    assert "of requests in time" in axes.get_title(loc="left")


@pytest.mark.slow
def test_policy_frontier_states_how_sure_each_difference_is():
    frame = fleet.policy_frontier(cluster=SMALL, model="llama-3.1-70b", days=2.0, headrooms=(0.1,))
    names = (f"training_share_difference{end}" for end in ("", "_low", "_high"))
    difference, low, high = (frame[name] for name in names)
    assert ((low <= difference + 1e-12) & (difference <= high + 1e-12)).all()
    best = frame[difference == 0.0]
    assert best["policy"].tolist() != ["oracle"]
    assert (best["training_share_difference_high"] == 0.0).all()
    beyond = frame["training_share"] - best["training_share"].iloc[0]
    assert difference.to_numpy() == pytest.approx(beyond.to_numpy())


def test_fleet_command_reproduces_the_ideal_split(tmp_path):
    """Free changes, foresight, hourly demand: 1 − mean / peak of the file's own numbers."""
    load = [50, 20, 80, 100, 10, 60]
    path = tmp_path / "mine.csv"
    path.write_text("hour,requests\n" + "".join(f"{h},{n}\n" for h, n in enumerate(load)))
    document = document_of(
        f"fleet --cluster trn2-ultraserver:1000 --demand {path} --scale-to-peak 1 --policy oracle "
        "--change-time 0s --failures off --unit-rate 100 --no-compare --no-intervals"
    )
    share = document["training_chip_hours"] / document["chip_hours"]
    assert share == pytest.approx(1 - np.mean(load) / max(load), abs=0.001)
    assert document["slo_attainment"] == 1.0
    assert document["served_tokens"] == document["offered_tokens"]


def test_fleet_command_writes_a_run_directory(tmp_path):
    document = document_of(
        f"fleet --cluster {SMALL} --demand azure-conv --unit-rate 2 --policy threshold --days 0.1 "
        f"--noise 0.05 --out {tmp_path / 'run'}"
    )
    wanted = {
        "slo_attainment", "served_tokens", "training_goodput", "role_changes", "energy_joules",
        "cost_usd", "regret",
    }  # fmt: skip
    assert wanted <= set(document)
    assert len(pd.read_parquet(tmp_path / "run" / "timeline.parquet")) == 144
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"roles.png", "power.svg", "jobs.csv", "report.html"} <= written


ALONE = f"fleet --cluster {SMALL} --unit-rate 2 --no-compare --no-intervals"


def test_fleet_command_takes_a_users_policy(tmp_path):
    (mine := tmp_path / "mine.py").write_text("def policy(view):\n    return 7\n")
    document = document_of(f"{ALONE} --policy {mine} --days 0.05 --failures off")
    assert document["inference_chip_hours"] == pytest.approx(7 * 64 * 1.2)


def test_fleet_command_holds_training_while_electricity_is_dear(tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("hour,usd_per_mwh\n" + "".join(f"{h},{10 * (h + 1)}\n" for h in range(24)))
    free = document_of(f"{ALONE} --days 0.25")
    document = document_of(f"{ALONE} --days 0.25 --price {prices} --price-cap 40")
    assert document["held_minutes"] == 120
    assert document["electricity_usd"] > 0
    assert document["training_chip_hours"] < free["training_chip_hours"]


def test_a_forecast_without_history_says_so():
    line = f"{ALONE} --days 0.05"
    note = str(document_of(line)["notes"])
    assert "--start-day 1 gives it a day of history" in note
    # What else the notes say: these 72 minutes need 22 of 20 units at times.
    for more in ("--start-day=1", "--policy=threshold"):
        notes = str(document_of(line, more)["notes"])
        assert "more than the fleet has" in notes
        assert "--start-day" not in notes


@pytest.mark.parametrize(("target", "runs"), [(0.0, 2), (1.1, 3)])
def test_the_largest_headroom_is_run_only_where_no_smaller_one_suffices(target, runs, monkeypatch):
    from workloads.fleet import scenario as module

    runs_done = []
    run = module.run

    def counted(*inputs, **options):
        runs_done.append(1)
        return run(*inputs, **options)

    monkeypatch.setattr(fleet, "run_scenario", counted)
    monkeypatch.setattr(fleet, "BISECTIONS", 2)
    frame = fleet.role_change_value(cluster=SMALL, minutes=(5,), days=1.25, target=target)
    assert len(runs_done) == runs
    whole = frame[frame["method"] == "fleet, threshold"].iloc[0]
    assert (whole.headroom == fleet.MOST_HEADROOM) == (target > 1)
