"""Jobs from files and dictionaries, and the chips that they get."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by
from tests.support.toy_training import TOY
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.sharing.jobs import PLACEMENTS, chips_of_jobs, read_jobs
from workloads.sharing.sharing import share

MACHINE = cluster("trn2.48xlarge:4")
JOB = {"name": "a", "model": TOY, "tp": 4, "dp": 2, "seq": 1024}


@dataclass(frozen=True)
class Asked:
    """A job that only asks for chips."""

    name: str
    chips: int
    placement: str = "packed"
    start: int | None = None


B = {"name": "b"}


@pytest.mark.parametrize(("jobs", "message"), [
    ([{"tps": 8}], "job a has no 'tps'. Did you mean tp?"),
    ([{"model": None}], "job a: model is None"),
    ([{"dp": None}], "job a: dp is None; it must be a whole number"),
    ([{"placement": "pack"}], "placement 'pack' is none of packed, server, domain, rack, "),
    ([{"start": 64}], "job a: start '64' must be a whole number from 0 to 63"),
    ([{"chips": 0}], "job a: chips '0' must be a whole number from 1 to 64"),
    ([{"chips": 12}], "job a: dp 2 × tp 4 × pp 1 = 8 ranks, but the cluster has 12 chips"),
    ([{"start": 1, "placement": "packed"}], "job a states placement and start."),
    ([{"recompute": "some"}], "recompute is 'some'"),
    ([{"starts_at": 90}], "job a: starts_at 90 has no unit. Write a time, such as 90min."),
    ([{"starts_at": "-1s"}], "job a: starts_at '-1s'"),
    ([{"steps": 0}], "job a: steps '0' must be a whole number from 1 to 1,000,000,000."),
    ([{"steps": True}], "job a: steps 'True' must be a whole number"),
    # where there is no room
    ([{}, {**B, "dp": 16}], "the jobs use 72 chips (a 8, b 64), but"),
    ([{"start": 0}, {**B, "start": 7}], "jobs a and b both use chip 7. Start b elsewhere."),
    ([{"start": 57}], "Start it at 56 at most."),
    ([{"start": 4}, {**B, "dp": 14, "placement": "domain"}], "placement domain finds 48 free"),
    ([{"model": "llama-3.1-405b", "tp": 8, "dp": 1}],
     "job a: the plan needs 926.1 GB a rank, which has 103"),
])  # fmt: skip
def test_a_mistaken_job_is_refused_by_name(jobs, message):
    text = refusal_by(share, MACHINE, [{**JOB, **job} for job in jobs])
    assert message in text


@pytest.mark.parametrize(("text", "message"), [
    ("job: []", "has no 'job'. Did you mean jobs?"),
    ("jobs: {}", "jobs is no list of jobs."),
    ("jobs: []", "jobs is empty."),
    ("jobs: [{name: a, model: gpt2}]", "job a: states neither chips nor dp"),
    ("jobs: [{name: a, model: gpt3, dp: 1}]", "job a: unknown model 'gpt3'"),
    ("jobs: [{name: a, dp: 1}]", "job a has no model."),
    ("jobs: [{dp: 1}]", "job 1 has no model."),
    ("jobs: [{name: a, model: gpt2, dp: 1}, {name: a, model: gpt2, dp: 1}]",
     "two jobs are called a."),
])  # fmt: skip
def test_a_mistaken_file_is_refused_in_one_line(text, message, tmp_path):
    (path := tmp_path / "jobs.yaml").write_text(text)
    refusal = refusal_by(read_jobs, path, MACHINE)
    assert message in refusal
    assert refusal.startswith(str(path))


def test_a_job_takes_fields_from_a_plan_file_beside_the_jobs(tmp_path):
    (tmp_path / "plan.yaml").write_text("tp: 4\npp: 2\n")
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: [{name: a, model: llama-3.1-8b, plan: plan.yaml, pp: 1, chips: 8}]")
    (job,) = read_jobs(path, MACHINE)
    assert (job.plan.tp, job.plan.pp, job.plan.dp, job.chips) == (4, 1, 2, 8)


@pytest.mark.parametrize(
    ("machine", "microbatch", "framework"),
    [
        ("tpu7x-pod", 6, "maxtext:fetched"),
        ("tpu-v5p-pod", 3, "maxtext:fetched"),
        ("trn2.48xlarge", 3, ""),
    ],
)
def test_a_file_of_maxtext_fits_the_chips(tmp_path, machine, microbatch, framework):
    """A chip of TPU7x is two devices to JAX, each with a batch of its own."""
    (tmp_path / "a.yml").write_text("base_config: base.yml\nper_device_batch_size: 3\n")
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: [{name: a, model: llama-3.1-8b, plan: a.yml, chips: 16}]")
    (job,) = read_jobs(path, cluster(machine))
    assert (job.plan.microbatch, job.plan.framework) == (microbatch, framework)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(list(PLACEMENTS))), max_size=4),
    st.integers(0, 60),
)
def test_jobs_get_as_many_chips_as_they_ask_for_and_share_none(sizes, start):
    jobs = [Asked(f"job{n}", chips, name) for n, (chips, name) in enumerate(sizes)]
    jobs.append(Asked("fixed", 4, start=start))
    try:
        places = chips_of_jobs(jobs, MACHINE)
    except InputError:
        return
    every = np.concatenate(places)
    assert [len(chips) for chips in places] == [job.chips for job in jobs]
    assert len(np.unique(every)) == len(every)
    assert every.max() < MACHINE.chips
    assert places[-1].tolist() == list(range(start, start + 4))


def test_placements_give_whole_servers_domains_and_equal_parts():
    ultra = cluster("trn2-ultraserver:2")
    pair = [Asked("a", 24), Asked("b", 8)]
    places = {name: chips_of_jobs(pair, ultra, name) for name in ("packed", "server", "domain")}
    firsts = {name: [int(chips[0]) for chips in place] for name, place in places.items()}
    assert firsts == {"packed": [0, 24], "server": [0, 32], "domain": [0, 64]}
    spread = chips_of_jobs(pair, ultra, "spread")
    assert [np.bincount(chips // 64).tolist() for chips in spread] == [[12, 12], [4, 4]]
    assert spread[1].tolist() == [12, 13, 14, 15, 76, 77, 78, 79]
    (fifths,) = chips_of_jobs([Asked("c", 20)], MACHINE, "spread")
    assert np.bincount(fifths // 16).tolist() == [5, 5, 5, 5]
