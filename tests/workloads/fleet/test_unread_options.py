"""Options of policies that change nothing are named, and each policy reads what it states."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from topologies.errors import InputError
from workloads.fleet.policies.kind import PolicyKind, Settings, Situation
from workloads.fleet.policies.registry import KINDS
from workloads.fleet.unread_options import SETTINGS, unread_options, unread_with_unit_rate
from workloads.options.fleet import FleetInputs
from workloads.options.policy import LimitInputs, PolicyInputs


class Watched:
    """Settings that note which of their fields were read."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.read = settings, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._settings, name)


@pytest.mark.parametrize("name", KINDS)
def test_each_policy_states_what_it_reads(name: str) -> None:
    watched = Watched(Settings(power_cap_w=1e6))
    KINDS[name].build(
        watched,  # type: ignore[arg-type]
        Situation(need=np.ones((1, 60)), lead_s=60.0, back_s=60.0, priced=True),
    )
    assert watched.read == set(KINDS[name].reads)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("hedroom", "Did you mean headroom?"), ("zebra", "There are headroom, hysteresis, hold_s, ")],
)
def test_a_kind_that_reads_no_such_setting_is_refused(name: str, remedy: str) -> None:
    build = KINDS["oracle"].build
    with pytest.raises(InputError) as caught:
        PolicyKind("mine", "a policy of my own", build, reads=("headroom", name))
    message = str(caught.value)
    assert message.startswith(
        f"policy mine reads {name!r}, which is no field of Settings. {remedy}"
    )


def test_every_setting_has_an_option() -> None:
    assert set(SETTINGS.values()) == {field.name for field in dataclasses.fields(Settings)}
    options = {field.name for field in dataclasses.fields(PolicyInputs)}
    assert set(SETTINGS) <= options


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"policy": "threshold", "hold": "1h"}, []),
        ({"policy": "threshold"}, []),
        (
            {"policy": "oracle", "hold": "1h", "power_cap": 2.0},
            [
                "--hold 1h changes nothing under policy oracle; threshold reads it.",
                "--power-cap 2.0 changes nothing under policy oracle; mpc, power-cap and "
                "mpc-oracle read it.",
            ],
        ),
        (
            {"policy": "mpc", "price_share": 0.3},
            ["--price-share 0.3 changes nothing without prices; add --price FILE.csv."],
        ),
        (
            {"policy": "mine.py", "quantile": 0.5},
            [
                "--quantile 0.5 changes nothing under policy mine.py; forecast, mpc, price and "
                "power-cap read it.",
            ],
        ),
    ],
)
def test_what_no_policy_reads_is_named(changes: dict[str, Any], expected: list[str]) -> None:
    assert unread_options(PolicyInputs(**changes, compare=False), priced=False) == expected


def test_comparison_reads_what_static_reads() -> None:
    stated = PolicyInputs(policy="threshold", static_units=5.0)
    assert unread_options(stated, priced=False) == []
    alone = dataclasses.replace(stated, compare=False)
    assert len(unread_options(alone, priced=False)) == 1


@pytest.mark.parametrize(
    ("fleet", "limits", "names"),
    [
        ({}, {"weights": "store"}, []),
        ({"tp": 8}, {"change_time": "5min"}, []),
        ({"unit_rate": 5.0, "slo": "ttft=9s"}, {}, ["--slo ttft=9s"]),
        ({"unit_rate": 5.0}, {"weights": "store"}, ["--weights store"]),
        ({}, {"weights": "host", "change_time": "0s"}, ["--weights host"]),
    ],
)
def test_what_a_stated_rate_or_time_leaves_unread(
    fleet: dict[str, Any], limits: dict[str, Any], names: list[str]
) -> None:
    remarks = unread_with_unit_rate(FleetInputs(**fleet), LimitInputs(**limits))
    assert [remark.partition(" changes nothing ")[0] for remark in remarks] == names
