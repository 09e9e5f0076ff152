"""Wrong values and types of every argument of the front door are refused in one line."""

import inspect
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.main import run
from tests.support.refusals import refusal_by, refused
from workloads.fleet.front import OPTIONS as GROUPS
from workloads.fleet.lending.front import GROUPS as LENDING
from workloads.fleet.scenario import keywords_of
from workloads.options.job import JobInputs
from workloads.serving.front import WORDS
from workloads.training.detail import Detail
from workloads.training.plan.plan import PLAN_FIELDS

WRONG = (
    *(-1, 3.7, 10**30, float("nan"), float("inf"), True, None, "", "zzz", b"x", Path("/nowhere/x")),
    *([], {}, [None], ("a", 2), range(3), np.arange(3), object(), pd.DataFrame({"a": [1]})),
)
"""Values that are wrong for most arguments; some take a few of them."""
MACHINE, FLEET = "trn2.48xlarge", "trn2-ultraserver:20"

KEYWORDS_OF = {
    "train": [*PLAN_FIELDS, *(field.name for field in fields(Detail))],
    "search_plans": list(PLAN_FIELDS),
    "search_sizes": list(PLAN_FIELDS),
    "serve": list(WORDS),
    "run_job": [field.name for field in fields(JobInputs)],
    "run_fleet": keywords_of(cs.run_fleet, *GROUPS),
    "lend": keywords_of(cs.lend, *LENDING),
}
"""Names that a function takes as ``**keywords``."""
SLOW = {"train", "search_plans", "search_sizes", "serve", "run_job", "run_fleet", "lend"}
"""Functions that simulate for long where they take a value."""


@cache
def _trace():
    group = cs.Group(cs.cluster(MACHINE), range(4))
    return cs.simulate(cs.collective("all-reduce", group, size_bytes=2**16, algorithm="ring"))


@cache
def _step():
    return cs.train("llama-3.2-1b", MACHINE, tp=4, global_batch=8, seq=512)


@cache
def _recorded():
    """Directory of a recorded run."""
    folder = f"{tempfile.mkdtemp()}/run"
    line = ["collective", "all-reduce", MACHINE, "--size", "1KiB", "--json", "--out", folder]
    assert run(line) == 0
    return folder


def _arguments(folder):
    """Arguments of a quick call of every function."""
    (goal := folder / "one.goal").write_text("num_ranks 1\nrank 0 {\nl1: calc 1000\n}\n")
    machine, model = cs.cluster(MACHINE), {"model": "llama-3.2-1b", "cluster": MACHINE}
    call = {"kind": "all-reduce", "group": cs.Group(machine, range(4)), "size_bytes": 2**16}
    trace = {"trace": _trace()}
    shape = {"model": "gpt2", "tp": 2, "dp": 2, "global_batch": 4, "seq": 128}
    jobs = [{"name": name, **shape} for name in ("a", "b")]
    return {
        "Group": {"cluster": machine, "chips": range(4)},
        "Plan": {},
        "cluster": {"text": MACHINE},
        "collective": call,
        "compare": {"first": _recorded(), "second": _recorded()},
        "collective_time": call,
        "lend": {"cluster": FLEET, "history": "burstgpt", "unit_rate": 9.0},
        "model": {"text": "gpt2"},
        "queue_jobs": {"cluster": MACHINE, "jobs": [{"submit": "0s", "chips": 1, "time": "1h"}]},
        "replay": {"paths": goal, "cluster": MACHINE},
        "run_fleet": {"cluster": FLEET, "unit_rate": 5.0, "days": 0.05, "policy": "static"},
        "run_job": {"step": _step(), "days": 2, "runs": 1},
        "search_plans": {
            **{"model": "gpt2", "cluster": MACHINE, "global_batch": 16, "finalists": 1},
            **{"quiet": True, "tp": 1, "pp": 1, "recompute": "none", "zero": 1},
        },
        "search_sizes": {
            **{"model": "gpt2", "cluster": MACHINE, "global_batch": 64, "finalists": 1},
            **{"quiet": True, "tp": 1, "pp": 1, "recompute": "none", "zero": 1, "microbatch": 1},
            **{"tokens": "1G", "days": 9},
        },
        "serve": {**model, "requests": "poisson:1", "count": 5, "tp": 8},
        "share": {"cluster": MACHINE, "jobs": jobs, "steps": 1},
        "simulate": {"schedule": _trace().schedule},
        "train": {**model, "tp": 4, "global_batch": 8, "seq": 512},
        "validate": {"table_or_file": "korthikanti_layers"},
        **{f"metrics.{name}": trace for name in cs.metrics.__all__},
        "metrics.overlap": {**trace, "order": ["wire"]},
        "metrics.time_by_category": {**trace, "order": ["wire"]},
        "plot.link_map": {**trace, "cluster": machine},
        "plot.timeline": trace,
        "plot.write_timeline": {**trace, "path": folder / "timeline.pftrace.gz"},
    }


FUNCTIONS = {
    **{name: getattr(cs, name) for name in cs.__all__ if callable(getattr(cs, name))},
    **{f"metrics.{name}": getattr(cs.metrics, name) for name in cs.metrics.__all__},
    **{f"plot.{name}": getattr(cs.plot, name) for name in cs.plot.__all__},
}
OF_ARRAYS = {"InputError", "Schedule", "Trace", "plot.Legend"}
"""Types that users receive and seldom build; builders check what goes into a schedule."""


def test_every_function_of_the_front_door_is_tried(tmp_path):
    assert set(_arguments(tmp_path)) == set(FUNCTIONS) - OF_ARRAYS


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in sorted(FUNCTIONS.keys() - OF_ARRAYS)
])  # fmt: skip
def test_a_wrong_value_is_taken_or_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a text is taken for a path, it is written here
    function, right = FUNCTIONS[name], _arguments(tmp_path)[name]
    listed = inspect.signature(function).parameters.values()
    names = [each.name for each in listed if each.kind is not inspect.Parameter.VAR_KEYWORD]
    messages = []
    for argument in dict.fromkeys([*names, *KEYWORDS_OF.get(name, ())]):
        if (name, argument) == ("validate", "workers"):
            continue  # a table is compared whole for each number that is taken
        for value in WRONG:
            try:  # a bare AttributeError, KeyError or TypeError ends the test
                function(**{**right, argument: value})
            except ValueError as mistake:
                messages.append((argument, value, str(mistake)))
    wrong = [each for each in messages if "\n" in each[2] or "truth value" in each[2]]
    assert not wrong
    assert len(messages) >= len(WRONG)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - OF_ARRAYS))
def test_every_misspelt_argument_is_refused_by_name(name, tmp_path):
    function, right = FUNCTIONS[name], _arguments(tmp_path)[name]
    listed = inspect.signature(function).parameters.values()
    names = [each.name for each in listed if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for argument in dict.fromkeys([*names, *KEYWORDS_OF.get(name, ())]):
        misspelt = argument + argument[-1]
        message = refusal_by(function, **{**right, misspelt: 1})
        assert repr(misspelt) in message
        assert "Did you mean " in message, message  # of two near names it may be the other


ANY = cs  # callers without types, as in a notebook
MODEL = "llama-3.2-1b"


@pytest.mark.parametrize(("call", "message"), [
    (lambda: cs.metrics.resource_use(5), r"^trace is 5 \(int\)\. Pass a Trace\.$"),
    (lambda: cs.Group(MACHINE, [0]), r"^cluster is 'trn2\.48xlarge' \(str\)\. Pass a Cluster"),
    (lambda: cs.Group(cs.cluster(MACHINE), "0-3"), r"^chips .* are '0-3'\. Pass"),
    (lambda: cs.Group(cs.cluster(MACHINE), [0.5]), r"^chips .* are \[0\.5\]\. Pass"),
    (lambda: cs.serve("gpt2", MACHINE, slots="9"), r"^slots is '9' \(str\)\. Pass a whole num"),
    (lambda: cs.serve(MODEL, ["a"]), r"^cluster is \['a'\] \(list\)"),
    (lambda: cs.serve(MODEL, MACHINE, 5), r"^requests is 5 \(int\)\. Pass poisson:RATE"),
    (lambda: cs.run_fleet(FLEET, policy=5), r"^policy is 5 \(int\)\. Pass a"),
    (lambda: cs.replay([], MACHINE), r"^no trace is given\. Pass a file"),
    (lambda: cs.Plan(stage_layers=5), r"^stage_layers is 5; it must be a tuple, such as"),
    (lambda: cs.train("gpt2", MACHINE, engine="SimPy"), r"^engine 'SimPy' is none of fast"),
    (lambda: cs.train("gpt2", MACHINE, chips="x"), r"^chips is 'x'; it must be a list"),
    (lambda: cs.train("gpt2", MACHINE, seed=2), r"^seed changes nothing without jitter\."),
    (lambda: cs.train(None, MACHINE), r"^model is None \(NoneType\)\. Pass"),
    (lambda: ANY.train(MODEL, MACHINE, {"tp": 4}), r"^plan is \{'tp': 4\} \(dict\)\. Pass"),
    (lambda: cs.search_plans(MODEL, 16, 64), r"^cluster is 16"),
    (lambda: cs.run_job(MODEL, days=1), r"^step is 'llama-3.2-1b' \(str\)\. Pass"),
    (lambda: cs.simulate(None), r"^schedule is None \(NoneType\)\. Pass a Schedule"),
    (lambda: cs.collective("all-reduce", 16, size_bytes=1), r"^group is 16 \(int\)"),
    (lambda: cs.collective("all-reduce", MACHINE, size_bytes=1.5),
     r"^a size of 1\.5 B is not a whole number of bytes$"),
    (lambda: cs.collective("all-reduce", MACHINE, size_bytes=float("nan")),
     r"^a size of nan B is not between 0 and"),
    (lambda: cs.cluster(Path("pod.yaml")), r"^cluster is .*Pass a name"),
    (lambda: cs.model(["gpt2"]), r"^model is .*Pass a name"),
])  # fmt: skip
def test_the_message_names_argument_value_and_remedy(call, message):
    refused(message, call)


def test_a_negative_seed_is_refused_by_name(tmp_path):
    """One that reaches numpy is refused in words that name no seed."""
    tried = set()
    for name, right in _arguments(tmp_path).items():
        names = {*inspect.signature(FUNCTIONS[name]).parameters, *KEYWORDS_OF.get(name, ())}
        for seed in (each for each in names if each.endswith("seed")):
            refused(f"^{seed} is -1; it must be 0 or more", FUNCTIONS[name], **{**right, seed: -1})
            tried.add(name)
    assert {"serve", "run_fleet", "run_job"} <= tried


def test_one_value_may_be_written_in_several_ways(tmp_path):
    path = _arguments(tmp_path)["replay"]["paths"]
    times = {cs.replay(paths, MACHINE).iteration_s for paths in (path, str(path), [path])}
    sizes = {len(cs.collective("all-reduce", MACHINE, size_bytes=size)) for size in (1e6, 10**6)}
    assert len(times) == len(sizes) == 1
