"""What no fleet can have, and what would change nothing, is refused or named in one line."""

from pathlib import Path

import pytest

import cluster_sim as cs
from experiments.cli.main import run
from tests.support.refusals import refused
from workloads.options.fleet import FleetInputs

KINDS = ("trn2-ultraserver:6", "trn3-gen2:3")
REGIONS = {"us": ["trn2-ultraserver:6", "trn3-gen2:1"], "eu": "trn3-gen2:2"}
ZONES = ("us=-8:70%", "eu=+1:30%")
RATE = {"unit_rate": 5.0}
OF_ONE = (
    ({"start_day": 900}, "day 900 is not before the end of a demand of"),
    ({"model": ","}, "--model ',' has an empty name"),
    ({"model": "gpt2,"}, "has an empty name"),
    ({"post_training": "lockstepp"}, r"Did you mean lockstep\?"),
    ({"post_training": "lockstep", "training": "jobs.csv"}, "is for the default jobs, which --tra"),
    ({"batch_deadline": "4h"}, "without a batch tier"),
    ({"batch_share": "20%", "batch_demand": "azure-code"}, "give a share"),
    ({"power_cap": 0.0}, "power cap of 0 MW"),
    ({"cluster": ()}, "run_fleet has no cluster; name one, such as 'trn2-ultraserver:20'"),
    ({"cluster": "tpu-v6e-pod:2", "power_cap": 3.0, "training": "rated.csv"},
     "catalogue has no power of tpu-v6e-pod"),
    ({"serve_on": "fastest"}, "all of this one are trn2-ult"),
    ({"region": ZONES, "cluster": "trn2-ultraserver:6"}, "region us has no chips"),
    ({"carbon_price": 40.0}, "--carbon-price 40 without prices"),
    ({"carbon_price": 40.0, "price": "plain.csv"}, "no column carbon_g_per_kwh; add it"),
    ({"price": "regions.csv"}, "the fleet has none; state --region"),
)  # fmt: skip
OF_KINDS = (
    ({"serve_on": "trn3-gen1"}, "'trn3-gen1' is no kind of the fleet; choose from trn2-ultra"),
    ({"serve_on": "trn3-gen2,trn3-gen2"}, "is stated twice"),
    ({"serve_on": ""}, "'' is no kind of the fleet"),
    ({"serve_on": ("trn3-gen2", "cheapest")}, "2 placements for one run"),
    ({"training": "big.csv"}, r"job big needs 5 units, trn3-gen2 has 3 units; make the job sma"),
    ({"training": "plain_job.csv"}, "states no kind of units; write one of trn2-ultra"),
    ({"training": "other_job.csv"}, "states kind 'h100'; write one of"),
    ({"cluster": ("p6-b300.48xlarge:2", "trn3-gen2"), "serve_on": "cheapest"},
     r"no price of p6-b300\.48xlarge"),
    ({"cluster": ("trn1.32xlarge:2", "trn3-gen2"), "unit_rate": None},
     r"llama-3\.1-405b .*trn1\.32xlarge"),
)  # fmt: skip
OF_REGIONS = (
    ({"region": "us=-8:70%"}, "in region 'eu'; write NAME:COUNT@ and one of us"),
    ({"region": (*ZONES, "asia=9:10%")}, "region asia has no chips; state some by --kind"),
    ({"region": (*ZONES, "us=9:10%")}, "--region us=9:10% is not a new name"),
    ({"region": "us"}, "--region us is not a new name, hours from -24 to 24 and a share"),
    ({"region": ("us=30:1%", "eu=0:1%")}, "hours from -24 to 24"),
    ({"region": ("us=-8:-5%", "eu=0:50%")}, "has a share below 0"),
    ({"region": ()}, "in region 'us'; add --region us=0:100%"),
    ({"round_trip": "us/mars=1s"}, "not a new round trip between two regions of us, eu"),
    ({"round_trip": "us/us=1s"}, "not a new round trip"),
    ({"round_trip": ("us/eu=1s", "eu/us=2s")}, "--round-trip eu/us=2s is not a new round trip"),
    ({"round_trip": "us/eu=1min"}, "is longer than 10 s"),
    ({"round_trip": "us/eu=x"}, "--round-trip us/eu=x"),
    ({"days": 0.5}, "--region needs whole days, and the demand with its history has 0.5"),
    ({"cluster": {**REGIONS, "": "trn3-gen1"}}, "^trn3-gen1.* states no region; write NAME:COUNT@"),
    ({"cluster": {}}, "run_fleet has no cluster"),
    ({"carbon": 300.0, "price": "regions.csv"}, "--carbon 300 beside the column carbon_g_per_kwh"),
    (
        {"region": ("us=0:50%", "asia=0:50%"), "cluster": {"us": KINDS[0], "asia": KINDS[1]},
         "price": "regions.csv"},
        "no rows of region asia; add them",
    ),
)  # fmt: skip
"""Words of a fleet of one kind, of several, and of regions, each with a part of its refusal."""
USUAL = {**RATE, "days": 1, "policy": "threshold", "failures": "off"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the tables name."""
    monkeypatch.chdir(tmp_path)
    hours = range(24)
    for name, lines in (
        ("plain.csv", ["hour,usd_per_mwh", *(f"{hour},50" for hour in hours)]),
        ("regions.csv", ["region,hour,usd_per_mwh,carbon_g_per_kwh",
                         *(f"{at},{hour},50,20" for at in ("us", "eu") for hour in hours)]),
        ("big.csv", ["name,units,kind", "big,5,trn3-gen2"]),
        ("plain_job.csv", ["name,units", "x,1"]),
        ("rated.csv", ["name,units,tokens_per_s", "x,1,9"]),
        ("other_job.csv", ["name,units,kind", "x,1,h100"]),
    ):  # fmt: skip
        Path(name).write_text("\n".join([*lines, ""]))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "message"), [
    *(({"cluster": KINDS[0], **words}, message) for words, message in OF_ONE),
    *(({"cluster": KINDS, **words}, message) for words, message in OF_KINDS),
    *(
        ({"cluster": REGIONS, "region": ZONES, **words}, message)
        for words, message in OF_REGIONS
    ),
])  # fmt: skip
def test_a_mistake_is_one_line(words, message):
    refused(message, cs.run_fleet, demand="azure-code", **{**USUAL, **words})


@pytest.mark.parametrize(("words", "named"), [
    ({"tp": 8}, "--tp changes"),
    ({"prefill": "separate"}, "--prefill changes"),
    ({"chunk": 512}, "--chunk changes"),
    ({"precision": "fp8"}, "--precision changes"),
    ({"cache": "kept"}, "--cache changes"),
    ({"tp": 8, "prefix_cache": "50%"}, "^--tp and --prefix-cache change"),
])  # fmt: skip
def test_settings_of_replicas_change_nothing_beside_a_rate(words, named):
    refused(f"{named} nothing beside --unit-rate", FleetInputs, unit_rate=3.0, **words)


@pytest.mark.parametrize("cluster", [["a", "b"], {"us": "a"}, "trn2-ultraserver:8,trn3-gen2:4"])
def test_lending_of_several_kinds_says_what_to_ask_instead(cluster):
    refused("one kind of units in one region; ask for each", cs.lend, cluster, "burstgpt")


@pytest.mark.parametrize(("more", "note"), [
    ([], "changes nothing without a batch tier"),
    (["--batch-share", "20%"], "changes nothing without a price of tokens"),
    (["--batch-share", "20%", "--token-price", "2"], ""),
])  # fmt: skip
def test_a_discount_that_no_request_gets_is_named(more, note, capsys):
    words = "fleet --cluster trn2-ultraserver:4 --unit-rate 4 --quiet --days 0.05 --policy static"
    assert run([*words.split(), "--no-compare", "--batch-discount", "0.3", *more]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "--batch-discount" in line]
    assert bool(notes) == bool(note)
    assert all(note in line for line in notes)


def test_a_wrong_job_is_refused_before_the_demand_is_read(tmp_path):
    """A unit's capacity, which takes a minute, comes after the demand."""
    (jobs := tmp_path / "jobs.csv").write_text("name,units\nnight,many\n")
    refused(r"jobs\.csv.*many", cs.run_fleet, "trn2-ultraserver:6", "no-such-demand", training=jobs)
