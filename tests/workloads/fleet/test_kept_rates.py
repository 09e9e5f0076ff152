"""Kept training rates are equal to computed ones, and are named by all their inputs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from topologies.support.files import kept_files
from workloads.fleet.setup import night_work
from workloads.fleet.setup.night_work import TrainingRate, rate_digest, training_rate
from workloads.models.huggingface import named
from workloads.training.plan.plan import ParallelPlan

MODEL = named("llama-3.1-8b")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_files.FOLDER_VARIABLE, str(tmp_path))
    kept_files.folders.cache_clear()
    yield tmp_path
    kept_files.folders.cache_clear()


@pytest.mark.parametrize("plan", [None, ParallelPlan(tp=4, pp=2, stage_layers=(9, 7))])
def test_a_rate_is_searched_once_and_kept_exactly(plan, monkeypatch):
    searched = iter([TrainingRate(2, 1 / 3, plan)])
    monkeypatch.setattr(night_work, "_searched", lambda *inputs: next(searched))
    monkeypatch.setattr(night_work, "_roofline_tokens_per_s", lambda *inputs: 5.0)
    rates = [training_rate(MODEL, cluster("trn2.48xlarge")) for _ in range(2)]
    assert rates == [TrainingRate(2, 1 / 3, plan) if plan else TrainingRate(1, 5.0)] * 2


@pytest.mark.parametrize(("machine", "units"), [
    ("trn2.48xlarge:64", 8),
    ("trn2.48xlarge:2", 2),
    ("trn2-ultraserver:16", 2),
    ("dgx-h100:9", 8),
])  # fmt: skip
def test_a_plan_is_searched_on_128_chips_or_most_of_a_small_fleet(machine, units, monkeypatch):
    searched, plan = [], ParallelPlan(tp=8)
    speeds = {"none": 6.0, "selective": 7.0}

    def search(_model, part, chips, *, stated, **_how):
        """Note the machine that is searched; a plan fits it if nothing or little runs again."""
        searched.append((part.domains, chips, stated["recompute"]))
        if (speed := speeds.get(stated["recompute"])) is None:
            raise InputError("no plan fits")
        return SimpleNamespace(finalists=[SimpleNamespace(tokens_per_s=speed, plan=plan)])

    monkeypatch.setattr(night_work, "search", search)
    where = cluster(machine)
    larger = replace(where, domains=where.domains + 1, name="larger")
    for each in (where, larger):  # which reads what is kept
        assert training_rate(MODEL, each) == TrainingRate(units, 7.0, plan)
    chips = units * where.chips_per_domain
    assert searched == [(units, chips, name) for name in ("none", "selective", "full")]


@pytest.mark.parametrize(("model", "etp"), [("mixtral-8x7b", 1), ("llama-3.2-1b", None)])
def test_experts_of_a_searched_rate_are_not_cut(model, etp, monkeypatch):
    cuts = []

    def search(*_, stated, **_how):
        """Note the tensor-parallel degree of experts that is stated."""
        cuts.append(stated.get("etp"))
        raise InputError("no plan fits")

    monkeypatch.setattr(night_work, "search", search)
    training_rate(named(model), cluster("trn2-ultraserver:3"))
    assert set(cuts) == {etp}


def test_other_inputs_have_other_names():
    machine = cluster("trn2.48xlarge")
    assert rate_digest(MODEL, machine) == rate_digest(MODEL, cluster("trn2.48xlarge"))
    others = {
        rate_digest(replace(MODEL, layers=31), machine),
        rate_digest(MODEL, replace(machine, domains=machine.domains + 1)),
        rate_digest(MODEL, machine),
    }
    assert len(others) == 3
