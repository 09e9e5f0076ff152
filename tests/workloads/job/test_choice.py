"""The plan that a job takes if no degree of parallelism is stated."""

from __future__ import annotations

import pytest

from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.job.choice import USUAL, job_plan
from workloads.models.huggingface import named
from workloads.search import search


def test_the_chosen_plan_has_the_least_estimate() -> None:
    """The same as the search's first finalist, whose simulation is spared."""
    model, where = named("llama-3.1-8b"), cluster("trn2.48xlarge:4")
    stated = {**USUAL, "zero": 1, "recompute": "selective", "seq": 8192}
    best = search(model, where, where.chips, stated=stated, finalists=1).finalists[0]
    assert job_plan({}, model, where) == best.plan


def test_a_stated_degree_is_kept_and_the_rest_filled_in() -> None:
    plan = job_plan({"tp": 4, "global_batch": 64}, named("llama-3.1-8b"), cluster("trn2.48xlarge"))
    assert (plan.tp, plan.dp) == (4, 4)


def test_a_model_that_fits_in_no_way_is_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match="State --tp, --pp and the like"):
        job_plan({}, named("llama-3.1-405b"), cluster("trn2.48xlarge"))
