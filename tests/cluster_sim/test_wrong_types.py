"""Arguments of a wrong type at the front door are refused in one line, without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cluster_sim as cs

MODEL, NODE = "llama-3.2-1b", "trn2.48xlarge"
ANY: Any = cs  # callers without types, as in a notebook


def _group() -> cs.Group:
    return cs.Group(cs.cluster(NODE), range(4))


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "a cluster for training": (lambda: ANY.train(MODEL, 16), r"^cluster is 16 \(int\)\. Pass"),
    "a model for training": (lambda: ANY.train(None, NODE), r"^model is None \(NoneType\)\. Pass"),
    "a plan": (lambda: ANY.train(MODEL, NODE, {"tp": 4}), r"^plan is \{'tp': 4\} \(dict\)\. Pass"),
    "a cluster to search": (lambda: ANY.search_plans(MODEL, 16, 64), r"^cluster is 16"),
    "a cluster to serve": (lambda: ANY.serve(MODEL, ["a"]), r"^cluster is \['a'\] \(list\)"),
    "requests": (lambda: ANY.serve(MODEL, NODE, 5), r"^requests is 5 \(int\)\. Pass poisson:RATE"),
    "a fleet": (lambda: ANY.run_fleet(64), r"^cluster is 64 \(int\)"),
    "a fleet that lends": (lambda: ANY.lend(64, "azure-code"), r"^cluster is 64 \(int\)"),
    "a step": (lambda: ANY.run_job(MODEL, days=1), r"^step is 'llama-3.2-1b' \(str\)\. Pass"),
    "a schedule": (lambda: ANY.simulate(None), r"^schedule is None \(NoneType\)\. Pass a Schedule"),
    "a cluster for traces": (lambda: ANY.replay([], 16), r"^cluster is 16"),
    "a group": (lambda: ANY.collective("all-reduce", 16, size_bytes=1), r"^group is 16 \(int\)"),
    "chips as text": (lambda: ANY.Group(cs.cluster(NODE), "0-3"), r"^chips .* are '0-3'\. Pass"),
    "half a chip": (lambda: ANY.Group(cs.cluster(NODE), [0.5]), r"^chips .* are \[0\.5\]\. Pass"),
    "half a byte": (
        lambda: cs.collective("all-reduce", _group(), size_bytes=1.5),
        r"^a size of 1\.5 B is not a whole number of bytes$",
    ),
    "no number of bytes": (
        lambda: cs.collective("all-reduce", _group(), size_bytes=float("nan")),
        r"^a size of nan B is not between 0 and",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_an_argument_of_a_wrong_type_is_refused_in_one_line(what: str) -> None:
    call, message = CALLS[what]
    with pytest.raises(cs.InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_single_trace_may_stand_without_a_list(tmp_path: Any) -> None:
    path = tmp_path / "one.goal"
    path.write_text("num_ranks 1\nrank 0 {\nl1: calc 1000\n}\n")
    assert cs.replay(path, NODE).iteration_s == cs.replay([path], NODE).iteration_s
    assert cs.replay(str(path), NODE).iteration_s == cs.replay([path], NODE).iteration_s


def test_a_whole_number_of_bytes_may_be_written_as_a_float() -> None:
    assert len(cs.collective("all-reduce", _group(), size_bytes=1e6)) == len(
        cs.collective("all-reduce", _group(), size_bytes=10**6)
    )


@pytest.mark.parametrize("value", [5, None, ["trn2.48xlarge"], Path("pod.yaml")])
def test_a_cluster_is_named_by_text(value: Any) -> None:
    with pytest.raises(cs.InputError, match=r"^cluster is .*Pass a name"):
        cs.cluster(value)


@pytest.mark.parametrize("value", [5, None, ["gpt2"]])
def test_a_model_is_named_by_text_or_path(value: Any) -> None:
    with pytest.raises(cs.InputError, match=r"^model is .*Pass a name"):
        cs.model(value)
