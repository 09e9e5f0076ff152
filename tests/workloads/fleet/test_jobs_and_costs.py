"""Jobs of a fleet, their files, and what a change of role costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.toy_fleet import slower
from topologies.errors import InputError
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, read_jobs


def test_sizes_and_rates_of_jobs() -> None:
    job = TrainingJob("j", units=100, min_units=10, step_units=20, tokens_per_s=((10, 1.0),))
    assert [job.fits(n) for n in (9, 10, 29, 30, 99, 1000)] == [0, 10, 10, 30, 90, 90]
    curve = TrainingJob("k", units=100, tokens_per_s=((10, 100.0), (100, 500.0)))
    assert curve.rate(5) == 50.0
    assert curve.rate(200) == 1000.0
    assert 100 < curve.rate(30) < 500


@pytest.mark.parametrize("units", [1, 2, 63, 64, 7812])
def test_default_jobs_fit_any_fleet(units: int) -> None:
    assert all(job.min_units <= units for job in default_jobs(units))


def test_jobs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "name,units,min_units,step_units,count,iteration_s,step_tokens,reclaim,evaluation\n"
        "big,16,4,4,1,2.0,1000,shrink,\n"
        "small,2,,,3,,,,\n"
        "eval,8,,,,,,,1\n"
    )
    big, *small, evaluation = read_jobs(path)
    assert (big.rate(16), big.fits(10)) == (500.0, 8)
    assert [job.name for job in small] == ["small-1", "small-2", "small-3"]
    assert all(job.fixed for job in small)
    assert evaluation.evaluation
    assert evaluation.min_units == 1
    assert evaluation.reclaim == "drain"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,unit\na,1\n", "has no 'unit'.*Did you mean units"),
        ("name\na\n", "no column 'units'"),
        ("name,units\na,many\n", "row 2: units is 'many'"),
        ("name,units\na,0\n", "min_units 0, units 0"),
        ("name,units,reclaim\na,2,paus\n", "reclaim 'paus' is none of .*Did you mean pause"),
        ("name,units,reclaim\na,2,drain\n", "evaluation is given back by draining"),
        ("name,units,count\na,2,99999\n", "more than 1,000 jobs"),
        ("name,units,priority\na,2,1.5\n", "row 2: priority is '1.5'; it must be a whole number"),
        ("name,units\na,2.5\n", "row 2: units is '2.5'; it must be a whole number"),
        ("name,units,evaluation\na,2,yes\n", "row 2: evaluation is 'yes'"),
        ("name,units,evaluation\na,2,2\n", "row 2: evaluation is '2'; write 1 or 0"),
        ("name,units\n", "has no rows below its header"),
        (
            "name,units,tokens_per_s\na,2,1e300\n",
            "tokens_per_s is '1e300'; it must be .* from 0 to",
        ),
        ("name,units\na,2\na,3\n", "2 jobs are called 'a'. Give each its own name"),
    ],
)
def test_bad_job_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_jobs(path)


def test_costs_come_from_the_catalogue_and_scale() -> None:
    costs = ChangeCosts.from_catalogue(4)
    nvme = costs.load_s(4 * 0.75e12)
    assert nvme == pytest.approx(85, rel=0.01)
    assert slower(costs, 2.0).load_s(4 * 0.75e12) == pytest.approx(2 * nvme)
    assert 300 < costs.to_serving_s(4 * 0.75e12) < 900
    assert ChangeCosts.fixed(300.0).to_serving_s(1e15) == 300.0
    with pytest.raises(InputError, match="Did you mean nvme"):
        ChangeCosts.from_catalogue(4, source="nvm")
    with pytest.raises(InputError, match="below 0"):
        ChangeCosts.fixed(-1.0)
