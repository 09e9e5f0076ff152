"""Every option of every command changes the answer, is named as idle, or is refused."""

from collections import defaultdict

import pytest

from experiments.cli.main import app
from experiments.cli.options.from_fields import DescribedOption
from tests.fuzz.option_sweep import Verdict, answer, judge, options_of, verdicts
from tests.fuzz.option_values import CANNOT_CHANGE_THE_ANSWER, values_of
from tests.fuzz.sweep_bases import BINDING, NOT_SWEPT, QUICK, SLOW, write_files
from tests.support.quick_steps import quick_steps
from topologies.support.options import Option

__all__ = ["quick_steps"]

NOT_BINDING = {
    "algorithm": "auto may take the algorithm that is stated, or there is a single one",
    "cap": "a fleet may never need as many units",
    "catalogue": "prices and plain units read no rate of memory or links",
    "changes-per-minute": "a policy may change fewer roles than that",
    "compute": "recorded times are the default where no other chip is known",
    "communication": "a trace may have no communication",
    "count": "a log may be shorter",
    "chips": "one rank a chip is the default",
    "dp": "the ranks that remain are the default",
    "failures": "a small fleet may have none in half a day",
    "floor": "more units may serve anyway",
    "fp8-exchange": "short exchanges are latencies alone",
    "headroom": "rounding to whole units may leave the number as it is",
    "hysteresis": "demand may leave more units idle than that, or none",
    "lease": "a policy may lend for longer anyway",
    "level": "levels that fit a plan may give the same time to the picosecond",
    "memory-margin": "small models leave more than that free",
    "noise": "rounding to whole units may leave the number as it is",
    "notice": "a policy may reclaim nothing that has to be saved first",
    "objective": "the fastest plan may also be the cheapest",
    "order": "on a symmetric torus two orders may take the same time",
    "place": "jobs may be in no more domains than they need anyway",
    "poll": "requests that never overlap wait for no pass",
    "price-basis": "a command may have no price in its answer",
    "quantile": "a forecast without history has no errors",
    "reserve": "more units may be left over anyway",
    "sbuf": "links may be slower than HBM",
    "slo": "limits far away may be kept by all requests or by none",
    "slots": "requests that never overlap need one slot",
    "stragglers": "a short run on few chips may have none",
    "token-price": "revenue is stated once tokens are served",
    "variant": "a command may not read that number of its machine, such as a price",
}
"""Options that are read and yet may change nothing where something else decides."""


def defects(base):
    """Options of a base command that are read by nothing, or that crash it."""
    by_option = defaultdict[str, list[tuple[str, Verdict]]](list)
    for (word, *_), verdict in verdicts(base):
        name = word.partition("=")[0].removeprefix("--").removeprefix("no-")
        by_option[name].append((word, verdict))
    return [
        f"{' '.join(base)} {words}: {verdict.kind} {verdict.detail}"
        for name, outcomes in by_option.items()
        for words, verdict in outcomes
        if verdict.kind == "crashed" or (_is_idle(outcomes) and name not in NOT_BINDING)
    ]


def _is_idle(outcomes):
    by_words = {word: verdict.kind for word, verdict in outcomes}
    if "changes" in by_words.values():
        return False
    # Where a flag is refused, denying it states what is so.
    return any(
        kind == "nothing" and by_words.get(word.replace("--no-", "--", 1)) != "refused"
        for word, kind in by_words.items()
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_inputs(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("base", QUICK, ids=" ".join)
def test_no_option_is_read_by_nothing(base):
    assert not defects(base)


@pytest.mark.slow
@pytest.mark.parametrize("base", SLOW, ids=" ".join)
def test_no_option_is_read_by_nothing_in_longer_runs(base):
    assert not defects(base)


@pytest.mark.slow
@pytest.mark.parametrize("base", {base[0]: base for base in (*SLOW, *QUICK)}.values(), ids=" ".join)
@pytest.mark.parametrize("value", ["FP8", "nan", ":"])
def test_a_value_of_another_kind_crashes_no_command(base, value):
    for name, option in options_of(base[0]).items():
        if option.is_flag:
            continue
        outcome = answer((*base, f"--{name}={value}"))
        assert outcome["status"] in ("ok", "refused"), (name, outcome["message"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_BINDING)
def test_an_option_that_may_bind_nothing_does_so_somewhere(name):
    bases = [base for base in (*BINDING, *QUICK, *SLOW) if name in options_of(base[0])]
    outcomes = (verdict for base in bases for _, verdict in verdicts(base, {name}))
    assert any(verdict.kind == "changes" for verdict in outcomes)


def test_every_command_is_swept():
    assert {base[0] for base in (*QUICK, *SLOW)} == set(app.list_commands(None)) - set(NOT_SWEPT)


def test_every_option_has_values():
    """A new option fails here until it has choices, a number's limits, or values in the table."""
    for command in set(app.list_commands(None)) - set(NOT_SWEPT):
        for name, described in options_of(command).items():
            assert values_of(described), f"{command} --{name}"


def test_exceptions_are_options_and_none_is_excused_twice():
    commands = [app.get_command(None, name) for name in app.list_commands(None)]
    every = {flag for command in commands for item in command.params for flag in item.opts}
    assert {f"--{name}" for name in NOT_BINDING} <= every
    assert not set(NOT_BINDING) & set(CANNOT_CHANGE_THE_ANSWER)


def test_an_option_that_nothing_reads_is_found():
    usual = {"status": "ok", "document": {"time_s": 1.0, "build_s": 0.1, "skew": None}}
    echoed = {"status": "ok", "document": {"time_s": 1.0, "build_s": 0.2, "skew": 3.0}}
    noted = {"status": "ok", "document": {"notes": ["--skew 3 changes nothing here."]}}
    named = {"status": "ok", "document": {"without_effect": {"skew": "it is even"}}}
    slower = {"status": "ok", "document": {"time_s": 2.0, "build_s": 0.1, "skew": 3.0}}
    refused = {"status": "refused", "message": "leave it out"}
    kinds = [judge("skew", usual, each).kind for each in (echoed, noted, named, slower, refused)]
    assert kinds == ["nothing", "named", "named", "changes", "refused"]
    added = {"status": "ok", "document": {**usual["document"], "as_user": {"plan": 0.1}}}
    assert judge("as-user", usual, added).kind == "changes"


def test_an_option_of_a_new_kind_needs_values():
    from experiments.cli.options.from_fields import click_parameter

    made_up = click_parameter("pace", str, Option("Pace of the run"), None)
    assert isinstance(made_up, DescribedOption)
    with pytest.raises(LookupError, match="--pace: write values of it"):
        values_of(made_up)
