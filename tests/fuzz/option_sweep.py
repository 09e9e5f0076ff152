"""Every option beside every base command: it changes the answer, is named, or is refused."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.cli.main import app, run
from experiments.cli.options.from_fields import DescribedOption
from experiments.sweeps.runner import run_row
from tests.fuzz.option_values import CANNOT_CHANGE_THE_ANSWER, values_of

MEASURED = ("build_s", "simulate_s", "peak_rss_bytes", "wall_s", "search_s")
"""Keys whose values differ from run to run."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one option beside a base command."""

    kind: str  # ``changes``, ``named``, ``refused``; ``nothing`` is a defect, as is ``crashed``
    detail: str  # what changed, the remark or the message


def options_of(command: str) -> dict[str, DescribedOption]:
    """Return the options of a command by name, without those that can change no number."""
    params = app.get_command(None, command).params
    by_name = {_name(item): item for item in params if isinstance(item, DescribedOption)}
    return {name: by_name[name] for name in by_name if name not in CANNOT_CHANGE_THE_ANSWER}


def _name(option: DescribedOption) -> str:
    return next(flag for flag in option.opts if flag.startswith("--")).removeprefix("--")


def answer(words: tuple[str, ...]) -> Mapping[str, Any]:
    return run_row(run, [*words, "--json", "--quiet"])


def verdicts(
    base: tuple[str, ...], names: Container[str] | None = None
) -> Iterator[tuple[tuple[str, ...], Verdict]]:
    """Yield the verdict on every setting of all or some options that a base does not state."""
    usual = answer(base)
    if usual["status"] != "ok":
        raise ValueError(f"{' '.join(base)}: {usual['message']}")
    stated = {word.partition("=")[0] for word in base if word.startswith("--")}
    for name, option in options_of(base[0]).items():
        if not stated.isdisjoint((*option.opts, *option.secondary_opts)):
            continue
        if names is not None and name not in names:
            continue
        for words in values_of(option):
            yield words, judge(name, usual, answer((*base, *words)))


def judge(name: str, usual: Mapping[str, Any], other: Mapping[str, Any]) -> Verdict:
    if other["status"] == "refused":
        return Verdict("refused", other["message"])
    if other["status"] != "ok":
        return Verdict("crashed", other["message"])
    remark = _remark(name, other["document"])
    if remark:
        return Verdict("named", remark)
    before, after = (dict(_leaves(each["document"], name)) for each in (usual, other))
    moved = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    # A part that an answer has only with the option is no echo of it.
    field = name.replace("-", "_")
    if field not in usual["document"] and isinstance(other["document"].get(field), Mapping):
        moved.append(field)
    return Verdict("changes", moved[0]) if moved else Verdict("nothing", "")


def _remark(name: str, document: Mapping[str, Any]) -> str:
    """Return the remark of an answer that an option changes nothing; empty without one."""
    field = name.replace("-", "_")
    idle = document.get("without_effect", {})
    for key in (field, f"{field}_bytes"):
        if key in idle:
            return str(idle[key])
    notes = [note for note in document.get("notes", []) if f"--{name} " in note]
    return next((note for note in notes if "changes nothing" in note), "")


def _leaves(value: Any, name: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield places and values of an answer, without an echo of the option and measured times."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            echo = key == name.replace("-", "_") and not isinstance(item, list)
            if key in MEASURED:
                yield f"{place}.{key}", type(item).__name__
            elif not echo and key not in ("plan", "inputs"):
                yield from _leaves(item, name, f"{place}.{key}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, name, f"{place}[{index}]")
    else:
        yield place, value
